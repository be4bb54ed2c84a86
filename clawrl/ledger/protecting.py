"""That all that is private in the file is sealed, and every hash over it keyed, with the keys that it is opened with.

A ledger of an earlier release, or one whose deployment turns ``privacy.encrypt`` on, is brought up to that in one
transaction when it is opened: its open conversations go on, and a crash leaves it as it was. Turning it off unseals
nothing; sealed blobs stay readable as long as their keys are there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from clawrl.ledger import lost_keys
from clawrl.ledger.codec import SEALED_MARK, KeyedVault
from clawrl.ledger.database import Database, LedgerFileError

log = logging.getLogger(__name__)

BLOBS: Mapping[str, tuple[str, ...]] = {
    "arrivals": ("history", "new_messages", "sent", "inputs"),
    "payloads": ("response_text", "answer", "prompt_ids", "response_ids", "response_logps", "sampling"),
    "evidence": ("messages",),
    "judgements": ("opinion",),
    "targets": ("teaching",),
    "feedback": ("comment",),
    "hints": ("hint",),
    "refusals": ("words",),
}
"""The columns that are sealed; no other one holds what was said."""

HASHES: Mapping[str, tuple[str, ...]] = {
    "arrivals": ("prefix_hash", "messages_hash", "answer_hash", "segment"),
    "turns": ("messages_hash", "reply_hash", "answer_hash"),
    "hints": ("digest",),
    "hint_uses": ("digest",),
}
_HAVE_OWNER = {"arrivals", "turns", "hints", "hint_uses"}


def protect(db: Database, *, accept_loss: bool = False) -> bool:
    """Whether something had to be done. Raises `LedgerFileError` where the keys are not those of this ledger.

    ``accept_loss``: keys that are older than the ledger are all there is.
    """
    vault = db.codec.keyed
    if vault is None:
        return False
    with db.transaction():
        known = db.one("SELECT keyring, sealed FROM protection")
        if known is not None and known["keyring"] != vault.keyring:
            raise LedgerFileError(
                f"{db.path} was written with the keys {known['keyring'][:8]}, but these are {vault.keyring[:8]}: name "
                "the folder that holds its keys as privacy.keys_dir, or move the ledger away"
            )
        if known is not None:
            lost_keys.settle(db, vault, accept_loss=accept_loss)
        db.function("sealed", lambda owner, blob: _sealed(db, vault, owner, blob), 2)
        db.function("keyed", db.codec.digest, 2)
        if known is None:
            for table, columns in HASHES.items():
                _rewrite(db, table, "keyed", columns)
        if vault.encrypts and (known is None or not known["sealed"]):
            for table, columns in BLOBS.items():
                _rewrite(db, table, "sealed", columns)
        elif known is not None and bool(known["sealed"]) == vault.encrypts:
            return False
        db.execute(
            "INSERT OR REPLACE INTO protection (only, keyring, sealed) VALUES (1, ?, ?)", vault.keyring, vault.encrypts
        )
        done = bool(db.scalar("SELECT 1 FROM arrivals LIMIT 1"))
    if done:
        db.empty_log()
        log.info("%s is sealed and its hashes keyed with the keys %s", db.path, vault.keyring[:8])
    return done


def _sealed(db: Database, vault: KeyedVault, owner: str, blob: bytes | None) -> bytes | None:
    return blob if blob is None or blob.startswith(SEALED_MARK) else db.codec.seal(owner, blob)


def _rewrite(db: Database, table: str, function: str, columns: tuple[str, ...]) -> None:
    owner = "owner" if table in _HAVE_OWNER else f"(SELECT owner FROM turns t WHERE t.turn_id = {table}.turn_id)"
    db.execute(f"UPDATE {table} SET " + ", ".join(f"{column} = {function}({owner}, {column})" for column in columns))

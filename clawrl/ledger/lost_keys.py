"""Turns whose key is gone, in a ledger that is opened: a backup was put back after somebody had been forgotten.

They count as forgotten: nobody can read them, and they would stand in the way of everybody else's. Not so where the
keys are older than the ledger (an older copy of *them* was put back, and newer users would look forgotten): that is
refused, and nothing is deleted. The ledger remembers the last change to the keys that it has seen; keys of which that
is part of the history are as new, or newer.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator

from clawrl.ledger import key_tags, learned, people
from clawrl.ledger.codec import SEALED_MARK, Altered, KeyedVault
from clawrl.ledger.database import Database, LedgerFileError
from clawrl.ledger.forgetting import forget_unreadable
from clawrl.ledger.hints import digest_of
from clawrl.ledger.permission import keep_wishes
from clawrl.messages import TurnId

log = logging.getLogger(__name__)
_LOOKED_AT = 50
_NAMED = 20


def settle(db: Database, vault: KeyedVault, *, accept_loss: bool) -> None:
    """In a transaction. Raises `LedgerFileError` where the keys are older than the ledger, unless that is accepted."""
    seen = db.scalar("SELECT mark FROM keys_seen")
    older = seen is not None and not vault.knows(seen)
    if older and not accept_loss:
        raise LedgerFileError(
            f"{db.path} was written with newer keys than these: put back the newest copy of the folder "
            "privacy.keys_dir. If that is lost for good, `clawrl forget --lost-keys --deployment FILE` deletes what "
            "cannot be read without it"
        )
    if seen == vault.newest_mark():
        return
    gone: list[TurnId] = []
    whose = 0
    for owner in people.owners(db):
        try:
            if older and vault.has_key(owner):
                # Another key than that of the rows does not tell then that its owner was forgotten since.
                key_tags.note(db, owner)
            theirs = vault.has_key(owner) and not key_tags.is_of_an_earlier_key(db, owner)
            found = list(_unreadable(db, vault, owner) if theirs else _all(db, owner))
        except Altered:
            # Their key is there and damaged, so that nothing tells whether it is theirs. It may come back.
            continue
        for turn_id in found:
            forget_unreadable(db, turn_id)
        _forget_the_rest(db, vault, owner, has_key=theirs)
        gone += found
        whose += bool(found)
    if gone:
        log.warning(
            "%d turns of %d users whose keys are gone count as forgotten: %s%s",
            len(gone),
            whose,
            ", ".join(gone[:_NAMED]),
            ", ..." if len(gone) > _NAMED else "",
        )


def _note(db: Database, vault: KeyedVault) -> None:
    """The newest change to the keys that this ledger may depend on."""
    db.execute("INSERT OR REPLACE INTO keys_seen (only, mark) VALUES (1, ?)", vault.newest_mark())


class KeysSeen:
    """Notes with every commit what changed of the keys since the one before, so that no row outruns the note."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._vault = db.codec.keyed

    def __call__(self) -> None:
        # Asked for, not remembered: a commit that fails takes the note along.
        if self._vault is not None and self._vault.newest_mark() != self._db.scalar("SELECT mark FROM keys_seen"):
            _note(self._db, self._vault)


def _all(db: Database, owner: str) -> Iterator[TurnId]:
    return (row["turn_id"] for row in db.rows("SELECT turn_id FROM arrivals WHERE owner = ?", owner))


def _unreadable(db: Database, vault: KeyedVault, owner: str) -> Iterator[TurnId]:
    # All of an owner's rows have one key, unless somebody wrote to a ledger like this with an earlier release.
    sample = db.rows("SELECT turn_id, new_messages FROM arrivals WHERE owner = ? LIMIT ?", owner, _LOOKED_AT)
    if all(vault.is_current(owner, row["new_messages"]) for row in sample):
        return
    for row in db.rows(
        "SELECT a.turn_id, a.new_messages, p.response_text FROM arrivals a LEFT JOIN payloads p USING (turn_id)"
        " WHERE a.owner = ?",
        owner,
    ):
        blobs = (row["new_messages"], row["response_text"])
        if not all(blob is None or vault.is_current(owner, blob) for blob in blobs):
            yield row["turn_id"]


def _forget_the_rest(db: Database, vault: KeyedVault, owner: str, *, has_key: bool) -> None:
    """What outlives its turns. ``has_key``: the one that these were written under."""
    for row in db.rows("SELECT id, digest, hint FROM hints WHERE owner = ?", owner):
        if not has_key or not _is_theirs(db, vault, owner, row):
            db.execute("DELETE FROM hints WHERE id = ?", row["id"])
    if not has_key:
        db.execute("DELETE FROM hint_uses WHERE owner = ?", owner)
        keep_wishes(db, owner, None)
        learned.take_out(db, owner)
        key_tags.forget(db, owner)


def _is_theirs(db: Database, vault: KeyedVault, owner: str, row: sqlite3.Row) -> bool:
    """Of one that is not sealed only its digest tells; with that of an earlier key nobody would find it again."""
    if row["hint"].startswith(SEALED_MARK):
        return vault.is_current(owner, row["hint"])
    return bool(digest_of(db, owner, db.codec.unpack_json(owner, row["hint"])) == row["digest"])

"""Rows of an export that only their users' keys open, so that to forget a user closes every copy of it, too.

A sealed row has the columns of `OPEN` as they are, ``keyring``, which names the key store, and ``sealed``: the whole
row as JSON under its owner's key, in base64. A row without texts has nothing to seal, and ``sealed`` is null.

Keys are taken where the texts are read, in the ledger's own thread, and the sealing may happen later and elsewhere: a
user who is forgotten in between leaves a row that nobody can open, not one under a new key.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from clawrl.ledger.codec import SEALED_MARK
from clawrl.privacy.keys import Altered, KeyGone, KeyStore, LentKeys, StoredKeys
from clawrl.privacy.vault import SealingVault

Row = dict[str, Any]
_PURPOSE = "export"
OPEN = (
    "turn_id", "seq", "owner", "session", "parent", "kind", "state", "drop_reason", "step", "finished_at",
    "finish_reason", "text_gone", "verdict", "score", "reward", "feedback",
)  # fmt: skip


class NotSealed(ValueError):
    """A row is not one that was sealed here; the text says how it differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSeal:
    """For the owners whose keys it was given."""

    keyring: str
    vault: SealingVault

    @classmethod
    def of(cls, store: KeyStore, owners: Iterable[str]) -> RowSeal:
        stored, lent = StoredKeys.of(store, _PURPOSE), LentKeys()
        lent.lend({owner: stored.obtain(owner) for owner in set(owners)})
        return cls(keyring=store.keyring, vault=SealingVault(lent))

    def seal(self, row: Row) -> Row:
        shown = {name: row[name] for name in OPEN} | {"keyring": self.keyring}
        if row["text_gone"]:
            return shown | {"sealed": None}
        plain = json.dumps(row, allow_nan=False, separators=(",", ":")).encode("ascii")
        return shown | {"sealed": base64.b64encode(self.vault.seal(row["owner"], plain)).decode("ascii")}


class RowOpener:
    """With the keys of the deployment that made the export."""

    def __init__(self, store: KeyStore) -> None:
        self._keyring = store.keyring
        self._vault = SealingVault(StoredKeys.of(store, _PURPOSE))

    def open(self, row: Row) -> Row | None:
        """The row as a plain export has it; ``None`` where its texts are gone. Raises `NotSealed`."""
        if not is_sealed(row):
            raise NotSealed("is not a row of a sealed export")
        if row["keyring"] != self._keyring:
            raise NotSealed(
                f"was sealed with the keys {str(row['keyring'])[:8]}, but these are {self._keyring[:8]}: name the "
                "deployment that made the export, with its privacy.keys_dir"
            )
        if row["sealed"] is None:
            return None
        try:
            sealed = base64.b64decode(row["sealed"], validate=True)
            if not sealed.startswith(SEALED_MARK):
                raise ValueError("it is not sealed")
            found: Row = json.loads(self._vault.unseal(row["owner"], sealed))
        except Altered as error:
            raise NotSealed(f"cannot be opened: {error}") from error
        except KeyGone:
            return None
        except (binascii.Error, TypeError, ValueError) as error:
            raise NotSealed(f"has something else where its sealed part should be: {error}") from error
        if found["turn_id"] != row["turn_id"]:
            raise NotSealed("has the sealed part of another turn")
        return found


def is_sealed(row: Row) -> bool:
    return {*OPEN, "keyring", "sealed"} <= row.keys()

"""The part of the `Ledger` that deletes what people said, when they ask for it or when its time is over."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager

from clawrl.ledger import forgetting, reach, remembering, upkeep
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.database import Database
from clawrl.ledger.forgetting import Forgotten
from clawrl.ledger.remembering import Scope
from clawrl.ledger.screening import Gate
from clawrl.messages import TurnId


class Forgetful:
    _db: Database
    _config: LedgerConfig
    _gate: Gate

    def transaction(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def begin_forgetting(
        self, *, owner: str | None = None, session: str | None = None, turn_id: TurnId | None = None
    ) -> list[Scope]:
        """From now on nothing of this is recorded; `forget_some` deletes what is. See `clawrl.ledger.forgetting`.

        Empty if there is no such session or turn. A session without an owner is that of everybody.
        """
        with self.transaction():
            name = session
            if session is not None and owner is not None:
                name = self._gate.name(owner, session)
            return forgetting.begin(self._db, owner, name, turn_id)

    def forgetting_under_way(self) -> list[Scope]:
        """What a crash left half done."""
        return remembering.under_way(self._db)

    def forget_some(self, scope: Scope) -> Forgotten | None:
        """At most a batch; ``None`` when nothing is left, then call `end_forgetting`."""
        with self.transaction():
            return forgetting.some(self._db, scope)

    def end_forgetting(self, scope: Scope) -> Forgotten:
        """Before it, and after `shred` for a user, a restart begins again; afterwards all of it is gone."""
        with self.transaction():
            return forgetting.end(self._db, scope)

    def shred(self, owner: str) -> bool:
        """The key of this owner is gone for good, on disk and in memory; false where there is none."""
        vault = self._db.codec.keyed
        return vault is not None and vault.shred(owner)

    def empty_log(self) -> bool:
        """Nothing stays in the write-ahead log. Outside a transaction; false while another process reads from it."""
        return self._db.empty_log()

    def versions_with(self, steps: Collection[int]) -> list[int]:
        """The policy versions that learned in any of these steps, oldest first."""
        return reach.versions_with(self._db, steps)

    def expire_text(self, before: float) -> int:
        """Deletes what was said in turns that were finished before then; call again while it returns more than none."""
        with self.transaction():
            return upkeep.expire_text(self._db, self._config, before)

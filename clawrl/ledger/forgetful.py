"""The part of the `Ledger` that deletes what people said, when they ask for it or when its time is over."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager

from clawrl.ledger import forgetting, people, reach, remembering, upkeep
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.database import Database
from clawrl.ledger.forgetting import Begun
from clawrl.ledger.forgotten import Forgotten
from clawrl.ledger.remembering import Call, Scope
from clawrl.ledger.screening import Gate
from clawrl.messages import Arrival, Turn, TurnId


class Forgetful:
    _db: Database
    _config: LedgerConfig
    _gate: Gate

    def transaction(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def begin_forgetting(
        self,
        *,
        owner: str | None = None,
        session: str | None = None,
        turn_id: TurnId | None = None,
        asked: str = "",
    ) -> Begun:
        """From now on nothing of this is recorded; `forget_some` deletes what is. See `clawrl.ledger.forgetting`.

        Nothing if there is no such turn, or nobody with such a session; a session without an owner is everybody's.
        ``asked`` names the call: made again, it goes on with what it began.
        """
        wanted = self._wanted(owner, session, turn_id)
        with self.transaction():
            named = [] if session is None or turn_id is not None else self._sessions(owner, session)
            return forgetting.begin(self._db, owner, named, turn_id, Call(wanted=wanted, asked=asked))

    def _sessions(self, owner: str | None, session: str) -> list[tuple[str, str]]:
        if owner is not None:
            now = (owner, self._gate.name(owner, session))
            return [now, *(each for each in people.sessions_of(self._db, self._gate, owner, session) if each != now)]
        return people.sessions_called(self._db, self._gate, session)

    # Whoever was forgotten has no key, and what comes late must not make one.

    def _is_refused(self, arrival: Arrival) -> bool:
        return remembering.is_refused(self._db, self._gate.named(arrival))

    def _stored(self, turn: Turn) -> Turn:
        return self._gate.turn(turn, late=remembering.is_forgotten(self._db, self._gate.named(turn.arrival)))

    def _keyed(self, turn: Turn) -> Turn:
        return self._gate.keyed(turn, late=remembering.is_forgotten(self._db, self._gate.named(turn.arrival)))

    def forgetting_under_way(self) -> list[Scope]:
        """What was begun and not ended."""
        return remembering.under_way(self._db)

    def forget_some(self, scope: Scope) -> Forgotten | None:
        """At most a batch; ``None`` when nothing is left, then call `end_forgetting`."""
        with self.transaction():
            return forgetting.some(self._db, scope)

    def end_forgetting(self, scope: Scope) -> None:
        """All that came until now is gone, and a user's key with it; nothing was recorded in between.

        Outside a transaction. A crash inside makes `forgetting_under_way` list it again, or all of it is done.
        """
        if self._db.in_transaction:
            raise RuntimeError("the rows must be gone from the disk before the key is: call it outside a transaction")
        with self.transaction():
            if not remembering.under_way(self._db, [scope.id]):
                return
            forgetting.the_rest(self._db, scope)
        if scope.session is None:
            # The rows must be gone before their key is: what cannot be read any more would stand in everybody's way.
            self._db.sync()
            self.shred(scope.owner)
        with self.transaction():
            remembering.ended(self._db, scope)

    def forgotten(self, ids: Collection[int], *, tell: bool = True) -> tuple[Forgotten, list[int]]:
        """What was found, and the versions that learned from it. With ``tell`` it is not told once more."""
        with self.transaction():
            found = remembering.found(self._db, ids)
            if tell:
                remembering.tell(self._db, ids)
        return found, self.versions_with(found.steps | found.evidence_steps)

    def told_of(self, *, owner: str | None, session: str | None, turn_id: TurnId | None) -> None:
        """What was found by `begin_forgetting` with these names, and is over, has been told."""
        with self.transaction():
            remembering.told_of(self._db, self._wanted(owner, session, turn_id))

    def _wanted(self, owner: str | None, session: str | None, turn_id: TurnId | None) -> str:
        return self._db.codec.pseudonym("wanted", owner or "", session or "", turn_id or "")

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

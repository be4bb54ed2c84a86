"""What an operator asks of a ledger: the part of `Ledger` that only reads, page by page."""

from __future__ import annotations

from clawrl.ledger import counts, life, looking, runs
from clawrl.ledger.database import Database
from clawrl.ledger.life import TurnLife, TurnText
from clawrl.ledger.looking import Page, SessionRow, TurnFilter, VersionRow
from clawrl.ledger.views import RunRow, StepRow, TurnRow, VersionReward
from clawrl.messages import TurnId


class Reads:
    """Every call does a bounded amount of work, so that none holds up the turns that are being served."""

    _db: Database

    def find_turns(self, wanted: TurnFilter, before: int | None = None, limit: int = 100) -> Page[TurnRow]:
        """The newest that fit and have a smaller ``seq`` than ``before``; a page may be short and not be the last."""
        return looking.find_turns(self._db, wanted, before, limit)

    def life(self, turn_id: TurnId) -> TurnLife | None:
        """All that is known of a turn."""
        return life.life(self._db, turn_id)

    def texts_if_any(self, turn_id: TurnId) -> TurnText | None:
        """The private part of a turn; ``None`` where that is gone."""
        return life.texts_if_any(self._db, turn_id)

    def recent_sessions(self, before: int | None = None, limit: int = 100) -> Page[SessionRow]:
        return looking.recent_sessions(self._db, before, limit)

    def sessions_named(self, session: str) -> list[SessionRow]:
        """One for each owner who has a session of this name."""
        found = (looking.find_session(self._db, owner, session) for owner in looking.owners_of(self._db, session))
        return [row for row in found if row is not None]

    def version_rows(self, before: int | None = None, limit: int = 100) -> list[VersionRow]:
        return looking.version_rows(self._db, before, limit)

    def step_taken(self, step: int) -> StepRow | None:
        """The step of this number that is in the weights, not one that was undone."""
        return life.step_taken(self._db, step)

    def checkpointed_step(self) -> int:
        """The last step that a checkpoint of the current run holds."""
        run = runs.current_run(self._db)
        return 0 if run is None else int(run["checkpointed_step"])

    def steps(self, limit: int = 100) -> list[StepRow]:
        return self.step_page(None, limit)

    def step_page(self, before: int | None = None, limit: int = 100) -> list[StepRow]:
        return looking.step_page(self._db, before, limit)

    def run(self) -> RunRow | None:
        """The current training run; ``None`` before the first."""
        return counts.run_row(self._db)

    def reward_by_version(self, turns: int, versions: int) -> list[VersionReward]:
        """How the newest ``turns`` turns were rewarded, for the newest ``versions`` that began one."""
        return counts.reward_by_version(self._db, turns, versions)

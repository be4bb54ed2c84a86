"""What an operator asks of a ledger: the part of `Ledger` that only reads, page by page."""

from __future__ import annotations

from dataclasses import replace

from clawrl.ledger import counts, life, looking, people, runs
from clawrl.ledger.database import Database
from clawrl.ledger.life import TurnLife, TurnText
from clawrl.ledger.looking import Page, SessionRow, TurnFilter, VersionRow
from clawrl.ledger.screening import Gate
from clawrl.ledger.views import RunRow, StepRow, TurnRow, VersionReward
from clawrl.messages import TurnId


class Reads:
    """Every call does a bounded amount of work, so that none holds up the turns that are being served."""

    _db: Database
    _gate: Gate

    def find_turns(self, wanted: TurnFilter, before: int | None = None, limit: int = 100) -> Page[TurnRow]:
        """The newest that fit and have a smaller ``seq`` than ``before``; a page may be short and not be the last.

        A session by the name that its client gave it, also where it has another one here.
        """
        if wanted.session is None:
            return looking.find_turns(self._db, wanted, before, limit)
        names = people.names_of(self._db, self._gate, wanted.session, wanted.owner)
        pages = [looking.find_turns(self._db, replace(wanted, session=name), before, limit) for name in names]
        return pages[0] if len(pages) == 1 else _merged(pages, limit)

    def life(self, turn_id: TurnId) -> TurnLife | None:
        """All that is known of a turn."""
        return life.life(self._db, turn_id)

    def texts_if_any(self, turn_id: TurnId) -> TurnText | None:
        """The private part of a turn; ``None`` where that is gone."""
        return life.texts_if_any(self._db, turn_id)

    def recent_sessions(self, before: int | None = None, limit: int = 100) -> Page[SessionRow]:
        return looking.recent_sessions(self._db, before, limit)

    def sessions_named(self, session: str) -> list[SessionRow]:
        """One for each owner who has a session of this name; of very many the first."""
        names = people.names_of(self._db, self._gate, session, None)
        return [row for name in names for row in looking.sessions_named(self._db, name)]

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


def _merged(pages: list[Page[TurnRow]], limit: int) -> Page[TurnRow]:
    """Down to where the first of them ends."""
    ends = [page.before for page in pages if page.before is not None]
    rows = sorted((row for page in pages for row in page.rows), key=lambda row: -row.seq)
    rows = [row for row in rows if not ends or row.seq >= max(ends)]
    if len(rows) > limit:
        return Page(rows=tuple(rows[:limit]), before=rows[limit - 1].seq)
    return Page(rows=tuple(rows), before=max(ends, default=None))

"""The durable truth about turns: what was served, what came after, what was judged, leased and trained.

`Ledger` is plain synchronous Python around one SQLite file, for one thread at a time. Every operation
is atomic, and repeating one that already happened changes nothing, so a caller that lost a reply asks
again. Once an operation (or the `transaction` around it) has returned, ``kill -9`` does not undo it.
Operations inside ``transaction()`` commit together; one that raises undoes only itself.

What is to be stored passes through a `Gate` first: a `Screen` redacts it, hashes over it are keyed. What is stored of
it is sealed by a `Vault`.

After a restart: `awaiting_judgement` lists the cases that a judge still owes; a trainer reports
`restored`; everything else is simply there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from clawrl.ledger import (
    cases,
    checkpoint_standing,
    counts,
    feedback,
    hints,
    judgements,
    leases,
    linking,
    moves,
    restore,
    runs,
    staleness,
    turns,
    upkeep,
    versions,
    vitals,
)
from clawrl.ledger.codec import Codec, KeyedVault, PlainVault, Vault
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.database import Database
from clawrl.ledger.forgetful import Forgetful
from clawrl.ledger.lost_keys import KeysSeen
from clawrl.ledger.protecting import protect
from clawrl.ledger.reads import Reads
from clawrl.ledger.screening import AsItIs, Gate, Screen
from clawrl.ledger.views import (
    Counts,
    FeedbackTaken,
    JudgeStats,
    LeasedTurns,
    Linked,
    Pause,
    Recorded,
    Restored,
    Swept,
    Transition,
    TurnRow,
)
from clawrl.messages import (
    Arrival,
    DropReason,
    Feedback,
    Judgement,
    JudgeRequest,
    LedgerPosition,
    PolicyVersion,
    TeacherTargets,
    Turn,
    TurnId,
    TurnState,
    Vitals,
)


class Ledger(Reads, Forgetful):
    """The ledger in the file at ``path``, made if it is not there.

    ``keeps_untrainable``: whether turns of people who opted out are stored with their text. ``accept_loss``: what
    cannot be read with these keys counts as forgotten, also where they are older than the ledger.
    """

    def __init__(
        self,
        path: str | Path,
        config: LedgerConfig,
        *,
        clock: Callable[[], float] = time.time,
        vault: Vault | KeyedVault | None = None,
        screen: Screen | None = None,
        keeps_untrainable: bool = True,
        accept_loss: bool = False,
    ) -> None:
        self._config = config
        codec = Codec(vault or PlainVault())
        self._db = Database(Path(path), codec, clock)
        self._gate = Gate(screen or AsItIs(), codec)
        self._db.keeps_untrainable = keeps_untrainable
        self._db.before_commit = KeysSeen(self._db)
        protect(self._db, accept_loss=accept_loss)

    def transaction(self) -> AbstractContextManager[None]:
        return self._db.transaction()

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Turns and their evidence.

    def arrive(self, arrival: Arrival) -> Linked:
        """Links a request before it is generated; hands out its parent's case once, if it proves something."""
        with self.transaction():
            return linking.arrive(self._db, self._gate.arrival(arrival, late=self._is_refused(arrival)))

    def record(self, turn: Turn, drop: DropReason | None = None, detail: str = "", words: str = "") -> Recorded:
        """Stores a served turn, once; with a reason (and its detail) it is dropped instead of awaiting evidence.

        So it is without one where it may not train, or where something in it was redacted. ``words`` are a filter's,
        which may quote the turn; the detail may not.
        """
        words = words if self._gate.screen.is_clean(words) else ""
        with self.transaction():
            return turns.record(self._db, self._stored(turn), drop, detail, words, measured=turn)

    def is_duplicate(self, turn: Turn) -> bool:
        """Whether a main turn recorded before this one gave the same answer to the same request, not long ago."""
        return turns.is_duplicate(self._db, self._keyed(turn), self._config.duplicate_window_s)

    def latest_turn(self, owner: str, session: str) -> TurnId | None:
        """The newest recorded main turn of a session."""
        return turns.latest(self._db, owner, self._gate.name(owner, session))

    def end_session(self, owner: str, session: str) -> int:
        """Drops what still awaits evidence in this session; returns how many turns did."""
        with self.transaction():
            return turns.end_session(self._db, owner, self._gate.name(owner, session))

    # Judging.

    def judge_request(self, turn_id: TurnId) -> JudgeRequest | None:
        return cases.judge_request(self._db, turn_id)

    def awaiting_judgement(self, limit: int | None = None) -> list[JudgeRequest]:
        with self.transaction():
            return judgements.awaiting_judgement(self._db, limit)

    def judged(
        self,
        judgement: Judgement,
        drop: DropReason | None = None,
        targets: TeacherTargets | None = None,
        *,
        feedback_at: float | None = None,
    ) -> bool:
        """Stores a judgement and a teacher's targets and moves the turn on; false if it was not waiting for this one.

        ``feedback_at`` is when the feedback in the judged case was given. A case that a person has added to since is
        owed a new judgement. So is one whose teacher was told hints of other turns that were forgotten meanwhile.
        """
        reused = None if targets is None or judgement.hints else targets.hints
        judgement = self._gate.screen.judgement(judgement)
        targets = None if targets is None else self._gate.screen.targets(targets)
        with self.transaction():
            return judgements.judged(self._db, judgement, drop, targets, feedback_at, reused)

    def feedback(self, given: Feedback) -> FeedbackTaken | None:
        """Takes a person's opinion of a turn; ``None`` for a turn that is not (or no longer) known."""
        given = self._gate.screen.feedback(given)
        with self.transaction():
            return feedback.give(self._db, given)

    def known_hints(self, owner: str, session: str | None, limit: int) -> tuple[str, ...]:
        """What judges have hinted at, most often confirmed first; ``session`` ``None`` means all of the owner's."""
        return hints.known(self._db, owner, self._gate.name(owner, session), limit)

    # Submission.

    def pause(self, by: str, reason: str) -> Pause:
        """The pause that stands now: an earlier one stays, but for an operator's when the guard pauses."""
        with self.transaction():
            return judgements.pause(self._db, by, reason)

    def paused(self) -> Pause | None:
        return judgements.paused(self._db)

    def resume(self) -> int:
        with self.transaction():
            return judgements.resume(self._db)

    # Leases, steps and checkpoints.

    def drop_stale(self, run_id: str, step: int, most_behind: int, now: float) -> int:
        """Drops queued turns that lag more than ``most_behind`` batches behind ``step``; returns how many.

        Asked in one transaction with `lease`. Raises `FencedRun` for a run that is not the current one.
        """
        with self.transaction():
            return leases.drop_stale(self._db, run_id, step, most_behind, now)

    def behind(self, lease_id: str) -> list[int]:
        """For each turn that a lease holds: how many batches changed the weights since its oldest token."""
        return staleness.behind_of_lease(self._db, lease_id)

    def queued(self, until: float) -> int:
        """How many turns are in the queue since ``until`` or longer; time in a lease that came to nothing counts."""
        return counts.queued(self._db, until)

    def lent_step(self) -> int | None:
        """The step that the current run is taking, or has the turns for."""
        return leases.lent_step(self._db)

    def lease(
        self,
        run_id: str,
        step: int,
        limit: int,
        *,
        now: float,
        timeout_s: float,
        minimum: int | None = None,
    ) -> LeasedTurns | None:
        """Lends the oldest queued turns, whole groups, ``minimum`` (by default ``limit``) or more; else ``None``.

        A group with undecided answers waits for them, up to `clawrl.ledger.leases.GROUP_WAIT_S`.
        Raises `FencedRun` for a run that is not the current one, `StepTaken` for a step behind it.
        """
        with self.transaction():
            at_least = limit if minimum is None else minimum
            return leases.lease(self._db, run_id, step, limit, at_least, now, timeout_s)

    def confirm(self, lease_id: str, run_id: str, now: float) -> bool:
        """The fence: take the optimizer step only if this is true."""
        with self.transaction():
            return leases.confirm(self._db, lease_id, run_id, now)

    def applied(self, lease_id: str, run_id: str, stats: Mapping[str, Any]) -> bool:
        """The step of a confirmed lease was taken; false if the lease or its run is void."""
        with self.transaction():
            return leases.applied(self._db, lease_id, run_id, stats)

    def drop_leased(self, lease_id: str, turn_id: TurnId, reason: DropReason) -> bool:
        with self.transaction():
            return leases.drop_leased(self._db, lease_id, turn_id, reason)

    def expire_leases(self, now: float) -> int:
        """How many turns of overdue, unconfirmed leases went back to the queue."""
        with self.transaction():
            return leases.expire(self._db, now)

    def is_current(self, run_id: str) -> bool:
        """Whether no other run has reported since this one did."""
        run = runs.current_run(self._db)
        return run is not None and run["run_id"] == run_id

    @property
    def ledger_id(self) -> str:
        """What tells this ledger from every other one, for as long as the file lives."""
        return checkpoint_standing.ledger_id(self._db)

    def resumable(self, positions: Sequence[LedgerPosition]) -> int | None:
        """Which of these checkpoints, newest first, training may go on from; raises `ForeignCheckpoint`."""
        return checkpoint_standing.resumable(self._db, positions)

    def known(self, positions: Sequence[LedgerPosition]) -> list[bool]:
        """Of each of these checkpoints, whether it belongs to this ledger's history."""
        return [checkpoint_standing.is_known(self._db, position) for position in positions]

    def checkpointing(self, run_id: str, step: int) -> bool:
        """Whether a checkpoint of ``step`` may become valid; all that it builds on then survives a power cut, too."""
        self._db.sync()
        run = runs.current_run(self._db)
        return run is not None and run["run_id"] == run_id and step <= run["taken_step"]

    def taken_step(self) -> int:
        """The newest step that the current run has taken or restored."""
        run = runs.current_run(self._db)
        return 0 if run is None else int(run["taken_step"])

    def checkpointed(self, run_id: str, step: int) -> bool:
        with self.transaction():
            return runs.checkpointed(self._db, run_id, step)

    def restored(self, run_id: str, step: int) -> Restored:
        """A new run starts from a checkpoint that includes steps up to ``step``; earlier runs are fenced off."""
        with self.transaction():
            return restore.restored(self._db, run_id, step)

    # Policy versions.

    def current_version(self) -> PolicyVersion | None:
        return versions.current_version(self._db)

    def version(self, number: int) -> PolicyVersion | None:
        """The version of that number, if it is known."""
        return versions.find_version(self._db, number)

    def next_version(self) -> int:
        """Reserves a version number, never handed out before."""
        with self.transaction():
            return versions.next_version(self._db)

    def commit_version(self, version: PolicyVersion) -> bool:
        """Makes a version current; raises `VersionRefused` unless it is newer than the current one."""
        with self.transaction():
            return versions.commit_version(self._db, version)

    def annotate_version(self, version: int, stats: Mapping[str, Any]) -> None:
        """Replaces a version's stats with what was learned since it was decided."""
        with self.transaction():
            versions.annotate_version(self._db, version, stats)

    def mark_good(self, version: int) -> None:
        """Says that this is the newest version that serves well; raises `VersionRefused` if it is not known."""
        with self.transaction():
            versions.mark_good(self._db, version)

    def good_versions(self) -> list[PolicyVersion]:
        """Those that are kept to go back to, the newest first."""
        return versions.good_versions(self._db)

    def roll_back(self, to: int) -> PolicyVersion:
        """Makes the weights of version ``to`` current, as a new good version; raises `VersionRefused` if unknown."""
        with self.transaction():
            return versions.roll_back(self._db, to)

    def newest_rollback(self) -> PolicyVersion | None:
        """The newest version that `roll_back` made, whether or not others came after it."""
        return versions.newest_rollback(self._db)

    def versions(self, limit: int = 100) -> list[PolicyVersion]:
        return versions.versions(self._db, limit)

    # Health.

    def note_vitals(self, noted: Vitals) -> None:
        with self.transaction():
            vitals.note(self._db, noted)

    def recent_vitals(self, limit: int) -> list[Vitals]:
        """The newest ``limit``, oldest first."""
        return vitals.recent(self._db, limit)

    # Upkeep.

    def sweep(self, now: float) -> Swept:
        with self.transaction():
            return upkeep.sweep(self._db, self._config, now)

    def prune(self) -> int:
        """Deletes old finished turns, at most a batch; call again while it returns more than nothing."""
        with self.transaction():
            return upkeep.prune(self._db, self._config)

    # Looking.

    def counts(self) -> Counts:
        return counts.counts(self._db)

    def active_sessions(self) -> int:
        return counts.active_sessions(self._db)

    def judge_stats(self) -> JudgeStats:
        return counts.judge_stats(self._db)

    def turn(self, turn_id: TurnId) -> Turn | None:
        return turns.load(self._db, turn_id)

    def state(self, turn_id: TurnId) -> TurnState | None:
        return moves.state_of(self._db, turn_id)

    def judgement(self, turn_id: TurnId) -> Judgement | None:
        return judgements.load(self._db, turn_id)

    def targets(self, turn_id: TurnId) -> TeacherTargets | None:
        return judgements.load_targets(self._db, turn_id)

    def turns(
        self,
        limit: int = 100,
        *,
        state: TurnState | None = None,
        session: str | None = None,
        owner: str | None = None,
        before_seq: int | None = None,
    ) -> list[TurnRow]:
        return counts.turn_rows(self._db, limit, state, session, owner, before_seq)

    def transitions(self, turn_id: TurnId) -> list[Transition]:
        return moves.transitions(self._db, turn_id)

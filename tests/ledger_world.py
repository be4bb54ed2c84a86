"""The clients, the judge, the operator and the trainer around one ledger, each with a memory of its own.

The model beside the ledger is the trainer's own memory: the turns in its weights, and a copy of that
set for every checkpoint. What is drawn comes from one random generator, so that a seed is one life.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from clawrl.ledger import FeedbackOutcome, FencedRun, LeasedTurns, Ledger
from clawrl.ledger.states import HELD, check_move
from clawrl.messages import DropReason, PolicyVersion, Turn, TurnId, TurnKind, TurnState
from clawrl.privacy.forgetting import Wanted, forget, run_steps
from tests.ledger_kit import (
    Clock,
    Talk,
    ask,
    ids,
    judge,
    open_ledger,
    opinion,
    reply,
    serve,
    taught,
    user,
    verdict,
)
from tests.test_ledger_durability import crash_image

MOST_BEHIND = 6


class World:
    """The clients, the judge and the trainer around one ledger."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.path, self.crashes, self.clock = path, 0, Clock()
        self.ledger = self.open(path / "0")
        self.talks: list[tuple[str | None, str, Talk]] = []
        self.served: list[Turn] = []
        self.evidence: list[str] = []
        self.late_evidence = self.forgotten = self.expired = self.retaught = 0
        self.outcomes: Counter[tuple[FeedbackOutcome, TurnState | None]] = Counter()
        self.runs = 0
        self.weights: set[str] = set()
        self.checkpoints: dict[int, set[str]] = {0: set()}
        self.lease: LeasedTurns | None = None
        self.step = self.highest = 0
        self.version, self.made_by = 0, dict[int, int]()
        self.restart_trainer()

    def open(self, path: Path) -> Ledger:
        return open_ledger(path, self.clock, idle_timeout_s=40.0, keep_finished_turns=30, keep_trained_steps=6)

    # Clients.

    def talk(self) -> None:
        session, owner, said = self.random.choice(
            [*self.talks[-12:], (self.random.choice([None, "s1", "s2"]), self.random.choice("AB"), ())]
        )
        talk = said + user(self.random.choice(["go on", "wrong", "thanks"]))
        turn_id = f"t{len(self.served)}"
        side = self.random.random() < 0.1
        arrival = ask(
            turn_id,
            talk,
            session=session,
            owner=owner,
            kind=TurnKind.SIDE if side else TurnKind.MAIN,
            ends=self.random.random() < 0.05,
            at=self.clock.now,
        )
        if self.random.random() < 0.7:
            self.note(self.ledger.arrive(arrival).to_judge)
        if self.random.random() < 0.1:
            self.served.append(serve(arrival, talk, "never recorded"))
            return
        answer = self.random.choice(["yes", "no", "maybe"])
        turn = serve(arrival, talk, answer, version=self.version)
        self.served.append(turn)
        self.record(turn, DropReason.SIDE if side else self.random.choice([None, None, None, DropReason.GREEDY]))
        self.talks.append((session, owner, talk + reply(answer)))

    def record(self, turn: Turn, drop: DropReason | None) -> None:
        for case in self.ledger.record(turn, drop).to_judge:
            self.note(case)

    def note(self, case: object) -> None:
        if case is not None:
            turn_id = case.turn_id  # type: ignore[attr-defined]
            assert turn_id not in self.evidence, "evidence is handed out once"
            self.evidence.append(turn_id)
            self.late_evidence += case.feedback is not None  # type: ignore[attr-defined]

    def record_again(self) -> None:
        known = [turn for turn in self.served[-20:] if self.ledger.state(turn.turn_id) is not None]
        if known:
            assert not self.ledger.record(self.random.choice(known)).new

    # The judge and the operator.

    def judge(self) -> None:
        for case in self.ledger.awaiting_judgement(3):
            value = self.random.choice([1, 1, -1, -1, 0, None])
            drop = DropReason.NEUTRAL if value == 0 else None
            targets = taught() if self.random.random() < 0.3 else None
            if case.feedback is not None:
                assert not self.ledger.judged(verdict(case.turn_id, value), drop, targets), "of an older case"
            assert judge(self.ledger, case.turn_id, value, drop, targets)
            assert not judge(self.ledger, case.turn_id)

    def give_feedback(self) -> None:
        """On any turn that was ever asked for: waiting, judged, lent, trained, dropped, pruned or never recorded."""
        if not self.served:
            return
        turn = self.random.choice(self.served[-60:])
        before = self.ledger.state(turn.turn_id)
        score = self.random.choice([1.0, 0.5, 0.0, -1.0])
        comment = self.random.choice(["", "better"])
        case = self.ledger.judge_request(turn.turn_id)
        standing = None if case is None or case.feedback is None else (case.feedback.score, case.feedback.comment)
        answer = self.ledger.feedback(opinion(turn.turn_id, score, comment, at=self.clock()))
        assert (answer is None) == (before is None)
        if answer is not None:
            assert answer.state is self.ledger.state(turn.turn_id)
            self.outcomes[answer.outcome, before] += 1
            if before in HELD and standing == (score, comment):
                assert (answer.outcome, answer.state) == (FeedbackOutcome.TAKEN, before), "it was, once"
            elif before in HELD:
                assert (answer.outcome, answer.state) == (FeedbackOutcome.TOO_LATE, before)

    def pause_or_resume(self) -> None:
        if self.ledger.paused():
            self.ledger.resume()
            assert self.ledger.counts().by_state.get(TurnState.JUDGED, 0) == 0
        else:
            queued = self.ledger.counts().by_state.get(TurnState.QUEUED, 0)
            self.ledger.pause("walk", "because")
            self.judge()
            assert self.ledger.counts().by_state.get(TurnState.QUEUED, 0) == queued

    # The trainer.

    @property
    def run(self) -> str:
        return f"run{self.runs}"

    def borrow(self) -> None:
        due = self.due()
        with self.ledger.transaction():
            self.ledger.drop_stale(self.run, self.step + 1, MOST_BEHIND, self.clock.now)
            again = self.ledger.lease(self.run, self.step + 1, 4, minimum=1, now=self.clock.now, timeout_s=8.0)
        if again is not None and self.lease is not None and self.clock.now <= self.lease.deadline:
            # Of one that ran empty, because its turns were dropped or forgotten, nothing is left to lend again.
            assert (again.lease_id == self.lease.lease_id) == bool(due)
            assert not due or ids(again) == due
        if again is not None:
            oldest = [min(span.version for span in lent.turn.spans) for lent in again.turns]
            assert all(self.step - self.made_by[version] <= MOST_BEHIND for version in oldest)
        self.lease = again

    def due(self) -> list[str]:
        """What the lease is made of if it is asked for again: whatever was not dropped or forgotten meanwhile."""
        if self.lease is None:
            return []
        sql = "SELECT turn_id FROM turns WHERE state = 'leased' AND lease_id = ? AND NOT forgotten ORDER BY seq"
        return [row["turn_id"] for row in self.ledger._db.rows(sql, self.lease.lease_id)]

    def take_step(self) -> None:
        lease = self.lease
        if lease is None or not self.ledger.confirm(lease.lease_id, self.run, self.clock.now):
            self.lease = None
            return
        if self.random.random() < 0.1:
            return  # confirmed, then interrupted before the optimizer moved; it may come back to it
        learned = {lent.turn.turn_id for lent in lease.turns}
        assert not learned & self.weights, "a turn is trained twice"
        self.weights |= learned
        self.step = lease.step
        self.lease = None
        if self.random.random() < 0.15:
            self.maybe_checkpoint(1.0)
            self.restart_trainer()  # died between the step and its report
        else:
            assert self.ledger.applied(lease.lease_id, self.run, {"loss": 1.0})
        if self.random.random() < 0.8:
            self.publish()
        self.maybe_checkpoint(0.4)

    def drop_one(self) -> None:
        if self.lease is not None and self.lease.turns:
            turn = self.lease.turns[0].turn
            if self.ledger.drop_leased(self.lease.lease_id, turn.turn_id, DropReason.MALFORMED):
                self.borrow()

    def maybe_checkpoint(self, chance: float) -> None:
        if self.random.random() < chance:
            self.checkpoints[self.step] = set(self.weights)
            if self.random.random() < 0.7:
                assert self.ledger.checkpointed(self.run, self.step)

    def restart_trainer(self) -> None:
        if self.runs:
            stale, lease = self.run, self.lease
        self.runs += 1
        # Going back again and again never reaches beyond what the highest checkpoint let the ledger prune.
        self.highest = max(self.highest, *self.checkpoints)
        recent = [step for step in self.checkpoints if step >= self.highest - 4]
        self.step = max(recent) if self.random.random() < 0.7 else self.random.choice(recent)
        self.checkpoints = {s: held for s, held in self.checkpoints.items() if s <= self.step}
        self.weights = set(self.checkpoints[self.step])
        self.lease = None
        assert not self.ledger.restored(self.run, self.step).out_of_reach
        assert not {row.turn_id for row in self.rows(TurnState.TRAINED)} - self.weights
        assert self.trained() == len(self.weights), "trained is what the checkpoint holds, no more, no less"
        if self.runs > 1:
            assert not self.ledger.checkpointed(stale, 10**6)
            with pytest.raises(FencedRun):
                self.ledger.lease(stale, 10**6, 1, now=0.0, timeout_s=1.0)
            with pytest.raises(FencedRun):
                self.ledger.drop_stale(stale, 10**6, 0, 0.0)
            if lease is not None:
                assert not self.ledger.confirm(lease.lease_id, stale, 0.0)
        self.publish()

    def publish(self) -> None:
        number = self.ledger.next_version()
        self.ledger.commit_version(
            PolicyVersion(version=number, step=self.step, snapshot="s", digest="d", published_at=self.clock.now)
        )
        # An answer may go on under the version after the one that it began with.
        self.version, self.made_by[number], self.made_by[number + 1] = number, self.step, self.step

    # Who wants to be forgotten.

    def forget(self) -> None:
        known = self.ledger.turns(60)
        if not known:
            return
        row = self.random.choice(known)
        choices = [Wanted(turn_id=row.turn_id), Wanted(owner=row.owner, session=row.session), Wanted(owner="B")]
        (wanted,) = self.random.choices(choices, [8, 1, 1])
        before = self.ledger.counts()
        report = run_steps(self.ledger, forget(wanted))
        self.forgotten += report["turns"]
        if report["leases_voided"]:
            assert self.lease is None or not self.ledger.confirm(self.lease.lease_id, self.run, self.clock.now)
            self.lease = None
        after = self.ledger.counts()
        assert after.recorded == before.recorded
        # Whose evidence was forgotten may be given other evidence, if a person's opinion keeps it open.
        kept = {row["turn_id"] for row in self.ledger._db.rows("SELECT turn_id FROM evidence")}
        self.evidence = [turn_id for turn_id in self.evidence if turn_id in kept]
        held = [state for state in HELD if state is not TurnState.LEASED]
        assert all(after.by_state.get(state) == before.by_state.get(state) for state in held)

    def expire(self) -> None:
        """What was said in turns that were finished a while ago goes; not one of them is lost."""
        before = self.ledger.counts()
        while done := self.ledger.expire_text(self.clock.now - self.random.choice([1.0, 10.0, 30.0])):
            self.expired += done
        after = self.ledger.counts()
        assert (after.recorded, after.dropped) == (before.recorded, before.dropped)
        assert after.by_state.get(TurnState.TRAINED) == before.by_state.get(TurnState.TRAINED)
        self.note_void_lease()

    def note_void_lease(self) -> None:
        """A hint that went may have taken a lease along."""
        lease = self.lease
        if lease is not None and self.rows(TurnState.LEASED) == []:
            assert not self.ledger.confirm(lease.lease_id, self.run, self.clock.now)
            self.lease = None

    def teach(self) -> None:
        """Without a hint of its own, with what is known from other turns."""
        for case in self.ledger.awaiting_judgement(3):
            turn = self.ledger.turn(case.turn_id)
            assert turn is not None
            known = self.ledger.known_hints(turn.arrival.owner, None, 2)
            if known and case.feedback is None:
                judgement = replace(verdict(case.turn_id, None), hints=())
                assert self.ledger.judged(judgement, None, taught(known))
                self.retaught += 1

    # The machine.

    def crash(self) -> None:
        """The process is killed, perhaps inside a batch; another one opens what is on disk."""
        self.crashes += 1
        target = self.path / str(self.crashes)
        abandoned = self.ledger
        if self.random.random() < 0.5:
            with abandoned.transaction():
                ghost = serve(ask(f"ghost{self.crashes}", user("boo")), user("boo"), "x")
                abandoned.record(ghost)
                abandoned.sweep(1e12)
                crash_image(self.path / str(self.crashes - 1), target)
        else:
            crash_image(self.path / str(self.crashes - 1), target)
        self.ledger = self.open(target)
        assert self.ledger.state(TurnId(f"ghost{self.crashes}")) is None
        abandoned.close()

    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = self.open(self.path / str(self.crashes))

    def tidy(self) -> None:
        self.clock.now += self.random.choice([0.5, 5.0, 15.0])
        self.ledger.sweep(self.clock.now)
        self.ledger.prune()

    # What must hold.

    def rows(self, state: TurnState) -> list:  # type: ignore[type-arg]
        return self.ledger.turns(10**6, state=state)

    def trained(self) -> int:
        return self.ledger.counts().by_state.get(TurnState.TRAINED, 0)

    def check(self) -> None:
        counts = self.ledger.counts()
        assert counts.adds_up, counts
        held = self.rows(TurnState.TRAINED) + self.rows(TurnState.APPLIED)
        assert {row.turn_id for row in held} <= self.weights
        assert self.trained() + len(self.rows(TurnState.APPLIED)) == len(self.weights)
        for row in self.ledger.turns(10**6):
            log = self.ledger.transitions(row.turn_id)
            assert log[-1].target is row.state
            for before, after in zip([None, *log], log, strict=False):
                assert after.source is (None if before is None else before.target)
                dropped = before is not None and before.target is TurnState.DROPPED
                reason = DropReason(before.detail.split()[0]) if before is not None and dropped else None
                check_move(row.turn_id, after.source, after.target, reason)
            assert (self.ledger.targets(row.turn_id) is not None) == row.taught
            if row.state is TurnState.JUDGING:
                assert self.ledger.judgement(row.turn_id) is None

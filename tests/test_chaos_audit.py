"""What the audit of a chaos run catches: made-up histories, each with one thing wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from clawrl.ledger.views import StepRow, StepState, Transition
from clawrl.messages import DropReason, PolicyVersion, TurnId, TurnState
from clawrl.training.weights_lineage import UNTRAINED, follow
from tests.chaos.audit import audit, cause_of
from tests.chaos.history import History, Trained, TurnFacts
from tests.chaos.notes import DeathNote, Outcome, RequestNote
from tests.chaos.plan import Kind

S = TurnState
TO_THE_QUEUE = (S.SERVED, S.AWAITING_NEXT, S.JUDGING, S.JUDGED, S.QUEUED)
TRAINED = (*TO_THE_QUEUE, S.LEASED, S.APPLIED, S.TRAINED)
DEATH = DeathNote(number=1, kind=Kind.REPLICA, at=50.0, pids=(7,), replicas=("one",))


def log(turn_id: str, states: Sequence[TurnState]) -> tuple[Transition, ...]:
    sources = [None, *states[:-1]]
    return tuple(
        Transition(
            turn_id=TurnId(turn_id),
            source=source,
            target=target,
            detail="neutral" if target is S.DROPPED else "",
            at=float(at),
        )
        for at, (source, target) in enumerate(zip(sources, states, strict=True))
    )


def turn(
    turn_id: str, states: Sequence[TurnState] = TRAINED, *, step: int | None = None, version: int = 0
) -> TurnFacts:
    began = 10.0 * (version + 1)
    return TurnFacts(
        turn_id=turn_id,
        state=states[-1],
        reason=DropReason.NEUTRAL if states[-1] is S.DROPPED else None,
        step=step,
        replica="one",
        oldest=version,
        newest=version,
        text=f"I am {turn_id}",
        finish_reason="stop",
        started_at=began + 1.0,
        finished_at=began + 2.0,
        moves=log(turn_id, states),
    )


def step(number: int, state: StepState = StepState.TRAINED) -> StepRow:
    return StepRow(run_id=f"run{state}", step=number, state=state, turns=1, reward_mean=1.0, stats={}, at=0.0)


def published(number: int, at: float) -> PolicyVersion:
    return PolicyVersion(version=number, step=number, snapshot="", digest="", published_at=at)


def lineage(*steps: Sequence[str]) -> str:
    line = UNTRAINED
    for number, turn_ids in enumerate(steps, start=1):
        line = follow(line, number, turn_ids)
    return line


SOUND = History(
    recorded=5,
    turns=(
        turn("a", step=1),
        turn("b", (*TO_THE_QUEUE, S.LEASED, S.APPLIED, *TRAINED[4:]), step=2),
        turn("c", TO_THE_QUEUE, version=1),
        turn("d", (S.SERVED, S.AWAITING_NEXT), version=1),
        turn("e", (S.SERVED, S.DROPPED), version=2),
    ),
    steps=(step(1), step(2, StepState.UNDONE), step(2)),
    versions=(published(0, 5.0), published(1, 15.0), published(2, 25.0)),
    runs=2,
    trained=Trained(step=2, lineage=lineage("a", "b")),
)
NOTES = (
    RequestNote(
        session="s", stream=False, asked_at=10.5, ended_at=12.5, outcome=Outcome.WHOLE,
        turn_id="a", version=0, text="I am a", finish_reason="stop",
    ),
    RequestNote(
        session="s", stream=True, asked_at=48.0, first_at=49.0, ended_at=50.5, outcome=Outcome.FAILED, problem="cut",
    ),
    RequestNote(session="s", stream=False, asked_at=60.0, ended_at=61.0, outcome=Outcome.EMPTY),
)  # fmt: skip


def complaints(
    history: History = SOUND, notes: Sequence[RequestNote] = NOTES, deaths: Sequence[DeathNote] = (DEATH,)
) -> list[str]:
    return audit(history, notes, deaths, batch_size=2, floor_grace_s=5.0)


def with_turn(turn_id: str, change: Callable[[TurnFacts], TurnFacts]) -> History:
    return replace(SOUND, turns=tuple(change(t) if t.turn_id == turn_id else t for t in SOUND.turns))


def test_a_sound_history_gives_no_complaint() -> None:
    assert complaints() == []


WRONG: dict[str, tuple[History, str]] = {
    "a turn trained twice": (
        with_turn("a", lambda t: replace(t, moves=log("a", (*TRAINED, S.APPLIED, S.TRAINED)))),
        "trained -> applied is not a legal move",
    ),
    "a turn applied again without having been undone": (
        with_turn("a", lambda t: replace(t, moves=t.moves[:-1] + log("a", TRAINED)[-2:])),
        "turn a was applied 2 times and undone 0 times",
    ),
    "a trained turn that was never applied": (
        with_turn("a", lambda t: replace(t, moves=log("a", (*TO_THE_QUEUE, S.LEASED, S.TRAINED)))),
        "leased -> trained is not a legal move",
    ),
    "a log that ends elsewhere": (
        with_turn("c", lambda t: replace(t, moves=t.moves[:-1])),
        "turn c is queued, which is not where its log ends",
    ),
    "a turn dropped without a reason": (
        with_turn("e", lambda t: replace(t, reason=None)),
        "turn e is dropped with reason None",
    ),
    "a turn left in a lease": (
        with_turn("c", lambda t: replace(t, state=S.LEASED, moves=log("c", TRAINED[:6]))),
        "turn c is still leased",
    ),
    "a step that no checkpoint holds": (
        with_turn("a", lambda t: replace(t, state=S.APPLIED, moves=log("a", TRAINED[:7]))),
        "turn a is still applied",
    ),
    "a full batch left in the queue": (
        with_turn("d", lambda t: replace(t, state=S.QUEUED, moves=log("d", TO_THE_QUEUE))),
        "2 turns wait in the queue",
    ),
    "a turn that is gone": (replace(SOUND, turns=SOUND.turns[:-1]), "counted 5 turns and holds 4"),
    "a step taken by two runs": (replace(SOUND, steps=(*SOUND.steps, step(1))), "step 1 stands 2 times"),
    "a step that is gone": (replace(SOUND, steps=SOUND.steps[1:]), "step 1 is missing"),
    "weights that learned a turn twice": (
        replace(SOUND, trained=Trained(step=2, lineage=lineage("a", "ab"))),
        "the weights after step 2 were not made of the turns",
    ),
    "weights that never learned a turn": (
        replace(SOUND, trained=Trained(step=2, lineage=lineage("a", ""))),
        "the weights after step 2 were not made of the turns",
    ),
    "turns learned in another step": (
        replace(SOUND, trained=Trained(step=2, lineage=lineage("b", "a"))),
        "the weights after step 2 were not made of the turns",
    ),
    "a checkpoint behind the ledger": (
        replace(SOUND, trained=Trained(step=1, lineage=lineage("a"))),
        "the ledger ends with step 2, the last checkpoint with step 1",
    ),
    "no checkpoint": (replace(SOUND, trained=None), "there is no checkpoint"),
    "a version that goes back": (
        replace(SOUND, versions=(SOUND.versions[0], SOUND.versions[2], SOUND.versions[1])),
        "version 1 was published after version 2",
    ),
    "a replica that goes back": (
        with_turn("c", lambda t: replace(t, started_at=40.0, finished_at=41.0, oldest=1, newest=1)),
        "sampled by version 1 on a replica that had served version 2",
    ),
    "an answer older than the floor": (
        with_turn("d", lambda t: replace(t, replica="two", started_at=31.0, finished_at=32.0, oldest=1)),
        "sampled by version 1, 5 s after version 2 had come",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("history", "complaint"), WRONG.values(), ids=WRONG)
def test_a_broken_promise_is_found_in_the_ledger(history: History, complaint: str) -> None:
    found = complaints(history)
    assert any(re.search(complaint, line) for line in found), found


def test_an_answer_just_after_a_publish_may_still_be_of_the_version_before() -> None:
    late = with_turn("d", lambda t: replace(t, replica="two", started_at=29.0, finished_at=30.0, oldest=1))
    assert complaints(late) == []


def test_an_answer_that_only_its_user_has_is_found() -> None:
    lost = replace(NOTES[0], turn_id="unheard of")
    assert complaints(notes=(lost,)) == ["turn unheard of was answered at 12.5 and is not in the ledger"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"text": "I am b"}, "reads otherwise"),
        ({"finish_reason": "length"}, "reads otherwise"),
        ({"version": 1}, "said version 1 and is recorded with version 0"),
    ],
)
def test_an_answer_that_reads_otherwise_in_the_ledger_is_found(change: dict[str, object], complaint: str) -> None:
    (found,) = complaints(notes=(replace(NOTES[0], **change),))  # type: ignore[arg-type]
    assert complaint in found


@pytest.mark.parametrize(
    "change",
    [
        {"stream": False, "first_at": None},
        {"first_at": None},
        {"asked_at": 52.0, "first_at": 53.0, "ended_at": 54.0},
        {"asked_at": 30.0, "first_at": 31.0, "ended_at": 40.0},
    ],
    ids=["unstreamed", "before the first byte", "after the death", "before the death"],
)
def test_a_failure_that_no_death_excuses_is_found(change: dict[str, object]) -> None:
    (found,) = complaints(notes=(replace(NOTES[1], **change),))  # type: ignore[arg-type]
    assert "failed at" in found


def test_only_the_death_of_a_policy_replica_excuses_a_failure() -> None:
    judge = replace(DEATH, kind=Kind.JUDGE, replicas=())
    assert len(complaints(deaths=(judge,))) == 1
    assert cause_of(NOTES[1], (judge, DEATH)) == DEATH

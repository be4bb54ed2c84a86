"""Small makers of arrivals, turns and judgements that the ledger's tests share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from clawrl.ledger import LeasedTurns, Ledger, Recorded
from clawrl.ledger.config import LedgerConfig
from clawrl.messages import (
    Arrival,
    DropReason,
    Feedback,
    FinishReason,
    Judgement,
    Message,
    SamplingParams,
    TeacherTargets,
    Turn,
    TurnId,
    TurnKind,
    Verdict,
    VersionSpan,
)

Talk = tuple[Message, ...]


class Clock:
    """A clock that a test moves; it also moves a little by itself, so that no two moments are equal."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        self.now += 1e-4
        return self.now


def open_ledger(path: Path, clock: Clock | None = None, **config: float) -> Ledger:
    return Ledger(path / "ledger.db", LedgerConfig(**config), clock=clock or Clock())


def user(*texts: str) -> Talk:
    return tuple(Message(role="user", content=text) for text in texts)


def reply(text: str) -> Talk:
    return (Message(role="assistant", content=text),)


def digest(talk: Talk) -> str:
    return hashlib.sha256(repr([(m.role, m.content) for m in talk]).encode()).hexdigest()[:16]


def ask(
    turn_id: str,
    talk: Talk,
    *,
    session: str | None = None,
    owner: str = "local",
    kind: TurnKind = TurnKind.MAIN,
    ends: bool = False,
    at: float = 1_000.0,
    group: str | None = None,
) -> Arrival:
    answered = [i for i, message in enumerate(talk) if message.role == "assistant"]
    cut = answered[-1] + 1 if answered else 0
    return Arrival(
        turn_id=TurnId(turn_id),
        session=session,
        owner=owner,
        kind=kind,
        prefix_hash=digest(talk[:cut]) if cut else None,
        messages_hash=digest(talk),
        new_messages=talk[cut:],
        ends_session=ends,
        arrived_at=at,
        history=talk[:cut],
        group=group,
    )


def serve(arrival: Arrival, talk: Talk, text: str, version: int = 0) -> Turn:
    return Turn(
        turn_id=arrival.turn_id,
        arrival=arrival,
        reply_hash=digest(talk + reply(text)),
        response_text=text,
        prompt_ids=np.arange(5, dtype=np.int32),
        response_ids=np.array([7, 8, 9], dtype=np.int32),
        response_logps=np.array([-0.5, -1.25, -2.0], dtype=np.float32),
        spans=(VersionSpan(start=0, end=1, version=version), VersionSpan(start=1, end=3, version=version + 1)),
        sampling=SamplingParams(temperature=0.7, stop=("\n\n",)),
        finish_reason=FinishReason.STOP,
        started_at=arrival.arrived_at,
        finished_at=arrival.arrived_at + 1.0,
        replica="r0",
    )


def say(
    ledger: Ledger,
    turn_id: str,
    talk: Talk,
    text: str,
    *,
    session: str | None = None,
    owner: str = "local",
    version: int = 0,
    drop: DropReason | None = None,
) -> Recorded:
    """One request and its answer, in one go."""
    return ledger.record(serve(ask(turn_id, talk, session=session, owner=owner), talk, text, version), drop)


def verdict(turn_id: str, value: int | None = 1) -> Judgement:
    return Judgement(
        turn_id=TurnId(turn_id),
        verdict=None if value is None else Verdict(value),
        score=None if value is None else 1.5 * value,
        votes=() if value is None else (value,),
        judge="judge-1",
        seconds=0.25,
        hints=("be brief",),
        detail="because",
    )


def to_judging(
    ledger: Ledger, *turn_ids: str, version: int = 0, group: str | None = None, owner: str = "local"
) -> None:
    """Serves each turn in a session of its own and brings it its evidence; a group has one question."""
    for turn_id in turn_ids:
        opening, session = user(f"question of {group or turn_id}"), f"s-{turn_id}"
        arrival = ask(turn_id, opening, session=session, owner=owner, group=group)
        ledger.record(serve(arrival, opening, "answer", version))
        talk = opening + reply("answer") + user("thanks")
        assert ledger.arrive(ask(f"{turn_id}-next", talk, session=session, owner=owner)).to_judge is not None


def judge(
    ledger: Ledger,
    turn_id: str,
    value: int | None = 1,
    drop: DropReason | None = None,
    targets: TeacherTargets | None = None,
) -> bool:
    """Answers the case that is on file now; a person's score outranks the verdict."""
    case = ledger.judge_request(TurnId(turn_id))
    given = None if case is None else case.feedback
    judgement = verdict(turn_id, value)
    if given is None:
        return ledger.judged(judgement, drop, targets)
    judgement = replace(judgement, verdict=given.verdict, feedback=given.score)
    return ledger.judged(judgement, drop, targets, feedback_at=given.given_at)


def queue(ledger: Ledger, *turn_ids: str, version: int = 0, group: str | None = None, owner: str = "local") -> None:
    """Takes each turn through its whole way to the queue."""
    to_judging(ledger, *turn_ids, version=version, group=group, owner=owner)
    for turn_id in turn_ids:
        assert ledger.judged(verdict(turn_id))


def taught(hints: tuple[str, ...] = ("be brief",), top_k: int = 2, tokens: int = 3) -> TeacherTargets:
    """What a teacher thinks of the answers that `serve` gives."""
    shape = (len(hints), tokens, top_k)
    numbers = np.random.default_rng(len(hints) * 100 + top_k)
    return TeacherTargets(
        hints=hints,
        logps=-numbers.exponential(size=shape[:2]).astype(np.float32),
        topk_ids=numbers.integers(0, 2**31, size=shape).astype(np.int32),
        topk_logps=-numbers.exponential(size=shape).astype(np.float32),
        teacher="teacher-1",
        version=4,
    )


def listing(hints: tuple[str, ...] = ("be brief",), top_k: int = 32) -> TeacherTargets:
    """Targets that belong to the answers that `serve` gives: the teacher lists their tokens among its best."""
    sampled = np.array([7, 8, 9], dtype=np.int32)
    others = np.arange(100, 100 + top_k - len(sampled), dtype=np.int32)
    logps = (
        np.array([-1.25, -0.5, -2.4], dtype=np.float32) * np.linspace(1.0, 0.9, len(hints), dtype=np.float32)[:, None]
    )
    unlikely = np.full((len(hints), 3, len(others)), -9.0, dtype=np.float32)
    # At each place its own token comes first.
    ids = np.stack([np.roll(sampled, -place) for place in range(3)])
    listed = np.stack([np.stack([logps[:, place], *[unlikely[:, place, 0]] * 2], -1) for place in range(3)], 1)
    return TeacherTargets(
        hints=hints,
        logps=logps,
        topk_ids=np.broadcast_to(np.concatenate([ids, np.tile(others, (3, 1))], -1), (len(hints), 3, top_k)).copy(),
        topk_logps=np.concatenate([listed, unlikely], -1),
        teacher="teacher-1",
    )


def opinion(turn_id: str, score: float, comment: str = "", at: float = 5.0) -> Feedback:
    return Feedback(turn_id=TurnId(turn_id), score=score, comment=comment, given_at=at)


def rows(ledger: Ledger, table: str) -> int:
    return int(ledger._db.scalar(f"SELECT count(*) FROM {table}"))


def ids(lease: LeasedTurns | None) -> list[str]:
    assert lease is not None
    return [lent.turn.turn_id for lent in lease.turns]


def take_step(
    ledger: Ledger, run_id: str, step: int, limit: int, stats: Mapping[str, float] | None = None
) -> list[str]:
    """A whole optimizer step as a trainer would report it, up to but without its checkpoint."""
    lease = ledger.lease(run_id, step, limit, now=0.0, timeout_s=60.0)
    assert lease is not None
    assert ledger.confirm(lease.lease_id, run_id, 1.0)
    assert ledger.applied(lease.lease_id, run_id, {"loss": 0.5, **(stats or {})})
    return ids(lease)

"""Small makers of arrivals, turns and judgements that the ledger's tests share."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from clawrl.ledger import LeasedTurns, Ledger, Recorded
from clawrl.ledger.config import LedgerConfig
from clawrl.messages import (
    Arrival,
    DropReason,
    FinishReason,
    Judgement,
    Message,
    SamplingParams,
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


def queue(ledger: Ledger, *turn_ids: str, version: int = 0) -> None:
    """Takes each turn through its whole way to the queue, in a session of its own."""
    for turn_id in turn_ids:
        opening = user(f"question of {turn_id}")
        say(ledger, turn_id, opening, "answer", session=f"s-{turn_id}", version=version)
        ledger.arrive(ask(f"{turn_id}-next", opening + reply("answer") + user("thanks"), session=f"s-{turn_id}"))
        assert ledger.judged(verdict(turn_id))


def ids(lease: LeasedTurns | None) -> list[str]:
    assert lease is not None
    return [turn.turn_id for turn, _ in lease.turns]


def take_step(ledger: Ledger, run_id: str, step: int, limit: int) -> list[str]:
    """A whole optimizer step as a trainer would report it, up to but without its checkpoint."""
    lease = ledger.lease(run_id, step, limit, now=0.0, timeout_s=60.0)
    assert lease is not None
    assert ledger.confirm(lease.lease_id, run_id, 1.0)
    assert ledger.applied(lease.lease_id, run_id, {"loss": 0.5})
    return ids(lease)

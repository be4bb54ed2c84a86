"""What the ingress asks of a rollout replica, and how a replica says no."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from clawrl.messages import Arrival, SamplingParams, TurnId
from clawrl.serving.errors import ApiError
from clawrl.serving.request import ModelRequest, ToolChoice
from clawrl.serving.sessions import make_arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTask:
    """One response to generate and to record. The replica renders the prompt of ``arrival`` and clamps ``sampling``.

    ``floor`` is the oldest version that may begin it: every replica in service has had it when the request came.
    ``overridden``: the operator's sampling replaced the client's. ``streamed``: the client gets the answer while it is
    written, so that nothing of it can be taken back. ``schema_field``: see `ModelRequest`.
    """

    arrival: Arrival
    sampling: SamplingParams
    tool_choice: ToolChoice
    logprobs: bool
    overridden: bool
    streamed: bool
    schema_field: str | None = None
    floor: int = 0


def tasks_for(
    wanted: ModelRequest, owner: str, now: float, floor: int = 0, *, may_train: bool = True
) -> list[GenerationTask]:
    """One for each answer that is wanted, each a turn of its own. ``may_train`` is what the key allows."""
    return [_task(wanted, owner, now, floor, may_train) for _ in range(wanted.answers)]


def _task(wanted: ModelRequest, owner: str, now: float, floor: int, may_train: bool) -> GenerationTask:
    arrival = make_arrival(
        turn_id=TurnId(uuid.uuid4().hex),
        messages=wanted.messages,
        inputs=wanted.inputs,
        session=wanted.facts.session,
        owner=owner,
        kind=wanted.facts.kind,
        ends_session=wanted.facts.ends,
        arrived_at=now,
        group=wanted.facts.group,
        may_train=may_train,
        train_wish=wanted.facts.train,
    )
    return GenerationTask(
        arrival=arrival,
        sampling=wanted.sampling,
        tool_choice=wanted.tool_choice,
        logprobs=wanted.logprobs,
        overridden=bool(wanted.overridden),
        streamed=wanted.stream,
        schema_field=wanted.schema_field,
        floor=floor,
    )


def another_turn(task: GenerationTask) -> GenerationTask:
    """The same request, to be answered as a turn of its own."""
    return replace(task, arrival=replace(task.arrival, turn_id=TurnId(uuid.uuid4().hex)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Comes instead of the first piece, or of the last."""

    error: ApiError

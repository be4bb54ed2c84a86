"""Which served turns may train, and the one reason that the others carry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clawrl.messages import (
    Arrival,
    DropReason,
    FinishReason,
    Message,
    SamplingParams,
    ToolCall,
    Turn,
    TurnId,
    TurnKind,
    VersionSpan,
)
from clawrl.serving.trainability import drop_reason

ARRIVAL = Arrival(
    turn_id=TurnId("t"),
    session=None,
    owner="local",
    kind=TurnKind.MAIN,
    prefix_hash=None,
    messages_hash="m",
    new_messages=(),
    ends_session=False,
    arrived_at=0.0,
)


def _turn(prompt: int = 4, response: int = 3, **fields: Any) -> Turn:
    given: dict[str, Any] = {
        "turn_id": TurnId("t"),
        "arrival": ARRIVAL,
        "reply_hash": "r",
        "response_text": "good",
        "answer": Message(role="assistant", content="good"),
        "prompt_ids": np.zeros(prompt, np.int32),
        "response_ids": np.zeros(response, np.int32),
        "response_logps": np.zeros(response, np.float32),
        "spans": (VersionSpan(start=0, end=response, version=1),) if response else (),
        "sampling": SamplingParams(temperature=0.7),
        "finish_reason": FinishReason.STOP,
        "started_at": 0.0,
        "finished_at": 1.0,
        "replica": "a",
    }
    return Turn(**(given | fields))


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
def test_a_plain_main_turn_may_train(finish: FinishReason) -> None:
    assert drop_reason(_turn(finish_reason=finish), 7) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"arrival": replace(ARRIVAL, may_train=False)}, DropReason.NOT_PERMITTED),
        ({"arrival": replace(ARRIVAL, kind=TurnKind.SIDE)}, DropReason.SIDE),
        ({"finish_reason": FinishReason.ABORTED}, DropReason.ABORTED),
        ({"finish_reason": FinishReason.ERROR}, DropReason.FAILED),
        ({"response": 0, "answer": Message(role="assistant")}, DropReason.EMPTY),
        ({"response": 1, "answer": Message(role="assistant")}, DropReason.EMPTY),
        ({"answer": Message(role="assistant", content=" \n")}, DropReason.EMPTY),
        ({"answer": Message(role="assistant", reasoning="hm", content="\n")}, DropReason.EMPTY),
        ({"sampling": SamplingParams(temperature=0.0)}, DropReason.GREEDY),
        ({"sampling": SamplingParams(top_p=0.99)}, DropReason.FILTERED),
        ({"sampling": SamplingParams(top_k=50)}, DropReason.FILTERED),
        ({"prompt": 5}, DropReason.TOO_LONG),
        ({"response": 4}, DropReason.TOO_LONG),
    ],
)
def test_each_obstacle_has_its_reason(fields: dict[str, Any], reason: DropReason) -> None:
    assert drop_reason(_turn(**fields), 7) is reason


def test_a_call_without_words_may_train() -> None:
    call = ToolCall(id="c", name="look", arguments="{}")
    assert drop_reason(_turn(answer=Message(role="assistant", tool_calls=(call,))), 7) is None


def test_permission_outranks_every_other_reason() -> None:
    turn = _turn(
        arrival=replace(ARRIVAL, may_train=False, kind=TurnKind.SIDE),
        finish_reason=FinishReason.ABORTED,
        sampling=SamplingParams(temperature=0.0),
    )
    assert drop_reason(turn, 1) is DropReason.NOT_PERMITTED

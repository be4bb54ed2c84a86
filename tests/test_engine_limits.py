"""What no engine runs, at the edges of what it does run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clawrl.engine.errors import UnsupportedRequest
from clawrl.engine.limits import COLDEST, check_request, check_scored, end_ids
from clawrl.engine.protocol import GenerateRequest, ScoreRequest
from clawrl.messages import SamplingParams


def check(prompt: list[int], **sampling: object) -> None:
    made = SamplingParams(**{"max_tokens": 4, **sampling})  # type: ignore[arg-type]
    request = GenerateRequest(request_id="r", prompt_ids=np.array(prompt, dtype=np.int32), sampling=made)
    check_request(request, context_length=10, vocabulary=100)


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([0, 99], {}),
        ([1] * 6, {}),
        ([1] * 9, {"max_tokens": 1}),
        ([1], {"temperature": 0.0}),
        ([1], {"temperature": COLDEST}),
        ([1], {"top_p": 1.0}),
        ([1], {"top_p": 0.01}),
    ],
)
def test_what_is_just_inside_the_limits_runs(prompt: list[int], sampling: dict[str, object]) -> None:
    check(prompt, **sampling)


@pytest.mark.parametrize(
    ("prompt", "sampling", "param"),
    [
        ([], {}, "messages"),
        ([1, 100], {}, "messages"),
        ([1, -1], {}, "messages"),
        ([1] * 7, {}, "max_tokens"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"temperature": COLDEST / 2}, "temperature"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([1], {"temperature": math.inf}, "temperature"),
        ([1], {"temperature": math.nan}, "temperature"),
        ([1], {"top_p": 0.0}, "top_p"),
        ([1], {"top_p": 1.01}, "top_p"),
        ([1], {"top_p": math.nan}, "top_p"),
    ],
)
def test_what_is_just_outside_is_refused_with_the_field_to_change(
    prompt: list[int], sampling: dict[str, object], param: str
) -> None:
    with pytest.raises(UnsupportedRequest) as refused:
        check(prompt, **sampling)
    assert refused.value.param == param


def test_a_text_is_scored_from_its_second_token_to_its_end_where_it_fits() -> None:
    def scored(length: int, start: int) -> ScoreRequest:
        return ScoreRequest(ids=np.zeros(length, dtype=np.int32), start=start)

    check_scored([scored(10, 1), scored(10, 10), scored(1, 1)], 10)
    for wrong in (scored(10, 0), scored(10, 11), scored(11, 1), scored(0, 0)):
        with pytest.raises(UnsupportedRequest, match="start"):
            check_scored([scored(2, 1), wrong], 10)


def test_every_id_that_anybody_names_ends_an_answer() -> None:
    assert end_ids(7, [9, 2], None, 2) == [2, 7, 9]
    assert end_ids(None, None) == []
    assert end_ids(0) == [0], "an id like any other"

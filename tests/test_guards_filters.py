"""Which turns are not worth training on, and that a filter which fails lets nothing through."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from clawrl.guards.config import FiltersConfig
from clawrl.guards.filters import filter_reason
from clawrl.guards.repetition import zlib_ratio
from clawrl.messages import (
    Arrival,
    DropReason,
    FinishReason,
    Message,
    SamplingParams,
    Turn,
    TurnId,
    TurnKind,
    VersionSpan,
)

PLAIN = FiltersConfig()
PROSE = (
    "Plants are living things that make their own food from light and water. They have roots, stems and leaves, and "
    "most of them are green. Some live for one summer only, others for a thousand years; a few even eat small insects."
)


def _turn(text: str = "Plants are green.", tokens: int = 5, finish: FinishReason = FinishReason.STOP) -> Turn:
    arrival = Arrival(
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
    return Turn(
        turn_id=TurnId("t"),
        arrival=arrival,
        reply_hash="r",
        answer=Message(role="assistant", content=text),
        response_text=text,
        prompt_ids=np.zeros(4, np.int32),
        response_ids=np.zeros(tokens, np.int32),
        response_logps=np.zeros(tokens, np.float32),
        spans=(VersionSpan(start=0, end=tokens, version=1),) if tokens else (),
        sampling=SamplingParams(),
        finish_reason=finish,
        started_at=0.0,
        finished_at=1.0,
        replica="a",
    )


@pytest.mark.parametrize("text", ["Yes.", "Plants are green.", PROSE, '{"name": "list_files", "arguments": {}}'])
@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
def test_an_ordinary_answer_passes_the_default_filters(text: str, finish: FinishReason) -> None:
    assert filter_reason(_turn(text, tokens=2 + len(text) // 4, finish=finish), PLAIN) is None


@pytest.mark.parametrize(
    ("turn", "settings", "reason", "detail"),
    [
        (_turn(tokens=1), {}, DropReason.TOO_SHORT, "min_response_tokens is 2"),
        (_turn(tokens=7), {"min_response_tokens": 8}, DropReason.TOO_SHORT, "7 tokens"),
        (_turn(" \n"), {}, DropReason.TOO_SHORT, "min_response_words is 1"),
        (_turn("two words"), {"min_response_words": 3}, DropReason.TOO_SHORT, "2 words"),
        (_turn(finish=FinishReason.LENGTH), {"truncated": "drop"}, DropReason.TRUNCATED, "after 5 tokens"),
        (_turn("go on and " * 30), {}, DropReason.REPETITIVE, "min_zlib_ratio is 0.15"),
        (_turn(PROSE), {"min_zlib_ratio": 0.9}, DropReason.REPETITIVE, "compresses to 0.6"),
    ],
)
def test_each_filter_gives_its_reason_and_what_it_measured(
    turn: Turn, settings: dict[str, Any], reason: DropReason, detail: str
) -> None:
    found = filter_reason(turn, FiltersConfig(**settings))
    assert found is not None
    assert found[0] is reason and detail in found[1]


@pytest.mark.parametrize(
    ("turn", "settings"),
    [
        (_turn(tokens=8), {"min_response_tokens": 8}),
        (_turn("three words here"), {"min_response_words": 3}),
        (_turn(finish=FinishReason.STOP), {"truncated": "drop"}),
        (_turn("go on and " * 30), {"min_zlib_ratio": 0.0}),
    ],
)
def test_a_turn_on_the_allowed_side_of_a_bound_passes(turn: Turn, settings: dict[str, Any]) -> None:
    assert filter_reason(turn, FiltersConfig(**settings)) is None


def test_a_users_filter_refuses_with_its_own_words_and_the_others_are_still_asked() -> None:
    def passes(turn: Turn) -> str | None:
        return None

    def no_plants(turn: Turn) -> str | None:
        return "speaks of plants" if "Plants" in turn.response_text else None

    assert filter_reason(_turn("Stones."), PLAIN, [passes, no_plants]) is None
    against = filter_reason(_turn(), PLAIN, [passes, no_plants])
    assert against is not None and against.reason is DropReason.REFUSED_BY_FILTER
    assert "no_plants" in against.detail and "speaks of plants" in against.words


@pytest.mark.parametrize(
    ("answer", "detail"), [(ZeroDivisionError("oops"), "ZeroDivisionError: oops"), (False, "bool"), ("", "no reason")]
)
def test_a_filter_that_does_not_answer_properly_lets_nothing_through(answer: Any, detail: str) -> None:
    def broken(turn: Turn) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    against = filter_reason(_turn(), PLAIN, [broken])
    assert against is not None and against.reason is DropReason.REFUSED_BY_FILTER
    assert detail in against.words and "broken" in against.detail


def test_a_filter_whose_name_has_spaces_keeps_all_of_it() -> None:
    class Refuses:
        def __repr__(self) -> str:
            return "a filter of mine"

        def __call__(self, turn: Turn) -> str:
            return "not this one"

    against = filter_reason(_turn(), PLAIN, [Refuses()])
    assert against == (DropReason.REFUSED_BY_FILTER, "a filter of mine", "not this one")


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="min_tokens"):
        FiltersConfig(min_tokens=3)  # type: ignore[call-arg]


def test_the_ratio_is_that_of_zlib_over_the_last_kilobyte() -> None:
    text = "".join(chr(33 + (7 * i * i) % 90) for i in range(3000))
    tail = text.encode()[-1024:]
    assert zlib_ratio(text) == len(zlib.compress(tail, 9)) / 1024
    assert zlib_ratio(PROSE) == pytest.approx(len(zlib.compress(PROSE.encode(), 9)) / len(PROSE))


def test_texts_of_less_than_64_bytes_are_not_spoken_of() -> None:
    assert zlib_ratio("a" * 63) == 1.0 and zlib_ratio("") == 1.0
    assert zlib_ratio("a" * 64) < 0.25
    assert zlib_ratio("ä" * 32) < 0.25


def test_loops_and_prose_lie_on_different_sides_of_both_defaults_at_every_length() -> None:
    for words in (16, 64, 256):
        assert zlib_ratio("the cat sat on " * words) < 0.35 < 0.4 < zlib_ratio(PROSE[: 6 * words])
    assert zlib_ratio(PROSE + " and so on" * 100) < 0.15


def test_a_lone_surrogate_is_measured_like_any_text() -> None:
    assert math.isfinite(zlib_ratio("\ud800" * 100))

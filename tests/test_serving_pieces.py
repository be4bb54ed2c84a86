"""Streams of pieces: signs of life while nothing comes, several answers in one, and how they end and are left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from clawrl.messages import FinishReason, Message, VersionSpan
from clawrl.serving.errors import ApiError, overloaded
from clawrl.serving.pieces import (
    FinishPiece,
    IdlePiece,
    Piece,
    ReasoningPiece,
    TextPiece,
    TokenLogprob,
    Usage,
    alive,
    merged,
    started,
    whole_answers,
)
from tests.idle_clock import run_on_idle_clock

LONG, SHORT = 60.0, 0.005
Step = Piece | Exception | asyncio.Event


class Source:
    """Pieces in order; waits where there is an event and raises where there is an error.

    ``left`` says how it ended: by itself, by an error, while it was waiting, or between two pieces.
    """

    def __init__(self, *steps: Step) -> None:
        self.steps, self.left = steps, ""

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        self.left = ""
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    yield step
            self.left = "end"
        except asyncio.CancelledError:
            self.left = "waiting"
            raise
        except GeneratorExit:
            self.left = "between"
            raise
        except Exception:
            self.left = "error"
            raise


def _text(text: str, version: int = 3) -> TextPiece:
    return TextPiece(text=text, version=version)


def _finish(text: str = "", version: int = 3) -> FinishPiece:
    return FinishPiece(
        finish_reason=FinishReason.STOP,
        spans=(VersionSpan(start=0, end=1, version=version),),
        version=version,
        usage=Usage(prompt_tokens=2, completion_tokens=1),
        message=Message(role="assistant", content=text),
    )


def _run(test: Callable[[], Awaitable[None]]) -> None:
    """Ends a test that would wait for ever, and fails where a task's error was never looked at."""
    neglected: list[dict[str, Any]] = []

    async def limited() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: neglected.append(context))
        async with asyncio.timeout(60):
            await test()
        gc.collect()

    run_on_idle_clock(limited())
    assert neglected == []


def test_usage_adds_up() -> None:
    assert Usage(prompt_tokens=2, completion_tokens=3).total_tokens == 5


def test_pieces_that_come_in_time_are_passed_on_as_they_are() -> None:
    given = (_text("a"), ReasoningPiece(text="b", version=3), _finish())

    async def test() -> None:
        assert [piece async for piece in alive(Source(*given).pieces(), LONG)] == list(given)

    _run(test)


def test_while_nothing_comes_there_are_signs_of_life_of_the_version_that_spoke_last() -> None:
    async def test() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        source = Source(first, _text("a", 7), second, _finish("a", 8))
        seen: list[Piece] = []
        async for piece in alive(source.pieces(), SHORT):
            seen.append(piece)
            if seen == [IdlePiece(version=None)] * 3:
                first.set()
            if seen[-2:] == [IdlePiece(version=7)] * 2:
                second.set()
        said = [piece for piece in seen if not isinstance(piece, IdlePiece)]
        assert said == [_text("a", 7), _finish("a", 8)]
        # A last one may have been on its way when the piece came.
        at = seen.index(_text("a", 7))
        assert at >= 3 and {piece.version for piece in seen[:at]} == {None}
        assert len(seen) - at >= 4 and {piece.version for piece in seen[at:-1]} == {7}

    _run(test)


def test_leaving_while_nothing_comes_cancels_the_source() -> None:
    async def test() -> None:
        source = Source(_text("a"), asyncio.Event(), _finish())
        pieces = alive(source.pieces(), SHORT)
        assert [await anext(pieces), await anext(pieces)] == [_text("a"), IdlePiece(version=3)]
        assert source.left == ""
        await pieces.aclose()
        assert source.left == "waiting"

    _run(test)


def test_an_error_that_comes_while_the_reader_leaves_is_not_left_unseen() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        source = Source(gate, KeyError("inside"))
        pieces = alive(source.pieces(), SHORT)
        assert await anext(pieces) == IdlePiece(version=None)
        gate.set()
        while not source.left:
            await asyncio.sleep(0)
        await pieces.aclose()
        assert source.left == "error"

    _run(test)


def test_a_reader_that_is_cancelled_while_nothing_comes_cancels_the_source() -> None:
    async def test() -> None:
        source = Source(asyncio.Event(), _finish())
        reader = asyncio.ensure_future(anext(alive(source.pieces(), LONG)))
        await asyncio.sleep(0.01)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert source.left == "waiting"

    _run(test)


def test_leaving_between_two_pieces_closes_the_source() -> None:
    async def test() -> None:
        source = Source(_text("a"), _text("b"), _finish())
        pieces = alive(source.pieces(), LONG)
        await anext(pieces)
        await pieces.aclose()
        assert source.left == "between"

    _run(test)


def test_nothing_is_read_after_the_finish_piece() -> None:
    async def test() -> None:
        source = Source(_finish(), _text("late"))
        assert [piece async for piece in alive(source.pieces(), LONG)] == [_finish()]
        assert source.left == "between"

    _run(test)


@pytest.mark.parametrize("given", [(), (_text("a"),)])
def test_an_answer_without_a_finish_piece_is_an_error(given: tuple[Piece, ...]) -> None:
    async def test() -> None:
        seen = []
        with pytest.raises(ApiError, match="without a finish reason") as caught:
            async for piece in alive(Source(*given).pieces(), LONG):
                seen.append(piece)
        assert (caught.value.status, caught.value.code) == (500, "internal_error")
        assert seen == list(given)

    _run(test)


def test_what_the_source_raises_is_raised() -> None:
    async def test() -> None:
        pieces = alive(Source(_text("a"), KeyError("inside")).pieces(), LONG)
        await anext(pieces)
        with pytest.raises(KeyError, match="inside"):
            await anext(pieces)

    _run(test)


def test_pieces_of_several_answers_come_with_the_number_of_their_answer_as_they_come() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        slow, quick = Source(gate, _text("a"), _finish("a")), Source(_text("x"), _text("y"), _finish("xy"))
        seen = []
        async for number, piece in merged([slow.pieces(), quick.pieces()]):
            seen.append((number, piece))
            if isinstance(piece, FinishPiece):
                gate.set()
        assert seen == [(1, _text("x")), (1, _text("y")), (1, _finish("xy")), (0, _text("a")), (0, _finish("a"))]

    _run(test)


def test_what_comes_at_the_same_moment_comes_in_the_order_of_the_answers() -> None:
    async def test() -> None:
        sources = [Source(_text(name), _finish(name)).pieces() for name in "abc"]
        seen = [number async for number, _ in merged(sources)]
        assert seen == [0, 1, 2, 0, 1, 2]

    _run(test)


def test_the_failure_of_one_answer_ends_the_others() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        waiting, between = Source(_text("a"), asyncio.Event(), _finish()), Source(_text("b"), _finish())
        bad = Source(gate, overloaded())
        pieces = merged([waiting.pieces(), bad.pieces(), between.pieces()])
        assert [await anext(pieces), await anext(pieces)] == [(0, _text("a")), (2, _text("b"))]
        assert await anext(pieces) == (2, _finish())
        gate.set()
        with pytest.raises(ApiError, match="limit of waiting requests"):
            await anext(pieces)
        assert (waiting.left, bad.left, between.left) == ("waiting", "error", "between")

    _run(test)


def test_of_two_failures_at_the_same_moment_the_first_is_raised_and_none_is_forgotten() -> None:
    async def test() -> None:
        sources = [Source(overloaded(), _finish()), Source(KeyError("inside"), _finish())]
        with pytest.raises(ApiError, match="limit of waiting requests"):
            await anext(merged([source.pieces() for source in sources]))
        assert [source.left for source in sources] == ["error", "error"]

    _run(test)


def test_leaving_several_answers_closes_them_all_wherever_they_are() -> None:
    async def test() -> None:
        sources = [Source(_text("a"), _text("b"), _finish()), Source(asyncio.Event()), Source(asyncio.Event())]
        lively = [alive(source.pieces(), every_s) for source, every_s in zip(sources, [LONG, LONG, SHORT], strict=True)]
        pieces = merged(lively)
        assert await anext(pieces) == (0, _text("a"))
        await pieces.aclose()
        assert [source.left for source in sources][1:] == ["waiting", "waiting"]
        assert sources[0].left == "between"

    _run(test)


def test_what_has_started_still_has_its_first_piece() -> None:
    async def test() -> None:
        begun = await started(merged([Source(_text("a"), _finish("a")).pieces()]))
        assert begun.first == (0, _text("a"))
        assert [numbered async for numbered in begun.all()] == [(0, _text("a")), (0, _finish("a"))]

    _run(test)


def test_a_refusal_in_stead_of_the_first_piece_is_raised_at_the_start() -> None:
    async def test() -> None:
        with pytest.raises(ApiError) as caught:
            await started(merged([Source(overloaded()).pieces()]))
        assert caught.value.status == 429
        with pytest.raises(ApiError, match="before it began") as nothing:
            await started(merged([]))
        assert nothing.value.status == 500

    _run(test)


def test_leaving_what_has_started_closes_its_sources() -> None:
    async def test() -> None:
        source = Source(_text("a"), _text("b"), _finish())
        begun = await started(merged([source.pieces()]))
        pieces = begun.all()
        await anext(pieces)
        await pieces.aclose()
        assert source.left == "between"

    _run(test)


def test_whole_answers_are_their_ends_and_their_log_probs_in_the_order_of_the_answers() -> None:
    entries = [TokenLogprob(token=token, logprob=-1.0) for token in "abx"]

    def told(text: str, *logprobs: TokenLogprob) -> TextPiece:
        return TextPiece(text=text, version=3, logprobs=logprobs)

    async def test() -> None:
        gate = asyncio.Event()
        first = Source(gate, told("a", entries[0]), IdlePiece(version=3), told("", entries[1]), _finish("ab"))
        second = Source(told("x", entries[2]), _text("y"), ReasoningPiece(text="hm", version=3), _finish("xy"))
        begun = await started(merged([first.pieces(), second.pieces()]))
        gate.set()
        answers = await whole_answers(begun, 2)
        assert [answer.finish for answer in answers] == [_finish("ab"), _finish("xy")]
        assert [answer.logprobs for answer in answers] == [tuple(entries[:2]), (entries[2],)]

    _run(test)


def test_no_answer_is_whole_when_one_of_them_failed() -> None:
    async def test() -> None:
        good, bad = Source(_text("a"), _finish("a")), Source(_text("x"), overloaded())
        with pytest.raises(ApiError):
            await whole_answers(await started(merged([good.pieces(), bad.pieces()])), 2)
        assert good.left != "" and bad.left == "error"

    _run(test)

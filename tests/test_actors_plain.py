"""The parts of the actors that need no cluster: the turn being written, the figures, the hold on a caller."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from clawrl.actors.calls import CoordinatorAway
from clawrl.actors.generation import GenerationTask
from clawrl.actors.status import percentile
from clawrl.actors.transcript import Transcript, merge_spans
from clawrl.engine.protocol import TokenChunk
from clawrl.engine.slots import Slots
from clawrl.messages import FinishReason, Message, SamplingParams, TurnId, TurnKind, VersionSpan
from clawrl.serving.sessions import make_arrival

ASKED = (Message(role="user", content="hello"),)


def _chunk(ids: list[int], version: int = 0, finish: FinishReason | None = None) -> TokenChunk:
    return TokenChunk(
        ids=np.array(ids, dtype=np.int32),
        logps=-np.arange(1, len(ids) + 1, dtype=np.float32),
        version=version,
        finish_reason=finish,
    )


def _transcript(tiny_folder: Path, *, stop: tuple[str, ...] = (), logprobs: bool = False) -> Transcript:
    arrival = make_arrival(
        turn_id=TurnId("t"),
        messages=ASKED,
        session="s",
        owner="o",
        kind=TurnKind.MAIN,
        ends_session=False,
        arrived_at=1.0,
    )
    task = GenerationTask(
        arrival=arrival,
        prompt_ids=np.array([5, 6], dtype=np.int32),
        sampling=SamplingParams(stop=stop),
        logprobs=logprobs,
        overridden=False,
    )
    return Transcript(task, AutoTokenizer.from_pretrained(tiny_folder), replica="r", version=0)


def test_spans_merge_neighbours_of_one_version_and_cover_every_token() -> None:
    chunks = [_chunk([1], 0), _chunk([2, 3], 0), _chunk([], 1), _chunk([4], 1), _chunk([5], 0)]
    assert merge_spans(chunks) == (
        VersionSpan(start=0, end=3, version=0),
        VersionSpan(start=3, end=4, version=1),
        VersionSpan(start=4, end=5, version=0),
    )
    assert merge_spans([]) == ()


def test_a_turn_holds_the_engines_ids_and_the_text_that_the_client_saw(tiny_folder: Path) -> None:
    transcript = _transcript(tiny_folder)
    ids = AutoTokenizer.from_pretrained(tiny_folder).encode("naïve café 🙂 is good")
    pieces = [transcript.add(_chunk([i], finish=None)) for i in ids[:-1]]
    pieces.append(transcript.add(_chunk(ids[-1:], version=3, finish=FinishReason.STOP)))
    turn = transcript.turn(FinishReason.STOP)
    seen = "".join(piece.text for piece in pieces if piece)
    assert seen == turn.response_text == "naïve café 🙂 is good"
    assert turn.response_ids.tolist() == ids and len(turn.response_logps) == len(ids)
    assert turn.spans[-1].version == 3
    follow = make_arrival(
        turn_id=TurnId("u"),
        messages=[*ASKED, Message(role="assistant", content=seen), Message(role="user", content="thanks")],
        session="s",
        owner="o",
        kind=TurnKind.MAIN,
        ends_session=False,
        arrived_at=2.0,
    )
    assert follow.prefix_hash == turn.reply_hash
    assert transcript.finish(turn).usage.completion_tokens == len(ids)


def test_an_aborted_turn_keeps_what_was_sampled_and_one_without_a_token_is_still_a_turn(tiny_folder: Path) -> None:
    transcript = _transcript(tiny_folder)
    transcript.add(_chunk([50, 51]))
    aborted = transcript.turn(FinishReason.ABORTED)
    assert aborted.response_ids.tolist() == [50, 51] and aborted.finish_reason is FinishReason.ABORTED
    empty = _transcript(tiny_folder).turn(FinishReason.ABORTED)
    assert len(empty.response_ids) == 0 and empty.spans == () and empty.response_text == ""


def test_a_stop_string_is_in_the_tokens_and_not_in_the_text(tiny_folder: Path) -> None:
    ids = AutoTokenizer.from_pretrained(tiny_folder).encode("good bad good")
    transcript = _transcript(tiny_folder, stop=(" bad",))
    transcript.add(_chunk(ids[:-1], finish=FinishReason.STOP))
    turn = transcript.turn(FinishReason.STOP)
    assert turn.response_text == "good" and turn.response_ids.tolist() == ids[:-1]


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 95) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.0
    assert percentile([float(i) for i in range(1, 101)], 95) == 95.0


def test_slots_are_given_in_order_and_come_back_when_a_waiter_gives_up() -> None:
    async def run() -> None:
        slots = Slots(capacity=100, page_size=10, limit=2)
        order: list[str] = []

        async def hold(name: str, tokens: int, gate: asyncio.Event) -> None:
            async with slots.reserve(tokens):
                order.append(name)
                await gate.wait()

        first, later = asyncio.Event(), asyncio.Event()
        big = asyncio.create_task(hold("big", 95, first))
        await asyncio.sleep(0)
        quitter = asyncio.create_task(hold("quitter", 50, later))
        small = asyncio.create_task(hold("small", 5, later))
        await asyncio.sleep(0)
        # The small one would fit nowhere: nobody overtakes.
        assert order == ["big"] and slots.waiting == 2
        quitter.cancel()
        await asyncio.sleep(0)
        first.set()
        await asyncio.sleep(0.01)
        assert order == ["big", "small"] and slots.running == 1
        later.set()
        await asyncio.gather(big, small)
        assert (slots.running, slots.waiting) == (0, 0)
        async with slots.reserve(100):
            pass

    asyncio.run(run())


def test_a_waiter_that_gives_up_the_moment_it_is_let_in_gives_the_room_back() -> None:
    async def run() -> None:
        slots = Slots(capacity=10, page_size=10, limit=1)

        async def hold() -> None:
            async with slots.reserve(10):
                raise AssertionError("it was cancelled before it could run")

        async with slots.reserve(10):
            waiter = asyncio.create_task(hold())
            await asyncio.sleep(0)
        # Let in by the line above, cancelled before the loop comes round to it.
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert (slots.running, slots.waiting) == (0, 0)
        async with asyncio.timeout(1), slots.reserve(10):
            pass

    asyncio.run(run())


def test_a_coordinator_that_stays_away_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from clawrl.actors import calls

    def nobody(*_: object, **__: object) -> None:
        raise ValueError("Failed to look up actor with name 'x-coordinator'.")

    monkeypatch.setattr(calls.ray, "get_actor", nobody)
    with pytest.raises(CoordinatorAway, match="ping"):
        asyncio.run(calls.Coordinator("x").ask("ping", timeout_s=0.3))
    with pytest.raises(CoordinatorAway, match="ping"):
        calls.Coordinator("x").ask_now("ping", timeout_s=0.3)

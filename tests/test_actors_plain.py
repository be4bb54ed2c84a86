"""The parts of the actors that need no cluster: the turn being written, the figures, the hold on a caller."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from clawrl.actors.calls import CoordinatorAway
from clawrl.actors.generation import GenerationTask
from clawrl.actors.status import percentile
from clawrl.actors.transcript import Transcript, merge_spans
from clawrl.engine.errors import NoPlace
from clawrl.engine.protocol import TokenChunk
from clawrl.engine.slots import Slots
from clawrl.messages import (
    Arrival,
    FinishReason,
    Message,
    SamplingParams,
    TemplateInputs,
    ToolCall,
    Turn,
    TurnId,
    TurnKind,
    VersionSpan,
)
from clawrl.serving.parsing.formats import FORMATS
from clawrl.serving.parsing.reader import MalformedCall
from clawrl.serving.pieces import CallPiece, Delta, ReasoningPiece, TextPiece
from clawrl.serving.prompts import Prompt
from clawrl.serving.request import ANY_TOOL
from clawrl.serving.sessions import make_arrival
from tests.idle_clock import run_on_idle_clock

ASKED = (Message(role="user", content="hello"),)
LOOK = json.dumps({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}})
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 5.0,  "how": "größer"}}\n</tool_call>'
WRITTEN = f"<think>\nhm, naïve\n</think>\n\nI look.\n{CALL}"


def _chunk(ids: list[int], version: int = 0, finish: FinishReason | None = None) -> TokenChunk:
    return TokenChunk(
        ids=np.array(ids, dtype=np.int32),
        logps=-np.arange(1, len(ids) + 1, dtype=np.float32),
        version=version,
        finish_reason=finish,
    )


def _with_logp(token: int, logp: float, finish: FinishReason | None = None) -> TokenChunk:
    return TokenChunk(
        ids=np.array([token], dtype=np.int32),
        logps=np.array([logp], dtype=np.float32),
        version=0,
        finish_reason=finish,
    )


def _arrival(*messages: Message, tools: tuple[str, ...] = ()) -> Arrival:
    return make_arrival(
        turn_id=TurnId("t"),
        messages=messages,
        session="s",
        owner="o",
        kind=TurnKind.MAIN,
        ends_session=False,
        arrived_at=1.0,
        inputs=TemplateInputs(tools=tools),
    )


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    made: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return made


def _transcript(
    tiny_folder: Path,
    *,
    stop: tuple[str, ...] = (),
    logprobs: bool = False,
    answer_format: str = "plain",
    tools: tuple[str, ...] = (),
    prompt: str = "ab",
    reused: int = 0,
    streamed: bool = True,
) -> Transcript:
    tokenizer = _tokenizer(tiny_folder)
    task = GenerationTask(
        arrival=_arrival(*ASKED, tools=tools),
        sampling=SamplingParams(stop=stop),
        tool_choice=ANY_TOOL,
        logprobs=logprobs,
        overridden=False,
        streamed=streamed,
    )
    ids = np.array(tokenizer.encode(prompt), dtype=np.int32)
    made = Prompt(ids=ids, reused=reused, text_hash=b"")
    return Transcript(task, made, tokenizer, FORMATS[answer_format], replica="r", version=0)


def _hermes(tiny_folder: Path, **options: Any) -> Transcript:
    return _transcript(tiny_folder, answer_format="hermes", tools=(LOOK,), **options)


def _written(transcript: Transcript, ids: list[int], finish: FinishReason = FinishReason.STOP) -> list[Delta]:
    """What leaves when the ids are sampled one by one."""
    pieces = [piece for i in ids[:-1] for piece in transcript.add(_chunk([i]))]
    return pieces + transcript.add(_chunk(ids[-1:], finish=finish))


def _said(pieces: list[Delta]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def _follows(turn: Turn, answer: Message) -> bool:
    """Whether a request with this answer in its history is taken for one that continues the turn."""
    follow = _arrival(*ASKED, answer, Message(role="user", content="thanks"))
    return (follow.prefix_hash, follow.answer_hash) == (turn.reply_hash, turn.answer_hash)


def test_spans_merge_neighbours_of_one_version_and_cover_every_token() -> None:
    chunks = [_chunk([1], 0), _chunk([2, 3], 0), _chunk([], 1), _chunk([4], 1), _chunk([5], 0)]
    assert merge_spans(chunks) == (
        VersionSpan(start=0, end=3, version=0),
        VersionSpan(start=3, end=4, version=1),
        VersionSpan(start=4, end=5, version=0),
    )
    assert merge_spans([]) == ()


def test_a_turn_holds_the_engines_ids_and_the_text_that_the_client_saw(tiny_folder: Path) -> None:
    transcript = _transcript(tiny_folder, prompt="hello", reused=2)
    ids = _tokenizer(tiny_folder).encode("naïve café 🙂 is good")
    pieces = [piece for i in ids[:-1] for piece in transcript.add(_chunk([i], finish=None))]
    pieces += transcript.add(_chunk(ids[-1:], version=3, finish=FinishReason.STOP))
    turn = transcript.turn(FinishReason.STOP)
    assert _said(pieces) == turn.response_text == turn.answer.content == "naïve café 🙂 is good"
    assert turn.response_ids.tolist() == ids and len(turn.response_logps) == len(ids)
    assert turn.prompt_ids.tolist() == _tokenizer(tiny_folder).encode("hello") and turn.reused_ids == 2
    assert turn.spans[-1].version == 3
    assert _follows(turn, Message(role="assistant", content="naïve café 🙂 is good"))
    finish = transcript.finish(turn)
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (len(turn.prompt_ids), len(ids))
    assert (finish.message, finish.spans, finish.version) == (turn.answer, turn.spans, 3)


def test_an_aborted_turn_keeps_what_was_sampled_and_one_without_a_token_is_still_a_turn(tiny_folder: Path) -> None:
    transcript = _transcript(tiny_folder)
    transcript.add(_chunk([50, 51]))
    aborted = transcript.turn(FinishReason.ABORTED)
    assert aborted.response_ids.tolist() == [50, 51] and aborted.finish_reason is FinishReason.ABORTED
    empty = _transcript(tiny_folder).turn(FinishReason.ABORTED)
    assert len(empty.response_ids) == 0 and empty.spans == () and empty.response_text == ""


def test_an_aborted_turn_has_its_whole_text_and_claims_nothing_of_a_call(tiny_folder: Path) -> None:
    ids = _tokenizer(tiny_folder).encode(WRITTEN)
    transcript = _hermes(tiny_folder)
    for i in ids[:-8]:
        transcript.add(_chunk([i]))
    turn = transcript.turn(FinishReason.ABORTED)
    assert turn.response_text == _tokenizer(tiny_folder).decode(ids[:-8])
    assert turn.answer == Message(role="assistant", content=turn.response_text)


def test_a_stop_string_is_in_the_tokens_and_not_in_the_text(tiny_folder: Path) -> None:
    ids = _tokenizer(tiny_folder).encode("good bad good")
    transcript = _transcript(tiny_folder, stop=(" bad",))
    transcript.add(_chunk(ids[:-1], finish=FinishReason.STOP))
    turn = transcript.turn(FinishReason.STOP)
    assert turn.response_text == "good" and turn.response_ids.tolist() == ids[:-1]


def test_reasoning_text_and_calls_leave_apart_and_the_turn_keeps_them_as_they_were_written(tiny_folder: Path) -> None:
    transcript = _hermes(tiny_folder)
    ids = [*_tokenizer(tiny_folder).encode(WRITTEN), 2]
    pieces = _written(transcript, ids)
    turn = transcript.turn(FinishReason.STOP)
    calls = [piece for piece in pieces if isinstance(piece, CallPiece)]
    assert "".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece)) == "hm, naïve"
    assert _said(pieces) == "I look."
    assert (calls[0].name, calls[0].arguments) == ("look", "") and calls[0].id
    assert all((piece.id, piece.name, piece.index) == (None, None, 0) for piece in calls[1:])
    arguments = "".join(piece.arguments for piece in calls)
    assert arguments == '{"at": 5.0,  "how": "größer"}'
    assert turn.response_text == WRITTEN and turn.response_ids.tolist() == ids
    assert turn.answer == Message(
        role="assistant",
        content="I look.",
        reasoning="hm, naïve",
        tool_calls=(ToolCall(id=calls[0].id, name="look", arguments=arguments),),
    )
    assert transcript.finish(turn).message == turn.answer
    # As a client sends it back: another id, other spaces, 5 for 5.0, and without the reasoning.
    rewritten = ToolCall(id="other", name="look", arguments='{"how":"gr\\u00f6\\u00dfer","at":5}')
    assert _follows(turn, Message(role="assistant", content="I look.", tool_calls=(rewritten,)))
    assert not _follows(turn, Message(role="assistant", content="I look."))


@pytest.mark.parametrize(
    ("prompt", "written", "answer"),
    [
        ("assistant\n<think>\n", "hm\n</think>\n\ngreen", Message(role="assistant", content="green", reasoning="hm")),
        ("<think> assistant\n", "hm</think>green", Message(role="assistant", content="hm</think>green")),
        (
            'assistant\n<tool_call>\n{"name": "look", "arguments":',
            " {}}\n</tool_call>",
            Message(role="assistant", tool_calls=(ToolCall(id="", name="look", arguments="{}"),)),
        ),
    ],
)
def test_what_the_prompt_began_is_part_of_the_answer(
    tiny_folder: Path, prompt: str, written: str, answer: Message
) -> None:
    transcript = _hermes(tiny_folder, prompt=prompt)
    _written(transcript, _tokenizer(tiny_folder).encode(written))
    turn = transcript.turn(FinishReason.STOP)
    calls = tuple(replace(call, id="") for call in turn.answer.tool_calls)
    assert replace(turn.answer, tool_calls=calls) == answer
    assert turn.response_text == written, "what was sampled, without the prompt"


def test_a_call_that_the_limit_cuts_off_is_text(tiny_folder: Path) -> None:
    transcript = _hermes(tiny_folder)
    cut = WRITTEN[: WRITTEN.index("größer")]
    pieces = _written(transcript, _tokenizer(tiny_folder).encode(cut), FinishReason.LENGTH)
    turn = transcript.turn(FinishReason.LENGTH)
    assert not any(isinstance(piece, CallPiece) for piece in pieces)
    assert turn.answer.tool_calls == () and turn.answer.content == _said(pieces) == cut.partition("</think>\n\n")[2]


def test_a_call_that_goes_wrong_after_part_of_it_left_is_a_failed_turn_with_every_id(tiny_folder: Path) -> None:
    transcript = _hermes(tiny_folder)
    ids = _tokenizer(tiny_folder).encode(CALL.partition("größer")[0] + "x" * 300 + '"}}}</tool_call>')
    with pytest.raises(MalformedCall, match="look"):
        _written(transcript, ids)
    turn = transcript.turn(FinishReason.ERROR)
    sampled = len(turn.response_ids)
    assert turn.response_ids.tolist() == ids[:sampled]
    assert turn.response_text == _tokenizer(tiny_folder).decode(ids[:sampled]) and "}}}" in turn.response_text


@pytest.mark.parametrize("end", ["}}}</tool_call>", ""])
def test_a_long_call_that_goes_wrong_or_is_cut_off_is_text_where_nothing_has_left_yet(
    tiny_folder: Path, end: str
) -> None:
    transcript = _hermes(tiny_folder, streamed=False)
    written = CALL.partition("größer")[0] + "x" * 300 + ('"' + end if end else "")
    finish = FinishReason.STOP if end else FinishReason.LENGTH
    pieces = _written(transcript, _tokenizer(tiny_folder).encode(written), finish)
    answer = transcript.turn(finish).answer
    assert answer.tool_calls == () and answer.content == _said(pieces) == written


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
@pytest.mark.parametrize(
    "written",
    ["naïve 🙂", WRITTEN, CALL, "<think>only hm", "good bad", "<tool_call>\n{broken</tool_call>", "plants \n\n"],
)
def test_log_probs_are_complete_and_in_order_whatever_becomes_of_the_text(
    tiny_folder: Path, written: str, finish: FinishReason
) -> None:
    tokenizer = _tokenizer(tiny_folder)
    ids = [*tokenizer.encode(written), 2]
    transcript = _hermes(tiny_folder, logprobs=True, stop=(" bad",))
    pieces = [piece for i, token in enumerate(ids[:-1]) for piece in transcript.add(_with_logp(token, -float(i)))]
    pieces += transcript.add(_with_logp(ids[-1], -float(len(ids) - 1), finish))
    entries = [entry for piece in pieces if isinstance(piece, TextPiece) for entry in piece.logprobs or ()]
    assert [entry.logprob for entry in entries] == [-float(i) for i in range(len(ids))]
    assert [entry.token for entry in entries] == [tokenizer.decode([i]) for i in ids]


def test_log_probs_are_left_out_for_a_client_that_did_not_ask(tiny_folder: Path) -> None:
    pieces = _written(_hermes(tiny_folder), _tokenizer(tiny_folder).encode(WRITTEN))
    assert {piece.logprobs for piece in pieces if isinstance(piece, TextPiece)} == {None}


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

    run_on_idle_clock(run())


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
        async with asyncio.timeout(60), slots.reserve(10):
            pass

    asyncio.run(run())


def test_only_the_wait_for_room_is_bounded_not_what_is_done_with_it() -> None:
    async def run() -> None:
        slots = Slots(capacity=10, page_size=10, limit=1)
        async with slots.reserve(10, within_s=0.02):
            with pytest.raises(NoPlace):
                async with slots.reserve(10, within_s=0.02):
                    raise AssertionError("there was no room")
            await asyncio.sleep(0.05)
        assert (slots.running, slots.waiting) == (0, 0)

    run_on_idle_clock(run())


def test_a_coordinator_that_stays_away_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from clawrl.actors import calls

    def nobody(*_: object, **__: object) -> None:
        raise ValueError("Failed to look up actor with name 'x-coordinator'.")

    monkeypatch.setattr(calls.ray, "get_actor", nobody)
    with pytest.raises(CoordinatorAway, match="ping"):
        asyncio.run(calls.Coordinator("x").ask("ping", timeout_s=0.3))
    with pytest.raises(CoordinatorAway, match="ping"):
        calls.Coordinator("x").ask_now("ping", timeout_s=0.3)

"""The whole HTTP side before a fake token source, driven by the official client over a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from clawrl.engine.textstream import TextStream
from clawrl.messages import FinishReason, Message, SamplingParams, ToolCall, TurnId, VersionSpan
from clawrl.serving.auth import KeyRing
from clawrl.serving.body import decode_body
from clawrl.serving.config import ServingConfig
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.dialects.chat import error as error_body
from clawrl.serving.dialects.chat import read
from clawrl.serving.errors import ApiError, overloaded
from clawrl.serving.pieces import (
    CallPiece,
    FinishPiece,
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
from clawrl.serving.template import ChatRenderer
from tests.tiny_model import build_tiny_model

KEY = "sk-test"
CONTEXT = 800
ANSWER = "naïve café 🙂 plants are green. END and more"
SPANS = (VersionSpan(start=0, end=1, version=12),)
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALLED = Message(
    role="assistant",
    content="I look.",
    reasoning="hm",
    tool_calls=(
        ToolCall(id="call_a", name="look", arguments='{"at": "Größe",  "deep": 2.50}'),
        ToolCall(id="call_b", name="look", arguments="{}"),
    ),
)


def _finish(told: Message, prompt: list[int], sampled: int, reason: FinishReason = FinishReason.STOP) -> FinishPiece:
    usage = Usage(prompt_tokens=len(prompt), completion_tokens=sampled)
    return FinishPiece(finish_reason=reason, spans=SPANS, version=12, usage=usage, message=told)


class Model:
    """Answers as the user's message says. ``left`` are the messages whose answers nobody waited for, or that failed.

    An answer to ``late`` or ``silent`` begins when ``begin`` is set.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.left: list[str] = []
        self.begin = threading.Event()

    async def pieces(self, prompt: list[int], sampling: SamplingParams, mood: str) -> AsyncGenerator[Piece, None]:
        done = False
        try:
            if mood == "busy":
                raise overloaded(3)
            while mood in ("late", "silent") and not self.begin.is_set():
                await asyncio.sleep(0.01)
            async for piece in _calling(prompt) if mood == "call" else self._saying(prompt, sampling, mood):
                yield piece
            done = True
        finally:
            if not done:
                self.left.append(mood)

    async def _saying(self, prompt: list[int], sampling: SamplingParams, mood: str) -> AsyncGenerator[Piece, None]:
        text, told = TextStream(self.tokenizer, sampling.stop), []
        ids = self.tokenizer.encode(ANSWER)[: sampling.max_tokens]
        for count, token in enumerate(ids, start=1):
            if mood == "broken" and count > 5:
                raise RuntimeError("the loop died")
            if mood == "slow":
                await asyncio.sleep(0.1)
            told.append(text.push([token]))
            entry = TokenLogprob(token=self.tokenizer.decode([token]), logprob=-0.25)
            yield TextPiece(text=told[-1], version=12, logprobs=(entry,))
            if text.stopped:
                break
        told.append(text.finish())
        yield TextPiece(text=told[-1], version=12)
        whole = text.stopped or len(ids) < sampling.max_tokens
        message = Message(role="assistant", content="".join(told))
        yield _finish(message, prompt, count, FinishReason.STOP if whole else FinishReason.LENGTH)


async def _calling(prompt: list[int]) -> AsyncGenerator[Piece, None]:
    """The parts of `CALLED` as a model would write them."""
    yield ReasoningPiece(text="hm", version=12)
    yield TextPiece(text="I look.", version=12)
    for index, call in enumerate(CALLED.tool_calls):
        yield CallPiece(index=index, version=12, id=call.id, name=call.name)
        for at in range(0, len(call.arguments), 7):
            yield CallPiece(index=index, version=12, arguments=call.arguments[at : at + 7])
    yield _finish(CALLED, prompt, 1)


def _app(model: Model) -> FastAPI:
    app = FastAPI()
    config = ServingConfig(served_name="tiny", api_key=KEY, heartbeat_s=0.05)
    keys = KeyRing(config, {})
    renderer = ChatRenderer(model.tokenizer, CONTEXT)

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> Response:
        return JSONResponse(error_body(error), error.status, headers=error.headers)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        keys.admitted(request.headers)
        asked = read(decode_body(await request.body(), config.max_body_bytes), request.headers, config)
        wanted = asked.request
        prompt = renderer.render(wanted.messages, wanted.inputs)
        sampling = renderer.fit(wanted.sampling, len(prompt))
        turn_ids = tuple(TurnId(f"t{number}") for number in range(wanted.answers))
        facts = AnswerFacts(
            turn_ids=turn_ids, model=wanted.model, created=int(time.time()), session=wanted.facts.session
        )
        sources = [model.pieces(prompt, sampling, wanted.messages[-1].content) for _ in turn_ids]
        begun = await started(merged([alive(source, config.heartbeat_s) for source in sources]))
        writer = asked.writer(facts)
        if not wanted.stream:
            return JSONResponse(writer.whole(await whole_answers(begun, wanted.answers)))
        return StreamingResponse(writer.stream(begun), media_type="text/event-stream")

    return app


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(AutoTokenizer.from_pretrained(build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")))


@pytest.fixture(scope="module")
def url(model: Model) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(_app(model), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join(10)
    listener.close()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


def _ask(client: openai.OpenAI, content: str = "hi", **fields: Any) -> Any:
    given = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
    return client.chat.completions.create(**(given | fields))


def _assembled(client: openai.OpenAI, content: str = "hi", **fields: Any) -> Any:
    """The answer as the client's own helper puts it together from a stream."""
    messages = [{"role": "user", "content": content}]
    with client.chat.completions.stream(model="tiny", messages=messages, **fields) as stream:
        return stream.get_final_completion()


def test_the_client_reads_an_answer(client: openai.OpenAI) -> None:
    answer = _ask(client, extra_headers={"X-Session-Id": "s1"}, logprobs=True)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.system_fingerprint == "v12" and answer.id == "chatcmpl-t0"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    assert answer.clawrl["session"] == "s1" and answer.clawrl["spans"][0]["version"] == 12


def test_the_client_reads_a_stream_with_its_usage(client: openai.OpenAI) -> None:
    chunks = list(_ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER and len(chunks) > 10
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-2:] == [None, "stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 10


def test_the_client_s_own_stream_helper_assembles_the_answer(client: openai.OpenAI) -> None:
    answer = _assembled(client, logprobs=True)
    assert answer.choices[0].message.content == ANSWER
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens


@pytest.mark.parametrize("assembled", [False, True])
def test_the_client_reads_calls_of_tools(client: openai.OpenAI, assembled: bool) -> None:
    answer = (_assembled if assembled else _ask)(client, "call", tools=[LOOK])
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    calls = [(call.id, call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [(call.id, "function", call.name, call.arguments) for call in CALLED.tool_calls]
    # The helper knows no reasoning of chat completions; what it does not know it joins all the same.
    assert choice.message.model_extra["reasoning_content"] == "hm"


def test_the_client_can_send_an_answer_with_calls_back(client: openai.OpenAI) -> None:
    said = _ask(client, "call", tools=[LOOK]).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "a wall"} for call in said.tool_calls]
    messages = [{"role": "user", "content": "call"}, said, *results]
    answer = _ask(client, messages=messages, tools=[LOOK])
    assert answer.choices[0].message.content == ANSWER


@pytest.mark.parametrize("assembled", [False, True])
def test_the_client_reads_several_answers(client: openai.OpenAI, assembled: bool) -> None:
    answer = (_assembled if assembled else _ask)(client, n=2)
    assert [(c.index, c.message.content, c.finish_reason) for c in answer.choices] == [
        (0, ANSWER, "stop"),
        (1, ANSWER, "stop"),
    ]
    alone = _ask(client).usage
    assert answer.usage.prompt_tokens == alone.prompt_tokens
    assert answer.usage.completion_tokens == 2 * alone.completion_tokens


def test_several_streamed_answers_say_which_turn_each_of_them_is(client: openai.OpenAI) -> None:
    chunks = list(_ask(client, n=2, stream=True))
    assert {(c.choices[0].index, c.clawrl["turn_id"]) for c in chunks} == {(0, "t0"), (1, "t1")}
    for index in (0, 1):
        choices = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert choices[0].delta.role == "assistant" and choices[-1].finish_reason == "stop"
        assert "".join(choice.delta.content or "" for choice in choices) == ANSWER


def test_a_slow_first_token_is_bridged_by_empty_deltas(client: openai.OpenAI, model: Model) -> None:
    model.begin.clear()
    deltas = []
    for chunk in _ask(client, "late", stream=True):
        delta = chunk.choices[0].delta
        deltas.append(delta.content)
        if len(deltas) == 4:
            assert deltas == ["", None, None, None], "nothing has been said yet"
            model.begin.set()
    assert "".join(delta or "" for delta in deltas) == ANSWER


def test_a_slow_answer_that_is_not_streamed_is_whole_all_the_same(client: openai.OpenAI, model: Model) -> None:
    model.begin.clear()
    threading.Timer(0.3, model.begin.set).start()
    assert _ask(client, "late").choices[0].message.content == ANSWER


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_and_a_token_limit_end_the_answer(client: openai.OpenAI, streamed: bool) -> None:
    def ask(**fields: Any) -> tuple[str, str]:
        if not streamed:
            choice = _ask(client, **fields).choices[0]
            return choice.message.content, choice.finish_reason
        choices = [chunk.choices[0] for chunk in _ask(client, stream=True, **fields)]
        return "".join(c.delta.content or "" for c in choices), choices[-1].finish_reason

    assert ask(stop=". END") == ("naïve café 🙂 plants are green", "stop")
    text, reason = ask(max_tokens=3)
    assert reason == "length" and ANSWER.startswith(text)


@pytest.mark.parametrize("streamed", [False, True])
def test_each_refusal_reaches_the_client_as_its_exception(url: str, client: openai.OpenAI, streamed: bool) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        _ask(client, stream=streamed, temperature=9)
    assert (bad.value.param, bad.value.code, bad.value.type) == (
        "temperature",
        "invalid_value",
        "invalid_request_error",
    )
    with pytest.raises(openai.BadRequestError) as long:
        _ask(client, "word " * CONTEXT, stream=streamed)
    assert long.value.code == "context_length_exceeded" and f"maximum context length is {CONTEXT} tokens" in str(
        long.value
    )
    with pytest.raises(openai.NotFoundError) as unknown:
        _ask(client, stream=streamed, model="gpt-9")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.RateLimitError) as busy:
        _ask(client, "busy", stream=streamed)
    assert busy.value.response.headers["retry-after"] == "3"
    with (
        openai.OpenAI(base_url=url, api_key="sk-wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as wrong,
    ):
        _ask(stranger, stream=streamed)
    assert wrong.value.code == "invalid_api_key"


def test_a_failure_in_the_middle_reaches_the_client_as_an_error(client: openai.OpenAI) -> None:
    seen = []
    with pytest.raises(openai.APIError, match="had an error"):
        for chunk in _ask(client, "broken", stream=True):
            seen.append(chunk.choices[0])
    said = "".join(choice.delta.content or "" for choice in seen)
    assert said and ANSWER.startswith(said) and len(said) < len(ANSWER)
    assert all(choice.finish_reason is None for choice in seen)


def test_a_failure_in_the_middle_breaks_the_connection(url: str) -> None:
    body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "broken"}]}
    headers = {"Authorization": f"Bearer {KEY}"}
    raw = b""
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", f"{url}/chat/completions", json=body, headers=headers) as response,
    ):
        for part in response.iter_raw():
            raw += part
    assert b'"error"' in raw and b"[DONE]" not in raw and b'"finish_reason":"' not in raw


@pytest.mark.parametrize("mood", ["slow", "silent"])
def test_a_client_that_leaves_closes_the_source_that_goes_on_or_says_nothing(
    client: openai.OpenAI, model: Model, mood: str
) -> None:
    model.begin.clear()
    stream = _ask(client, mood, n=2, stream=True)
    next(stream)
    stream.close()
    deadline = time.monotonic() + 60.0
    while model.left.count(mood) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert model.left.count(mood) == 2


def test_bytes_that_are_no_json_are_a_400(url: str) -> None:
    answer = httpx.post(f"{url}/chat/completions", content=b"{", headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json"

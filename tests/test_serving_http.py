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
from clawrl.messages import FinishReason, SamplingParams, TurnId, VersionSpan
from clawrl.serving.auth import authenticate
from clawrl.serving.chat_request import parse_chat_request
from clawrl.serving.chat_response import ChatReply, TokenLogprob, Usage
from clawrl.serving.chat_stream import FinishPiece, Piece, TextPiece, event_stream, started, whole_answer
from clawrl.serving.config import ServingConfig
from clawrl.serving.errors import ApiError, overloaded
from clawrl.serving.template import ChatRenderer
from tests.tiny_model import build_tiny_model

KEY = "sk-test"
ANSWER = "naïve café 🙂 plants are green. END and more"


def _app(tokenizer: PreTrainedTokenizerFast, aborted: list[str]) -> FastAPI:
    app = FastAPI()
    config = ServingConfig(served_name="tiny", api_key=KEY)
    renderer = ChatRenderer(tokenizer, 200)

    async def pieces(prompt: list[int], sampling: SamplingParams, mood: str) -> AsyncGenerator[Piece, None]:
        if mood == "busy":
            raise overloaded(3)
        ids = tokenizer.encode(ANSWER)[: sampling.max_tokens]
        text = TextStream(tokenizer, sampling.stop)
        count, done = 0, False
        try:
            for count, token in enumerate(ids, start=1):
                if mood == "broken" and count > 5:
                    raise RuntimeError("the loop died")
                if mood == "slow":
                    await asyncio.sleep(0.1)
                entry = TokenLogprob(token=tokenizer.decode([token]), logprob=-0.25)
                yield TextPiece(text=text.push([token]), version=12, logprobs=(entry,))
                if text.stopped:
                    break
            yield TextPiece(text=text.finish(), version=12)
            whole = text.stopped or len(ids) < sampling.max_tokens
            yield FinishPiece(
                finish_reason=FinishReason.STOP if whole else FinishReason.LENGTH,
                spans=(VersionSpan(start=0, end=count, version=12),),
                version=12,
                usage=Usage(prompt_tokens=len(prompt), completion_tokens=count),
            )
            done = True
        finally:
            if not done:
                aborted.append(mood)

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> Response:
        return JSONResponse(error.body(), error.status, headers=error.headers)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        authenticate(request.headers.get("authorization"), KEY)
        asked = parse_chat_request(await request.body(), config, request.headers)
        prompt = renderer.render(asked.messages)
        sampling = renderer.fit(asked.sampling, len(prompt))
        reply = ChatReply(turn_id=TurnId("t"), model=asked.model, created=int(time.time()), session=asked.session)
        source = pieces(prompt, sampling, asked.messages[-1].content)
        if not asked.stream:
            return JSONResponse(await whole_answer(reply, source, logprobs=asked.logprobs))
        events = event_stream(reply, await started(source), include_usage=asked.include_usage)
        return StreamingResponse(events, media_type="text/event-stream")

    return app


@pytest.fixture(scope="module")
def aborted() -> list[str]:
    return []


@pytest.fixture(scope="module")
def url(aborted: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tokenizer = AutoTokenizer.from_pretrained(build_tiny_model(tmp_path_factory.mktemp("tiny") / "model"))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(_app(tokenizer, aborted), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join(10)
    listener.close()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=10) as made:
        yield made


def _ask(client: openai.OpenAI, content: str = "hi", **fields: Any) -> Any:
    given = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
    return client.chat.completions.create(**(given | fields))


def test_the_client_reads_an_answer(client: openai.OpenAI) -> None:
    answer = _ask(client, extra_headers={"X-Session-Id": "s1"}, logprobs=True)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.system_fingerprint == "v12" and answer.id == "chatcmpl-t"
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
    with client.chat.completions.stream(model="tiny", messages=[{"role": "user", "content": "hi"}]) as stream:
        assert stream.get_final_completion().choices[0].message.content == ANSWER


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
        _ask(client, "word " * 300, stream=streamed)
    assert long.value.code == "context_length_exceeded" and "maximum context length is 200 tokens" in str(long.value)
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
    assert len(seen) == 6 and all(choice.finish_reason is None for choice in seen)


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


def test_a_client_that_leaves_closes_the_source_within_a_second(client: openai.OpenAI, aborted: list[str]) -> None:
    stream = _ask(client, "slow", stream=True)
    next(stream)
    stream.close()
    deadline = time.monotonic() + 1.0
    while "slow" not in aborted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "slow" in aborted


def test_bytes_that_are_no_json_are_a_400(url: str) -> None:
    answer = httpx.post(f"{url}/chat/completions", content=b"{", headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json"

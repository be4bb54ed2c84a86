"""A running deployment answers real clients: whole, streamed, refused and abandoned."""

from __future__ import annotations

import socket
import time

import httpx
import openai
import pytest

from clawrl.messages import DropReason, TurnId
from tests.live import AUTH, KEY, MODEL, Live
from tests.traffic import ask, until_said

HELLO = [{"role": "user", "content": "hello, tell me about plants"}]


def test_health_and_readiness_need_no_key(live: Live) -> None:
    assert httpx.get(f"{live.url}/healthz").json() == {"ok": True}
    ready = httpx.get(f"{live.url}/readyz", timeout=20)
    assert ready.status_code == 200
    assert ready.json() == {"ready": True, "policy": True, "judge": True, "coordinator": True}


def test_the_console_is_served_to_everybody_and_shows_nothing_without_a_key(live: Live) -> None:
    page = httpx.get(f"{live.url}/console", follow_redirects=True)
    assert page.status_code == 200 and str(page.url) == f"{live.url}/console/"
    assert (
        "script-src 'self'" in page.headers["content-security-policy"] and "<title>clawrl console</title>" in page.text
    )
    module = httpx.get(f"{live.url}/console/js/app.js")
    assert (module.status_code, module.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert httpx.head(f"{live.url}/console/console.css").status_code == 200
    missing = httpx.get(f"{live.url}/console/js/nothing.js")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


def test_the_model_list_names_the_served_model(live: Live) -> None:
    (model,) = live.client().models.list().data
    assert model.id == MODEL and model.max_model_len == 512  # type: ignore[attr-defined]
    assert live.client().models.retrieve(MODEL).id == MODEL


def test_a_stream_comes_in_pieces_and_ends_properly(live: Live) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 40}
    chunks = until_said(
        lambda: list(live.client().chat.completions.create(model=MODEL, messages=HELLO, **options))  # type: ignore[call-overload]
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 3
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0


def test_the_first_token_leaves_long_before_the_last(live: Live) -> None:
    # Against the time that the whole took, of a quick machine or of a slow one. A random model may end its answer at
    # once, and this process may be late to hear it.
    for _ in range(10):
        turn_id, heard_at = until_said(lambda: _first_piece(live))
        with live.ledger() as ledger:
            turn = ledger.turn(turn_id)
        assert turn is not None
        if heard_at - turn.started_at < (turn.finished_at - turn.started_at) / 2:
            return
    raise AssertionError("a faked stream delivers everything at once")


def _first_piece(live: Live) -> tuple[TurnId, float]:
    """Of an answer: its turn, and when its first piece was heard."""
    chunks = live.client().chat.completions.create(model=MODEL, messages=HELLO, stream=True, max_tokens=400)
    heard = [(chunk.id, time.time()) for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    return TurnId(heard[0][0].removeprefix("chatcmpl-")), heard[0][1]


def test_logprobs_are_the_engines_own(live: Live) -> None:
    reply = until_said(
        lambda: live.client().chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, max_tokens=10)
    )
    entries = reply.choices[0].logprobs.content
    assert len(entries) == reply.usage.completion_tokens and all(entry.logprob < 0 for entry in entries)


@pytest.mark.parametrize(
    ("change", "error", "code"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found"),
        ({"messages": []}, openai.BadRequestError, None),
        ({"messages": "hello"}, openai.BadRequestError, None),
        ({"messages": [{"role": "user", "content": "x " * 3000}]}, openai.BadRequestError, "context_length_exceeded"),
        ({"temperature": "hot"}, openai.BadRequestError, None),
        ({"n": 17}, openai.BadRequestError, None),
    ],
)
def test_a_bad_request_gets_the_status_and_code_that_the_sdk_expects(
    live: Live, change: dict[str, object], error: type[openai.APIStatusError], code: str | None
) -> None:
    with pytest.raises(error) as caught:
        live.client().chat.completions.create(**{"model": MODEL, "messages": HELLO, **change})  # type: ignore[call-overload]
    assert caught.value.type == "invalid_request_error"
    if code:
        assert caught.value.code == code


def test_bad_json_a_wrong_key_and_an_unknown_path_are_openai_errors(live: Live) -> None:
    url = f"{live.url}/v1/chat/completions"
    bad_json = httpx.post(url, content=b"{nope", headers=AUTH)
    wrong_key = httpx.post(url, json={}, headers={"Authorization": "Bearer nope"})
    no_key = httpx.get(f"{live.url}/clawrl/status")
    unknown = httpx.get(f"{live.url}/v1/nothing", headers=AUTH)
    assert [r.status_code for r in (bad_json, wrong_key, no_key, unknown)] == [400, 401, 401, 404]
    for reply in (bad_json, wrong_key, no_key, unknown):
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert wrong_key.json()["error"]["code"] == "invalid_api_key"


def test_sampling_beyond_the_plain_distribution_is_honoured_but_does_not_train(live: Live) -> None:
    client = live.client()
    session = f"plain-{time.time()}"
    greedy = [ask(client, HELLO, stream=False, session=session, temperature=0, max_tokens=8).text for _ in range(2)]
    assert greedy[0] == greedy[1]
    ask(client, HELLO, stream=False, session=session, top_p=0.5, max_tokens=8)
    ask(client, HELLO, stream=False, session=session, extra_body={"turn_type": "side"}, max_tokens=8)
    reasons = [turn["drop_reason"] for turn in live.turns() if turn["session"] == session]
    # An answer without any visible text is dropped as empty first.
    assert set(reasons) <= {"greedy", "filtered", "side", "empty"} and reasons.count("side") == 1


def test_neither_keys_nor_what_was_said_are_in_any_log(live: Live) -> None:
    said, wrong_key = f"zanzibar{time.time_ns()}", f"mombasa{time.time_ns()}"
    body = {"model": MODEL, "messages": [{"role": "user", "content": said}], "max_tokens": 5}
    url = f"{live.url}/v1/chat/completions"
    # 502: random weights may end an answer without a word.
    assert httpx.post(url, json=body, headers=AUTH, timeout=60).status_code in (200, 502)
    assert httpx.post(url, json=body, headers={"Authorization": f"Bearer {wrong_key}"}, timeout=60).status_code == 401
    assert httpx.post(url, json=body | {"temperature": said}, headers=AUTH, timeout=60).status_code == 400
    assert httpx.post(f"{live.url}/clawrl/sessions/{said}/done", headers=AUTH, timeout=60).status_code == 200
    assert any(turn["session"] and turn["turn_id"] for turn in live.turns())
    time.sleep(1.0)  # logs are written in the background
    logs = [live.log, *(file for file in live.folder.glob("ray/session_*/logs/**/*") if file.is_file())]
    assert len(logs) > 10
    for file in logs:
        written = file.read_text(errors="replace")
        assert said not in written and wrong_key not in written and KEY not in written, file


def test_a_client_that_disconnects_frees_its_slot_and_its_turn_is_recorded_as_aborted(live: Live) -> None:
    for _ in range(3):
        before = live.status()["turns"]
        all_of_them = before["recorded"] + 8
        closed_at = _eight_that_leave(live)
        # Ray cancels the calls of a cancelled request; the record of its turn must not be among them.
        status = live.wait_for(lambda s, n=all_of_them: s["turns"]["recorded"] == n, what="all 8 turns")
        assert status["unrecorded"] == 0
        if status["turns"]["dropped"].get("aborted", 0) > before["dropped"].get("aborted", 0):
            break
    else:
        raise AssertionError("no turn was aborted, and not every answer can have been over when its client left")
    live.wait_for(lambda s: all(r["running"] == 0 for r in s["replicas"]), what="free slots")
    with live.ledger() as ledger:
        aborted = [
            row for row in ledger.turns(20) if row.drop_reason is DropReason.ABORTED and row.finished_at > closed_at
        ]
    # Sampling stopped soon after the disconnect (the middle one, since the machine may be busy).
    assert sorted(row.finished_at for row in aborted)[len(aborted) // 2] < closed_at + 10.0
    ask(live.client(), HELLO, stream=True, session=None, max_tokens=5)


def _eight_that_leave(live: Live) -> float:
    """Clients that leave when their long answers have begun; when they left."""
    sockets = []
    for _ in range(8):
        body = (
            '{"model": "tiny", "stream": true, "max_tokens": 480, "temperature": 1.9,'
            ' "messages": [{"role": "user", "content": "hello"}]}'
        )
        connection = socket.create_connection(("127.0.0.1", live.port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: {AUTH['Authorization']}\r\n"
        connection.sendall(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        sockets.append(connection)
    for connection in sockets:
        connection.recv(1024)  # the stream has begun
    closed_at = time.time()
    for connection in sockets:
        connection.close()
    return closed_at

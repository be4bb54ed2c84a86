"""Which session a request belongs to, by the names that clients have for it."""

from __future__ import annotations

from typing import Any

import pytest

from clawrl.messages import Message
from clawrl.serving.errors import ApiError
from clawrl.serving.sessions import MAX_SESSION_CHARS, named_session

RUNTIME = "Runtime: agent=main | session=agent:main:x | sessionId=abc | host=box | shell=bash"
LONG = "x" * (MAX_SESSION_CHARS + 1)


def _user(text: str) -> Message:
    return Message(role="user", content=text)


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({}, {}, None),
        ({"X-Session-Id": " a "}, {}, "a"),
        ({}, {"session_id": "b"}, "b"),
        ({"x-session-id": "a"}, {"session_id": "b"}, "a"),
        ({"X-Session-Id": "  "}, {"session_id": "b"}, "b"),
        ({}, {"session_id": "  "}, None),
        ({"session_id": "c"}, {}, "c"),
        ({"X-Session-Affinity": "c"}, {}, "c"),
        ({"session-id": "c", "thread-id": "d"}, {}, "c"),
        ({"Thread-Id": "d"}, {}, "d"),
        ({"X-Claude-Code-Session-Id": "e"}, {}, "e"),
        ({}, {"prompt_cache_key": "f"}, "f"),
    ],
)
def test_the_session_is_found_under_every_name_that_clients_use(
    headers: dict[str, str], body: dict[str, Any], session: str | None
) -> None:
    assert named_session(headers, body) == session


def test_the_names_are_asked_in_their_order() -> None:
    headers = {
        "x-claude-code-session-id": "6",
        "thread-id": "5",
        "session-id": "4",
        "x-session-affinity": "3:0",
        "session_id": "2:0",
        "x-session-id": "0",
    }
    body = {"session_id": "1", "prompt_cache_key": "7"}
    messages = [_user(RUNTIME)]
    found = []
    while (name := named_session(headers, body, messages)) is not None:
        found.append(name)
        if name == "1":
            del body["session_id"]
        elif name == "7":
            del body["prompt_cache_key"]
        elif headers:
            headers.popitem()
        else:
            messages = []
    assert found == ["0", "1", "2", "3", "4", "5", "6", "7", "abc"]


@pytest.mark.parametrize(
    ("value", "session"),
    [("s:0", "s"), ("s:12", "s"), ("s", "s"), ("a:b:3", "a:b"), ("a:b", "a:b"), (":1", ":1")],
)
def test_a_count_behind_the_name_is_no_part_of_it(value: str, session: str) -> None:
    assert named_session({"session_id": value}, {}) == session
    assert named_session({"x-session-affinity": value}, {}) == session
    assert named_session({}, {"prompt_cache_key": value}) == session


def test_a_name_that_is_meant_for_us_is_taken_as_it_is() -> None:
    assert named_session({"X-Session-Id": "s:1"}, {}) == "s:1"
    assert named_session({}, {"session_id": "s:1"}) == "s:1"
    assert named_session({"thread-id": "s:1"}, {}) == "s:1"


@pytest.mark.parametrize(
    ("messages", "session"),
    [
        ([_user(f"hi\n\n{RUNTIME}")], "abc"),
        ([Message(role="system", content=f"Be kind.\n{RUNTIME}\n"), _user("hi")], "abc"),
        ([Message(role="system", content=RUNTIME.replace("abc", "x")), _user(RUNTIME)], "abc"),
        ([_user("Runtime: agent=main | model=m"), _user("hi")], None),
        ([_user("what is sessionId=abc | for?")], None),
        ([_user("hi"), Message(role="assistant", content=RUNTIME), _user(RUNTIME)], None),
        ([_user(f"hi\n{RUNTIME.replace('abc', LONG)}")], None),
    ],
)
def test_a_line_about_the_runtime_before_the_first_answer_names_the_session(
    messages: list[Message], session: str | None
) -> None:
    assert named_session({}, {}, messages) == session


@pytest.mark.parametrize("value", [LONG, 7, ["s"], "\ud83d"])
def test_what_cannot_be_a_name_is_refused_where_it_is_meant_as_one_and_passed_over_elsewhere(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        named_session({}, {"session_id": value})
    assert (caught.value.status, caught.value.param) == (400, "session_id")
    assert named_session({}, {"prompt_cache_key": value}) is None


def test_a_header_that_is_too_long_is_refused_only_if_it_is_our_own() -> None:
    with pytest.raises(ApiError):
        named_session({"X-Session-Id": LONG}, {})
    assert named_session({"session_id": LONG, "thread-id": "t"}, {}) == "t"

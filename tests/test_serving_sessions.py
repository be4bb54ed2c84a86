"""Session facts, hashes that link a request to the turn that it continues, and sticky routing."""

from __future__ import annotations

from typing import Any

import pytest

from clawrl.messages import Arrival, Message, TurnId, TurnKind
from clawrl.serving.errors import ApiError
from clawrl.serving.sessions import (
    affinity_key,
    canonical,
    conversation_hash,
    make_arrival,
    reply_hash,
    session_facts,
)


def _say(*pairs: tuple[str, str]) -> list[Message]:
    return [Message(role=role, content=content) for role, content in pairs]


def _arrival(messages: list[Message], **fields: Any) -> Arrival:
    given = {"session": None, "owner": "local", "kind": TurnKind.MAIN, "ends_session": False, "arrived_at": 1.0}
    return make_arrival(turn_id=TurnId("t"), messages=messages, **(given | fields))


ASK = _say(("system", "be brief"), ("user", "what is rain?"))


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({}, {}, None),
        ({"X-Session-Id": " a "}, {}, "a"),
        ({}, {"session_id": "b"}, "b"),
        ({"x-session-id": "a"}, {"session_id": "b"}, "a"),
        ({"X-Session-Id": "  "}, {"session_id": "b"}, "b"),
        ({}, {"session_id": "  "}, None),
    ],
)
def test_the_session_is_the_header_or_else_the_body(
    headers: dict[str, str], body: dict[str, Any], session: str | None
) -> None:
    assert session_facts(headers, body, TurnKind.MAIN).session == session


def test_the_turn_type_is_the_header_or_the_body_or_the_default() -> None:
    def kind(headers: dict[str, str], body: dict[str, Any], default: TurnKind) -> TurnKind:
        return session_facts(headers, body, default).kind

    assert kind({}, {}, TurnKind.SIDE) is TurnKind.SIDE
    assert kind({}, {"turn_type": "main"}, TurnKind.SIDE) is TurnKind.MAIN
    assert kind({"X-Turn-Type": "Side"}, {"turn_type": "main"}, TurnKind.MAIN) is TurnKind.SIDE


@pytest.mark.parametrize(
    ("headers", "body", "group"),
    [
        ({}, {}, None),
        ({"X-Group-Id": " g "}, {"group_id": "other"}, "g"),
        ({}, {"group_id": "g"}, "g"),
        ({}, {"group_id": ""}, None),
    ],
)
def test_the_group_is_the_header_or_else_the_body(
    headers: dict[str, str], body: dict[str, Any], group: str | None
) -> None:
    assert session_facts(headers, body, TurnKind.MAIN).group == group


def test_a_name_that_is_too_long_is_refused_by_its_field() -> None:
    for field in ("session_id", "group_id"):
        with pytest.raises(ApiError) as caught:
            session_facts({}, {field: "x" * 257}, TurnKind.MAIN)
        assert caught.value.param == field


@pytest.mark.parametrize(
    ("value", "done"),
    [("1", True), ("true", True), ("YES", True), ("on", True), ("0", False), ("no", False), ("done", False)],
)
def test_done_is_one_of_four_words(value: str, done: bool) -> None:
    assert session_facts({"X-Session-Done": value}, {}, TurnKind.MAIN).ends is done
    assert session_facts({}, {"session_done": value}, TurnKind.MAIN).ends is done


def test_done_in_the_body_may_be_a_boolean_or_one_and_the_header_beats_it() -> None:
    assert session_facts({}, {"session_done": True}, TurnKind.MAIN).ends
    assert session_facts({}, {"session_done": 1}, TurnKind.MAIN).ends
    assert not session_facts({}, {"session_done": False}, TurnKind.MAIN).ends
    assert not session_facts({"X-Session-Done": "0"}, {"session_done": True}, TurnKind.MAIN).ends


def test_two_spellings_of_one_message_have_one_canonical_form() -> None:
    assert canonical(Message(role="developer", content=" be brief\n")) == canonical(ASK[0])
    assert canonical(Message(role="user", content="be brief")) != canonical(ASK[0])
    assert canonical(Message(role="user", content="be  brief")) != canonical(Message(role="user", content="be brief"))


def test_the_hash_depends_on_every_message_and_where_one_ends() -> None:
    variants = [
        _say(("user", "ab"), ("user", "c")),
        _say(("user", "a"), ("user", "bc")),
        _say(("user", "c"), ("user", "ab")),
        _say(("user", "abc")),
        _say(("user", "ab"), ("assistant", "c")),
        [],
    ]
    assert len({conversation_hash(v) for v in variants}) == len(variants)


def test_a_continuing_request_carries_the_hash_of_the_reply() -> None:
    replayed = [*ASK, *_say(("assistant", "water. \n"), ("user", "thanks"))]
    arrival = _arrival(replayed)
    assert arrival.prefix_hash == reply_hash(conversation_hash(ASK), "water.")
    assert arrival.new_messages == (Message(role="user", content="thanks"),)


def test_an_edited_history_does_not_carry_the_hash_of_the_reply() -> None:
    for edited in (
        [*ASK, *_say(("assistant", "snow."), ("user", "thanks"))],
        [ASK[0], *_say(("user", "what is snow?"), ("assistant", "water."), ("user", "thanks"))],
    ):
        assert _arrival(edited).prefix_hash != reply_hash(conversation_hash(ASK), "water.")


def test_everything_after_the_last_assistant_message_is_new() -> None:
    tail = _say(("tool", "error 7"), ("user", "again"))
    messages = [*ASK, *_say(("assistant", "a"), ("user", "b"), ("assistant", "c")), *tail]
    arrival = _arrival(messages)
    assert arrival.new_messages == tuple(tail)
    assert arrival.prefix_hash == conversation_hash(messages[:5])
    assert arrival.messages_hash == conversation_hash(messages)


def test_a_first_request_has_no_prefix_and_all_is_new() -> None:
    arrival = _arrival(ASK)
    assert arrival.prefix_hash is None
    assert arrival.new_messages == tuple(ASK)


def test_a_retry_of_the_same_body_has_the_same_messages_hash() -> None:
    assert _arrival(ASK).messages_hash == _arrival(list(ASK)).messages_hash
    assert _arrival(ASK).messages_hash != _arrival(ASK[:1]).messages_hash


def test_an_arrival_keeps_what_it_was_told() -> None:
    arrival = _arrival(ASK, session="s", owner="o", kind=TurnKind.SIDE, ends_session=True, may_train=False)
    assert (arrival.session, arrival.owner, arrival.kind) == ("s", "o", TurnKind.SIDE)
    assert (arrival.ends_session, arrival.may_train, arrival.arrived_at) == (True, False, 1.0)


def test_all_turns_of_a_conversation_share_an_affinity_key() -> None:
    later = [*ASK, *_say(("assistant", "water."), ("user", "thanks"))]
    assert affinity_key(None, "o", ASK) == affinity_key(None, "o", later)
    assert affinity_key(None, "o", ASK) != affinity_key(None, "o", _say(("user", "what is rain?")))
    assert affinity_key(None, "o", ASK) != affinity_key(None, "p", ASK)
    assert affinity_key("s", "o", ASK) == affinity_key("s", "o", later[:1]) == "s"
    assert affinity_key(None, "o", ASK[:1]) != affinity_key(None, "o", [])

"""A request as the ledger will know it, and sticky routing."""

from __future__ import annotations

from typing import Any

from clawrl.messages import Arrival, Message, TemplateInputs, TurnId, TurnKind
from clawrl.serving.sessions import affinity_key, answer_hash, make_arrival, reply_hash
from clawrl.serving.sessions.canonical import conversation_hash, segment_hash

WATER = Message(role="assistant", content="water.")
CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnothing runs\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"


def _say(*pairs: tuple[str, str]) -> list[Message]:
    return [Message(role=role, content=content) for role, content in pairs]


def _arrival(messages: list[Message], **fields: Any) -> Arrival:
    given = {"session": None, "owner": "local", "kind": TurnKind.MAIN, "ends_session": False, "arrived_at": 1.0}
    return make_arrival(turn_id=TurnId("t"), messages=messages, **(given | fields))


ASK = _say(("system", "be brief"), ("user", "what is rain?"))


def test_a_continuing_request_carries_the_hashes_of_the_reply() -> None:
    arrival = _arrival([*ASK, *_say(("assistant", "water. \n"), ("user", "thanks"))])
    assert arrival.prefix_hash == reply_hash(conversation_hash(ASK), WATER)
    assert arrival.answer_hash == answer_hash(WATER)
    assert arrival.new_messages == (Message(role="user", content="thanks"),)
    assert arrival.sent is None


def test_everything_after_the_last_assistant_message_is_new() -> None:
    tail = _say(("tool", "error 7"), ("user", "again"))
    messages = [*ASK, *_say(("assistant", "a"), ("user", "b"), ("assistant", "c")), *tail]
    arrival = _arrival(messages)
    assert arrival.new_messages == tuple(tail)
    assert arrival.history == tuple(messages[:5])
    assert arrival.prefix_hash == conversation_hash(messages[:5])
    assert arrival.messages_hash == conversation_hash(messages)
    assert arrival.answer_hash == answer_hash(messages[4])


def test_the_request_is_kept_as_it_was_sent_whatever_is_evidence() -> None:
    tail = _say(("user", "[Sun 2026-11-29 11:30 UTC] thanks"), ("user", CONTEXT))
    messages = [*ASK, *_say(("user", CONTEXT), ("assistant", "water.")), *tail]
    arrival = _arrival(messages)
    assert arrival.new_messages == (Message(role="user", content="thanks"),)
    assert (arrival.history, arrival.sent) == (tuple(messages[:4]), tuple(tail))
    assert arrival.messages == tuple(messages)
    assert arrival.prefix_hash == reply_hash(conversation_hash(ASK), WATER)


def test_a_request_with_nothing_but_internal_news_brings_no_evidence() -> None:
    arrival = _arrival([*ASK, WATER, *_say(("user", CONTEXT))])
    assert (arrival.new_messages, len(arrival.messages)) == ((), 4)
    assert arrival.messages_hash == arrival.prefix_hash


def test_a_first_request_has_no_prefix_and_all_is_new() -> None:
    arrival = _arrival(ASK)
    assert (arrival.prefix_hash, arrival.answer_hash) == (None, None)
    assert arrival.new_messages == tuple(ASK)


def test_an_answer_that_says_nothing_is_no_name_for_a_turn() -> None:
    arrival = _arrival([*ASK, Message(role="assistant"), *_say(("user", "well?"))])
    assert arrival.answer_hash is None
    assert arrival.prefix_hash == conversation_hash(ASK)


def test_an_answer_that_nobody_heard_is_not_what_a_request_goes_on_from() -> None:
    flush = _say(("user", "Pre-compaction memory flush. Write."), ("assistant", "NO_REPLY"))
    arrival = _arrival([*ASK, WATER, *flush, *_say(("user", "thanks"))])
    assert arrival.prefix_hash == reply_hash(conversation_hash(ASK), WATER)
    assert arrival.answer_hash == answer_hash(WATER)
    assert arrival.new_messages == (Message(role="user", content="thanks"),)


def test_a_retry_of_the_same_body_has_the_same_messages_hash() -> None:
    assert _arrival(ASK).messages_hash == _arrival(list(ASK)).messages_hash
    assert _arrival(ASK).messages_hash != _arrival(ASK[:1]).messages_hash


def test_an_arrival_keeps_what_it_was_told() -> None:
    inputs = TemplateInputs(tools=('{"a":1}',))
    arrival = _arrival(
        ASK, session="s", owner="o", kind=TurnKind.SIDE, ends_session=True, may_train=False, group="g", inputs=inputs
    )
    assert (arrival.session, arrival.owner, arrival.kind, arrival.group) == ("s", "o", TurnKind.SIDE, "g")
    assert (arrival.ends_session, arrival.may_train, arrival.arrived_at) == (True, False, 1.0)
    assert (arrival.inputs, arrival.segment) == (inputs, segment_hash(ASK, inputs.tools))


def test_all_turns_of_a_conversation_share_an_affinity_key() -> None:
    later = [*ASK, *_say(("assistant", "water."), ("user", "thanks"))]
    assert affinity_key(None, "o", ASK) == affinity_key(None, "o", later)
    assert affinity_key(None, "o", ASK) != affinity_key(None, "o", _say(("user", "what is rain?")))
    assert affinity_key(None, "o", ASK) != affinity_key(None, "p", ASK)
    assert affinity_key("s", "o", ASK) == affinity_key("s", "o", later[:1]) == "s"
    assert affinity_key(None, "o", ASK[:1]) != affinity_key(None, "o", [])

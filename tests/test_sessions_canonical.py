"""Which messages are the same, and what their hashes depend on."""

from __future__ import annotations

import pytest

from clawrl.messages import Message, ToolCall
from clawrl.serving.sessions import answer_hash, reply_hash
from clawrl.serving.sessions.canonical import canonical, conversation_hash, opening_hash, segment_hash


def _say(*pairs: tuple[str, str]) -> list[Message]:
    return [Message(role=role, content=content) for role, content in pairs]


def _answer(text: str) -> Message:
    return Message(role="assistant", content=text)


def _call(arguments: str, id: str = "call_1", name: str = "sh", reasoning: str = "", content: str = "") -> Message:
    made = ToolCall(id=id, name=name, arguments=arguments)
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=(made,))


ASK = _say(("system", "be brief"), ("user", "what is rain?"))


def test_a_replayed_tool_call_is_known_by_its_name_and_what_its_arguments_say() -> None:
    written = canonical(_call('{"cmd": "echo caf\\u00e9",   "timeout": 5.0}', reasoning="hm"))
    assert written == canonical(_call('{"timeout":5,"cmd":"echo café"}', id="call1"))
    assert written != canonical(_call('{"timeout":6,"cmd":"echo café"}'))
    assert written != canonical(_call('{"timeout":5,"cmd":"echo café"}', name="bash"))
    assert canonical(_call("{broken ")) == canonical(_call(" {broken")) != canonical(_call("{}"))
    assert canonical(_call("1e999")) != canonical(_call("[" * 5000)) != canonical(Message(role="assistant"))


def test_a_large_integer_is_the_nearest_that_a_client_with_one_kind_of_number_knows() -> None:
    assert canonical(_call('{"to": 1234567890123456789}')) == canonical(_call('{"to":1234567890123456800}'))
    assert canonical(_call('{"to": 1234567890123456789}')) != canonical(_call('{"to":1234567890123457800}'))
    assert (
        canonical(_call("9007199254740991"))
        != canonical(_call("9007199254740992"))
        == canonical(_call("9007199254740992.0"))
    )


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
        _say(("user", "ab"), ("assistant", '["user", "c"]')),
        [*_say(("user", "ab")), _call("c")],
        [*_say(("user", "ab")), _call("c", content="c")],
        [],
    ]
    assert len({conversation_hash(v) for v in variants}) == len(variants)


def test_a_conversation_can_be_hashed_in_two_goes() -> None:
    talk = [*ASK, _answer("water."), *_say(("user", "thanks"))]
    for cut in range(len(talk) + 1):
        assert conversation_hash(talk[cut:], conversation_hash(talk[:cut])) == conversation_hash(talk)


def test_the_system_messages_at_the_head_may_change_and_later_ones_may_not() -> None:
    monday, later = _say(("system", "be brief, it is Monday"), ("developer", "and kind")), _say(("system", "enough"))
    assert conversation_hash([*monday, *ASK[1:]]) == conversation_hash(ASK) == conversation_hash(ASK[1:])
    assert conversation_hash([*ASK, *later]) != conversation_hash(ASK)


def test_an_edited_history_does_not_carry_the_hash_of_the_reply() -> None:
    expected = reply_hash(conversation_hash(ASK), _answer("water."))
    assert conversation_hash([*ASK, _answer(" water.\n")]) == expected
    assert conversation_hash([*ASK, _answer("snow.")]) != expected
    assert conversation_hash([ASK[0], *_say(("user", "what is snow?")), _answer("water.")]) != expected


@pytest.mark.parametrize("first", ["one", "one\n", "one\ntwo", "one\n\n  two\n"])
@pytest.mark.parametrize("second", ["three", "\n three\n\nfour "])
def test_answers_that_a_client_joined_have_the_hash_of_the_answers_apart(first: str, second: str) -> None:
    after_both = reply_hash(conversation_hash([*ASK, _answer(first)]), _answer(second))
    assert conversation_hash([*ASK, _answer(f"{first}\n{second}")]) == after_both
    assert conversation_hash([*ASK, _answer(f"{second}\n{first}")]) != after_both


def test_a_call_after_a_joined_text_stays_where_it_was() -> None:
    apart = reply_hash(conversation_hash([*ASK, _answer("one")]), _call("{}", content="two"))
    assert conversation_hash([*ASK, _call("{}", content="one\ntwo")]) == apart
    assert conversation_hash([*ASK, _call("{}", content="one"), _answer("two")]) != apart


def test_an_answer_alone_is_known_whatever_came_before_it() -> None:
    assert answer_hash(_answer(" water.\n")) == answer_hash(_answer("water."))
    assert answer_hash(_call('{"a": 1.0}', id="x", reasoning="hm")) == answer_hash(_call('{"a":1}'))
    assert len({answer_hash(m) for m in (_answer("water."), _answer("snow."), _call("{}"), _call("{}", name="x"))}) == 4
    assert answer_hash(_answer(" \n")) == ""


def test_the_opening_ends_with_the_first_message_of_the_user() -> None:
    later = [*ASK, _answer("water."), *_say(("user", "thanks"))]
    assert opening_hash(later) == opening_hash(ASK) != opening_hash(ASK[:1])
    assert opening_hash(_say(("system", "be long"), ("user", "what is rain?"))) != opening_hash(ASK)


def test_a_segment_is_the_system_messages_in_front_and_the_tools() -> None:
    tools = ('{"a":1}', '{"b":1}')
    segment = segment_hash(ASK, tools)
    assert segment_hash([*ASK, _answer("x"), *_say(("system", "later"))], tools) == segment
    others = [
        segment_hash(ASK[1:], tools),
        segment_hash([*_say(("system", "be kind")), *ASK], tools),
        segment_hash(ASK, tools[:1]),
        segment_hash(ASK, tools[::-1]),
        segment_hash(ASK, ()),
    ]
    assert len({segment, *others}) == 6

"""One answer read as it is written: what leaves as text, reasoning and calls, when, and what stays text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence

import pytest

from clawrl.messages import Message, ToolCall
from clawrl.serving.parsing.formats import FORMATS
from clawrl.serving.parsing.parts import Call, Part, Reasoning, Text
from clawrl.serving.parsing.reader import HELD_CHARACTERS, AnswerReader, MalformedCall, new_call_id

TOOLS = tuple(
    json.dumps({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    for name in ("look", "save", "öffnen")
)
LOOK = '{"name": "look", "arguments": {"q": "a"}}'
GOOD = f"<tool_call>\n{LOOK}\n</tool_call>"
LONG = '{"path": "' + "x" * HELD_CHARACTERS + '"}'


def _reader(name: str = "hermes", *, tail: str = "", tools: Sequence[str] = TOOLS) -> AnswerReader:
    ids = (f"call_{number}" for number in range(1000))
    return AnswerReader(FORMATS[name], prompt_tail=tail, tools=tools, new_id=lambda: next(ids))


def _letters(text: str) -> list[str]:
    return list(text)


def _random_cuts(text: str, rng: random.Random) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        size = rng.choice([1, 2, 3, 7, 30])
        pieces.append(text[at : at + size])
        at += size
    return pieces


def _read(reader: AnswerReader, pieces: Iterable[str], *, truncated: bool = False) -> list[Part]:
    parts = [part for piece in pieces for part in reader.feed(piece)]
    return parts + reader.finish(truncated)


def _joined(parts: Sequence[Part]) -> list[Part]:
    """Neighbours of one kind as one, so that two ways of cutting can be compared. Checks the order of calls."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Call) and part.id is None:
            assert part.name is None and part.arguments
            assert isinstance(last, Call) and last.index == part.index, "a call is finished before anything else"
            joined[-1] = Call(index=last.index, id=last.id, name=last.name, arguments=last.arguments + part.arguments)
        elif isinstance(part, Call):
            assert part.name is not None and part.arguments == ""
            assert part.index == sum(isinstance(p, Call) for p in joined)
            joined.append(part)
        elif isinstance(part, Text) and isinstance(last, Text):
            joined[-1] = Text(text=last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            joined[-1] = Reasoning(text=last.text + part.text)
        else:
            assert part.text
            joined.append(part)
    return joined


def _answer(text: str, name: str = "hermes", **options: object) -> tuple[list[Part], Message]:
    """Read in many ways, which all must agree."""
    tail, tools = str(options.get("tail", "")), options.get("tools", TOOLS)
    assert isinstance(tools, tuple)
    rng = random.Random(text)
    outcomes = []
    for pieces in ([text], _letters(text), _random_cuts(text, rng), _random_cuts(text, rng)):
        reader = _reader(name, tail=tail, tools=tools)
        parts = _read(reader, pieces, truncated=bool(options.get("truncated")))
        _check_message(parts, reader.message())
        outcomes.append((_joined(parts), reader.message()))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    return outcomes[0]


def _check_message(parts: Sequence[Part], message: Message) -> None:
    """It is exactly what a client that joins the parts will replay."""
    assert message.role == "assistant"
    assert message.content == "".join(part.text for part in parts if isinstance(part, Text))
    assert message.reasoning == "".join(part.text for part in parts if isinstance(part, Reasoning))
    assert message.reasoning == message.reasoning.strip("\n")
    calls = [part for part in _joined(parts) if isinstance(part, Call)]
    assert message.tool_calls == tuple(
        ToolCall(id=call.id or "", name=call.name or "", arguments=call.arguments) for call in calls
    )


def _call(index: int, name: str, arguments: str) -> Call:
    return Call(index=index, id=f"call_{index}", name=name, arguments=arguments)


def test_text_reasoning_and_calls_come_in_the_order_in_which_they_are_written() -> None:
    parts, message = _answer(f"<think>\nhm\n</think>\n\nI look.\n{GOOD}\n{GOOD}\nThen this.\n")
    assert parts == [
        Reasoning(text="hm"),
        Text(text="I look."),
        _call(0, "look", '{"q": "a"}'),
        _call(1, "look", '{"q": "a"}'),
        Text(text="Then this.\n"),
    ]
    assert message.content == "I look.Then this.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "{}",
        '{ "a" :1.50, "a": 1e3 ,"é":"\\u00e9" }',
        '{"code": "if x { \\"}\\" } \\\\"}',
        '{"a": {"b": [{"c": "]}"}, {}], "name": "save", "arguments": {}}}',
        '{"text": "多语言 🙂 </think> <think> <tool_call> {"}',
        '{\n  "indented": true\n}',
        '{"tag": "</tool_call>", "more": "<tool_call>"}',
        LONG,
        '{"huge": "' + "</tool_call>\\n<think>" * 40 + '"}',
    ],
)
@pytest.mark.parametrize("name", ["look", "öffnen"])
def test_the_arguments_are_the_very_text_that_the_model_wrote(name: str, arguments: str) -> None:
    body = f'{{"name": "{name}", "arguments": {arguments}}}'
    turned = f'{{"id": [3, {{}}], "arguments": {arguments}, "name": "{name}"}}'
    for written in (f"<tool_call>\n{body}\n</tool_call>", f"<tool_call>{turned}</tool_call>"):
        assert _answer(written)[0] == [_call(0, name, arguments)]
    llama = f'{{"name": "{name}", "parameters": {arguments}}}'
    assert _answer(llama, "llama3")[0] == [_call(0, name, arguments)]


@pytest.mark.parametrize("filling", ["", "y" * 300])
def test_a_list_in_one_pair_of_tags_is_several_calls(filling: str) -> None:
    first, second = f'{{"q": "{filling}"}}', '{"n": [1, {"m": 2}]}'
    calls = f'[{{"name": "save", "arguments": {first}}}, {{"arguments": {second}, "name": "look"}}]'
    parts, _ = _answer(f"<tool_call>{calls}</tool_call>\n{GOOD}")
    assert parts == [_call(0, "save", first), _call(1, "look", second), _call(2, "look", '{"q": "a"}')]


@pytest.mark.parametrize("opening", ["", "\n", "<|python_tag|>", "\n<|python_tag|> "])
@pytest.mark.parametrize("filling", ["", "y" * 300])
def test_an_answer_that_begins_with_json_is_calls_for_llama(opening: str, filling: str) -> None:
    first, second = f'{{"q": "{filling};"}}', "{}"
    calls = f'{{"name": "save", "parameters": {first}}} ; {{"name": "look", "parameters": {second}}}'
    assert _answer(opening + calls + "\n", "llama3")[0] == [_call(0, "save", first), _call(1, "look", second)]


@pytest.mark.parametrize(
    "text",
    [
        'Sure: {"name": "look", "parameters": {}}',
        '<|python_tag|>look.call(q="a")',
        '{"name": "look", "parameters": {}} and more',
        '{"name": "look", "parameters": {}};',
        '{{"name": "look", "parameters": {}}',
        '{"name": "look", "arguments": {}}',
        '[{"name": "look", "parameters": {}}]',
        '{"name": "look", "parameters": {}}\n{"name": "look", "parameters": {}}',
        '{"answer": 3}',
        "  <|python",
        " ",
        "<think>x</think>",
        GOOD,
    ],
)
def test_anything_else_is_text_for_llama(text: str) -> None:
    assert _answer(text, "llama3")[0] == [Text(text=text)]


@pytest.mark.parametrize("text", [f"\n<think>\nhm</think>\n\n{GOOD} \n", "<|python_tag|>{", "  \n", "<", "\n\nx\n"])
def test_plain_is_verbatim_and_leaves_at_once(text: str) -> None:
    assert _answer(text, "plain")[0] == [Text(text=text)]
    assert _reader("plain").feed(text) == [Text(text=text)]


@pytest.mark.parametrize("text", [GOOD, f"a\n\n{GOOD}\nb", "<tool_call>", f"<tool_call>\n{LONG}"])
def test_without_tools_the_marks_of_calls_are_text(text: str) -> None:
    assert _answer(text, tools=())[0] == [Text(text=text)]
    assert _answer("<think>so</think>\n" + text, tools=())[0] == [Reasoning(text="so"), Text(text=text)]
    assert _answer('{"name": "look", "parameters": {}}', "llama3", tools=())[1].tool_calls == ()


@pytest.mark.parametrize(
    ("tail", "text", "reasoning", "content"),
    [
        ("<|im_start|>assistant\n", "plain <b>text</b>", "", "plain <b>text</b>"),
        ("assistant\n<think>\n", "\nso\nit is\n</think>\n\nYes.", "so\nit is", "Yes."),
        ("assistant\n<think>\n\n</think>\n\n", "\nYes.", "", "Yes."),
        ("assistant\n<think>\n\n</think>\n\n", "<think>\nafter all\n</think>\nYes.", "after all", "Yes."),
        ("is <think> a tag?\nassistant\n", "Yes.</think>", "", "Yes.</think>"),
        ("assistant\n<think>\n", "it never ends\n", "it never ends", ""),
        ("assistant\n<think>\n", f"do I {GOOD}?\n</think>No.", f"do I {GOOD}?", "No."),
    ],
)
def test_reasoning_may_be_opened_or_closed_by_the_prompt(tail: str, text: str, reasoning: str, content: str) -> None:
    _, message = _answer(text, tail=tail)
    assert (message.reasoning, message.content, message.tool_calls) == (reasoning, content, ())


@pytest.mark.parametrize(
    ("name", "tail", "text"),
    [
        ("hermes", '<tool_call>\n{"name":', ' "look", "arguments": {"q": 1}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "look", "arguments":', ' {"q": 1}}\n</tool_call>'),
        ("hermes", '<think>\n\n</think>\n\n<tool_call>\n{"name":', '"look","arguments":{"q": 1}}</tool_call>\n'),
        ("hermes", '<tool_call>\n{"name":', ' "look", "arguments": {"q": 1}}'),
        ("llama3", '\n\n{"name":', ' "look", "parameters": {"q": 1}}'),
        ("llama3", '\n\n{"name": "look", "parameters":', ' {"q": 1}}'),
    ],
)
def test_a_call_that_the_prompt_began_is_one_call(name: str, tail: str, text: str) -> None:
    assert _answer(text, name, tail=tail)[0] == [_call(0, "look", '{"q": 1}')]


def test_a_forced_call_that_goes_wrong_is_text_together_with_its_beginning() -> None:
    tail = '<tool_call>\n{"name":'
    assert _answer(" none}", tail=tail)[0] == [Text(text=tail + " none}")]


def test_the_prompt_itself_is_never_handed_out() -> None:
    for tail in ("assistant\n", "assistant\n<think>\n", '<tool_call>\n{"name":'):
        reader = _reader(tail=tail, tools=())
        assert reader.finish(False) == [] and reader.message() == Message(role="assistant")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<think>a</think>\n\n\nHi", "Hi"),
        ("<think>a</think>\n  Hi", "  Hi"),
        ("<think>a</think>\n\n", ""),
        ("\n<think>a</think>\nHi", "Hi"),
        ("Hi\n\n<think>a</think>\n\nyou", "Hi\n\nyou"),
        ("Hi \n", "Hi \n"),
        ("\n\n  Hi\n\nyou\n", "\n\n  Hi\n\nyou\n"),
        ("  \n", "  \n"),
        (f"Hi \n\n{GOOD}", "Hi"),
        (f"{GOOD}\n\n", ""),
        (f"{GOOD} \n {GOOD}", ""),
        (f"{GOOD} \n ", ""),
        ("<think>a</think>\n \n", ""),
        (f"\n {GOOD}\nHi\n", "Hi\n"),
        (f"<think>a</think>\n\n{GOOD}", ""),
        ("a\n\n<tool_call>\nno</tool_call>\n", "a\n\n<tool_call>\nno</tool_call>\n"),
    ],
)
def test_whitespace_around_marks_is_no_text_and_all_other_is(text: str, content: str) -> None:
    assert _answer(text)[1].content == content


def test_several_stretches_of_reasoning_are_one_without_newlines_around_it() -> None:
    _, message = _answer("<think>\n\na\n</think>x<think>\nb\n\n</think>y<think>\n</think>")
    assert (message.reasoning, message.content) == ("a\n\nb", "xy")


@pytest.mark.parametrize(("opening", "kind"), [("", Text), ("<think>", Reasoning)])
def test_every_character_leaves_with_itself_unless_a_mark_may_begin(opening: str, kind: type[Text | Reasoning]) -> None:
    reader = _reader()
    assert reader.feed(opening) == []
    for char in "plants🙂{}":
        assert reader.feed(char) == [kind(text=char)]
    assert reader.feed("<") == []
    assert reader.feed("b") == [kind(text="<b")]


def test_whitespace_waits_for_what_comes_next() -> None:
    reader = _reader()
    assert [reader.feed(piece) for piece in ("a ", "\n", "b\n")] == [[Text(text="a")], [], [Text(text=" \nb")]]
    assert reader.finish(False) == [Text(text="\n")]


def test_a_short_call_waits_until_it_is_closed() -> None:
    reader = _reader()
    assert [part for char in GOOD[:-1] for part in reader.feed(char)] == []
    assert reader.feed(GOOD[-1]) == [Call(index=0, id="call_0", name="look"), Call(index=0, arguments='{"q": "a"}')]


def test_a_long_call_leaves_as_it_is_written_once_enough_of_it_is_sound() -> None:
    body = f'{{"name": "save", "arguments": {LONG}}}'
    reader = _reader()
    assert reader.feed("Look:\n<tool_call>") == [Text(text="Look:")]
    assert [part for char in body[: HELD_CHARACTERS - 1] for part in reader.feed(char)] == []
    begun = body[:HELD_CHARACTERS].partition('"arguments": ')[2]
    first = [Call(index=0, id="call_0", name="save"), Call(index=0, arguments=begun)]
    assert reader.feed(body[HELD_CHARACTERS - 1]) == first
    for char in body[HELD_CHARACTERS:-1]:
        assert reader.feed(char) == [Call(index=0, arguments=char)]
    assert reader.feed("}\n</tool_call>\n") == [] and reader.finish(False) == []
    assert reader.message().tool_calls[0].arguments == LONG


def test_a_call_whose_name_comes_last_waits_for_it_however_long() -> None:
    reader = _reader()
    assert reader.feed(f'<tool_call>{{"arguments": {LONG}, "name": "sa') == []
    assert reader.feed('ve"') == [Call(index=0, id="call_0", name="save"), Call(index=0, arguments=LONG)]


@pytest.mark.parametrize("body", [f'{{"arguments": {LONG}, "name": "nobody"}}', f'{{"path": {LONG}}}', LONG])
def test_a_long_object_that_turns_out_to_be_no_call_is_text(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert _answer(text)[0] == [Text(text=text)]
    assert _answer(body, "llama3")[0] == [Text(text=body)]


MALFORMED = [
    "not json",
    "",
    "\n",
    "[]",
    "{}",
    "{'name': 'look', 'arguments': {}}",
    '{"name": "look", "arguments": {"q": 1}',
    '{"name": "look", "arguments": {"q": 1}}}',
    '{"name": "look", "arguments": {"q": 1,}}',
    '{"name": "look", "arguments": {"q": "two\nlines"}}',
    '{"name": "look", "arguments": {"q": "open}}',
    '{"name": "look", "arguments": {"q": NaN}}',
    '{"name": "look", "arguments": {"q": 01}}',
    '{"name": "look", "arguments": "{}"}',
    '{"name": "look", "arguments": [1]}',
    '{"name": "look", "arguments": null}',
    '{"name": "look", "parameters": {}}',
    '{"name": "look"}',
    '{"arguments": {"q": 1}}',
    '{"name": "nobody", "arguments": {"q": "<think>"}}',
    '{"name": "", "arguments": {}}',
    '{"name": 7, "arguments": {}}',
    '{"name": ["look"], "arguments": {}}',
    '{"name": "look", "name": "look", "arguments": {}}',
    '{"name": "look", "arguments": {}, "arguments": {}}',
    f"{LOOK} {LOOK}",
    f"{LOOK} // done",
    f"[{LOOK}, 3]",
    f"[{LOOK}, ]",
    f'[{LOOK}, {{"name": "nobody", "arguments": {{}}}}]',
    '```json\n{"name": "look"}\n```',
    "<function=look><parameter=q>1</parameter></function>",
    "<think>x</think>",
]


@pytest.mark.parametrize("body", MALFORMED)
@pytest.mark.parametrize("spacing", ["", "\n"])
def test_a_malformed_call_is_text_exactly_as_it_was_written(body: str, spacing: str) -> None:
    text = f"Let me see.\n\n<tool_call>{spacing}{body}{spacing}</tool_call>{spacing}"
    assert _answer(text)[0] == [Text(text=text)]


@pytest.mark.parametrize("body", MALFORMED)
def test_a_good_call_after_a_malformed_one_is_found(body: str) -> None:
    wrong = f"<tool_call>\n{body}\n</tool_call>"
    for text in (wrong, f"<tool_call>\n{body}"):
        parts, _ = _answer(f"{text}\n{GOOD}\nSo.")
        assert parts == [Text(text=text.rstrip()), _call(0, "look", '{"q": "a"}'), Text(text="So.")]


def test_a_string_without_end_in_a_closed_call_costs_no_text() -> None:
    wrong = '<tool_call>{"name": "look", "arguments": {"q": "open}}</tool_call>'
    for after in ("", " So" + " and so" * 50, " So" + " and so" * 50 + "\nSo."):
        assert _answer(wrong + after)[0] == [Text(text=wrong + after)]


@pytest.mark.parametrize("between", ["is the tag. ", "<tool_call>", "\n<tool_call>\n"])
def test_an_opening_tag_that_opens_no_call_hides_none(between: str) -> None:
    parts, _ = _answer(f"<tool_call>{between}{GOOD}")
    assert parts == [Text(text=f"<tool_call>{between}".rstrip()), _call(0, "look", '{"q": "a"}')]


def test_after_a_malformed_call_reasoning_is_found_again() -> None:
    parts, _ = _answer("<tool_call>no <think></tool_call><think>so</think>Yes.")
    assert parts == [Text(text="<tool_call>no <think></tool_call>"), Reasoning(text="so"), Text(text="Yes.")]


def test_a_malformed_call_is_text_from_its_first_wrong_character_on() -> None:
    reader = _reader()
    assert reader.feed('<tool_call>\n{"name": ') == []
    assert reader.feed("l") == [Text(text='<tool_call>\n{"name":'), Text(text=" l")]
    assert reader.feed("ook") == [Text(text="ook")]


@pytest.mark.parametrize(
    "ending",
    ["x</tool_call>", "}", "</tool_call>", ', "name": "look"}</tool_call>', "}} </tool_call>", "}{", "", "</tool_"],
)
def test_a_call_that_goes_wrong_after_part_of_it_left_is_an_error(ending: str) -> None:
    text = f'<tool_call>{{"name": "save", "arguments": {LONG}' + ending
    for pieces in ([text], _letters(text)):
        reader = _reader()
        with pytest.raises(MalformedCall, match="'save' is malformed"):
            _read(reader, [*pieces, "!"] if ending == "}" else pieces)


def test_a_later_call_of_a_list_that_goes_wrong_after_the_first_left_is_an_error() -> None:
    reader = _reader()
    reader.feed(f'<tool_call>[{{"name": "save", "arguments": {LONG}}}, ')
    with pytest.raises(MalformedCall, match="no tool of that name"):
        reader.feed('{"name": "nobody", "arguments": {}}]</tool_call>')


@pytest.mark.parametrize("truncated", [True, False])
def test_every_beginning_of_a_call_that_ends_there_is_text(truncated: bool) -> None:
    before = "Wait: \n"
    for end in range(len(before + GOOD)):
        text = (before + GOOD)[:end]
        whole = text.rstrip().startswith(before + "<tool_call>\n" + LOOK)
        parts, _ = _answer(text, truncated=truncated)
        # A model that ended by itself left out only the tag, and nothing need be guessed.
        expected = [Text(text="Wait:"), _call(0, "look", '{"q": "a"}')] if whole and not truncated else None
        assert parts == (expected or ([Text(text=text)] if text else []))


def test_every_beginning_of_a_long_call_that_the_limit_cuts_off_stays_as_it_left() -> None:
    body = f'{{"name": "save", "arguments": {LONG}}}'
    text = f"Wait:\n<tool_call>{body}</tool_call>"
    begin = text.index("{")
    for end in range(begin + HELD_CHARACTERS, len(text) + 1):
        parts, _ = _answer(text[:end], truncated=True)
        arguments = text[:end].partition('"arguments": ')[2][: len(LONG)]
        assert parts == [Text(text="Wait:"), _call(0, "save", arguments)]


def test_a_closing_tag_in_a_string_that_the_limit_cuts_is_argument_so_far() -> None:
    text = f'<tool_call>{{"name": "save", "arguments": {LONG[:-2]} </tool_'
    assert _answer(text, truncated=True)[0] == [_call(0, "save", LONG[:-2] + " </tool_")]


def test_a_cut_off_llama_call_is_text() -> None:
    text = '{"name": "look", "parameters": {"q": 1}}'
    for end in range(1, len(text) + 1):
        assert _answer(text[:end], "llama3", truncated=True)[0] == [Text(text=text[:end])]


@pytest.mark.parametrize("name", ["hermes", "llama3"])
def test_text_that_the_limit_cuts_within_a_mark_is_whole(name: str) -> None:
    text = "a <tool_call <thin"
    for end in range(1, len(text) + 1):
        assert _answer(text[:end], name, truncated=True)[1].content == text[:end]


def _random_answers(count: int) -> Iterator[tuple[str, bool]]:
    """Answers with their marks in any order; the flag says that nothing in them is well-formed markup."""
    rng = random.Random(7)
    text = ["Hi", " ", "\n", "🙂 多", "<", "</", "{", "</tool_call>", "</think>", "<tool", "a<b>"]
    wrong = [f"<tool_call>{body}</tool_call>" for body in MALFORMED] + ["<tool_call>"]
    good = [GOOD, f"<tool_call>[{LOOK},{LOOK}]</tool_call>", "<think>\nhm\n</think>", "<think>"]
    for number in range(count):
        harmless = number % 2 == 0
        units = [*text, *wrong] if harmless else [*text, *wrong, *good, *good * 4]
        yield "".join(rng.choice(units) for _ in range(rng.randint(0, 12))), harmless


def test_no_character_is_lost_or_doubled_where_nothing_is_well_formed() -> None:
    for text, harmless in _random_answers(250):
        if harmless:
            assert _answer(text)[1] == Message(role="assistant", content=text), text


def test_any_answer_reads_the_same_however_it_is_cut() -> None:
    calls = reasonings = 0
    for number, (text, _) in enumerate(_random_answers(250)):
        _, message = _answer(text, truncated=number % 3 == 0)
        calls += bool(message.tool_calls)
        reasonings += bool(message.reasoning)
        for call in message.tool_calls:
            assert isinstance(json.loads(call.arguments), dict)
    assert calls > 30 and reasonings > 30


def test_ids_are_unique_letters_and_digits() -> None:
    ids = {new_call_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(i.startswith("call_") and len(i) == 29 and i[5:].isalnum() and i.isascii() for i in ids)
    reader = AnswerReader(FORMATS["hermes"], prompt_tail="", tools=TOOLS)
    _read(reader, [GOOD, GOOD])
    assert len({call.id for call in reader.message().tool_calls}) == 2


def test_a_message_may_be_asked_for_while_the_answer_is_being_written() -> None:
    reader = _reader()
    reader.feed("<think>so</think>Yes. <tool_call>")
    assert reader.message() == Message(role="assistant", content="Yes.", reasoning="so")

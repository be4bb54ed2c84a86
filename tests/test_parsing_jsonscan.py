"""JSON one character at a time: sound, whole or broken at the very character, and where the members lie."""

from __future__ import annotations

import json
import random
from typing import Any, NoReturn

import pytest

from clawrl.serving.parsing.jsonscan import MAX_DEPTH, JsonScan, Mark, MarkKind, State

ROWS = [
    {"name": "look", "arguments": {"q": 'a "quoted" } brace', "n": [1, -2.5e3, 0, True, None]}},
    [{"name": "e", "arguments": {}}, {"arguments": {"x": {"y": [[], {}, ""]}}, "name": "f"}],
    {"ünï": "多语言 🙂 \\ / \b\f\n\r\t \x7f", "deep": [[[{"a": [{}]}]]]},
    {},
    [],
]


def _states(text: str, separator: str = "") -> list[State]:
    scan = JsonScan(separator=separator)
    states = [scan.state]
    for char in text:
        scan.feed(char)
        states.append(scan.state)
    return states


def _marks(text: str, separator: str = "") -> list[Mark]:
    scan = JsonScan(separator=separator)
    return [mark for char in text for mark in scan.feed(char)]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _is_call_json(text: str) -> bool:
    """By the library's own parser: an object, or a list of objects. It passes halves of characters, which we do not."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        return False
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(item, dict) for item in value))


def _spellings(value: Any) -> list[str]:
    return [
        json.dumps(value),
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        "\n\t " + json.dumps(value, indent=2) + "\r\n",
    ]


@pytest.mark.parametrize("text", [text for row in ROWS for text in _spellings(row)])
def test_json_is_sound_until_it_is_whole(text: str) -> None:
    states = _states(text)
    end = len(text.rstrip())
    assert states[:end] == [State.SOUND] * end
    assert states[end:] == [State.COMPLETE] * (len(states) - end)


def test_a_changed_character_breaks_it_exactly_where_the_library_says_so() -> None:
    rng = random.Random(0)
    broken = 0
    for _ in range(3000):
        text = rng.choice(_spellings(rng.choice(ROWS)))
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(["", *'{}[]",:\\ \n0123.eE+-tfnu/aé']) + text[at + rng.randint(0, 1) :]
        whole = _states(text)[-1] is State.COMPLETE
        assert whole == _is_call_json(text), text
        broken += not whole
    assert 500 < broken < 2900


@pytest.mark.parametrize(
    "number", ["0", "-0", "7", "120", "-3.25", "0.5", "1e5", "1E+5", "2.5e-10", "10", "123456789012345678901234567890"]
)
def test_every_spelling_of_a_number_is_sound(number: str) -> None:
    assert _is_call_json(f'{{"a":{number}}}')
    assert _states(f'{{"a":{number}}}')[-1] is State.COMPLETE
    assert _states(f'{{"a":[{number} , {number}]}}')[-1] is State.COMPLETE


@pytest.mark.parametrize(
    "written",
    [  # the last character is the one that breaks it
        "x",
        '"',
        "1",
        "[1",
        "[[",
        "}",
        "[{},]",
        "[,",
        "[}",
        "{]",
        "{,",
        "{'",
        "{a",
        '{"a" "',
        '{"a",',
        '{"a"}',
        '{"a":}',
        '{"a":,',
        '{"a":1,}',
        '{"a":1 2',
        '{"a":[1,]',
        '{"a":[1}',
        '{"a":01',
        '{"a":-a',
        '{"a":+',
        '{"a":.',
        '{"a":1.}',
        '{"a":1.e',
        '{"a":1e}',
        '{"a":1e+,',
        '{"a":1..',
        '{"a":--',
        '{"a":tru}',
        '{"a":T',
        '{"a":N',
        '{"a":nulll',
        '{"a":"\\x',
        '{"a":"\\u12g',
        '{"a":"\n',
        '{"a":"\x00',
        '{"a\n',
        "{}x",
        "{};",
        "{}{",
        "[]]",
        "/",
        "\ufeff",
        "\u00a0",
        '{"a":٣',
    ],
)
def test_what_cannot_become_json_is_broken_at_once_and_stays_so(written: str) -> None:
    states = _states(written + '"}]{} ')
    assert State.BROKEN not in states[: len(written)]
    assert set(states[len(written) :]) == {State.BROKEN}


def test_a_string_knows_where_it_begins_and_ends() -> None:
    text = '{"k\\"": ["a\\\\", "\\u00e9"]} '
    scan = JsonScan()
    inside = []
    for char in text:
        scan.feed(char)
        inside.append(scan.in_string)
    expected = [False] * len(text)
    for opening, closing in ((1, 5), (9, 13), (16, 23)):
        assert text[opening] == '"' and text[closing] == '"'
        expected[opening:closing] = [True] * (closing - opening)
    assert inside == expected


@pytest.mark.parametrize("row", ROWS[:2])
def test_the_members_of_the_objects_lie_where_the_marks_say(row: Any) -> None:
    for text in _spellings(row):
        found: list[dict[str, Any]] = []
        key, start = "", 0
        for mark in _marks(text):
            match mark.kind:
                case MarkKind.OBJECT:
                    assert text[mark.at] == "{"
                    found.append({})
                case MarkKind.KEY:
                    key = mark.key
                    assert json.loads(text[mark.at :].partition(":")[0]) == key
                case MarkKind.VALUE:
                    start = mark.at
                case MarkKind.VALUE_END:
                    found[-1][key] = json.loads(text[start : mark.at])
                    assert text[start : mark.at].strip() == text[start : mark.at]
                case MarkKind.OBJECT_END:
                    assert text[mark.at - 1] == "}"
        assert found == (row if isinstance(row, list) else [row])


def test_an_escaped_key_is_decoded_and_a_number_ends_before_what_follows() -> None:
    text = '{"n\\u0061me": 12 , "b":-3}'
    marks = _marks(text)
    assert [mark.key for mark in marks if mark.kind is MarkKind.KEY] == ["name", "b"]
    starts = [mark.at for mark in marks if mark.kind is MarkKind.VALUE]
    ends = [mark.at for mark in marks if mark.kind is MarkKind.VALUE_END]
    assert [text[a:b] for a, b in zip(starts, ends, strict=True)] == ["12", "-3"]


def test_several_values_may_follow_each_other_with_a_separator_only() -> None:
    text = '{"a":1} ; {"a":2};{"a":3}'
    states = _states(text, separator=";")
    assert [at for at, state in enumerate(states) if state is State.COMPLETE] == [7, 8, 17, 25]
    assert sum(mark.kind is MarkKind.OBJECT for mark in _marks(text, separator=";")) == 3
    assert _states("{};", separator=";")[-1] is State.SOUND
    assert _states("{};;", separator=";")[-1] is State.BROKEN
    assert _states("{},", separator=";")[-1] is State.BROKEN


def test_nesting_ends_where_readers_would_give_up() -> None:
    deepest = '{"a":' + "[" * (MAX_DEPTH - 1)
    assert _states(deepest)[-1] is State.SOUND
    assert _states(deepest + "]" * (MAX_DEPTH - 1) + "}")[-1] is State.COMPLETE
    assert _states(deepest + "[")[-1] is State.BROKEN


@pytest.mark.parametrize("text", [r"\ud83d\ude00", r"\u00e9", r"\uD83D\uDE00 \ud7ff\ue000"])
def test_escapes_of_whole_characters_are_sound(text: str) -> None:
    assert _states(f'{{"a{text}": "{text}"}}')[-1] is State.COMPLETE


@pytest.mark.parametrize("number", ["1e308", "-1e308", "1e-999", "9" * 300])
def test_a_number_within_the_range_of_a_double_is_sound(number: str) -> None:
    assert _states(f'{{"n": {number}}}')[-1] is State.COMPLETE


@pytest.mark.parametrize("number", ["1e309", "-1e999", "9" * 400, "9" * 5000])
def test_a_number_that_json_libraries_cannot_hold_is_broken(number: str) -> None:
    assert _states(f'{{"n": {number}}}')[-1] is State.BROKEN


@pytest.mark.parametrize(
    "text", [r"\ud83d", r"\ude00", r"\ud83d\ud83d", r"\ud83d\n", r"\ud83dx", r"\ud83d\u0041", r"\ude00\ud83d"]
)
def test_half_a_surrogate_pair_is_no_character(text: str) -> None:
    assert _states(f'{{"a": "{text}"}}')[-1] is State.BROKEN
    assert _states(f'{{"{text}": 1}}')[-1] is State.BROKEN

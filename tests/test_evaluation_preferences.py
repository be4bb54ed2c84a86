"""The three preferences: each rule names what is wrong with an answer, at its very bounds."""

from __future__ import annotations

import pytest

from clawrl.evaluation.preferences import NEXT_STEP, NO_LISTS, ONE_SENTENCE, PREFERENCES
from clawrl.evaluation.user_words import Objection

GOOD = "Rain is water that falls from the clouds."
OFFER = "Rain is water. Would you like to know more?"


def words(count: int) -> str:
    return ("word " * count).strip()


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [
        (GOOD, "stop", None),
        (words(5), "stop", None),
        (words(4), "stop", Objection.TOO_SHORT),
        ("", "stop", Objection.TOO_SHORT),
        (words(30), "stop", None),
        (words(31), "stop", Objection.TOO_LONG),
        (GOOD, "length", Objection.CUT_OFF),
        (words(31), "length", Objection.TOO_LONG),
        ("one two three four five\nsix seven", "stop", Objection.SEVERAL_LINES),
        ("Here are some things:\n- rain falls\n- snow falls", "stop", Objection.LIST),
        ("1. Rain falls from the sky", "stop", Objection.LIST),
        ("Reasons: 1. It is wet. 2. It is cold.", "stop", Objection.LIST),
        ("\n  Rain is water that falls from the clouds.  \n", "stop", None),
        ("It first fell in the year 1850. People loved it.", "stop", None),
        ("A dash - like this one - makes no list at all.", "stop", None),
        ("A. Lincoln was a president of the United States.", "stop", None),
        (GOOD, None, Objection.CUT_OFF),
    ],
)
def test_one_sentence_is_short_whole_and_on_one_line(
    text: str, finish_reason: str | None, expected: Objection | None
) -> None:
    assert ONE_SENTENCE.objection(text, finish_reason) == expected
    assert ONE_SENTENCE.accepts(text, finish_reason) == (expected is None)


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [
        (GOOD, "stop", None),
        (f"{words(50)}.\n\n{words(50)}.", "stop", None),
        (words(7), "stop", Objection.TOO_SHORT),
        (words(8), "stop", None),
        (words(20), "length", Objection.CUT_OFF),
        ("Rain comes in kinds:\n1. Drizzle\n2. Showers", "stop", Objection.LIST),
        ("Rain comes in kinds:\n* Drizzle\n* Showers", "length", Objection.LIST),
        ("Rain is **wet** and falls from the clouds above.", "stop", Objection.MARKUP),
        ("## Rain\nIt is water that falls from the clouds.", "stop", Objection.MARKUP),
        ("What rain is:\nIt is water that falls from the clouds.", "stop", Objection.MARKUP),
        ("Rain has a simple cause: warm air rises, cools and lets go of its water.", "stop", None),
        ("It costs 3 * 4 coins, which is a lot for rain.", "stop", None),
    ],
)
def test_no_lists_wants_running_text(text: str, finish_reason: str, expected: Objection | None) -> None:
    assert NO_LISTS.objection(text, finish_reason) == expected


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [
        (OFFER, "stop", None),
        ("Rain is only water. Shall I go on?", "stop", None),
        ("Rain is water. Shall I go on?", "stop", Objection.TOO_SHORT),
        ("Why?", "stop", Objection.TOO_SHORT),
        ("Why?", "length", Objection.CUT_OFF),
        ("Rain is water. Let me know if you want to hear about snow.", "stop", None),
        ("Rain is water. What would you like to know about it?", "stop", None),
        ('At last it asked me: "Is rain water?"', "stop", None),
        ("Would you like to know more? Rain is water.", "stop", Objection.NO_OFFER),
        (GOOD, "stop", Objection.NO_OFFER),
        ("", "stop", Objection.TOO_SHORT),
        (OFFER, "length", Objection.CUT_OFF),
        (f"{words(52)}. {OFFER}", "stop", Objection.TOO_LONG),
        (f"{words(51)}. {OFFER}", "stop", None),
    ],
)
def test_next_step_wants_a_short_answer_that_ends_with_a_question_or_an_offer(
    text: str, finish_reason: str, expected: Objection | None
) -> None:
    assert NEXT_STEP.objection(text, finish_reason) == expected


def test_every_preference_has_words_for_each_of_its_objections_and_for_no_other() -> None:
    texts = ["", "Yes.", GOOD, words(200), "a\nb", f"{words(9)}\n{words(9)}", "- a\n- b", "**Rain**", OFFER]
    for preference in PREFERENCES.values():
        raised = {preference.objection(text, finish) for text in texts for finish in ("stop", "length")} - {None}
        assert raised == set(preference.complaints), preference.name


def test_a_preference_is_known_by_its_name_and_its_clients_leave_room_for_an_accepted_answer() -> None:
    assert {name: preference.name for name, preference in PREFERENCES.items()} == {n: n for n in PREFERENCES}
    for preference in PREFERENCES.values():
        assert preference.answer_tokens >= 1.5 * (preference.words[1] or preference.words[0] or 0)

"""The simulated user: its rule, its words, and the course of a conversation."""

from __future__ import annotations

import random

import pytest

from clawrl.evaluation.simulated_user import HELD_OUT_QUESTIONS, Conversation, Objection, accepts, objection
from clawrl.evaluation.user_words import COMPLAINTS, GIVING_UP, THANKS, TRAINING_FORMS, TRAINING_TOPICS

GOOD = "Rain is water that falls from the clouds."
LONG = "word " * 31


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [
        (GOOD, "stop", None),
        ("one two three four five", "stop", None),
        ("one two three four", "stop", Objection.TOO_SHORT),
        ("", "stop", Objection.TOO_SHORT),
        (("word " * 30).strip(), "stop", None),
        (LONG, "stop", Objection.TOO_LONG),
        (GOOD, "length", Objection.CUT_OFF),
        (LONG, "length", Objection.TOO_LONG),
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
def test_the_rule_names_what_is_wrong_with_an_answer(
    text: str, finish_reason: str | None, expected: Objection | None
) -> None:
    assert objection(text, finish_reason) == expected
    assert accepts(text, finish_reason) == (expected is None)


def test_an_accepted_answer_gets_thanks_and_another_question() -> None:
    conversation = Conversation(random.Random(1), questions=2)
    first = conversation.opening()
    move = conversation.reply(GOOD, "stop")
    assert move.objection is None and not move.ends_session
    assert any(move.text.startswith(thanks) for thanks in THANKS)
    assert move.question != first.question and move.text.endswith(move.question)


def test_a_rejected_answer_gets_a_complaint_about_what_is_wrong_with_it() -> None:
    conversation = Conversation(random.Random(1))
    question = conversation.opening().question
    for text, finish, wrong in [(LONG, "stop", Objection.TOO_LONG), ("Yes.", "stop", Objection.TOO_SHORT)]:
        move = conversation.reply(text, finish)
        assert move.objection is wrong and move.text in COMPLAINTS[wrong]
        assert move.question == question and not move.ends_session


def test_after_two_complaints_the_user_gives_up_on_the_question_in_words_that_say_no() -> None:
    conversation = Conversation(random.Random(1), questions=2, max_complaints=2)
    first = conversation.opening().question
    conversation.reply(LONG, "stop")
    conversation.reply(LONG, "stop")
    move = conversation.reply(LONG, "stop")
    assert move.objection is Objection.TOO_LONG
    assert any(move.text.startswith(words) for words in GIVING_UP) and move.question != first
    assert conversation.reply(LONG, "stop").text in COMPLAINTS[Objection.TOO_LONG], "a new question, new patience"


def test_a_session_has_its_number_of_questions_and_ends_with_feedback_on_the_last_answer() -> None:
    conversation = Conversation(random.Random(2), questions=3)
    questions = {conversation.opening().question}
    for _ in range(2):
        move = conversation.reply(GOOD, "stop")
        assert not move.ends_session
        questions.add(move.question)
    goodbye = conversation.reply(GOOD, "stop")
    assert goodbye.ends_session and any(goodbye.text.startswith(thanks) for thanks in THANKS)
    assert len(questions) >= 2


def test_the_same_seed_says_the_same_words_and_another_seed_says_others() -> None:
    def talk(seed: int) -> list[str]:
        conversation = Conversation(random.Random(seed), questions=4)
        return [conversation.opening().text] + [conversation.reply(LONG, "stop").text for _ in range(8)]

    assert talk(5) == talk(5)
    assert talk(5) != talk(6)


def test_no_held_out_question_and_no_held_out_topic_can_occur_in_training() -> None:
    training = {form.format(topic) for form in TRAINING_FORMS for topic in TRAINING_TOPICS}
    assert len(HELD_OUT_QUESTIONS) == len(set(HELD_OUT_QUESTIONS)) == 12
    assert len(training) == len(TRAINING_FORMS) * len(TRAINING_TOPICS)
    for question in HELD_OUT_QUESTIONS:
        assert question not in training
        assert not any(topic in question.lower() for topic in TRAINING_TOPICS), question


def test_complaints_never_give_the_rule_away_in_numbers() -> None:
    assert set(COMPLAINTS) == set(Objection)
    for phrases in COMPLAINTS.values():
        assert len(phrases) >= 5
        assert not any(character.isdigit() for phrase in phrases for character in phrase)


def test_a_session_without_a_question_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a question"):
        Conversation(random.Random(0), questions=0)

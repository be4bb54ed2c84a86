"""The simulated user: the course of a conversation, and the words that it uses."""

from __future__ import annotations

import random

import pytest

from clawrl.evaluation.preferences import ONE_SENTENCE, PREFERENCES, Preference
from clawrl.evaluation.simulated_user import HELD_OUT_QUESTIONS, Conversation, topic_of, training_question
from clawrl.evaluation.user_words import GIVING_UP, GOODBYES, THANKS, TRAINING_FORMS, TRAINING_TOPICS, Objection
from clawrl.judging.quoting import quote

GOOD = "Rain is water that falls from the clouds."
LONG = "word " * 31


def conversation(seed: int = 1, **settings: int) -> Conversation:
    return Conversation(random.Random(seed), ONE_SENTENCE, **settings)


def test_a_short_session_is_a_question_and_a_complaint_in_leaving() -> None:
    talk = conversation()
    question = talk.opening().question
    goodbye = talk.reply(LONG, "stop")
    assert goodbye.ends_session and goodbye.question == question and goodbye.objection is Objection.TOO_LONG
    assert goodbye.text.startswith(ONE_SENTENCE.complaints[Objection.TOO_LONG]) and goodbye.text.endswith(GOODBYES)


def test_a_patient_user_asks_again_before_leaving_with_words_that_still_say_no() -> None:
    talk = conversation(max_complaints=1)
    question = talk.opening().question
    complaint = talk.reply(LONG, "stop")
    assert complaint.text in ONE_SENTENCE.complaints[Objection.TOO_LONG] and not complaint.ends_session
    goodbye = talk.reply(LONG, "stop")
    assert goodbye.ends_session and goodbye.question == question and goodbye.objection is Objection.TOO_LONG
    assert goodbye.text.startswith(GIVING_UP) and goodbye.text.endswith(GOODBYES)


def test_an_accepted_answer_ends_a_short_session_with_thanks() -> None:
    talk = conversation()
    talk.opening()
    goodbye = talk.reply(GOOD, "stop")
    assert goodbye.ends_session and goodbye.objection is None and goodbye.text.startswith(THANKS)


def test_an_accepted_answer_gets_thanks_and_another_question_while_there_is_one() -> None:
    talk = conversation(questions=2)
    first = talk.opening()
    move = talk.reply(GOOD, "stop")
    assert move.objection is None and not move.ends_session and move.text.startswith(THANKS)
    assert move.question != first.question and move.text.endswith(move.question)


def test_after_its_complaints_the_user_gives_up_on_the_question_and_has_new_patience_for_the_next() -> None:
    talk = conversation(questions=2, max_complaints=2)
    first = talk.opening().question
    assert [talk.reply(LONG, "stop").question for _ in range(2)] == [first, first]
    move = talk.reply("Yes.", "stop")
    assert move.objection is Objection.TOO_SHORT and move.text.startswith(GIVING_UP) and move.question != first
    assert talk.reply(LONG, "stop").text in ONE_SENTENCE.complaints[Objection.TOO_LONG]


@pytest.mark.parametrize("preference", PREFERENCES.values(), ids=lambda preference: preference.name)
def test_the_user_complains_by_its_own_preference(preference: Preference) -> None:
    talk = Conversation(random.Random(1), preference, max_complaints=1)
    talk.opening()
    wrong = preference.objection("", "length")
    assert wrong is not None and talk.reply("", "length").text in preference.complaints[wrong]


def test_the_same_seed_says_the_same_words_and_another_seed_says_others() -> None:
    def say(seed: int) -> list[str]:
        talk = conversation(seed, questions=4, max_complaints=2)
        return [talk.opening().text] + [talk.reply(LONG, "stop").text for _ in range(8)]

    assert say(5) == say(5)
    assert say(5) != say(6)


def test_no_held_out_question_and_no_held_out_topic_can_occur_in_training() -> None:
    training = {form.format(topic) for form in TRAINING_FORMS for topic in TRAINING_TOPICS}
    assert len(HELD_OUT_QUESTIONS) == len(set(HELD_OUT_QUESTIONS)) == 12
    assert len(training) == len(TRAINING_FORMS) * len(TRAINING_TOPICS)
    for question in HELD_OUT_QUESTIONS:
        assert question not in training
        assert not any(topic in question.lower() for topic in TRAINING_TOPICS), question


def test_the_topic_of_a_training_question_is_known_and_any_other_question_is_its_own() -> None:
    assert topic_of("Why do some people enjoy ice cream?") == "ice cream"
    assert topic_of(training_question(random.Random(0))) in TRAINING_TOPICS
    assert topic_of("What is 7 plus 5?") == "What is 7 plus 5?"


@pytest.mark.parametrize("preference", PREFERENCES.values(), ids=lambda preference: preference.name)
def test_complaints_are_many_say_a_wish_mostly_and_never_give_the_rule_away_in_numbers(preference: Preference) -> None:
    for wrong, phrases in preference.complaints.items():
        assert len(set(phrases)) == len(phrases) >= 5
        assert not any(character.isdigit() for phrase in phrases for character in phrase)
        wished = [phrase for phrase in phrases if quote(phrase)]
        assert len(phrases) / 2 < len(wished) < len(phrases), (wrong, wished)


@pytest.mark.parametrize("preference", PREFERENCES.values(), ids=lambda preference: preference.name)
def test_the_wish_in_a_complaint_is_a_sentence_of_its_own_that_stands_without_the_rest(preference: Preference) -> None:
    for phrase in [phrase for phrases in preference.complaints.values() for phrase in phrases]:
        if wish := quote(phrase):
            assert phrase.endswith(wish) and len(wish) < len(phrase), phrase


def test_thanks_and_giving_up_hold_no_wish() -> None:
    assert [phrase for phrase in (*THANKS, *GIVING_UP, *GOODBYES) if quote(phrase)] == []


def test_a_session_without_a_question_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a question"):
        conversation(questions=0)

"""Which sentences of a user are a hint, and which hints are kept."""

from __future__ import annotations

import asyncio

import pytest

from clawrl.evaluation.user_words import GIVING_UP, GOODBYES, NEXT_QUESTION, THANKS, TRAINING_FORMS
from clawrl.judging.hints import NoHints, accept
from clawrl.judging.quoting import QuotingHints, quote
from clawrl.messages import Judgement, JudgeRequest, Message, TurnId, Verdict

# What is said, and which part of it is the hint: "" where nothing tells how the answer should have been.
CORRECTIONS = {
    "No, I did not want a list. Please say it in one plain sentence.": "Please say it in one plain sentence.",
    "That is a list, and I can't use it. Try again without the points.": "Try again without the points.",
    "Please drop the bullet points and just tell me.": "Please drop the bullet points and just tell me.",
    "Not a list, please. Put it into one sentence.": "Put it into one sentence.",
    "Wrong format: I asked a simple question and got a list. Do it again.": "",
    "I don't like these numbered points. One sentence will do.": "One sentence will do.",
    "Too many lines. Please answer on a single line.": "Please answer on a single line.",
    "No, don't break it into paragraphs. One sentence, please.": "One sentence, please.",
    "That is spread over several lines, which is no good to me. Try again.": "",
    "Please don't start new lines. Say it in one go.": "Say it in one go.",
    "This is not what I need: keep it on one line.": "keep it on one line.",
    "I wanted one sentence, not several paragraphs. Again, please.": "I wanted one sentence, not several paragraphs.",
    "That is much too long. Make it shorter, please.": "Make it shorter, please.",
    "No, too many words. Just one short sentence.": "Just one short sentence.",
    "I am not going to read all that. Say it briefly.": "Say it briefly.",
    "Too long, please try again.": "",
    "You talk too much. Can you say it in one sentence?": "Can you say it in one sentence?",
    "That's not what I wanted, it goes on and on. Shorten it.": "Shorten it.",
    "Please cut it down, this is way too wordy.": "Please cut it down, this is way too wordy.",
    "You stopped in the middle. Please give me a complete, short answer.": "Please give me a complete, short answer.",
    "That is unfinished. Say it again so that it fits.": "Say it again so that it fits.",
    "Your answer was cut off. Try a shorter one.": "Try a shorter one.",
    "No, it ends in the middle of a thought. Again, but shorter.": "Again, but shorter.",
    "This is broken off, I can't use it. One complete short sentence, please.": "One complete short sentence, please.",
    "It never came to an end. Please finish in one sentence.": "Please finish in one sentence.",
    "That is too short to be of any use. Please say a bit more.": "Please say a bit more.",
    "No, that is hardly an answer. Give me a whole sentence.": "Give me a whole sentence.",
    "Is that all? Try again with a full sentence.": "Try again with a full sentence.",
    "That doesn't tell me anything. Please answer properly.": "Please answer properly.",
    "Not enough. I would like one complete sentence.": "I would like one complete sentence.",
    "You barely said anything, do it again.": "",
    "No, that is a list. Plain text without a list, please.": "Plain text without a list, please.",
    "Wrong format, I asked you a simple question. Say it in a short paragraph instead.": (
        "Say it in a short paragraph instead."
    ),
    "I wanted no paragraphs. Please say it in one plain sentence.": "Please say it in one plain sentence.",
    # The wish stands alone.
    "Please never use bullet points or bold text.": "Please never use bullet points or bold text.",
    "End by offering a next step.": "End by offering a next step.",
    "I prefer metric units.": "I prefer metric units.",
    "Use euros instead of dollars.": "Use euros instead of dollars.",
    "It should be in French.": "It should be in French.",
    "I\u2019d prefer a shorter answer.": "I'd prefer a shorter answer.",
    "Thanks, but please use euros next time.": "Thanks, but please use euros next time.",
    "Answer me in German. And use metric units.": "Answer me in German. And use metric units.",
    # Against something, with nothing positive beside it.
    "No, I did not want a list.": "No, I did not want a list.",
    "Wrong. Don't use bold text.": "Don't use bold text.",
    "Not a list. Wrong.": "Not a list.",
    "No emojis.": "No emojis.",
    # Nothing to learn.
    "This is useless.": "",
    "Wrong.": "",
    "This is useless. Try again, please.": "",
    "Not good.": "",
    "I didn't want that.": "",
    "Why didn't you use euros?": "",
    "I like it.": "",
    "I want to know about owls.": "",
    "Please tell me about kites.": "",
    "That is no better. Forget it. Please use euros in your answer to this: what is a boat?": "",
    "Please fix this: " + "x = 1; " * 200: "",
    "": "",
}


@pytest.mark.parametrize(("said", "hint"), CORRECTIONS.items(), ids=[said[:40] for said in CORRECTIONS])
def test_the_sentences_that_say_how_the_answer_should_have_been_are_quoted(said: str, hint: str) -> None:
    assert quote(said) == hint


def test_thanks_giving_up_goodbyes_and_the_next_question_are_no_hint() -> None:
    said = [
        f"{feeling} {lead}{form.format('pianos')}"
        for feeling in (*THANKS, *GIVING_UP)
        for lead in NEXT_QUESTION
        for form in TRAINING_FORMS
    ]
    said += [f"{feeling} {goodbye}" for feeling in (*THANKS, *GIVING_UP) for goodbye in GOODBYES]
    assert len(said) > 500
    assert {text: quote(text) for text in said if quote(text)} == {}


def _hints(verdict: Verdict | None, *evidence: Message) -> tuple[str, ...]:
    case = JudgeRequest(turn_id=TurnId("t"), request=(), response="", evidence=evidence)
    judgement = Judgement(turn_id=TurnId("t"), verdict=verdict, score=None, votes=(), judge="fake", seconds=0.0)
    return asyncio.run(QuotingHints().hints(case, judgement))


def test_only_the_user_is_quoted_and_every_message_gives_one_candidate_at_most() -> None:
    evidence = (
        Message(role="tool", content="error: please use euros"),
        Message(role="user", content="Wrong. Use euros, please. Say it in one sentence."),
        Message(role="user", content="This is useless."),
        Message(role="user", content="I prefer metric units."),
    )
    expected = ("Use euros, please. Say it in one sentence.", "I prefer metric units.")
    assert _hints(Verdict.BAD, *evidence) == expected == _hints(None, *evidence)
    assert _hints(Verdict.GOOD, *evidence) == ()


def test_of_the_candidates_the_short_ones_that_say_something_are_kept_each_once() -> None:
    longest = "Be brief and use euros, please."
    candidates = ["  Use metric units.  ", "Too short.", longest, "Use metric\n units.", "Use euros, ok?"]
    kept = ("Use euros, ok?", "Use metric units.", longest)
    assert accept(candidates, max_hints=3, min_chars=10) == kept
    assert accept(candidates, max_hints=1, min_chars=10) == kept[:1]
    assert accept(candidates, max_hints=9, min_chars=9)[0] == "Too short.", "longer than, not as long as"
    assert accept([], max_hints=3, min_chars=10) == ()


def test_of_equally_long_hints_the_first_comes_first() -> None:
    assert accept(["Use dollars!", "Never a list", "Use bullets!"], max_hints=2, min_chars=3) == (
        "Use dollars!",
        "Never a list",
    )


def test_a_method_without_hints_gets_none() -> None:
    case = JudgeRequest(turn_id=TurnId("t"), request=(), response="", evidence=(Message(role="user", content="Use €"),))
    judgement = Judgement(turn_id=TurnId("t"), verdict=Verdict.BAD, score=None, votes=(), judge="fake", seconds=0.0)
    assert asyncio.run(NoHints().hints(case, judgement)) == ()

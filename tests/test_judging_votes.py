"""From written votes to a verdict: nothing that is not a vote is ever counted, least of all as 0."""

from __future__ import annotations

import pytest

from clawrl.judging.text import transcript, without_reasoning
from clawrl.judging.votes import boxed, majority
from clawrl.messages import Message


@pytest.mark.parametrize(
    ("text", "vote"),
    [
        (r"It was fine. \boxed{1}", 1),
        (r"\boxed{+1}", 1),
        (r"\boxed{ -1 }", -1),
        (r"\boxed { - 1 }", -1),
        (r"so: $\boxed{0}$.", 0),
        (r"First \boxed{1}, no, rather \boxed{-1}", -1),
        (r"<think>surely \boxed{1}</think> after all \boxed{-1}", -1),
        (r"<think>one</think><think>two \boxed{1}</think>\boxed{0}", 0),
    ],
)
def test_the_last_box_after_the_reasoning_is_the_vote(text: str, vote: int) -> None:
    assert boxed(text) == vote


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I would say 1.",
        r"\boxed{}",
        r"\boxed{2}",
        r"\boxed{11}",
        r"\boxed{1} or rather \boxed{good}",
        r"\boxed{-1} \boxed{1.0}",
        r"<think>it is \boxed{1}",
        r"<think>it is \boxed{1}</think> I cannot tell.",
        r"\boxed{1} <think>but then",
        r"it is \boxed{1}</think>",
        r"\boxed{1",
    ],
)
def test_what_is_no_vote_is_none_and_not_zero(text: str) -> None:
    assert boxed(text) is None


@pytest.mark.parametrize(
    ("votes", "verdict"),
    [
        ([1, 1, -1], 1),
        ([-1, -1, 1], -1),
        ([0, 0, 1], 0),
        ([1, -1], 0),
        ([1, 1, -1, -1, 0], 0),
        ([None, None, -1], -1),
        ([None, 1, -1, -1], -1),
        ([None, None, None], None),
        ([], None),
    ],
)
def test_the_majority_decides_and_a_tie_is_neutral(votes: list[int | None], verdict: int | None) -> None:
    assert majority(votes) == verdict


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("<think>secret</think>\n\nHello.", "Hello."),
        ("One <think>a\nb</think>two <think>c</think>three", "One two three"),
        ("secret</think> Hello.", "Hello."),
        ("Hello. <think>secret", "Hello."),
        ("Hello.", "Hello."),
    ],
)
def test_reasoning_is_not_part_of_an_answer(text: str, seen: str) -> None:
    assert without_reasoning(text) == seen


def test_a_transcript_names_every_role_and_leaves_out_reasoning_and_empty_messages() -> None:
    messages = [
        Message(role="system", content="Be kind."),
        Message(role="assistant", content="<think>secret</think>Hello."),
        Message(role="assistant", content=" "),
        Message(role="user", content="what does <think> mean?"),
    ]
    assert transcript(messages) == "[system] Be kind.\n[assistant] Hello.\n[user] what does <think> mean?"
    assert transcript([]) == "(nothing)"

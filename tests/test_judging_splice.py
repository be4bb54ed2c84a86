"""Where a hint goes in a prompt that holds ids as they were sampled."""

from __future__ import annotations

import pytest

from clawrl.judging.splice import spliced

START, END = 1, 2
SPECIAL = {START, END}
# One question (10 11), an answer that encodes to 20 but was sampled as 21 22, another question (30).
PLAIN = [START, 10, 11, END, START, 20, END, START, 30, END, START]
SERVED = [START, 10, 11, END, START, 21, 22, END, START, 30, END, START]


def test_a_hint_ends_the_message_that_it_was_added_to_and_nothing_else_changes() -> None:
    hinted = [START, 10, 11, END, START, 20, END, START, 30, 40, 41, END, START]
    expected = [START, 10, 11, END, START, 21, 22, END, START, 30, 50, END, START]
    assert spliced(SERVED, PLAIN, hinted, [50], SPECIAL) == expected


def test_a_hint_may_belong_to_an_earlier_message() -> None:
    hinted = [START, 10, 11, 40, END, START, 20, END, START, 30, END, START]
    expected = [START, 10, 11, 50, 51, END, START, 21, 22, END, START, 30, END, START]
    assert spliced(SERVED, PLAIN, hinted, [50, 51], SPECIAL) == expected


def test_a_hint_whose_first_token_joins_the_message_still_goes_in_front_of_its_end() -> None:
    hinted = [START, 10, 11, END, START, 20, END, START, 31, 41, END, START]
    assert spliced(SERVED, PLAIN, hinted, [50], SPECIAL) == [*SERVED[:10], 50, *SERVED[10:]]


def test_a_beginning_that_was_put_into_the_answer_stays_behind_the_hint() -> None:
    hinted = [*PLAIN[:9], 40, *PLAIN[9:]]
    assert spliced([*SERVED, 60], PLAIN, hinted, [50], SPECIAL) == [*SERVED[:10], 50, *SERVED[10:], 60]


@pytest.mark.parametrize("served", [[START, 10, END], [*SERVED[:4], END, *SERVED[4:]], [END, *SERVED[1:]]])
def test_another_request_than_the_one_that_was_served_has_no_place_for_it(served: list[int]) -> None:
    assert spliced(served, PLAIN, PLAIN, [50], SPECIAL) is None

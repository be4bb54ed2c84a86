"""One row that a disk or a hand altered: it is out of the way with a reason, its conversation and its owner go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from clawrl.ledger import Ledger
from clawrl.ledger.views import FeedbackOutcome
from clawrl.messages import DropReason, TurnId, TurnState
from clawrl.privacy.forgetting import Wanted, forget, run_steps
from tests.ledger_kit import Talk, opinion, queue, reply, user
from tests.privacy_kit import alter, opened, said
from tests.test_privacy_hints import SOURCE, TAUGHT, taught_with_hints_of

QUESTION = user("where?")
FOLLOWS: Talk = QUESTION + reply("there") + user("thanks")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return opened(tmp_path / "state")


def is_out_of_the_way(ledger: Ledger, turn_id: str) -> None:
    (row,) = [row for row in ledger.turns(100) if row.turn_id == turn_id]
    assert (row.state, row.drop_reason) == (TurnState.DROPPED, DropReason.MALFORMED)
    assert ledger.awaiting_judgement() == [] and ledger.counts().adds_up


def goes_on(ledger: Ledger, *, announced: bool, session: str | None = "s") -> None:
    following = said("b", FOLLOWS, "bye", session=session)
    if announced:
        assert ledger.arrive(following.arrival).to_judge is None
    assert ledger.record(following).new
    turn = ledger.turn(TurnId("b"))
    assert turn is not None and turn.response_text == "bye" and turn.parent == "a"


@pytest.mark.parametrize("session", ["s", None], ids=["named", "anonymous"])
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "from a journal"])
@pytest.mark.parametrize(("table", "column"), [("payloads", "response_text"), ("arrivals", "new_messages")])
def test_a_conversation_goes_on_after_an_altered_turn(
    ledger: Ledger, table: str, column: str, announced: bool, session: str | None
) -> None:
    ledger.record(said("a", QUESTION, "there", session=session))
    alter(ledger, table, column, "a")
    goes_on(ledger, announced=announced, session=session)
    is_out_of_the_way(ledger, "a")


def test_so_it_does_after_a_turn_whose_comment_was_altered(ledger: Ledger) -> None:
    ledger.record(said("a", QUESTION, "there", session="s"))
    ledger.feedback(opinion("a", -1.0, "no"))
    alter(ledger, "feedback", "comment", "a")
    goes_on(ledger, announced=True)
    is_out_of_the_way(ledger, "a")


def test_feedback_on_a_turn_whose_judgement_was_altered_is_too_late(ledger: Ledger) -> None:
    queue(ledger, "a", owner="ann")
    alter(ledger, "judgements", "opinion", "a")
    taken = ledger.feedback(opinion("a", 1.0))
    assert taken is not None and taken.outcome is FeedbackOutcome.TOO_LATE
    assert taken.state is TurnState.DROPPED and taken.to_judge is None
    is_out_of_the_way(ledger, "a")
    assert ledger._db.scalar("SELECT outcome FROM feedback WHERE turn_id = 'a'") == FeedbackOutcome.TOO_LATE


def test_the_source_of_a_hint_is_forgotten_although_a_turn_that_was_taught_with_it_was_altered(ledger: Ledger) -> None:
    taught_with_hints_of(ledger, SOURCE)
    alter(ledger, "judgements", "opinion", TAUGHT)
    report = run_steps(ledger, forget(Wanted(owner="ann", session=f"s-{SOURCE}")))
    assert report["turns"] == 1 and ledger.forgetting_under_way() == []
    is_out_of_the_way(ledger, TAUGHT)
    assert ledger.targets(TAUGHT) is None and ledger.known_hints("ann", None, 4) == ()


def test_text_expires_although_a_turn_that_was_taught_by_an_older_one_was_altered(ledger: Ledger) -> None:
    ledger._db.clock = lambda: 1_000.0
    taught_with_hints_of(ledger, SOURCE)
    alter(ledger, "judgements", "opinion", TAUGHT)
    while ledger.expire_text(1e12):
        pass
    assert ledger.counts().dropped == {DropReason.MALFORMED: 1} and ledger.counts().adds_up
    assert ledger.targets(TAUGHT) is None and ledger.known_hints("ann", None, 4) == ()

"""A hint reaches the teacher and the teacher the trainer, through the whole graph; so does what a person says."""

from __future__ import annotations

import httpx

from clawrl.messages import TurnState
from tests.live import Live
from tests.teaching_kit import CORRECTION, assert_a_comment_teaches, feedback, said, state_of


def test_a_comment_teaches_the_exact_response_under_the_hinted_prompt(live: Live) -> None:
    assert_a_comment_teaches(live)


def test_taught_turns_are_trained_and_the_metrics_say_so(live: Live) -> None:
    ids = []
    for number in range(12):
        reply = said(live, f"lesson-{number}", f"question {number}", max_tokens=8)
        ids.append(reply.id.removeprefix("chatcmpl-"))
        feedback(live, session_id=f"lesson-{number}", score=-((-1) ** number), comment=CORRECTION)
    # A batch is four turns, oldest first: the last three may wait for company.
    ids = ids[:8]
    live.wait_for(
        lambda _: all(state_of(live, turn_id) in ("applied", "trained") for turn_id in ids), what="all of them trained"
    )
    metrics = live.status()["trainer"]["last_metrics"]
    assert metrics["taught"] > 0 and metrics["opd_advantage_abs"] > 0
    rows = {row["turn_id"]: row for row in live.turns()}
    assert [rows[turn_id]["reward"] for turn_id in ids] == [-1.0, 1.0] * 4
    # Who is pleased corrects nothing.
    assert [(rows[turn_id]["taught"], rows[turn_id]["hints"]) for turn_id in ids] == [(True, 1), (False, 0)] * 4


def test_feedback_that_comes_too_late_is_said_to_be_so(live: Live) -> None:
    trained = next(row["turn_id"] for row in live.turns() if row["state"] in ("applied", "trained"))
    answer = feedback(live, turn_id=trained, score=1).json()
    assert answer["outcome"] == "too_late" and answer["state"] in ("applied", "trained")


def test_bad_feedback_names_the_field(live: Live) -> None:
    cases = [
        ({"turn_id": "t", "score": 3}, 400, "score"),
        ({"turn_id": "t"}, 400, "score"),
        ({"score": 1}, 400, "turn_id"),
        ({"turn_id": "t", "session_id": "s", "score": 1}, 400, "session_id"),
        ({"turn_id": "t", "score": 1, "coment": "x"}, 400, "coment"),
        ({"turn_id": "never served", "score": 1}, 404, "turn_id"),
    ]
    for body, status, param in cases:
        answer = feedback(live, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), body
    refused = httpx.post(f"{live.url}/v1/feedback", json={"turn_id": "t", "score": 1}, timeout=20.0)
    assert refused.status_code == 401


def test_the_group_of_a_request_is_kept(live: Live) -> None:
    for _ in range(2):
        said(live, "grouped", "hello there", max_tokens=8, extra_body={"group_id": "g-1"})
    with live.ledger() as ledger:
        turns = [ledger.turn(row.turn_id) for row in ledger.turns(2, session="grouped")]
    assert [turn.arrival.group for turn in turns if turn is not None] == ["g-1", "g-1"]
    assert all(row.state is not TurnState.DROPPED or row.drop_reason != "duplicate" for row in live.ledger().turns(2))

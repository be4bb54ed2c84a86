"""The loop closes: a request becomes a judged turn, a step, a version, and the next answer carries it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clawrl.messages import TurnId, TurnState
from tests.engine_tools import Answer, cold_logps
from tests.live import Live
from tests.traffic import REACTIONS, ask, until_said


def test_what_was_served_is_what_is_stored_judged_trained_and_published(live: Live, tiny_folder: Path) -> None:
    client = live.client()
    assert live.status()["version"] == 0, "this test must be the first to train"
    answers = []
    for user in range(6):
        session = f"learn-{user}"
        messages = [{"role": "user", "content": f"tell me about plants {user}"}]
        for turn in range(3):
            reply = until_said(
                partial(
                    client.chat.completions.create,
                    model="tiny",
                    messages=messages,
                    logprobs=True,
                    max_tokens=20,
                    extra_headers={"X-Session-Id": session},
                )
            )
            answers.append((reply.clawrl["turn_id"], reply))  # type: ignore[attr-defined]
            text = reply.choices[0].message.content
            reaction = REACTIONS[(user + turn) % len(REACTIONS)]
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": reaction}]
    status = live.wait_for(lambda s: s["version"] >= 1, what="a published version")
    assert status["turns"]["adds_up"] and status["unrecorded"] == 0
    later = ask(client, [{"role": "user", "content": "hello again"}], stream=True, session="after", max_tokens=5)
    assert later.version >= 1

    with live.ledger() as ledger:
        trained = [row for row in ledger.turns(1000) if row.state in (TurnState.APPLIED, TurnState.TRAINED)]
        assert trained and all(row.verdict in (1, -1) for row in trained)
        compared = 0
        for turn_id, reply in answers:
            turn = ledger.turn(TurnId(turn_id))
            assert turn is not None
            sampled = [entry.logprob for entry in reply.choices[0].logprobs.content]
            np.testing.assert_array_equal(turn.response_logps, np.asarray(sampled, dtype=np.float32))
            assert turn.response_text == reply.choices[0].message.content
            if {span.version for span in turn.spans} == {0} and len(turn.response_ids) > 3:
                stored = Answer(turn.prompt_ids, turn.response_ids, turn.response_logps, np.zeros(1), None, [])
                cold = cold_logps(tiny_folder, stored, turn.sampling.temperature)
                np.testing.assert_allclose(turn.response_logps, cold, atol=1e-4)
                assert np.abs(turn.response_logps[1:] - cold[:-1]).max() > 1e-2, "a shift by one must show"
                compared += 1
        assert compared >= 3
        first = next(step for step in ledger.steps() if step.step == 1)
        assert first.stats["train_rollout_logprob_abs_diff"] < 1e-4
        assert first.turns == 4


def test_evidence_is_everything_after_the_answer_and_a_retry_or_an_edit_is_none(live: Live) -> None:
    client = live.client()
    session = f"evidence-{time.time()}"
    opening = [{"role": "user", "content": "tell me about rain"}]
    first = _visible(client, opening, session)
    ask(client, opening, stream=False, session=session, max_tokens=5)  # a retry of the same body
    edited = [{"role": "user", "content": "tell me about snow"}]
    ask(client, edited, stream=False, session=session, max_tokens=5)
    with live.ledger() as ledger:
        turn = next(r for r in reversed(ledger.turns(50, session=session)) if r.state is TurnState.AWAITING_NEXT)
        assert ledger.judgement(turn.turn_id) is None
    follow = [
        *opening,
        {"role": "assistant", "content": first},
        {"role": "tool", "content": "exit code 1", "tool_call_id": "x"},
        {"role": "user", "content": "that is bad"},
    ]
    ask(client, follow, stream=False, session=session, max_tokens=5)
    with live.ledger() as ledger:
        case = ledger.judge_request(turn.turn_id)
        assert case is not None
        assert [(m.role, m.content) for m in case.evidence] == [("tool", "exit code 1"), ("user", "that is bad")]
        assert [m.content for m in case.request] == ["tell me about rain"] and case.response == first


def test_conversations_without_a_session_are_told_apart_by_their_messages(live: Live) -> None:
    client = live.client()
    opening = [{"role": "user", "content": f"hello, who are you {time.time()}"}]
    texts = [_visible(client, opening, None) for _ in range(2)]
    follow = [*opening, {"role": "assistant", "content": texts[0]}, {"role": "user", "content": "good"}]
    ask(client, follow, stream=False, session=None, max_tokens=5)
    with live.ledger() as ledger:
        rows = {row.turn_id: row for row in ledger.turns(10)}
        mine = [r for r in rows.values() if _request_text(ledger, r.turn_id).startswith(opening[0]["content"])]
        sessions = {row.session for row in mine}
        assert len(mine) >= 2 and len(sessions) == len(mine)
        child = ledger.turns(1)[0]
        assert child.parent in {row.turn_id for row in mine} and rows[child.parent].session == child.session


def test_pausing_stops_the_queue_and_not_the_service(live: Live) -> None:
    import httpx

    from tests.live import AUTH

    httpx.post(f"{live.url}/clawrl/pause", json={"reason": "lunch"}, headers=AUTH).raise_for_status()
    try:
        status = live.wait_for(lambda s: s["paused"], what="paused")
        assert status["pause_reason"] == "lunch"
        queued = live.status()["turns"]["by_state"].get("queued", 0)
        client = live.client()
        for user in range(3):
            messages = [{"role": "user", "content": f"tell me about tea {user} {time.time()}"}]
            text = _visible(client, messages, f"paused-{user}-{time.time()}")
            ask(
                client,
                [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "bad"}],
                stream=False,
                session=None,
                max_tokens=5,
            )
        version = _version_at_rest(live)
        time.sleep(2.0)
        status = live.status()
        assert status["turns"]["by_state"].get("queued", 0) <= queued and status["version"] == version
    finally:
        httpx.post(f"{live.url}/clawrl/resume", headers=AUTH).raise_for_status()
    live.wait_for(lambda s: not s["paused"] and not s["turns"]["by_state"].get("judged", 0), what="resumed")


def _version_at_rest(live: Live) -> int:
    """The version when no other has come for three seconds: what was lent before the pause is trained and published."""
    seen: list[tuple[int, float]] = []

    def rests(status: dict[str, Any]) -> bool:
        if not seen or seen[-1][0] != status["version"]:
            seen.append((status["version"], time.monotonic()))
        return not status["turns"]["by_state"].get("leased", 0) and time.monotonic() - seen[-1][1] > 3.0

    version: int = live.wait_for(rests, what="a trainer that waits")["version"]
    return version


def _visible(client, messages, session):  # type: ignore[no-untyped-def]
    """An answer with visible text; a random model sometimes says nothing."""
    for _ in range(10):
        answer = ask(client, messages, stream=False, session=session, max_tokens=12)
        if answer.text.strip():
            return answer.text
    raise AssertionError("ten empty answers in a row")


def _request_text(ledger, turn_id):  # type: ignore[no-untyped-def]
    turn = ledger.turn(turn_id)
    return turn.arrival.new_messages[0].content if turn and turn.arrival.new_messages else ""

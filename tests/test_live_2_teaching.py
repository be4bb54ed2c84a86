"""A hint reaches the teacher and the teacher the trainer, through the whole graph; so does what a person says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawrl.judging.teacher import hinted_messages
from clawrl.messages import TurnState
from tests.engine_tools import Answer, cold_model_logps
from tests.live import AUTH, MODEL, Live

CORRECTION = "Please answer in one plain sentence."


def said(live: Live, session: str, *messages: str, **extra: Any) -> openai.types.chat.ChatCompletion:
    """One answer to user messages with made-up answers in between."""
    talk: list[Any] = []
    for number, message in enumerate(messages):
        talk += [{"role": "assistant", "content": f"answer {number}"}] if number else []
        talk.append({"role": "user", "content": message})
    return live.client().chat.completions.create(
        model=MODEL, messages=talk, extra_headers={"X-Session-Id": session}, **extra
    )


def feedback(live: Live, **body: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/feedback", json=body, headers=AUTH, timeout=20.0)


def state_of(live: Live, turn_id: str) -> str:
    return next(row["state"] for row in live.turns() if row["turn_id"] == turn_id)


def test_a_comment_teaches_the_exact_response_under_the_hinted_prompt(live: Live, tiny_folder: Path) -> None:
    reply = said(live, "taught", "tell me about plants", max_tokens=8)
    turn_id = reply.id.removeprefix("chatcmpl-")
    taken = feedback(live, turn_id=turn_id, score=-0.75, comment=CORRECTION)
    assert taken.status_code == 200 and taken.json()["outcome"] == "taken"
    live.wait_for(
        lambda _: state_of(live, turn_id) in ("queued", "leased", "applied", "trained"), what="the turn in the queue"
    )
    with live.ledger() as ledger:
        turn, targets, judgement = ledger.turn(turn_id), ledger.targets(turn_id), ledger.judgement(turn_id)
    assert turn is not None and targets is not None and judgement is not None
    assert judgement.reward == -0.75 and judgement.hints == (CORRECTION,) and targets.hints == (CORRECTION,)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    hinted = [{"role": m.role, "content": m.content} for m in hinted_messages(turn.arrival.messages, CORRECTION, "")]
    prompt = tokenizer.apply_chat_template(hinted, add_generation_prompt=True, return_dict=False)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    answer = Answer(np.asarray(prompt, np.int32), turn.response_ids, turn.response_logps, np.zeros(1), None, [])
    cold = cold_model_logps(model, answer, turn.sampling.temperature)
    np.testing.assert_allclose(targets.logps[0], cold, atol=1e-4)
    assert np.abs(targets.logps[0] - turn.response_logps).max() > 1e-3, "the hint must make a difference"


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

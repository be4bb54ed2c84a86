"""Talking to a live deployment, saying what was wrong, and looking at what the teacher made of it."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import openai
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawrl.judging.teacher import hinted_messages
from tests.engine_tools import Answer, cold_model_logps
from tests.live import AUTH, MODEL, Live
from tests.traffic import until_said

CORRECTION = "Please answer in one plain sentence."


def said(live: Live, session: str, *messages: str, **extra: Any) -> openai.types.chat.ChatCompletion:
    """One answer to user messages with made-up answers in between."""
    talk: list[Any] = []
    for number, message in enumerate(messages):
        talk += [{"role": "assistant", "content": f"answer {number}"}] if number else []
        talk.append({"role": "user", "content": message})
    return until_said(
        lambda: live.client().chat.completions.create(
            model=MODEL, messages=talk, extra_headers={"X-Session-Id": session}, **extra
        )
    )


def feedback(live: Live, **body: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/feedback", json=body, headers=AUTH, timeout=20.0)


def state_of(live: Live, turn_id: str) -> str:
    return next(row["state"] for row in live.turns() if row["turn_id"] == turn_id)


def assert_a_comment_teaches(live: Live) -> None:
    """The teacher's log-probs are those of the exact response under the hinted prompt, to the model of the start."""
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
    tokenizer = AutoTokenizer.from_pretrained(live.model)
    hinted = [{"role": m.role, "content": m.content} for m in hinted_messages(turn.arrival.messages, CORRECTION, "")]
    prompt = tokenizer.apply_chat_template(hinted, add_generation_prompt=True, return_dict=False)
    model = AutoModelForCausalLM.from_pretrained(live.model, dtype=torch.float32).eval()
    answer = Answer(np.asarray(prompt, np.int32), turn.response_ids, turn.response_logps, np.zeros(1), None, [])
    cold = cold_model_logps(model, answer, turn.sampling.temperature)
    np.testing.assert_allclose(targets.logps[0], cold, atol=1e-4)
    assert np.abs(targets.logps[0] - turn.response_logps).max() > 1e-3, "the hint must make a difference"

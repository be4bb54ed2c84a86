"""The vitals of an answer are what a plain forward pass of the frozen model says they are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from clawrl.engine.protocol import ScoreRequest, Scores
from clawrl.judging.divergence import k3
from clawrl.judging.vitals import VitalsError, VitalsMeter
from clawrl.messages import TurnId, VitalsRequest
from tests.engine_tools import running_engine

REQUEST = VitalsRequest(
    turn_id=TurnId("t"),
    prompt_ids=np.array([10, 50, 90], dtype=np.int32),
    response_ids=np.array([7, 300, 8, 9], dtype=np.int32),
    behaviour_logps=np.array([-1.0, -2.0, -0.5, -6.0], dtype=np.float32),
    temperature=0.8,
    other_prompt_ids=np.array([200, 201, 202, 203, 204], dtype=np.int32),
)


def test_vitals_equal_what_a_plain_forward_pass_gives(tiny_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()

    def logps(prompt: np.ndarray) -> np.ndarray:
        ids = torch.from_numpy(np.concatenate([prompt, REQUEST.response_ids]).astype(np.int64))
        with torch.no_grad():
            rows = (model(ids[None]).logits[0] / 0.8).log_softmax(-1)[len(prompt) - 1 : -1]
        return rows.gather(-1, ids[len(prompt) :, None])[:, 0].numpy().astype(np.float64)

    async def run():  # type: ignore[no-untyped-def]
        async with running_engine(tiny_folder) as engine:
            return await VitalsMeter(engine).measure(REQUEST)

    vitals = asyncio.run(run())
    own, other = logps(REQUEST.prompt_ids), logps(REQUEST.other_prompt_ids)
    ratio = own - REQUEST.behaviour_logps
    assert vitals.fluency == pytest.approx(own.mean(), abs=1e-5)
    assert vitals.on_topic_lift == pytest.approx(own.mean() - other.mean(), abs=1e-5)
    assert vitals.kl == pytest.approx(np.mean(np.exp(ratio) - 1 - ratio), abs=1e-4)


class FakeEngine:
    def __init__(self, value: float = -1.0) -> None:
        self.capabilities = SimpleNamespace(context_length=8)
        self.value, self.asked = value, []

    async def score(self, requests: list[ScoreRequest]) -> list[Scores]:
        self.asked.append(requests)
        return [Scores(logps=np.full(len(r.ids) - r.start, self.value, np.float32), version=0) for r in requests]


def test_both_texts_are_scored_in_one_call_and_the_unrelated_prompt_is_cut_at_its_beginning() -> None:
    engine = FakeEngine()
    asyncio.run(VitalsMeter(engine).measure(REQUEST))  # type: ignore[arg-type]
    ((own, other),) = engine.asked
    assert own.ids.tolist() == [10, 50, 90, 7, 300, 8, 9] and own.start == 3 and own.temperature == 0.8
    assert other.ids.tolist() == [201, 202, 203, 204, 7, 300, 8, 9] and other.start == 4


def test_what_cannot_be_measured_is_refused_with_the_reason() -> None:
    nothing = np.empty(0, dtype=np.int32)
    for changes, value, problem in (
        ({"prompt_ids": np.arange(5, dtype=np.int32)}, -1.0, "9 tokens do not fit"),
        ({"prompt_ids": nothing}, -1.0, "no tokens"),
        ({"other_prompt_ids": nothing}, -1.0, "no tokens"),
        ({"response_ids": nothing, "behaviour_logps": nothing.astype(np.float32)}, -1.0, "no tokens"),
    ):
        with pytest.raises(VitalsError, match=problem):
            asyncio.run(VitalsMeter(FakeEngine(value)).measure(replace(REQUEST, **changes)))  # type: ignore[arg-type]


def test_k3_is_zero_for_equal_models_positive_for_others_and_never_overflows() -> None:
    assert k3(np.array([-1.0, -2.0]), np.array([-1.0, -2.0])) == 0.0
    assert k3(np.array([-1.0]), np.array([-1.0 - np.log(2)])) == pytest.approx(2 - 1 - np.log(2))
    assert k3(np.array([-900.0]), np.array([0.0])) == pytest.approx(np.exp(-20) - 1 + 20)
    assert k3(np.array([0.0]), np.array([-900.0])) == pytest.approx(np.exp(20) - 1 - 20)


def test_a_figure_that_is_not_finite_is_passed_on() -> None:
    vitals = asyncio.run(VitalsMeter(FakeEngine(float("nan"))).measure(REQUEST))  # type: ignore[arg-type]
    assert np.isnan(vitals.fluency)

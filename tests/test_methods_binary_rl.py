import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from clawrl.messages import (
    Arrival,
    DropReason,
    FinishReason,
    Judgement,
    Sample,
    SamplingParams,
    Turn,
    TurnId,
    TurnKind,
    Verdict,
    VersionSpan,
)
from clawrl.methods.base import JudgementNeed, LossInputs
from clawrl.methods.binary_rl import BinaryRL
from clawrl.methods.config import BinaryRLConfig
from clawrl.methods.registry import build_method

torch.set_num_threads(1)

TURN_ID = TurnId("t1")
TURN = Turn(
    turn_id=TURN_ID,
    arrival=Arrival(
        turn_id=TURN_ID,
        session="s",
        owner="o",
        kind=TurnKind.MAIN,
        prefix_hash=None,
        messages_hash="h",
        new_messages=(),
        ends_session=False,
        arrived_at=0.0,
    ),
    reply_hash="r",
    response_text="ab",
    prompt_ids=np.array([1, 2], dtype=np.int32),
    response_ids=np.array([3, 4], dtype=np.int32),
    response_logps=np.array([-0.5, -1.5], dtype=np.float32),
    spans=(VersionSpan(start=0, end=2, version=3),),
    sampling=SamplingParams(temperature=0.7),
    finish_reason=FinishReason.STOP,
    started_at=0.0,
    finished_at=1.0,
    replica="r0",
)


def judgement(verdict: Verdict | None, turn_id: TurnId = TURN_ID) -> Judgement:
    return Judgement(turn_id=turn_id, verdict=verdict, score=None, votes=(), judge="j", seconds=0.1)


def method(**settings: Any) -> BinaryRL:
    return BinaryRL(BinaryRLConfig(**settings))


def test_the_registry_builds_the_method_that_the_config_names() -> None:
    built = build_method(BinaryRLConfig(kl_coef=0.1))
    assert built.name == "binary_rl"
    assert built.needs == {JudgementNeed.VERDICT}
    assert built.needs_reference


def test_a_reference_model_is_needed_only_for_kl() -> None:
    assert not method(kl_coef=0.0).needs_reference


@pytest.mark.parametrize(("verdict", "reward"), [(Verdict.GOOD, 1.0), (Verdict.BAD, -1.0)])
def test_a_verdict_becomes_the_reward_and_the_tokens_stay_as_sampled(verdict: Verdict, reward: float) -> None:
    sample = method().sample(TURN, judgement(verdict))
    assert isinstance(sample, Sample)
    assert sample.reward == reward
    assert sample.prompt_ids is TURN.prompt_ids and sample.response_ids is TURN.response_ids
    assert sample.behaviour_logps is TURN.response_logps
    assert sample.mask.tolist() == [True, True]
    assert sample.temperature == 0.7
    assert sample.spans == TURN.spans


def test_an_abstaining_judge_is_not_a_neutral_one() -> None:
    assert method().sample(TURN, judgement(None)) is DropReason.JUDGE_ABSTAINED
    assert method().sample(TURN, judgement(Verdict.NEUTRAL)) is DropReason.NEUTRAL


def test_a_judgement_of_another_turn_is_refused() -> None:
    with pytest.raises(ValueError, match="paired"):
        method().sample(TURN, judgement(Verdict.GOOD, TurnId("t2")))


def test_a_reward_that_is_not_finite_never_becomes_a_sample() -> None:
    good = method().sample(TURN, judgement(Verdict.GOOD))
    assert isinstance(good, Sample)
    with pytest.raises(ValueError, match="not finite"):
        dataclasses.replace(good, reward=math.nan)


def test_the_running_baseline_is_applied_before_it_is_updated() -> None:
    rl = method(baseline="running", baseline_decay=0.9)
    everyone = np.array([True, True, True, True])
    rewards_B = np.array([1.0, 1.0, 1.0, -1.0])
    first, state = rl.advantages(rewards_B, everyone, rl.initial_state())
    assert first.tolist() == [1.0, 1.0, 1.0, -1.0]
    assert state == pytest.approx({"baseline": 0.05})
    second, state = rl.advantages(rewards_B, everyone, state)
    assert second.tolist() == pytest.approx([0.95, 0.95, 0.95, -1.05])
    assert state == pytest.approx({"baseline": 0.095})
    assert json.loads(json.dumps(state)) == state


def test_samples_without_rl_have_no_advantage_and_do_not_move_the_baseline() -> None:
    rl = method()
    advantages_B, state = rl.advantages(np.array([1.0, -1.0]), np.array([True, False]), {"baseline": 0.5})
    assert advantages_B.tolist() == [0.5, 0.0]
    assert state == pytest.approx({"baseline": 0.55})
    nobody, same = rl.advantages(np.array([1.0]), np.array([False]), {"baseline": 0.5})
    assert nobody.tolist() == [0.0] and same == {"baseline": 0.5}


def test_an_empty_batch_and_a_missing_baseline_are_finite() -> None:
    empty, state = method().advantages(np.zeros(0), np.zeros(0, dtype=np.bool_), {"baseline": 0.2})
    assert empty.shape == (0,) and state == {"baseline": 0.2}
    plain, _ = method(baseline="none").advantages(np.array([1.0]), np.array([True]), {"baseline": 0.2})
    assert plain.tolist() == [1.0]


def test_tokens_of_samples_without_rl_are_not_trained() -> None:
    sample = method().sample(TURN, judgement(Verdict.GOOD))
    assert isinstance(sample, Sample)
    assert method().token_mask(sample).all()
    assert not method().token_mask(dataclasses.replace(sample, rl_mask=False)).any()


def loss_inputs(logp_BT: torch.Tensor, *, ref: bool) -> LossInputs:
    """Two samples of two and one tokens, with old, behaviour and reference log-probs that all differ."""
    return LossInputs(
        logp_BT=logp_BT,
        old_logp_BT=torch.tensor([[-1.0, -2.0], [-0.5, -1.0]], dtype=torch.float64),
        behaviour_logp_BT=torch.tensor([[-1.2, -3.5], [-0.4, -1.0]], dtype=torch.float64),
        ref_logp_BT=torch.tensor([[-1.1, -1.8], [-0.9, -1.0]], dtype=torch.float64) if ref else None,
        mask_BT=torch.tensor([[True, True], [True, False]]),
        advantage_B=torch.tensor([1.0, -0.5], dtype=torch.float64),
        batch_tokens=3,
        batch_samples=2,
    )


def test_the_loss_is_the_clipped_objective_times_the_truncated_weight_plus_kl() -> None:
    logp_BT = torch.tensor([[-0.9, -1.0], [-1.0, -7.0]], dtype=torch.float64)
    output = method(kl_coef=0.1, tis_clip=2.0).loss(loss_inputs(logp_BT, ref=True))

    def kl(d: float) -> float:
        return math.exp(-d) - 1.0 + d

    # Token by token: ratio e^0.1; ratio e^1 clipped at 1.28, weight e^1.5 truncated to 2; ratio e^-0.5 clipped at 0.8.
    policy = [-math.exp(0.1) * math.exp(0.2), -1.28 * 2.0, 0.8 * 0.5 * math.exp(-0.1)]
    kls = [kl(0.2), kl(0.8), kl(-0.1)]
    tokens = [p + 0.1 * k for p, k in zip(policy, kls, strict=True)]
    assert output.loss.item() == pytest.approx(((tokens[0] + tokens[1]) / 2 + tokens[2]) / 2, rel=1e-6)
    assert output.metrics["clip_fraction"].item() == pytest.approx(2 / 3)
    assert output.metrics["tis_clip_fraction"].item() == pytest.approx(1 / 3)
    assert output.metrics["kl"].item() == pytest.approx(sum(kls) / 3, rel=1e-6)

    by_token = method(kl_coef=0.1, aggregation="token_mean").loss(loss_inputs(logp_BT, ref=True))
    assert by_token.loss.item() == pytest.approx(sum(tokens) / 3, rel=1e-6)


def test_the_loss_gradient_agrees_with_finite_differences() -> None:
    logp_BT = torch.tensor([[-0.9, -1.9], [-0.6, -7.0]], dtype=torch.float64, requires_grad=True)
    for aggregation in ("token_mean", "sample_mean"):
        rl = method(kl_coef=0.3, aggregation=aggregation)

        def loss(x: torch.Tensor, rl: BinaryRL = rl) -> torch.Tensor:
            return rl.loss(loss_inputs(x, ref=True)).loss

        assert torch.autograd.gradcheck(loss, (logp_BT,))


def test_without_a_reference_no_kl_is_claimed() -> None:
    logp_BT = torch.full((2, 2), -1.0, dtype=torch.float64)
    assert "kl" not in method().loss(loss_inputs(logp_BT, ref=False)).metrics

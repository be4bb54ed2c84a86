"""Every promise is kept by what is built in, and every check catches something that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ConfigDict

from clawrl.contracts import KINDS, ContractReport, examples, run_contract
from clawrl.contracts.functions import FILTER_CHECKS, HINT_CHECKS, REWARD_CHECKS
from clawrl.contracts.loss import LOSS_CHECKS, LossRig
from clawrl.contracts.method import METHOD_CHECKS
from clawrl.contracts.report import run_check, same
from clawrl.contracts.run import it_works_without_a_reference
from clawrl.judging.hints import NoHints
from clawrl.judging.rewards import RewardFunction
from clawrl.loss import clipped_policy_loss, token_mean
from clawrl.messages import DropReason, Judgement, JudgeRequest, Message, Turn, Verdict
from clawrl.methods.base import LossInputs, LossOutput
from clawrl.methods.binary_rl import BinaryRL
from clawrl.methods.registry import build_method, builtin_names, method_class
from clawrl.plugins import PluginError
from clawrl.strict import StrictConfig

torch.set_num_threads(1)
HERE = "tests.test_contracts"


def _failed(report: ContractReport) -> dict[str, str]:
    return {row.check: row.detail for row in report.rows if not row.passed}


@pytest.mark.parametrize("name", builtin_names())
def test_every_built_in_method_keeps_its_contract(name: str) -> None:
    report = run_contract("method", name)
    assert _failed(report) == {} and report.passed
    assert len(report.rows) == 1 + len(METHOD_CHECKS) + len(LOSS_CHECKS)


# -- a user's own, that are as they should be ------------------------------------------------------


class OwnConfig(StrictConfig):
    name: str
    scale: float = 2.0


class OwnMethod(BinaryRL):
    Config: Any = OwnConfig
    name = "own"

    def __init__(self, config: OwnConfig) -> None:
        super().__init__(BinaryRL.Config())


def own_loss(inputs: LossInputs) -> LossOutput:
    assert inputs.ref_logp_BT is not None
    policy_BT, _ = clipped_policy_loss(inputs.logp_BT, inputs.old_logp_BT, inputs.advantage_B[:, None], 0.2, 0.2)
    kl_BT = (inputs.logp_BT - inputs.ref_logp_BT).square()
    return LossOutput(
        loss=token_mean(policy_BT + 0.1 * kl_BT, inputs.mask_BT, inputs.batch_tokens),
        metrics={"kl": token_mean(kl_BT.detach(), inputs.mask_BT, inputs.batch_tokens)},
    )


own_loss.needs_reference = True  # type: ignore[attr-defined]


def own_reward(turn: Turn, evidence: tuple[Message, ...]) -> Judgement:
    heard = " ".join(message.content for message in evidence)
    verdict = Verdict.GOOD if "Thanks" in heard else Verdict.BAD if "No," in heard else None
    return Judgement(turn_id=turn.turn_id, verdict=verdict, score=None, votes=(), judge="own", seconds=0.0)


async def own_slow_reward(turn: Turn, evidence: tuple[Message, ...]) -> Judgement:
    return own_reward(turn, evidence)


def own_hints(case: JudgeRequest, judgement: Judgement) -> list[str]:
    return [message.content for message in case.evidence]


class OwnHints:
    async def hints(self, case: JudgeRequest, judgement: Judgement) -> tuple[str, ...]:
        return tuple(own_hints(case, judgement))


def own_filter(turn: Turn) -> str | None:
    return "too long for me" if len(turn.response_ids) > 8 else None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("method", "OwnMethod"),
        ("loss", "own_loss"),
        ("reward", "own_reward"),
        ("reward", "own_slow_reward"),
        ("hints", "own_hints"),
        ("hints", "OwnHints"),
        ("filter", "own_filter"),
    ],
)
def test_code_of_ones_own_passes_by_its_path(kind: str, name: str) -> None:
    report = run_contract(kind, f"{HERE}:{name}")
    assert _failed(report) == {} and report.rows
    assert (report.kind, report.path) == (kind, f"{HERE}:{name}")


def test_what_cannot_be_checked_is_an_error_and_no_report() -> None:
    with pytest.raises(ValueError, match=r"'judge'.*method, loss, reward, hints, filter"):
        run_contract("judge", f"{HERE}:own_reward")
    for kind in KINDS:
        with pytest.raises(PluginError, match="no_such_thing"):
            run_contract(kind, f"{HERE}:no_such_thing")
    with pytest.raises(ValueError, match="binary_rl"):
        run_contract("method", "no_such_method")


# -- methods that break a promise ------------------------------------------------------------------


class LooseConfig(OwnConfig):
    model_config = ConfigDict(extra="ignore")


class LooselyConfigured(OwnMethod):
    Config = LooseConfig


class DemandingConfig(StrictConfig):
    name: str
    scale: float


class DemandinglyConfigured(OwnMethod):
    Config = DemandingConfig


@pytest.mark.parametrize(
    ("name", "detail"), [("LooselyConfigured", "does not know"), ("DemandinglyConfigured", "scale")]
)
def test_a_method_that_is_not_made_from_its_settings_is_not_looked_at_further(name: str, detail: str) -> None:
    report = run_contract("method", f"{HERE}:{name}")
    assert not report.passed and len(report.rows) == 1 and detail in report.rows[0].detail


class NeedsAreATuple(OwnMethod):
    needs: Any = ("verdict",)


class TeacherWithoutAsking(OwnMethod):
    teacher_top_k = 4


class StateIsAnArray(OwnMethod):
    def initial_state(self) -> Any:
        return {"baseline": np.zeros(2)}


class StateBecomesInfinite(OwnMethod):
    def advantages(self, rewards_B: Any, rl_mask_B: Any, groups_B: Any, state: Any) -> Any:
        return np.where(rl_mask_B, rewards_B, 0.0), {"baseline": float("inf")}


class ReturnsNothing(OwnMethod):
    def sample(self, *question: Any) -> Any:
        return None


class DropsEverything(OwnMethod):
    def sample(self, *question: Any) -> Any:
        return DropReason.NEUTRAL


class ShiftsLogProbs(OwnMethod):
    def sample(self, *question: Any) -> Any:
        made: Any = super().sample(*question)
        return made if isinstance(made, DropReason) else replace(made, behaviour_logps=made.behaviour_logps + 1e-3)


class RewardsAbstentions(OwnMethod):
    def sample(self, turn: Any, judgement: Any, teacher: Any) -> Any:
        return super().sample(turn, replace(judgement, verdict=judgement.verdict or Verdict.BAD), teacher)


class MaskOfNumbers(OwnMethod):
    def token_mask(self, sample: Any) -> Any:
        return np.ones(len(sample.response_ids))


class TrainsMaskedTokens(OwnMethod):
    def token_mask(self, sample: Any) -> Any:
        return np.ones(len(sample.response_ids), np.bool_)


class ColumnsOnlyIfTaught(OwnMethod):
    def columns(self, sample: Any) -> Any:
        return {"teacher": sample.teacher.logps[0]} if sample.teacher else {}


class ColumnOfDoubles(OwnMethod):
    def columns(self, sample: Any) -> Any:
        return {"position": np.arange(len(sample.response_ids), dtype=np.float64)}


class ColumnTooShort(OwnMethod):
    def columns(self, sample: Any) -> Any:
        return {"position": np.arange(1, len(sample.response_ids))}


class ColumnWithNaN(OwnMethod):
    def columns(self, sample: Any) -> Any:
        return {"teacher": np.full(len(sample.response_ids), np.nan, np.float32)}


class _Advantages(OwnMethod):
    formula: Callable[[Any, Any, Any], Any]

    def advantages(self, rewards_B: Any, rl_mask_B: Any, groups_B: Any, state: Any) -> Any:
        return type(self).formula(rewards_B, rl_mask_B, groups_B), state


class DividesByTheSpread(_Advantages):
    formula = staticmethod(lambda rewards, mask, groups: np.where(mask, rewards / (rewards.std() + 0.0), 0.0))


class OneForAll(_Advantages):
    formula = staticmethod(lambda rewards, mask, groups: np.zeros(1))


class RewardsTheUnrewarded(_Advantages):
    formula = staticmethod(lambda rewards, mask, groups: rewards - rewards.sum())


class GroupsByPosition(_Advantages):
    formula = staticmethod(lambda rewards, mask, groups: np.where(mask, rewards - np.roll(rewards, 1), 0.0))


class ChangesItsMind(OwnMethod):
    calls = 0

    def columns(self, sample: Any) -> Any:
        self.calls += 1
        return {"calls": np.full(len(sample.response_ids), self.calls)}


class WritesIntoRewards(OwnMethod):
    def advantages(self, rewards_B: Any, rl_mask_B: Any, groups_B: Any, state: Any) -> Any:
        rewards_B -= 0.5
        return np.where(rl_mask_B, rewards_B, 0.0), state


class WritesIntoTurns(OwnMethod):
    def sample(self, turn: Any, judgement: Any, teacher: Any) -> Any:
        turn.response_logps[:] = 0.0
        return super().sample(turn, judgement, teacher)


METHOD_CULPRITS: dict[type[OwnMethod], tuple[str, str]] = {
    NeedsAreATuple: ("it declares what it needs", "frozenset"),
    TeacherWithoutAsking: ("it declares what it needs", "does not ask for a teacher"),
    StateIsAnArray: ("its state survives json", "plain numbers"),
    StateBecomesInfinite: ("its state survives json", "inf"),
    ReturnsNothing: ("every judged turn becomes a sample or has a reason", "NoneType"),
    DropsEverything: ("some judged turn becomes a sample", "neutral"),
    ShiftsLogProbs: ("a sample is its turn token by token", "behaviour_logps"),
    RewardsAbstentions: ("a sample is its turn token by token", "nobody gave"),
    MaskOfNumbers: ("the token mask is one flag per token", "array of bool"),
    TrainsMaskedTokens: ("the token mask is one flag per token", "masks out"),
    ColumnsOnlyIfTaught: ("columns look alike for every sample", "for one sample and"),
    ColumnOfDoubles: ("columns look alike for every sample", "float32, int64, bool"),
    ColumnTooShort: ("columns look alike for every sample", "for 7 tokens"),
    ColumnWithNaN: ("columns look alike for every sample", "not finite"),
    DividesByTheSpread: ("advantages are finite and one per sample", "one sample"),
    OneForAll: ("advantages are finite and one per sample", "shape (1,)"),
    RewardsTheUnrewarded: ("a sample without a reward has no advantage", "does not count has the advantage"),
    GroupsByPosition: ("advantages do not depend on the order", "in another order"),
    ChangesItsMind: ("the same question gets the same answer and nothing is written", "columns() gave two answers"),
    WritesIntoRewards: ("the same question gets the same answer and nothing is written", "advantages()"),
    WritesIntoTurns: ("the same question gets the same answer and nothing is written", "sample() wrote"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("culprit", METHOD_CULPRITS, ids=lambda culprit: culprit.__name__)
def test_a_method_that_breaks_a_promise_is_told_which(culprit: type[OwnMethod]) -> None:
    check, detail = METHOD_CULPRITS[culprit]
    failed = _failed(run_contract("method", f"{HERE}:{culprit.__name__}"))
    assert detail in failed.get(check, "")


# -- losses that break a promise -------------------------------------------------------------------

SIMPLE = BinaryRL(BinaryRL.Config())


def _output(
    value_BT: torch.Tensor, inputs: LossInputs, metrics: Mapping[str, torch.Tensor] | None = None
) -> LossOutput:
    return LossOutput(loss=token_mean(value_BT, inputs.mask_BT, inputs.batch_tokens), metrics=metrics or {})


def _weighted(inputs: LossInputs) -> torch.Tensor:
    return -inputs.advantage_B[:, None] * inputs.logp_BT


def divides_by_nothing(inputs: LossInputs) -> LossOutput:
    return _output(_weighted(inputs) / (inputs.logp_BT - inputs.logp_BT.detach()), inputs)


def forgets_the_policy(inputs: LossInputs) -> LossOutput:
    return _output(_weighted(replace(inputs, logp_BT=inputs.old_logp_BT)), inputs)


def divides_by_its_tokens(inputs: LossInputs) -> LossOutput:
    return LossOutput(loss=(_weighted(inputs) * inputs.mask_BT).sum() / inputs.batch_tokens, metrics={})


def rewards_padding(inputs: LossInputs) -> LossOutput:
    return LossOutput(loss=_weighted(inputs).sum() / max(inputs.batch_tokens, 1), metrics={})


def averages_the_micro_batch(inputs: LossInputs) -> LossOutput:
    return LossOutput(loss=(_weighted(inputs) * inputs.mask_BT).sum() / max(int(inputs.mask_BT.sum()), 1), metrics={})


def counts_micro_batches(inputs: LossInputs) -> LossOutput:
    return _output(_weighted(inputs), inputs, {"calls": torch.tensor(1.0)})


def keeps_the_graph(inputs: LossInputs) -> LossOutput:
    return _output(_weighted(inputs), inputs, {"logp": inputs.logp_BT.mean()})


def returns_a_tensor(inputs: LossInputs) -> Any:
    return _output(_weighted(inputs), inputs).loss


def returns_one_per_token(inputs: LossInputs) -> LossOutput:
    return LossOutput(loss=_weighted(inputs), metrics={})


def writes_into_its_inputs(inputs: LossInputs) -> LossOutput:
    inputs.behaviour_logp_BT.clamp_(min=-1.0)
    return _output(_weighted(inputs), inputs)


class _Fickle:
    calls = 0

    def __call__(self, inputs: LossInputs) -> LossOutput:
        self.calls += 1
        return _output(self.calls * _weighted(inputs), inputs)


changes_its_mind = _Fickle()


def reads_a_reference_without_asking(inputs: LossInputs) -> LossOutput:
    return own_loss(inputs)


LOSS_CULPRITS: dict[str, tuple[str, str]] = {
    "reads_a_reference_without_asking": ("it works without a reference", "needs the attribute needs_reference = True"),
    "divides_by_nothing": ("the loss and its gradient are finite", "is "),
    "forgets_the_policy": ("the loss reaches the policy", "no example"),
    "divides_by_its_tokens": ("a batch without a trainable token gives zero", "nan"),
    "rewards_padding": ("masked tokens get no gradient", "masked token"),
    "averages_the_micro_batch": ("shares of micro batches add up to the whole", "in several"),
    "counts_micro_batches": ("shares of micro batches add up to the whole", "metric calls"),
    "keeps_the_graph": ("the loss and its gradient are finite", "detach"),
    "returns_a_tensor": ("the loss and its gradient are finite", "LossOutput"),
    "returns_one_per_token": ("the loss and its gradient are finite", "without axes"),
    "writes_into_its_inputs": (
        "the same inputs give the same loss and stay as they were",
        "wrote into behaviour_logp_BT",
    ),
    "changes_its_mind": ("the same inputs give the same loss and stay as they were", "the same batch gave"),
}


@pytest.mark.parametrize("culprit", LOSS_CULPRITS)
def test_a_loss_that_breaks_a_promise_is_told_which(culprit: str) -> None:
    check, detail = LOSS_CULPRITS[culprit]
    assert detail in _failed(run_contract("loss", f"{HERE}:{culprit}")).get(check, "")


def test_a_methods_loss_is_checked_with_its_own_reference_and_memory() -> None:
    class WithoutAsking(OwnMethod):
        def loss(self, inputs: LossInputs) -> LossOutput:
            return own_loss(inputs)

    method = WithoutAsking(OwnConfig(name="own"))
    rig = LossRig(method.loss, method, reference=method.needs_reference)
    assert not run_check(LOSS_CHECKS[0], rig).passed, "there is no reference for a method that does not need one"
    topk = build_method(method_class("combine_topk").Config())
    for check in LOSS_CHECKS:
        assert run_check(check, LossRig(topk.loss, topk, reference=False)).passed


# -- rewards, hints and filters that break a promise -----------------------------------------------


def _judged(turn: Turn, **fields: Any) -> Judgement:
    return replace(own_reward(turn, (Message(role="user", content="Thanks"),)), **fields)


class _Coin:
    calls = 0

    def __call__(self, turn: Turn, evidence: Any) -> Judgement:
        self.calls += 1
        return _judged(turn, verdict=Verdict.BAD if self.calls % 5 else Verdict.GOOD)


def _writing_reward(turn: Any, evidence: Any) -> Judgement:
    turn.response_logps[:] = -9.0
    return _judged(turn)


REWARD_CULPRITS: list[tuple[Any, str, str]] = [
    (lambda turn, evidence: 1.0, "it judges every turn with and without evidence", "1.0"),
    (lambda turn: _judged(turn), "it judges every turn with and without evidence", "TypeError"),
    (lambda turn, evidence: _judged(turn, verdict=1), "it judges every turn with and without evidence", "verdict 1"),
    (
        lambda turn, evidence: _judged(turn, judge=""),
        "it judges every turn with and without evidence",
        "judge is empty",
    ),
    (lambda turn, evidence: evidence[0], "it judges every turn with and without evidence", "returned Message"),
    (lambda turn, evidence: _judged(turn, verdict=None), "it has an opinion sometimes", "nothing would be learned"),
    (_Coin(), "the same turn gets the same reward and stays as it was", "then"),
    (_writing_reward, "the same turn gets the same reward and stays as it was", "wrote into turn plain"),
]


@pytest.mark.parametrize(("culprit", "check", "detail"), REWARD_CULPRITS, ids=[str(i) for i in range(8)])
def test_a_reward_that_breaks_a_promise_is_told_which(culprit: Any, check: str, detail: str) -> None:
    rows = [run_check(one, RewardFunction(culprit, "own")) for one in REWARD_CHECKS]
    assert detail in {row.check: row.detail for row in rows if not row.passed}.get(check, "")


class _NeedsArguments:
    def __init__(self, phrases: Any) -> None: ...


class _OneString:
    async def hints(self, case: Any, judgement: Any) -> Any:
        return "Answer in one sentence."


@pytest.mark.parametrize(
    ("culprit", "detail"),
    [
        (lambda case, judgement: [1], "[1]"),
        (lambda case, judgement: case.evidence[0].content, "tuple of texts"),
        (lambda case: [], "TypeError"),
        (lambda case, judgement: [case.evidence[0].content], "IndexError"),
        (_OneString, "tuple of texts"),
        (_NeedsArguments, "phrases"),
        (type("Empty", (), {}), "hints"),
    ],
)
def test_a_hint_source_that_does_not_give_texts_is_told_so(culprit: Any, detail: str) -> None:
    rows = [run_check(check, culprit) for check in HINT_CHECKS]
    assert [detail in row.detail for row in rows if not row.passed] == [True]
    assert all(run_check(check, NoHints).passed for check in HINT_CHECKS)


class _FickleFilter:
    calls = 0

    def __call__(self, turn: Any) -> str | None:
        self.calls += 1
        return "no" if self.calls % 3 else None


def _writing_filter(turn: Turn) -> None:
    turn.prompt_ids[:] = 0


@pytest.mark.parametrize(
    ("culprit", "check", "detail"),
    [
        (lambda turn: True, "it gives a reason or none", "True"),
        (lambda turn: " ", "it gives a reason or none", "return the reason"),
        (lambda turn: turn.no_such_field, "it gives a reason or none", "AttributeError"),
        (lambda turn: "never", "it lets something pass", "never"),
        (_FickleFilter(), "the same turn gets the same answer and stays as it was", "then"),
        (_writing_filter, "the same turn gets the same answer and stays as it was", "wrote into turn plain"),
    ],
)
def test_a_filter_that_breaks_a_promise_is_told_which(culprit: Any, check: str, detail: str) -> None:
    rows = [run_check(one, culprit) for one in FILTER_CHECKS]
    assert detail in {row.check: row.detail for row in rows if not row.passed}.get(check, "")


# -- the tools of the checks -----------------------------------------------------------------------


def test_every_check_of_methods_and_losses_has_its_counter_example() -> None:
    names = {check.__name__.replace("_", " ") for check in (*METHOD_CHECKS, *LOSS_CHECKS, it_works_without_a_reference)}
    assert {check for check, _ in (*METHOD_CULPRITS.values(), *LOSS_CULPRITS.values())} == names


def test_an_error_in_the_users_code_is_reported_with_its_place() -> None:
    row = run_check(FILTER_CHECKS[0], lambda turn: 1 / 0)
    assert "ZeroDivisionError" in row.detail and "test_contracts.py:" in row.detail


def test_examples_are_equal_every_time_and_never_shared() -> None:
    for one, other in zip(examples.samples(8, None), examples.samples(8, None), strict=True):
        assert same(one, other) and one.response_ids is not other.response_ids
    changed = examples.turns()[0]
    changed.prompt_ids[0] += 1
    assert not same(changed, examples.turns()[0])


def test_the_examples_have_teachers_for_one_hint_and_for_several() -> None:
    taught = [sample.teacher for sample in examples.samples(8, None) if sample.teacher]
    assert {len(teacher.hints) for teacher in taught} == {1, 3}
    assert {len(one.teacher.hints) for one in examples.samples(8, 1) if one.teacher} == {1}
    for teacher in taught:
        assert (np.diff(teacher.topk_logps, axis=-1) <= 0).all()
        assert (teacher.logps < 0).all()

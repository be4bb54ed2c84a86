"""What a token is said to be credited with: that the loss moves the policy just so, and that words say why not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from clawrl.config import read_deployment
from clawrl.inspection.credit import KNOWN, Credit, credit_of
from clawrl.inspection.life import life_document
from clawrl.inspection.situation import Situation
from clawrl.messages import Sample, TeacherTargets, TurnState
from clawrl.methods.registry import build_method, builtin_names, method_class
from clawrl.strict import StrictConfig
from tests.ledger_kit import judge, listing, open_ledger, take_step, to_judging
from tests.training_samples import make_sample, run_loss

torch.set_num_threads(1)

DEPLOYMENTS = sorted((Path(__file__).resolve().parent.parent / "deployments").glob("*.yaml"))
POLICY = np.array([0.4, 0.05, 0.3, 0.02, 0.13, 0.1])
TEACHER = np.array([0.1, 0.3, 0.45, 0.05, 0.02, 0.08])
BASELINE = 0.25
STEP = SimpleNamespace(stats={"method_baseline": BASELINE}, reward_mean=0.0)


def targets(token: int, listed: int) -> TeacherTargets:
    best = np.argsort(-TEACHER)[:listed]
    return TeacherTargets(
        hints=("hint",),
        logps=np.log(TEACHER[token]).reshape(1, 1).astype(np.float32),
        topk_ids=best.reshape(1, 1, -1).astype(np.int32),
        topk_logps=np.log(TEACHER[best]).reshape(1, 1, -1).astype(np.float32),
        teacher="made up",
    )


def credited(config: StrictConfig, token: int, reward: float, teacher: TeacherTargets | None) -> Credit:
    logps = np.log(POLICY[[token]]).astype(np.float32)
    turn = SimpleNamespace(response_ids=np.array([token], dtype=np.int32), response_logps=logps)
    text: Any = SimpleNamespace(turn=turn, judgement=SimpleNamespace(reward=reward), targets=teacher)
    step: Any = STEP
    return credit_of(text, TurnState.TRAINED, step, config, None)


def value(config: StrictConfig, token: int, reward: float, teacher: TeacherTargets | None) -> float:
    found = credited(config, token, reward, teacher).advantages
    assert found is not None and found[0] is not None
    return found[0]


def push(config: StrictConfig, token: int, reward: float, teacher: TeacherTargets | None) -> np.ndarray:
    """What one step does to the logits of a turn of one token: the gradient of -loss."""
    sample: Sample = make_sample("one", 2, 1, reward=reward, rl_mask=reward != 0.0, temperature=1.0, words=6)
    sample = replace(
        sample,
        response_ids=np.array([token], dtype=np.int32),
        behaviour_logps=np.log(POLICY[[token]]).astype(np.float32),
        teacher=teacher,
    )
    logits = torch.from_numpy(np.log(POLICY))[None]
    ran = run_loss(build_method(config), [sample], [logits], state={"baseline": BASELINE})
    moved: np.ndarray = -ran.gradients[0][0]
    return moved


def choice(token: int) -> np.ndarray:
    """The gradient of a token's log-prob by the logits."""
    made: np.ndarray = np.eye(6)[token] - POLICY
    return made


@pytest.mark.parametrize("token", range(6))
@pytest.mark.parametrize("taught", [False, True], ids=["by reward", "by both"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("binary_rl", {}),
        ("binary_rl", {"baseline": "none"}),
        ("opd", {}),
        ("opd", {"advantage_clip": 0.0}),
        ("combine", {}),
        ("combine", {"w_rl": 0.5, "w_opd": 2.0, "advantage_clip": 0.3}),
    ],
    ids=lambda v: v if isinstance(v, str) else ",".join(f"{k}={x}" for k, x in v.items()) or "-",
)
def test_a_token_is_pushed_by_its_advantage(name: str, settings: dict[str, Any], taught: bool, token: int) -> None:
    config = method_class(name).Config(**settings)
    teacher = targets(token, 0) if taught or name == "opd" else None
    wanted = value(config, token, -1.0, teacher) * choice(token)
    np.testing.assert_allclose(push(config, token, -1.0, teacher), wanted, atol=1e-6)


def supported(support: str, k: int) -> list[int]:
    policys, teachers = np.argsort(-POLICY)[:k], np.argsort(-TEACHER)[:k]
    found = {"student": policys, "teacher": teachers, "overlap": [t for t in policys if t in teachers]}[support]
    return [int(token) for token in found]


@pytest.mark.parametrize("support", ["student", "teacher", "overlap"])
@pytest.mark.parametrize("listed", [3, 4, 6])
@pytest.mark.parametrize("clip", [1.0, 0.2, 0.0])
@pytest.mark.parametrize("name", ["opd_topk", "combine_topk"])
def test_clipped_differences_push_each_compared_token_by_its_advantage_times_its_probability(
    name: str, clip: float, listed: int, support: str
) -> None:
    weights = {"w_rl": 0.5, "w_opd": 2.0} if name == "combine_topk" else {}
    how = {"objective": "difference_clip", "support": support, "k": 3, "teacher_top_k": listed}
    config = method_class(name).Config(**how, difference_clip=clip, **weights)
    compared = supported(support, 3)
    from_reward = 0.5 * (1.0 - BASELINE) if weights else 0.0
    wanted = from_reward * choice(2)
    for token in compared:
        of_token = value(config, token, 1.0, targets(token, listed)) - from_reward
        wanted = wanted + POLICY[token] / POLICY[compared].sum() * of_token * choice(token)
    np.testing.assert_allclose(push(config, 2, 1.0, targets(2, listed)), wanted, atol=1e-6)
    if support != "student":
        outside = next(token for token in range(6) if token not in supported("teacher", 3))
        assert value(config, outside, 1.0, targets(outside, listed)) == from_reward


@pytest.mark.parametrize("name", ["opd_topk", "combine_topk"])
def test_a_reverse_kl_pushes_each_compared_token_by_its_advantage_times_its_probability(name: str) -> None:
    config = method_class(name).Config(objective="tail_kl", support="teacher", k=3, teacher_top_k=4)
    compared = supported("teacher", 3)
    rest = [token for token in range(6) if token not in compared]
    from_reward = 1.0 - BASELINE if name == "combine_topk" else 0.0
    tail = math.log(TEACHER[rest].sum() / POLICY[rest].sum())
    wanted = from_reward * choice(2) + sum(POLICY[token] * tail * choice(token) for token in rest)
    for token in compared:
        wanted = wanted + POLICY[token] * (value(config, token, 1.0, targets(token, 4)) - from_reward) * choice(token)
    np.testing.assert_allclose(push(config, 2, 1.0, targets(2, 4)), wanted, atol=1e-6)
    for token in rest:
        found = credited(config, token, 1.0, targets(token, 4))
        assert found.advantages == (None,) and "has no number" in str(found.note)


def test_every_method_that_is_shipped_is_known() -> None:
    assert {method_class(name).Config for name in builtin_names()} == set(KNOWN)


@pytest.mark.parametrize("file", DEPLOYMENTS, ids=lambda file: file.stem)
@pytest.mark.parametrize("hints", [(), ("be brief",), ("be brief", "answer in one sentence")], ids=len)
def test_every_deployment_as_it_is_shipped_shows_an_advantage_for_each_token(
    file: Path, hints: tuple[str, ...], tmp_path: Path
) -> None:
    deployment = read_deployment(file)
    method: Any = deployment.trainer.method
    with open_ledger(tmp_path) as ledger:
        ledger.restored("run", 0)
        to_judging(ledger, "t")
        judge(ledger, "t", -1, targets=listing(hints, method.teacher_top_k) if hints else None)
        take_step(ledger, "run", 1, 1, {"method_baseline": 0.5})
        life = ledger.life("t")  # type: ignore[arg-type]
    assert life is not None
    situation = Situation(
        now=0.0, pause=None, waits=None, lent_step=None, queued=0, judging_now=False, trainer="", checkpointed_step=0
    )
    document = life_document(life, deployment, situation)
    values = [token["advantage"] for token in document["tokens"]]
    from_reward = method.w_rl * (-1.0 - (0.0 if method.baseline == "none" else 0.5))
    gaps = [0.0, 0.0, 0.0]
    if hints:
        gaps = [min(1.0, max(-1.0, t["teacher_logp"] - t["logp"])) for t in document["tokens"]]
        assert len(set(gaps)) == 3 and max(gaps) > 0.0 > min(gaps)
    assert values == pytest.approx([from_reward + method.w_opd * gap for gap in gaps])
    said = document["credit"]["advantage_of"]
    assert "reward -1" in said and ("teacher's" in said) == bool(hints)
    assert ("baseline 0.5" in said) == (method.baseline == "running")
    several = len(hints) > 1 and method.hint_selection != "shortest"
    assert ("of 2 hints the shortest" in str(document["credit"]["advantage_note"])) == several


@pytest.mark.parametrize(
    ("settings", "state", "stats", "loss", "said"),
    [
        ({}, TurnState.QUEUED, None, None, "known once the turn's step was taken"),
        ({}, TurnState.TRAINED, {}, None, "was not recorded"),
        ({"baseline": "group", "group_size": 2}, TurnState.TRAINED, {"method_baseline": 0.0}, None, "baseline: group"),
        ({}, TurnState.DROPPED, None, None, "dropped"),
        ({"baseline": "none"}, TurnState.JUDGING, None, None, "not judged"),
        ({"baseline": "none"}, TurnState.TRAINED, {}, "my.losses:best", "my.losses:best"),
    ],
    ids=lambda v: None if isinstance(v, dict) else getattr(v, "value", None),
)
def test_where_there_is_no_advantage_the_reason_is_said(
    settings: dict[str, Any], state: TurnState, stats: dict[str, float] | None, loss: str | None, said: str
) -> None:
    turn = SimpleNamespace(response_ids=np.array([1]), response_logps=np.array([-1.0]))
    text: Any = SimpleNamespace(turn=turn, judgement=SimpleNamespace(reward=1.0), targets=None)
    step: Any = None if stats is None else SimpleNamespace(stats=stats)
    found = credit_of(text, state, step, method_class("combine_topk").Config(**settings), loss)
    assert (found.advantages, found.of) == (None, None) and said in str(found.note)


def test_a_method_of_somebodys_own_is_not_guessed_at_though_its_settings_extend_ours() -> None:
    class Own(method_class("binary_rl").Config):  # type: ignore[misc]
        name: str = "my.methods:Own"

    found = credited(Own(baseline="none"), 0, 1.0, None)
    assert found.advantages is None and "my.methods:Own" in str(found.note)


def test_before_its_step_a_turn_shows_what_it_will_be_credited_with_where_nothing_else_decides() -> None:
    config = method_class("combine_topk").Config(baseline="none", w_rl=0.5)
    turn = SimpleNamespace(response_ids=np.array([1, 2]), response_logps=np.array([-1.0, -2.0]))
    text: Any = SimpleNamespace(turn=turn, judgement=SimpleNamespace(reward=-1.0), targets=None)
    found = credit_of(text, TurnState.QUEUED, None, config, None)
    assert found.advantages == (-0.5, -0.5) and found.of == "0.5 * reward -1"

"""`clawrl check` on deployments whose models do, do not, or may not fit their GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from clawrl import cli
from tests.live import KEY, tiny_deployment

GPUS = {"num_gpus": 2, "accelerator_type": "H100"}
ENGINE = {"kind": "sglang", "context_length": 32_768, "kv_blocks": 1024, "tp_size": 2}


@pytest.fixture(autouse=True)
def _nothing_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLAWRL_TEST_KEY", KEY)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(cli.console, "_width", 200, raising=False)


def check(tmp_path: Path, model: Path, **overrides: Any) -> Result:
    """Of a deployment of Qwen3-4B on four H100 (two to serve, two to train), but for ``overrides``."""
    settings = {
        "policy__model": {"source": "Qwen/Qwen3-4B"},
        "policy__engine": ENGINE,
        "policy__resources": GPUS,
        # The judge is the tiny model and needs no GPU.
        "judge__model": {"source": str(model)},
        "trainer__training__dtype": "bfloat16",
        "trainer__training__tp_size": 2,
        "trainer__resources": {"num_gpus": 1, "accelerator_type": "H100"},
    }
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(tiny_deployment(model, 8011, **(settings | overrides))))
    return CliRunner().invoke(cli.app, ["check", str(file)])


def test_what_fits_is_shown_in_figures(tmp_path: Path, tiny_folder: Path) -> None:
    result = check(tmp_path, tiny_folder)
    assert result.exit_code == 0, result.output
    assert "policy, TP2, 22.7 of 67.1 GiB" in result.output
    assert "ranks, TP2 x FSDP1, at least 33.7 of 79.0 GiB" in result.output
    assert "frozen, TP1 " in result.output and "not checked" not in result.output


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            {"policy__engine": ENGINE | {"kv_blocks": 10_000}},
            "args: policy.engine.kv_blocks: the engine needs 180.5 GiB of each GPU",
        ),
        (
            {"policy__resources": {"num_gpus": 2, "gpu_memory_gib": 7.0}},
            "args: policy.engine.context_length: the engine needs 22.7 GiB of each GPU (weights 3.7, ",
        ),
        (
            {"policy__engine": ENGINE | {"context_length": 40_961}},
            "args: policy.engine.context_length: 40961 is more than the 40960 positions that Qwen/Qwen3-4B was",
        ),
        (
            {"policy__engine": ENGINE | {"tp_size": 3}, "policy__resources": GPUS | {"num_gpus": 3}},
            "args: policy.engine.tp_size: 3 does not divide the model's 32 attention heads",
        ),
        (
            {"trainer__training__tp_size": 16},
            "args: trainer.training.tp_size: tp_size 16 does not divide the model's 8 key/value heads",
        ),
        (
            {"trainer__resources": {"num_gpus": 1, "accelerator_type": "L4"}},
            "args: trainer.training.fsdp_size: weights, gradients and Adam's state alone need 33.7 GiB on each of 2",
        ),
    ],
)
def test_what_cannot_fit_is_refused_by_its_field(
    tmp_path: Path, tiny_folder: Path, overrides: dict[str, Any], problem: str
) -> None:
    result = check(tmp_path, tiny_folder, **overrides)
    assert result.exit_code == 1 and problem in result.output, result.output
    assert result.output.count("file.yaml: applications[0].args: ") == 1, "one clear error"


def test_the_memory_of_the_gpu_at_hand_goes_before_what_its_type_says(tmp_path: Path, tiny_folder: Path) -> None:
    result = check(tmp_path, tiny_folder, policy__resources=GPUS | {"gpu_memory_gib": 94.0})
    assert result.exit_code == 0 and "22.7 of 79.9 GiB" in result.output


def test_a_model_that_nobody_knows_here_is_a_note_and_no_problem(tmp_path: Path, tiny_folder: Path) -> None:
    result = check(tmp_path, tiny_folder, policy__model={"source": "nobody/has-this"})
    assert result.exit_code == 0, result.output
    assert "args.policy, trainer: GPU memory was not checked: nobody/has-this: it is not on this machine" in (
        result.output
    )


def test_a_gpu_that_nobody_named_is_a_note_and_no_problem(tmp_path: Path, tiny_folder: Path) -> None:
    result = check(tmp_path, tiny_folder, policy__resources={"num_gpus": 2})
    assert result.exit_code == 0, result.output
    assert "args.policy.resources: GPU memory was not checked: neither accelerator_type nor gpu_memory_gib" in (
        result.output
    )
    assert "at least 33.7 of 79.0 GiB" in result.output, "the trainer's was"


def test_a_reference_model_counts_where_the_method_wants_one(tmp_path: Path, tiny_folder: Path) -> None:
    wanted = {"name": "binary_rl", "baseline": "none", "kl_coef": 0.1}
    assert "at least 37.5 of 79.0 GiB" in check(tmp_path, tiny_folder, trainer__method=wanted).output

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from clawrl.training.model import check_parallel, full_parameters, load_model
from tests.tiny_model import build_tiny_model
from tests.training_samples import make_sample, naive_logps, trainer_logps

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_trainer_log_probs_are_those_of_a_step_by_step_loop_and_one_position_off_is_not(folder: Path) -> None:
    model = load_model(folder, dtype=torch.float32)
    samples = [
        make_sample("a", 5, 9, temperature=0.6),
        make_sample("b", 1, 4, temperature=1.3),
        make_sample("c", 12, 1),
        make_sample("d", 3, 20, temperature=1.0),
    ]
    for sample, logps in zip(samples, trainer_logps(model, samples), strict=True):
        naive = naive_logps(model, sample)
        np.testing.assert_allclose(logps, naive, atol=1e-5)
        assert len(naive) == 1 or np.abs(np.roll(logps, 1) - naive).max() > 0.1


def test_full_parameters_are_copies_in_model_order_with_tied_weights_once(folder: Path) -> None:
    model = load_model(folder, dtype=torch.bfloat16)
    parameters = dict(full_parameters(model))
    assert list(parameters) == [name for name, _ in model.named_parameters()]
    assert "lm_head.weight" not in parameters
    name, before = next(iter(parameters.items()))
    kept = before.clone()
    with torch.no_grad():
        model.get_parameter(name).add_(1.0)
    assert before.dtype == torch.bfloat16
    assert torch.equal(before, kept)


def test_dropout_is_off_in_a_model_that_trains(folder: Path) -> None:
    assert not load_model(folder, dtype=torch.float32).training


def test_a_tp_size_that_cuts_a_head_is_refused_with_the_sizes_that_fit() -> None:
    config = LlamaConfig(hidden_size=576, num_attention_heads=9, num_key_value_heads=3)
    check_parallel(config, 1)
    check_parallel(config, 3)
    with pytest.raises(ValueError, match=r"tp_size 2 does not divide the model's 9 attention heads.*\[1, 3\]"):
        check_parallel(config, 2)
    with pytest.raises(ValueError, match="3 key/value heads"):
        check_parallel(config, 9)


def test_a_world_that_is_not_the_configured_one_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="there are 1"):
        load_model(folder, dtype=torch.float32, tp_size=2)

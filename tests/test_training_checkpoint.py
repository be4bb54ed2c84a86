from pathlib import Path

import pytest
import torch

from clawrl.methods.binary_rl import BinaryRL, BinaryRLConfig
from clawrl.training.checkpoint import load_checkpoint, read_step, write_index, write_state
from clawrl.training.config import TrainingConfig
from clawrl.training.model import full_parameters, load_model
from clawrl.training.policy_trainer import PolicyTrainer
from tests.checkpoint_kit import save_checkpoint
from tests.tiny_model import build_tiny_model
from tests.training_samples import make_sample

torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path, dtype: torch.dtype) -> None:
    model = build_tiny_model(tmp_path / "model")

    def start() -> PolicyTrainer:
        config = TrainingConfig(learning_rate=1e-3, weight_decay=0.01)
        return PolicyTrainer(load_model(model, dtype=dtype), None, BinaryRL(BinaryRLConfig()), config)

    def advance(trainer: PolicyTrainer, steps: range) -> PolicyTrainer:
        for i in steps:
            trainer.compute([make_sample(f"{i}{j}", 4, 6, reward=(-1.0) ** (i + j // 2)) for j in range(3)])
            trainer.apply()
        return trainer

    straight = advance(start(), range(6))
    save_checkpoint(tmp_path / "checkpoint", advance(start(), range(3)).state_dict())
    resumed = start()
    state = load_checkpoint(tmp_path / "checkpoint")
    assert state is not None
    resumed.load_state_dict(state)
    assert resumed.step == 3
    advance(resumed, range(3, 6))
    assert resumed.step == straight.step == 6
    assert resumed.method_state == straight.method_state
    for (name, left), (_, right) in zip(full_parameters(resumed._model), full_parameters(straight._model), strict=True):
        assert torch.equal(left, right), name


def test_the_step_is_known_without_reading_a_tensor(tmp_path: Path) -> None:
    assert read_step(tmp_path) is None and load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, {"step": 12, "weights": torch.ones(3)})
    for file in tmp_path.glob("*.pt"):
        file.write_bytes(b"not a tensor")
    assert read_step(tmp_path) == 12


def test_a_file_appears_under_its_name_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: Path, target: Path) -> Path:
        assert self.stat().st_size > 0
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", crash)
    for write in (lambda: write_state(tmp_path, {"step": 1}), lambda: write_index(tmp_path, 1)):
        with pytest.raises(KeyboardInterrupt):
            write()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_world_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"step": 1})
    (tmp_path / "checkpoint.json").write_text('{"step": 1, "world_size": 2}')
    with pytest.raises(ValueError, match="2 ranks, but 1"):
        load_checkpoint(tmp_path)

"""The bench of the training step: what its batches are like, and that a contestant that does another is found out."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from bench import train_side
from bench.train import Patience, report, row
from bench.train_clawrl import make_trainer, sample_of
from bench.train_plain import PlainLoop, micro_batches
from bench.train_same import FirstStep, compare
from bench.train_side import Clock, Job
from bench.train_work import KINDS, make_pieces, write_pieces
from tests.tiny_model import build_tiny_model


def test_every_kind_of_batch_has_as_many_samples_and_tokens() -> None:
    batches = {kind: make_pieces(kind, 390, copies=2) for kind in KINDS}
    lengths = {kind: [piece.length for piece in pieces] for kind, pieces in batches.items()}
    assert {len(found) for found in lengths.values()} == {16}
    assert {sum(found) for found in lengths.values()} == {2 * 2304}
    assert len(set(lengths["padded"])) == 1 and max(lengths["ragged"]) == 8 * min(lengths["ragged"])
    for before, after in pairwise(batches["sessions"][:8]):
        assert after.prompt[: before.length] == before.prompt + before.response
    # What an eight-turn session shares: the last turn has all tokens of the others.
    assert sum(lengths["sessions"]) / (2 * max(lengths["sessions"])) == 4.5
    assert make_pieces("ragged", 390, copies=2) == batches["ragged"]


def test_the_plain_loop_pads_each_micro_batch_within_the_budget_and_leaves_no_sample_out() -> None:
    pieces = make_pieces("ragged", 390)
    parts = list(micro_batches(pieces, 1024))
    assert [piece for rows in parts for piece in rows] == pieces and len(parts) > 1
    assert all(len(rows) * max(piece.length for piece in rows) <= 1024 for rows in parts)
    assert [len(rows) for rows in micro_batches(pieces, 1)] == [1] * 8


@pytest.mark.parametrize("kind", KINDS)
def test_clawrls_trainer_and_the_plain_loop_take_the_same_step(tmp_path: Path, kind: str) -> None:
    firsts = _first_steps(tmp_path, kind)
    (mine,) = [one for one in compare(tmp_path / "model", firsts) if one["name"] == "clawrl"]
    assert mine["gradients_apart"] < 1e-4 and mine["updates_apart"] < 1e-2


def test_a_contestant_that_takes_another_step_ends_the_bench(tmp_path: Path) -> None:
    firsts = _first_steps(tmp_path, "padded", clip_norm=0.1)
    with pytest.raises(SystemExit, match="clawrl does not take the step that plain takes"):
        compare(tmp_path / "model", firsts)


def test_a_row_compares_steps_of_the_same_round() -> None:
    rounds = [{"plain": _step(2.0), "clawrl": _step(1.0)}, {"plain": _step(9.0), "clawrl": _step(3.0)}]
    found = row("clawrl", 600, rounds, 100.0)
    assert found["ratio"] == 2.5 and found["tokens_per_second"] == 400 and found["peak_mb"] == 300.0


def test_rounds_go_on_until_the_time_is_up_and_there_is_one_at_least() -> None:
    now = time.monotonic()
    assert list(Patience(rounds=None, until=now - 1).numbers()) == [0]
    assert list(Patience(rounds=None, until=now + 1000).numbers()) == list(range(9))
    assert list(Patience(rounds=4, until=now - 1).numbers()) == [0, 1, 2, 3]


def test_what_is_saved_beside_the_steps_is_not_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    seconds = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 2 * now[0])
    monkeypatch.setattr(train_side, "time", seconds)
    clock = Clock()
    now[0] += 1.0
    clock.pause()
    now[0] += 64.0
    clock.resume()
    now[0] += 2.0
    clock.pause()
    assert (clock.seconds, clock.cpu_seconds) == (3.0, 6.0)


def test_the_report_is_a_table_that_can_be_pasted() -> None:
    rounds = [{"plain": _step(2.0), "clawrl": _step(1.0)}]
    rows = [row(name, 600, rounds, 100.0) for name in ("clawrl", "plain")]
    same = [{"name": "clawrl", "grad_norm": 1.5, "gradients_apart": 1e-7, "updates_apart": 1e-6}]
    cell = {"model": "tiny", "kind": "padded", "dtype": "float32", "tokens": 600, "rows": rows, "same": same}
    timed, compared = "\n".join(report([cell])).split("\n\n")
    for part, lines in ((timed, 4), (compared, 3)):
        assert len({line.count("|") for line in part.splitlines()}) == 1 and len(part.splitlines()) == lines
    assert "| tiny | padded | float32 | clawrl | 600 | 5.0 | 1.00 | 600 | 2.00 | 3.00 | 2.00 | 100 | 0 |" in timed


def _step(seconds: float) -> dict[str, float]:
    return {"seconds": seconds, "cpu_seconds": 3 * seconds, "passed_tokens": 5.0, "peak_mb": 100 * seconds}


def _first_steps(root: Path, kind: str, clip_norm: float = 1.0) -> dict[str, FirstStep]:
    """Of both in this process; ``clip_norm`` is the plain loop's, ours clips at 1."""
    folder, pieces = build_tiny_model(root / "model"), root / "pieces.json"
    write_pieces(make_pieces(kind, 390), pieces)
    told = {"model": str(folder), "pieces": str(pieces), "dtype": "float32", "tokens": 1152, "threads": 1}
    loop = PlainLoop(Job(**told, max_grad_norm=clip_norm, eps=1e-2))  # type: ignore[arg-type]
    loss, _ = loop.gradients()
    gradients = {name: p.grad.clone() for name, p in loop.model.named_parameters()}
    plain = FirstStep(_kept(root / "plain"), {"loss": loss, "grad_norm": loop.update()})
    _save(plain.folder, gradients, dict(loop.model.named_parameters()))
    trainer = make_trainer(Job(**told, eps=1e-2))  # type: ignore[arg-type]
    plan = trainer.compute([sample_of(piece, number) for number, piece in enumerate(make_pieces(kind, 390))])
    masters = trainer.optimizer.masters
    gradients = {name: master.grad.clone() for name, master in masters.items() if master.grad is not None}
    trainer.apply()
    mine = FirstStep(_kept(root / "clawrl"), plan.metrics)
    _save(mine.folder, gradients, masters)
    return {"clawrl": mine, "plain": plain}


def _kept(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _save(folder: Path, gradients: dict[str, torch.Tensor], weights: dict[str, torch.Tensor]) -> None:
    save_file(gradients, folder / "gradients.safetensors")
    save_file({name: weight.detach().clone() for name, weight in weights.items()}, folder / "weights.safetensors")

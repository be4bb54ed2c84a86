"""What leaves the trainer with adapters: these alone, beside a snapshot of exactly the weights that they belong to."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clawrl.messages import WeightKind, WeightManifest
from clawrl.training import outgoing as module
from clawrl.training.lora import adapter_tensors, base_tensors, shape_of
from clawrl.training.model import full_parameters, load_model
from clawrl.training.outgoing import Outgoing, read_to_rewind
from clawrl.training.policy_trainer import PolicyTrainer
from clawrl.weights.adapters import merge
from clawrl.weights.manifest import byte_size
from clawrl.weights.snapshot import base_folder, prune, read_snapshot, read_whole, write_snapshot
from tests.test_training_lora import DTYPES, advance, assert_same_bits, trainer
from tests.tiny_model import build_tiny_model

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


def outgoing(one: PolicyTrainer, snapshots: Path, *, alone: bool = True) -> Outgoing:
    lora = one._config.lora
    shape = shape_of(lora) if lora is not None and alone else None
    return Outgoing(one._model, snapshots, alone=shape, bucket_bytes=10_000)


def send(out: Outgoing, snapshots: Path, version: int, *, whole: bool = False) -> tuple[WeightManifest, Path]:
    contents = out.whole() if whole else out.version()
    manifest = contents.describe(version)
    folder = write_snapshot(snapshots, manifest, contents.tensors)
    if not whole:
        out.settle()
    return manifest, folder


def live(one: PolicyTrainer) -> dict[str, Tensor]:
    return dict(full_parameters(one._model))


@DTYPES
def test_after_200_publishes_the_base_has_its_bits_and_what_was_sent_is_the_merged_model(
    folder: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    one = advance(trainer(folder, dtype=dtype), range(2))
    out, start = outgoing(one, tmp_path), dict(base_tensors(one._model))
    sent: dict[str, Tensor] = {}
    for version in range(1, 201):
        contents = out.version()
        contents.describe(version)
        out.settle()
        sent = contents.tensors
    assert_same_bits(dict(base_tensors(one._model)), start)
    assert_same_bits(start, dict(load_model(folder, dtype=dtype).named_parameters()))
    lora = one._config.lora
    assert lora is not None
    assert_same_bits(merge(start, sent, shape_of(lora)), live(one))
    assert_same_bits(sent, dict(adapter_tensors(one._model)))


def test_a_version_has_the_adapters_alone_and_names_the_start_that_is_on_disk_already(
    folder: Path, tmp_path: Path
) -> None:
    one = trainer(folder)
    out = outgoing(one, tmp_path)
    start, at = send(out, tmp_path, 0, whole=True)
    assert start.kind is WeightKind.FULL
    advance(one, range(1))
    manifest, first = send(out, tmp_path, 1)
    assert manifest.kind is WeightKind.ADAPTER and manifest.addition is not None
    assert (manifest.addition.base_version, manifest.addition.base_digest) == (0, start.digest)
    assert base_folder(first, manifest) == at and len(list(tmp_path.iterdir())) == 2
    size, whole_size = (sum(byte_size(spec) for spec in m.tensors) for m in (manifest, start))
    assert size < whole_size / 5
    assert_same_bits(read_whole(first), live(one))


def test_a_base_that_is_not_on_disk_is_written_there_and_gathered_until_a_publish_has_succeeded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = advance(trainer(folder), range(1))
    out = outgoing(one, tmp_path)
    gathered = []
    monkeypatch.setattr(module, "base_tensors", lambda model: gathered.append(1) or base_tensors(model))
    assert out.needed == []
    out.version().describe(7)
    manifest, at = send(out, tmp_path, 8)
    assert len(gathered) == 2, "the first was not settled"
    send(out, tmp_path, 9)
    assert len(gathered) == 2
    where = base_folder(at, manifest)
    assert where is not None and where.is_dir() and out.needed == [where]
    assert_same_bits(read_whole(at), live(one))


def test_pruning_keeps_the_base_of_each_snapshot_that_stays(folder: Path, tmp_path: Path) -> None:
    one = trainer(folder)
    out = outgoing(one, tmp_path)
    start = send(out, tmp_path, 0, whole=True)[1]
    versions = [send(out, tmp_path, version)[1] for version in range(1, 6)]
    prune(tmp_path, 2, spare=[versions[1]])
    assert set(tmp_path.iterdir()) == {start, versions[1], *versions[3:]}
    whole = send(outgoing(one, tmp_path, alone=False), tmp_path, 9)[1]
    prune(tmp_path, 1)
    assert set(tmp_path.iterdir()) == {whole}


def test_a_rewind_to_adapters_takes_them_back_and_leaves_the_base_as_it_was(folder: Path, tmp_path: Path) -> None:
    one = trainer(folder)
    out = outgoing(one, tmp_path)
    start = send(out, tmp_path, 0, whole=True)[0]
    advance(one, range(2))
    _, good = send(out, tmp_path, 1)
    wanted, base = live(one), dict(base_tensors(one._model))
    advance(one, range(2, 4))
    rewind(one, out, good)
    assert_same_bits(live(one), wanted)
    assert_same_bits(dict(base_tensors(one._model)), base)
    assert one.step == 4 and one.optimizer.state_dict()["adam"]["state"] == {}
    advance(one, range(4, 5))
    manifest, _ = send(out, tmp_path, 5)
    assert manifest.addition is not None and manifest.addition.base_digest == start.digest


def rewind(one: PolicyTrainer, out: Outgoing, snapshot: Path) -> None:
    lora = one._config.lora
    one.rewind(read_to_rewind(snapshot, None if lora is None else shape_of(lora)))
    out.rewound()


def test_after_a_rewind_to_whole_weights_the_next_adapters_are_an_addition_to_those(
    folder: Path, tmp_path: Path
) -> None:
    one = trainer(folder)
    out = outgoing(one, tmp_path)
    send(out, tmp_path, 0, whole=True)
    advance(one, range(2))
    merged, good = send(out, tmp_path, 1, whole=True)
    advance(one, range(2, 3))
    send(out, tmp_path, 2)
    rewind(one, out, good)
    assert_same_bits(live(one), read_snapshot(good)[1])
    advance(one, range(3, 4))
    manifest, at = send(out, tmp_path, 3)
    assert manifest.addition is not None and manifest.addition.base_digest == merged.digest
    assert base_folder(at, manifest) == good
    assert_same_bits(read_whole(at), live(one))


@pytest.mark.parametrize("settings", [{"plain": True}, {"lora": {"rank": 2}}], ids=str)
def test_a_trainer_without_such_adapters_rewinds_to_them_merged(
    folder: Path, tmp_path: Path, settings: Mapping[str, object]
) -> None:
    one = advance(trainer(folder), range(2))
    at = send(outgoing(one, tmp_path), tmp_path, 1)[1]
    other = trainer(folder, **settings)  # type: ignore[arg-type]
    rewind(other, outgoing(other, tmp_path), at)
    assert_same_bits(live(other), live(one))


def test_adapters_that_lack_one_are_refused_before_anything_changes(folder: Path, tmp_path: Path) -> None:
    one = advance(trainer(folder), range(1))
    before = live(one)
    weights = {**dict(base_tensors(one._model)), **dict(adapter_tensors(one._model))}
    del weights["model.layers.1.mlp.down_proj.lora_B.weight"]
    with pytest.raises(ValueError, match=r"lack model\.layers\.1\.mlp\.down_proj\.lora_B\.weight and 0 more"):
        one.rewind({name: tensor + 1 for name, tensor in weights.items()})
    assert_same_bits(live(one), before)

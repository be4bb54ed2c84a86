"""What leaves the trainer with adapters: these alone, beside a snapshot of exactly the weights that they belong to."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clawrl.messages import WeightKind, WeightManifest
from clawrl.training import outgoing as module
from clawrl.training.config import LoraConfig
from clawrl.training.lora import adapter_tensors, base_tensors, shape_of
from clawrl.training.model import full_parameters, load_model
from clawrl.training.outgoing import Outgoing, read_to_rewind
from clawrl.training.policy_trainer import PolicyTrainer
from clawrl.weights.adapters import merge
from clawrl.weights.manifest import byte_size
from clawrl.weights.snapshot import (
    SnapshotError,
    base_folder,
    prune,
    read_learned,
    read_snapshot,
    read_whole,
    write_snapshot,
)
from tests.test_training_lora import DTYPES, advance, assert_same_bits, trainer
from tests.tiny_model import build_tiny_model
from tests.training_samples import make_sample

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


def outgoing(one: PolicyTrainer, snapshots: Path, *, alone: bool = True) -> Outgoing:
    lora = one._config.lora
    shape = shape_of(lora) if lora is not None else None
    return Outgoing(one._model, snapshots, alone=shape if alone else None, bucket_bytes=10_000, shape=shape)


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


def kl_of(one: PolicyTrainer) -> float:
    """To the reference, of a fixed batch."""
    plan = one.compute([make_sample("x", 4, 6), make_sample("y", 5, 7)])
    one.discard()
    return plan.metrics["kl"]


@DTYPES
def test_after_a_rollback_to_merged_weights_the_reference_is_still_the_start(
    folder: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    one = trainer(folder, dtype=dtype, kl_coef=0.1)
    out, start = outgoing(one, tmp_path, alone=False), dict(base_tensors(one._model))
    _, first = send_with_adapters(out, tmp_path, 0)
    advance(one, range(2))
    _, good = send_with_adapters(out, tmp_path, 1)
    wanted = kl_of(one)
    advance(one, range(2, 4))
    assert wanted > 0 and kl_of(one) != wanted
    rewind(one, out, good)
    assert_same_bits(live(one), read_snapshot(good)[1])
    assert_same_bits(dict(base_tensors(one._model)), start)
    assert kl_of(one) == wanted, "as it was to the start when this version was made"
    assert one.state_dict()["lora"]["base"] == {}
    rewind(one, out, first)
    assert kl_of(one) == 0.0
    assert_same_bits(live(one), start)


def send_with_adapters(out: Outgoing, snapshots: Path, version: int) -> tuple[WeightManifest, Path]:
    contents = out.version()
    manifest = contents.describe(version)
    return manifest, write_snapshot(snapshots, manifest, contents.tensors, contents.learned)


def test_whole_weights_without_their_adapters_are_refused_where_they_would_move_the_reference(
    folder: Path, tmp_path: Path
) -> None:
    one = trainer(folder, kl_coef=0.1)
    out = outgoing(one, tmp_path, alone=False)
    advance(one, range(2))
    _, of_an_earlier_release = send(out, tmp_path, 1, whole=True)
    advance(one, range(2, 3))
    before, adapters, kl = dict(base_tensors(one._model)), dict(adapter_tensors(one._model)), kl_of(one)
    with pytest.raises(ValueError, match=r"would change the reference for KL.* differ.*clawrl export"):
        rewind(one, out, of_an_earlier_release)
    assert_same_bits(dict(base_tensors(one._model)), before)
    assert_same_bits(dict(adapter_tensors(one._model)), adapters)
    assert kl_of(one) == kl
    # Nothing refers to the start here.
    free = advance(trainer(folder), range(1))
    rewind(free, outgoing(free, tmp_path, alone=False), of_an_earlier_release)
    assert_same_bits(live(free), read_snapshot(of_an_earlier_release)[1])
    later = send_with_adapters(out, tmp_path, 2)[1]
    with pytest.raises(ValueError, match="was replaced by whole weights in an earlier rewind"):
        rewind(free, outgoing(free, tmp_path, alone=False), later)


def test_adapters_beside_a_version_are_those_that_were_written_or_an_error(folder: Path, tmp_path: Path) -> None:
    one = advance(trainer(folder), range(1))
    _, at = send_with_adapters(outgoing(one, tmp_path, alone=False), tmp_path, 1)
    assert [path.name for path in at.glob("*.safetensors")] == ["model.safetensors"], "an engine loads all of these"
    learned = read_learned(at)
    assert learned is not None and learned.shape == shape_of(LoraConfig(rank=4, alpha=12))
    assert_same_bits(dict(sorted(learned.tensors.items())), dict(sorted(adapter_tensors(one._model))))
    data = bytearray((at / "adapters.st").read_bytes())
    data[-3] ^= 1
    (at / "adapters.st").write_bytes(data)
    with pytest.raises(SnapshotError, match=r"adapters\.st is not what was written"):
        read_to_rewind(at, learned.shape)


def test_whole_weights_are_not_read_where_the_adapters_that_are_merged_into_them_suffice(
    folder: Path, tmp_path: Path
) -> None:
    one = advance(trainer(folder), range(1))
    out = outgoing(one, tmp_path, alone=False)
    _, at = send_with_adapters(out, tmp_path, 1)
    adapters = dict(adapter_tensors(one._model))
    (at / "model.safetensors").unlink()
    advance(one, range(1, 2))
    rewind(one, out, at)
    assert_same_bits(dict(adapter_tensors(one._model)), adapters)
    with pytest.raises(SnapshotError, match=r"model\.safetensors"):
        read_to_rewind(at, shape_of(LoraConfig(rank=2)))


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

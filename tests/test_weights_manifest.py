"""Buckets carry every byte exactly, whatever the shapes, dtypes and bucket size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from clawrl.weights.manifest import build_manifest, cut_buckets, pack_bucket, unpack_bucket
from clawrl.weights.snapshot import SnapshotError, prune, put_back, read_snapshot, write_snapshot

TENSORS = {
    "odd": torch.arange(7, dtype=torch.uint8),
    "half": torch.randn(3, 5).to(torch.bfloat16),
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(2.5),
    "big": torch.randn(40, 40),
    "int": torch.arange(11, dtype=torch.int64),
    "sliced": torch.randn(6, 6).t()[1:3],
}


@pytest.mark.parametrize("bucket_bytes", [1, 7, 64, 1000, 10**9])
def test_what_is_packed_is_what_is_unpacked(bucket_bytes: int) -> None:
    manifest = build_manifest(3, TENSORS, bucket_bytes=bucket_bytes)
    back = {}
    for bucket in range(len(manifest.buckets)):
        for spec, tensor in unpack_bucket(manifest, bucket, pack_bucket(manifest, bucket, TENSORS)):
            back[spec.name] = tensor
    assert list(back) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor)
    assert build_manifest(3, back, bucket_bytes=bucket_bytes) == manifest


def test_buckets_cover_every_tensor_in_order_and_only_a_lone_one_may_exceed_the_size() -> None:
    rng = random.Random(0)
    for _ in range(200):
        sizes = [rng.randrange(0, 50) for _ in range(rng.randrange(0, 20))]
        limit = rng.randrange(1, 60)
        buckets = cut_buckets(sizes, limit)
        assert [i for start, end in buckets for i in range(start, end)] == list(range(len(sizes)))
        for start, end in buckets:
            assert end - start == 1 or sum(sizes[start:end]) <= limit


@pytest.mark.parametrize("change", ["value", "name", "dtype", "shape", "order"])
def test_the_digest_sees_every_change(change: str) -> None:
    base = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0, 4.0]])}
    changed = {
        "value": {**base, "a": torch.tensor([1.0, 2.0000002])},
        "name": {"A": base["a"], "b": base["b"]},
        "dtype": {**base, "a": base["a"].view(torch.int32)},
        "shape": {**base, "b": base["b"].reshape(2, 1)},
        "order": {"b": base["b"], "a": base["a"]},
    }[change]
    digests = {build_manifest(1, tensors, bucket_bytes=8).digest for tensors in (base, changed)}
    assert len(digests) == 2


def test_a_snapshot_reads_back_exactly_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    manifest = build_manifest(12, TENSORS, bucket_bytes=100)
    folder = write_snapshot(tmp_path, manifest, TENSORS)
    read, tensors = read_snapshot(folder)
    assert read == manifest
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(data))
    with pytest.raises(SnapshotError, match="digest"):
        read_snapshot(folder)
    (folder / "model.safetensors").write_bytes(bytes(data[: len(data) // 2]))
    with pytest.raises(SnapshotError, match="cannot be read"):
        read_snapshot(folder)
    with pytest.raises(SnapshotError, match="cannot be read"):
        read_snapshot(tmp_path / "nowhere")


def test_pruning_keeps_the_newest_and_the_spared(tmp_path: Path) -> None:
    folders = [
        write_snapshot(
            tmp_path,
            build_manifest(version, {"a": torch.tensor([version])}, bucket_bytes=8),
            {"a": torch.tensor([version])},
        )
        for version in range(6)
    ]
    (tmp_path / ".v000009-abc.77").mkdir()
    prune(tmp_path, 2, spare=[folders[0]])
    assert not list(tmp_path.glob(".v*")), "what a crash left half-written goes, too"
    assert [folder.is_dir() for folder in folders] == [True, False, False, False, True, True]


def test_a_snapshot_that_becomes_current_while_others_are_pruned_comes_back(tmp_path: Path) -> None:
    folders = [write_snapshot(tmp_path, build_manifest(v, {}, bucket_bytes=8), {}) for v in range(5)]
    seen: list[list[str]] = []

    def in_use() -> list[Path]:
        seen.append(sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("v")))
        return [folders[1]]

    prune(tmp_path, 2, spare=[folders[0]], in_use=in_use)
    assert seen == [[folders[at].name for at in (0, 3, 4)]], "who looks meanwhile does not find what is to go"
    assert sorted(tmp_path.iterdir()) == [folders[at] for at in (0, 1, 3, 4)]


def test_snapshots_that_were_put_aside_by_somebody_who_died_are_found_again(tmp_path: Path) -> None:
    folders = [write_snapshot(tmp_path, build_manifest(v, {}, bucket_bytes=8), {}) for v in range(3)]

    def dies() -> list[Path]:
        raise ConnectionError("the coordinator is away")

    with pytest.raises(ConnectionError):
        prune(tmp_path, 1, in_use=dies)
    assert all(path.exists() for path in folders), "nothing is deleted before it is known what is in use"
    folders[0].rename(tmp_path / f".aside-{folders[0].name}")
    put_back(tmp_path)
    assert [path for path in folders if path.exists()] == folders

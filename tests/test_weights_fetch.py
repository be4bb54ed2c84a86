"""Snapshots on a machine that does not see the state folder."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from clawrl.messages import AdapterShape, Addition
from clawrl.weights import fetch, snapshot
from clawrl.weights.copying import Copying
from clawrl.weights.fetch import Access, Library, SnapshotUnreachable, read_here, sizes_here
from clawrl.weights.manifest import build_manifest
from clawrl.weights.snapshot import base_of, read_snapshot, read_whole, write_snapshot
from tests.idle_clock import run_on_idle_clock


class Reader:
    """The head node's disk. ``cut`` loses the end of every chunk."""

    def __init__(self, *, cut: int = 0) -> None:
        self.cut = cut
        self.reads: list[tuple[str, int, int]] = []

    async def sizes(self, folder: str) -> Mapping[str, int]:
        return sizes_here(folder)

    async def read(self, folder: str, name: str, offset: int, size: int) -> bytes:
        self.reads.append((name, offset, size))
        await asyncio.sleep(0)
        data = read_here(folder, name, offset, size)
        return data[: len(data) - self.cut]


def _snapshot(root: Path, version: int) -> Path:
    tensors = {"a": torch.full((37, 11), float(version)), "b": torch.arange(5.0)}
    return write_snapshot(root, build_manifest(version, tensors, bucket_bytes=64), tensors)


def _library(tmp_path: Path, reader: Reader, owner: str = "me", access: Access = "network") -> Library:
    return Library(reader, tmp_path / "copies", owner, base_of=base_of, access=access)


def _rooms(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "copies").iterdir())


def test_a_snapshot_that_is_seen_here_is_read_where_it_is(tmp_path: Path) -> None:
    folder, reader = _snapshot(tmp_path / "head", 1), Reader()
    library = _library(tmp_path, reader, access="auto")
    assert asyncio.run(library.local(folder, 1, held=0)) == folder
    assert reader.reads == [] and not (tmp_path / "copies").exists()


@pytest.mark.parametrize("access", ["auto", "network"])
def test_a_snapshot_that_is_not_seen_here_is_copied_in_chunks_and_its_digest_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, access: Access
) -> None:
    monkeypatch.setattr(fetch, "CHUNK_BYTES", 100)
    folder, reader = _snapshot(tmp_path / "head", 1), Reader()
    monkeypatch.setattr(fetch, "_is_snapshot", lambda path: False if access == "auto" else Path(path).is_dir())
    if access == "auto":
        monkeypatch.setattr(Reader, "sizes", _sizes_of_any)
    copy = asyncio.run(_library(tmp_path, reader, access=access).local(folder, 1, held=0))
    assert copy.parent == tmp_path / "copies" / "me" and copy.name == folder.name
    manifest, tensors = read_snapshot(copy)
    assert manifest.version == 1 and torch.equal(tensors["a"], torch.full((37, 11), 1.0))
    model = [(offset, size) for name, offset, size in reader.reads if name == "model.safetensors"]
    assert len(model) > 10 and all(size <= 100 for _, size in model)


async def _sizes_of_any(self: Reader, folder: str) -> Mapping[str, int]:
    return {file.name: file.stat().st_size for file in Path(folder).iterdir()}


def test_a_copy_is_made_once_and_two_who_ask_at_once_share_it(tmp_path: Path) -> None:
    async def run() -> None:
        folder, reader = _snapshot(tmp_path / "head", 1), Reader()
        library = _library(tmp_path, reader)
        await asyncio.gather(*(library.local(folder, 1, held=0) for _ in range(3)))
        assert len({read[0] for read in reader.reads}) == len(reader.reads) == 2

    asyncio.run(run())


def test_only_the_version_that_serves_and_the_one_asked_for_last_stay(tmp_path: Path) -> None:
    async def run() -> None:
        library = _library(tmp_path, Reader())
        folders = {version: _snapshot(tmp_path / "head", version) for version in (1, 2, 3, 4)}
        await library.local(folders[1], 1, held=0)
        for version in (2, 3, 4):
            # They fail one after the other: the engine goes on with version 1, and may have to read it again.
            await library.local(folders[version], version, held=1)
        kept = {path.name for path in (tmp_path / "copies" / "me").glob("v*")}
        assert kept == {folders[1].name, folders[4].name}
        # Old weights under a new number.
        assert await library.local(folders[1], 5, held=4)
        assert {p.name for p in (tmp_path / "copies" / "me").glob("v*")} == {folders[1].name, folders[4].name}

    asyncio.run(run())


def test_adapters_come_with_the_whole_weights_that_they_are_added_to(tmp_path: Path) -> None:
    head = tmp_path / "head"
    whole = {"layer.weight": torch.ones(4, 3)}
    base = build_manifest(0, whole, bucket_bytes=64)
    write_snapshot(head, base, whole)
    shape = AdapterShape(rank=1, alpha=2.0, targets=("layer",))
    addition = Addition(shape=shape, base_version=0, base_digest=base.digest)
    library = _library(tmp_path, Reader())
    for version in (1, 2, 3):
        alone = {"layer.lora_A.weight": torch.ones(1, 3), "layer.lora_B.weight": torch.full((4, 1), float(version))}
        folder = write_snapshot(head, build_manifest(version, alone, bucket_bytes=64, addition=addition), alone)
        copy = asyncio.run(library.local(folder, version, held=version - 1))
        assert copy != folder
        assert read_whole(copy)["layer.weight"].tolist() == [[1.0 + 2.0 * version] * 3] * 4
    names = sorted(path.name[:7] for path in (tmp_path / "copies" / "me").iterdir() if path.is_dir())
    assert names == ["v000000", "v000002", "v000003"], "the base once, and no adapters of before"


def test_a_copy_that_came_short_is_an_error_and_never_looks_whole(tmp_path: Path) -> None:
    folder = _snapshot(tmp_path / "head", 1)
    with pytest.raises(SnapshotUnreachable, match="bytes instead of"):
        asyncio.run(_library(tmp_path, Reader(cut=1)).local(folder, 1, held=0))
    assert list((tmp_path / "copies" / "me").glob("v*")) == []
    assert asyncio.run(_library(tmp_path, Reader(), "other").local(folder, 1, held=0)).is_dir()


def test_a_snapshot_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(SnapshotUnreachable, match="v000009-abc is no snapshot, or was removed"):
        asyncio.run(_library(tmp_path, Reader()).local(tmp_path / "v000009-abc", 9, held=0))
    with pytest.raises(SnapshotUnreachable, match="cannot be read"):
        read_here(str(tmp_path), "model.safetensors", 0, 1)


def test_what_a_killed_process_left_behind_goes_and_a_living_ones_stays(tmp_path: Path) -> None:
    folder = _snapshot(tmp_path / "head", 1)
    living = _library(tmp_path, Reader(), "living")
    asyncio.run(living.local(folder, 1, held=0))
    (tmp_path / "copies" / "killed" / folder.name).mkdir(parents=True)
    asyncio.run(_library(tmp_path, Reader(), "next").local(folder, 1, held=0))
    assert _rooms(tmp_path) == [".lock", "living", "next"]
    asyncio.run(living.close())
    assert _rooms(tmp_path) == [".lock", "next"]


def test_a_room_is_not_taken_for_a_dead_ones_while_it_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas that start together: the one tidies up between the other's folder and its lock."""
    folder = _snapshot(tmp_path / "head", 1)
    first, second = _library(tmp_path, Reader(), "first"), _library(tmp_path, Reader(), "second")
    lock, others = fetch._locked, threading.Thread(target=second._open_room)

    def pause_before_the_lock(room: Path) -> Any:
        if room.name == "first" and not others.ident:
            others.start()
            others.join(0.3)
        return lock(room)

    monkeypatch.setattr(fetch, "_locked", pause_before_the_lock)
    copy = asyncio.run(first.local(folder, 1, held=0))
    others.join(120)
    assert copy.is_dir() and _rooms(tmp_path) == [".lock", "first", "second"]


def test_nothing_is_removed_or_moved_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    remove, replace = shutil.rmtree, fetch.os.replace

    def off_the_loop(do: Any) -> Any:
        def checked(path: Path, *arguments: Any, **options: Any) -> Any:
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            removed.append(Path(path).name)
            return do(path, *arguments, **options)

        return checked

    async def run() -> None:
        library = _library(tmp_path, Reader())
        for version in (1, 2, 3):
            await library.local(_snapshot(tmp_path / "head", version), version, held=version)
        monkeypatch.setattr(shutil, "rmtree", off_the_loop(remove))
        monkeypatch.setattr(fetch.os, "replace", off_the_loop(replace))
        await library.local(tmp_path / "head" / next((tmp_path / "head").glob("v000001*")).name, 9, held=9)
        await library.close()

    asyncio.run(run())
    assert "me" in removed and len(removed) > 2 and not (tmp_path / "copies" / "me").exists()


def test_two_who_store_the_same_version_at_once_do_not_take_it_from_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as two engines of one process; each once removed what the other had half written."""
    both = threading.Barrier(2, timeout=120)
    save = snapshot.save_file

    def meet(tensors: Any, path: Path) -> None:
        save(tensors, path)
        both.wait()
        assert path.is_file()

    monkeypatch.setattr(snapshot, "save_file", meet)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(_snapshot(tmp_path, 1))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 2 and found[0] == found[1] and len(list(tmp_path.iterdir())) == 1
    assert read_snapshot(found[0])[0].version == 1


class SlowReader(Reader):
    """Of a network that stands still until ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def read(self, folder: str, name: str, offset: int, size: int) -> bytes:
        await self.gate.wait()
        return await super().read(folder, name, offset, size)


def test_a_copy_goes_on_between_two_questions_and_another_version_takes_its_place(tmp_path: Path) -> None:
    async def run() -> None:
        first, second = (_snapshot(tmp_path / "head", version) for version in (1, 2))
        reader = SlowReader()
        copying, room = Copying(_library(tmp_path, reader)), tmp_path / "copies" / "me"
        for _ in range(3):
            assert await copying.here(first, 1, held=0, within_s=0.02) is None
        assert len(list(room.glob(".v000001*"))) == 1, "one copy, asked for three times"
        assert await copying.here(second, 2, held=0, within_s=0.02) is None
        assert list(room.glob(".v000001*")) == [], "and nothing of it is left"
        reader.gate.set()
        copy = await copying.here(second, 2, held=0, within_s=5.0)
        assert copy is not None and read_snapshot(copy)[0].version == 2
        assert await copying.here(second, 2, held=0, within_s=5.0) == copy
        with pytest.raises(SnapshotUnreachable):
            await copying.here(tmp_path / "v000009-abc", 9, held=0, within_s=5.0)
        await copying.stop()

    run_on_idle_clock(run())

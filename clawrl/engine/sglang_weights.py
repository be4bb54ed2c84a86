"""New weights for a running SGLang, which loads in place: hold, load, verify, and go on, with the old ones if need be.

    prepare    read the snapshot of the version, check its digest, compute what SGLang's weights must hash to
    receive    hold requests; forget cached prefixes; load by broadcast or from disk; compare the hashes
    commit     go on under the new version
    abort      (or no word within ``decide_within_s``) load the last good version from disk, and go on under that

Whatever fails from the hold on ends in the last line, too; the failure is raised after requests have gone on. Only
where going back fails as well, or SGLang hangs, it stays held: `check` raises from then on and the replica is to be
replaced. Requests are held, never refused; how long is in every report and in `stats`. A lock keeps the steps apart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clawrl.engine.config import SglangConfig
from clawrl.engine.errors import EngineError, WeightsRefused
from clawrl.engine.protocol import SwapReport
from clawrl.engine.sglang_api import Refusal, SglangApi, SglangError
from clawrl.engine.sglang_checksums import Checksums, Layout, differing, learn
from clawrl.messages import WeightKind, WeightManifest
from clawrl.weights.folder import TensorFolder
from clawrl.weights.manifest import bucket_size
from clawrl.weights.snapshot import SnapshotError
from clawrl.weights.sources import Broadcast, OnDisk, WeightSource

log = logging.getLogger(__name__)
_LOAD_S = 600.0
_MARGIN_S = 10.0
_FLUSHES = 40
_FLUSH_REST_S = 0.1


@dataclass(frozen=True, slots=True)
class _Good:
    """What serves, and what it takes to have it back."""

    version: int
    folder: Path
    checksums: Sequence[Checksums]


@dataclass(slots=True)
class _Underway:
    """A version on its way. The flags say what has to be undone in SGLang."""

    manifest: WeightManifest
    snapshot: Path
    expected: Sequence[Checksums]
    held_at: float = 0.0
    group: str = ""
    paused: bool = False
    session: bool = False
    touched: bool = False
    loaded: bool = False
    checksums: Sequence[Checksums] = field(default_factory=list)


class SglangWeights:
    """``folder`` holds the starting weights, ``running`` counts requests; ``sessions``: SGLang has begin and end."""

    def __init__(
        self,
        api: SglangApi,
        folder: Path,
        config: SglangConfig,
        *,
        dtype: torch.dtype,
        sessions: bool,
        decide_within_s: float,
        running: Callable[[], int],
    ) -> None:
        self._api = api
        self._folder = folder
        self._config = config
        self._dtype = dtype
        self._sessions = sessions
        self._decide_within_s = decide_within_s
        self._running = running
        self._lock = asyncio.Lock()
        self._good = _Good(0, folder, [])
        self._underway: _Underway | None = None
        self._layout: Layout | None = None
        self._waiting_for_word: asyncio.Task[None] | None = None
        self._broken: str | None = None
        self.failures = 0
        self.last_failure: dict[str, Any] | None = None

    @property
    def version(self) -> int:
        return self._good.version

    async def start(self) -> None:
        """Learn how SGLang's weights are made of tensors: that reads the whole model. Raises `EngineError`."""
        found = await self._checksums()
        self._good = _Good(0, self._folder, found)
        layout = await asyncio.to_thread(learn, found, TensorFolder(self._folder), self._dtype)
        if layout.unexplained:
            raise EngineError(
                f"{len(layout.unexplained)} of SGLang's parameters, such as {layout.unexplained[0]}, cannot be checked "
                "after a load: how they are made of the checkpoint's tensors, or their hash, is not known for this "
                "model and this release of SGLang; use SGLang 0.5.23, or the transformers engine"
            )
        self._layout = layout

    async def stop(self) -> None:
        self._end_wait()

    def check(self) -> None:
        if self._broken:
            raise EngineError(self._broken)

    def stats(self) -> dict[str, Any]:
        return {"failed_loads": self.failures, "last_failed_load": self.last_failure}

    async def prepare(self, manifest: WeightManifest, snapshot: Path) -> None:
        await self.abort()
        async with self._lock:
            self.check()
            if self._layout is None:
                raise WeightsRefused("this engine was not started to take new weights")
            layout = self._layout
            try:
                expected = await asyncio.to_thread(self._expect, manifest, snapshot, layout)
            except SnapshotError as error:
                raise WeightsRefused(
                    f"version {manifest.version}: {error}; state_dir must be on a file system that every replica's "
                    "machine shares"
                ) from error
            self._underway = _Underway(manifest, snapshot, expected)

    async def receive(self, source: WeightSource) -> None:
        async with self._lock:
            underway = self._open("receive")
            self.check()
            limit = source.meeting.timeout_s + _MARGIN_S if isinstance(source, Broadcast) else _LOAD_S
            underway.held_at = time.perf_counter()
            try:
                async with asyncio.timeout(limit):
                    await self._load(underway, source)
                    await self._verify(underway)
            except BaseException as error:
                await self._go_back(underway, error)
                if isinstance(error, SglangError | TimeoutError | WeightsRefused):
                    held = f"requests were held for {time.perf_counter() - underway.held_at:.2f} s"
                    raise WeightsRefused(f"version {underway.manifest.version}: {_told(error)}; {held}") from error
                raise
            underway.loaded = True
            self._waiting_for_word = asyncio.create_task(self._no_word(underway))

    async def commit(self, version: int, then: Callable[[], None] = lambda: None) -> SwapReport:
        """``then`` is called when it is certain, right before requests go on."""
        async with self._lock:
            underway = self._open("commit")
            if underway.manifest.version != version or not underway.loaded:
                raise WeightsRefused(f"asked to commit version {version}, but it is not loaded")
            self._end_wait()
            then()
            try:
                await self._go_on(underway)
            except SglangError as error:
                self._break(f"SGLang did not go on with version {version}: {error}")
                raise EngineError(str(self._broken)) from error
            self._good = _Good(version, underway.snapshot, underway.checksums)
            self._underway = None
            hold_s = time.perf_counter() - underway.held_at
            return SwapReport(version=version, hold_s=hold_s, requests_carried=self._running())

    async def abort(self) -> None:
        async with self._lock:
            underway = self._underway
            self._end_wait()
            if underway is not None and underway.loaded:
                await self._go_back(underway, None)
            self._underway = None

    # -- the steps ----------------------------------------------------------------------------------

    async def _load(self, underway: _Underway, source: WeightSource) -> None:
        if isinstance(source, OnDisk):
            await self._pause(underway)
            underway.touched = True
            return await self._from_disk(Path(source.folder), underway.manifest.version)
        meeting, manifest = source.meeting, underway.manifest
        # SGLang stands still from here on: it waits for the other members.
        underway.group = meeting.name
        await self._api.control(
            "init_weights_update_group",
            {
                "master_address": meeting.host,
                "master_port": meeting.port,
                "rank_offset": source.rank,
                "world_size": meeting.world,
                "group_name": meeting.name,
                "backend": meeting.transport,
            },
            timeout_s=_LOAD_S,
        )
        await self._pause(underway)
        if self._sessions:
            # Before it is asked: it may have begun though its answer was lost.
            underway.session = True
            await self._api.control("begin_weight_update")
        underway.touched = True
        filled = [bucket for bucket in range(len(manifest.buckets)) if bucket_size(manifest, bucket)]
        for bucket in filled:
            start, end = manifest.buckets[bucket]
            specs = manifest.tensors[start:end]
            await self._api.control(
                "update_weights_from_distributed",
                {
                    "names": [spec.name for spec in specs],
                    "dtypes": [spec.dtype for spec in specs],
                    "shapes": [list(spec.shape) for spec in specs],
                    "group_name": meeting.name,
                    "load_format": "flattened_bucket",
                    # It was done once, when requests were held.
                    "flush_cache": False,
                    "weight_version": str(manifest.version) if bucket == filled[-1] else None,
                },
                timeout_s=_LOAD_S,
            )
        if underway.session:
            await self._api.control("end_weight_update")
            underway.session = False
        await self._leave_group(underway)

    async def _verify(self, underway: _Underway) -> None:
        underway.checksums = await self._checksums()
        wrong = differing(underway.expected, underway.checksums)
        if wrong:
            raise WeightsRefused(
                f"after loading, {len(wrong)} of SGLang's parameters are not what was published, such as {wrong[0]}"
            )

    async def _go_back(self, underway: _Underway, error: BaseException | None) -> None:
        """Undo whatever was done to SGLang and go on with the version before."""
        self._underway = None
        good = self._good
        try:
            await self._leave_group(underway)
            await self._leave_session(underway)
            if underway.touched:
                await self._pause(underway)
                await self._from_disk(good.folder, good.version)
                wrong = differing(good.checksums, await self._checksums())
                if wrong:
                    raise SglangError(f"{len(wrong)} parameters are not those of version {good.version}")
            await self._go_on(underway)
        except SglangError as second:
            self._note_failure(underway, error)
            return self._break(f"SGLang could not go back to version {good.version} after {_told(error)}: {second}")
        held_s = self._note_failure(underway, error)
        log.warning(
            "version %d was not loaded (%s); requests were held for %.2f s and go on with version %d",
            *(underway.manifest.version, _told(error), held_s, good.version),
        )

    def _note_failure(self, underway: _Underway, error: BaseException | None) -> float:
        """How long requests were held for nothing, in seconds."""
        held_s = time.perf_counter() - underway.held_at
        self.failures += 1
        self.last_failure = {
            "version": underway.manifest.version,
            "hold_ms": 1000 * held_s,
            "why": _told(error),
            "at": time.time(),
        }
        return held_s

    async def _pause(self, underway: _Underway) -> None:
        """Hold requests and forget every cached prefix: none is made before they go on."""
        if underway.paused:
            return
        underway.paused = True
        for attempt in range(_FLUSHES):
            await self._api.control("pause_generation", {"mode": self._config.pause_mode}, timeout_s=_LOAD_S)
            try:
                return await self._api.control("flush_cache")
            except Refusal as refusal:
                if self._config.pause_mode == "in_place":
                    return  # running requests keep their prefixes: that is what was asked for
                # A grammar is being compiled, which a held SGLang does not take up: let it, for a moment.
                log.info("prefixes cannot be forgotten yet (attempt %d): %s", attempt + 1, refusal)
                await self._api.control("continue_generation", {})
                await asyncio.sleep(_FLUSH_REST_S)
        underway.paused = False
        raise SglangError(f"SGLang's cached prefixes could not be forgotten in {_FLUSHES} attempts")

    async def _go_on(self, underway: _Underway) -> None:
        if underway.paused:
            await self._api.control("continue_generation", {})
            underway.paused = False

    async def _from_disk(self, folder: Path, version: int) -> None:
        await self._api.control(
            "update_weights_from_disk",
            {"model_path": str(folder), "weight_version": str(version), "flush_cache": False},
            timeout_s=_LOAD_S,
        )

    async def _leave_group(self, underway: _Underway) -> None:
        name, underway.group = underway.group, ""
        if name:
            try:
                await self._api.control("destroy_weights_update_group", {"group_name": name}, timeout_s=_MARGIN_S)
            except SglangError as error:
                log.info("the group of a publish was not there to be left: %s", error)

    async def _leave_session(self, underway: _Underway) -> None:
        open_, underway.session = underway.session, False
        if open_:
            try:
                await self._api.control("end_weight_update")
            except Refusal as refusal:
                # Ended or never begun. Were it open, loading would be refused next.
                log.info("the session of a publish was not there to be ended: %s", refusal)

    async def _checksums(self) -> list[Checksums]:
        reply = await self._api.control("weights_checker", {"action": "checksum"}, timeout_s=_LOAD_S)
        try:
            return [dict(rank["checksums"]) for rank in reply["ranks"]]
        except (KeyError, TypeError, ValueError) as error:
            raise SglangError(f"weights_checker answered without checksums: {str(reply)[:200]}") from error

    # -- waiting for the decision -------------------------------------------------------------------

    async def _no_word(self, underway: _Underway) -> None:
        """Whoever was to decide has gone: requests are not held for it."""
        await asyncio.sleep(self._decide_within_s)
        async with self._lock:
            if self._underway is underway:
                self._waiting_for_word = None
                await self._go_back(underway, TimeoutError(f"no word within {self._decide_within_s:g} s"))

    def _end_wait(self) -> None:
        if self._waiting_for_word is not None:
            self._waiting_for_word.cancel()
            self._waiting_for_word = None

    # -- what is expected ---------------------------------------------------------------------------

    def _expect(self, manifest: WeightManifest, snapshot: Path, layout: Layout) -> list[Checksums]:
        if manifest.kind is not WeightKind.FULL:
            raise WeightsRefused(f"version {manifest.version}: this engine was started for full weights, no adapters")
        start, offered = TensorFolder(self._folder), {spec.name: spec for spec in manifest.tensors}
        # What SGLang does not hold need not come, such as the head of a model whose head is its embeddings.
        wrong = sorted(layout.sources - set(offered))
        for name, spec in offered.items():
            kind = getattr(torch, spec.dtype, None)
            if name not in start or start.shape(name) != spec.shape or kind is not self._dtype:
                wrong.append(name)
        if wrong:
            raise WeightsRefused(
                f"version {manifest.version}: {len(wrong)} tensors do not fit this model in {self._dtype}, such as "
                f"{wrong[0]}: offered {offered.get(wrong[0])}"
            )
        tensors = TensorFolder(snapshot)
        tensors.check(manifest)
        return layout.expected(tensors)

    def _open(self, call: str) -> _Underway:
        if self._underway is None:
            raise WeightsRefused(f"{call} without a prepared version")
        return self._underway

    def _break(self, why: str) -> None:
        log.error("%s", why)
        self._broken = why


def _told(error: BaseException | None) -> str:
    if error is None:
        return "it was called off"
    return str(error) or type(error).__name__

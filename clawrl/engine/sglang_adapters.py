"""Versions that are adapters, on a running SGLang: each is loaded beside what serves, under a name of its own.

    prepare    check that they fit; whole weights other than those that SGLang holds are prepared as any whole version
    receive    take the bytes, check the digest, hand them to SGLang: nothing that serves is touched, nobody is held
    commit     requests name the new adapters from now on; those under way are told to move (`Serving.moved`)
    abort      the old ones serve on; what was loaded is unloaded

SGLang keeps what it cached apart for each adapter, so that no prefix outlives its version. It is given the sha256 of
each tensor and ends itself over one that differs: it never serves adapters that are not those that were published.

Only a change of the whole weights holds requests, as `sglang_weights` does; with adapters beside them all requests
under way move then, too, so that each stretch of an answer has one version.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from clawrl.engine.errors import WeightsRefused
from clawrl.engine.protocol import SwapReport
from clawrl.engine.sglang_api import SglangApi, SglangError
from clawrl.engine.sglang_weights import SglangWeights
from clawrl.engine.staging import Staging
from clawrl.messages import AdapterShape, TensorSpec, WeightKind, WeightManifest
from clawrl.tasks import spawn
from clawrl.weights.adapters import expected_adapters
from clawrl.weights.broadcast import receive_buckets
from clawrl.weights.folder import TensorFolder
from clawrl.weights.manifest import as_bytes, digest_of, dtype_of, pack_bucket
from clawrl.weights.snapshot import SnapshotError, base_folder, read_manifest, read_snapshot
from clawrl.weights.sources import Broadcast, OnDisk, WeightSource

log = logging.getLogger(__name__)
_LOAD_S = 120.0


@dataclass(eq=False)
class Serving:
    """A version that serves: ``name`` of its adapters in SGLang, if it has any. ``moved`` is set when another does."""

    name: str | None
    version: int
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    users: int = 0


@dataclass(slots=True)
class _Underway:
    manifest: WeightManifest
    base: Path | None = None
    name: str | None = None
    ready: bool = False


class SglangAdapters:
    """``folder`` holds the starting weights, ``ranks`` share one engine, ``running`` counts requests."""

    def __init__(
        self,
        api: SglangApi,
        weights: SglangWeights,
        folder: Path,
        shape: AdapterShape,
        *,
        dtype: torch.dtype,
        ranks: int,
        running: Callable[[], int],
    ) -> None:
        self._api = api
        self._weights = weights
        self._folder = folder
        self._shape = shape
        self._dtype = dtype
        self._ranks = ranks
        self._running = running
        self._base_digest: str | None = None
        self._staging = Staging({})
        self._underway: _Underway | None = None
        self.serving = Serving(None, 0)

    @contextmanager
    def using(self) -> Iterator[Serving]:
        """What serves now. Its adapters stay loaded until all who use it are done."""
        serving = self.serving
        serving.users += 1
        try:
            yield serving
        finally:
            serving.users -= 1
            self._drop_unused(serving)

    async def prepare(self, manifest: WeightManifest, snapshot: Path) -> None:
        await self.abort()
        if manifest.kind is WeightKind.FULL:
            await self._weights.prepare(manifest, snapshot)
            self._underway = _Underway(manifest)
            return
        base = await asyncio.to_thread(self._fit, manifest, snapshot)
        if base is not None:
            whole = dataclasses.replace(read_manifest(base), version=manifest.version)
            await self._weights.prepare(whole, base)
        self._underway = _Underway(manifest, base)

    async def receive(self, source: WeightSource) -> None:
        underway = self._open("receive")
        if underway.manifest.kind is WeightKind.FULL:
            await self._weights.receive(source)
        else:
            tensors = await asyncio.to_thread(self._take, source)
            name = f"v{underway.manifest.version}-{underway.manifest.digest[:12]}-{time.time_ns()}"
            try:
                # Before anything is held: an adapter that is being unloaded may have to be waited for.
                await self._load(name, tensors)
            except SglangError as error:
                # It may have them all the same, or come to have them, if it was its answer that was lost.
                spawn(self._unload(name))
                raise WeightsRefused(
                    f"version {underway.manifest.version}: SGLang took no adapters: {error}"
                ) from error
            underway.name = name
            if underway.base is not None:
                await self._weights.receive(OnDisk(folder=str(underway.base)))
        underway.ready = True

    async def commit(self, version: int) -> SwapReport:
        underway = self._open("commit")
        manifest = underway.manifest
        if manifest.version != version or not underway.ready:
            raise WeightsRefused(f"asked to commit version {version}, but it is not loaded")
        began, carried = time.perf_counter(), self._running()
        if manifest.addition is not None and underway.base is None:
            self._move_to(underway)
            return SwapReport(version=version, hold_s=time.perf_counter() - began, requests_carried=carried)
        report = await self._weights.commit(version, then=lambda: self._move_to(underway))
        self._base_digest = manifest.addition.base_digest if manifest.addition else manifest.digest
        return report

    async def abort(self) -> None:
        underway, self._underway = self._underway, None
        self._staging.drop()
        await self._weights.abort()
        if underway is not None and underway.name is not None:
            spawn(self._unload(underway.name))

    # -- what serves --------------------------------------------------------------------------------

    def _move_to(self, underway: _Underway) -> None:
        self._underway = None
        old, self.serving = self.serving, Serving(underway.name, underway.manifest.version)
        old.moved.set()
        self._drop_unused(old)

    def _drop_unused(self, serving: Serving) -> None:
        if serving is not self.serving and serving.users == 0 and serving.name is not None:
            name, serving.name = serving.name, None
            spawn(self._unload(name))

    async def _load(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        await self._api.control(
            "load_lora_adapter_from_tensors", await asyncio.to_thread(self._body, name, tensors), timeout_s=_LOAD_S
        )

    def _body(self, name: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, object]:
        shape = self._shape
        payload = base64.b64encode(pickle.dumps(dict(tensors), protocol=4)).decode()
        return {
            "lora_name": name,
            "config_dict": {
                "peft_type": "LORA",
                "r": shape.rank,
                "lora_alpha": shape.alpha,
                "target_modules": list(shape.targets),
            },
            "serialized_named_tensors": [payload] * self._ranks,
            "expected_checksums": {
                key: hashlib.sha256(as_bytes(tensor).numpy().data).hexdigest() for key, tensor in tensors.items()
            },
        }

    async def _unload(self, name: str) -> None:
        try:
            await self._api.control("unload_lora_adapter", {"lora_name": name}, timeout_s=_LOAD_S)
        except SglangError as error:
            log.info("adapters that nobody uses could not be unloaded: %s", error)

    # -- what is offered ----------------------------------------------------------------------------

    def _fit(self, manifest: WeightManifest, snapshot: Path) -> Path | None:
        """Begin staging. Where SGLang holds other whole weights, returns the folder of those to load first."""
        addition, where = manifest.addition, base_folder(snapshot, manifest)
        assert addition is not None and where is not None
        start = TensorFolder(self._folder)
        # A folder may hold more than the model has, such as the head of a model whose head is its embeddings.
        kind = str(self._dtype).removeprefix("torch.")
        whole = {name: TensorSpec(name=name, dtype=kind, shape=start.shape(name)) for name in start.names}
        fitting = {spec.name: spec for spec in expected_adapters(whole, self._shape)}
        self._staging = Staging({}, adapters=fitting, shape=self._shape)
        self._staging.begin(manifest)
        try:
            held = self._base_digest == addition.base_digest or self._is_start(read_manifest(where), start)
        except SnapshotError as error:
            raise WeightsRefused(
                f"version {manifest.version} is an addition to version {addition.base_version} with digest "
                f"{addition.base_digest[:12]}, and that is not what SGLang holds; {error}; state_dir must be on a file "
                "system that every replica's machine shares"
            ) from error
        if held:
            self._base_digest = addition.base_digest
        return None if held else where

    def _is_start(self, base: WeightManifest, start: TensorFolder) -> bool:
        """Whether SGLang holds its starting weights still, and they are those of ``base``."""
        if self._base_digest is not None or any(spec.name not in start for spec in base.tensors):
            return False
        payloads = (as_bytes(start.tensor(spec.name).to(dtype_of(spec))) for spec in base.tensors)
        return digest_of(base.tensors, payloads) == base.digest

    def _take(self, source: WeightSource) -> dict[str, torch.Tensor]:
        manifest = self._staging.manifest
        if isinstance(source, Broadcast):
            for bucket, data in receive_buckets(source.meeting, source.rank, manifest):
                self._staging.receive(bucket, data)
        else:
            _, tensors = read_snapshot(Path(source.folder))
            for bucket in range(len(manifest.buckets)):
                self._staging.receive(bucket, pack_bucket(manifest, bucket, tensors))
        return self._staging.take(manifest.version)

    def _open(self, call: str) -> _Underway:
        if self._underway is None:
            raise WeightsRefused(f"{call} without a prepared version")
        return self._underway

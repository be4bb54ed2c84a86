"""A fake SGLang that holds a version, names the hashes of its parameters, and can be told at which call to fail."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from clawrl.engine.config import SglangConfig
from clawrl.engine.sglang_api import Refusal, SglangError
from clawrl.engine.sglang_checksums import cpu_hash
from clawrl.engine.sglang_weights import SglangWeights
from clawrl.messages import WeightManifest
from clawrl.weights.manifest import build_manifest
from clawrl.weights.snapshot import write_snapshot
from clawrl.weights.sources import Broadcast, OnDisk, Rendezvous, WeightSource
from tests.engine_tools import weights_of
from tests.idle_clock import run_on_idle_clock

INIT, PAUSE, BEGIN = "init_weights_update_group", "pause_generation", "begin_weight_update"
BUCKET, END, DESTROY = "update_weights_from_distributed", "end_weight_update", "destroy_weights_update_group"
DISK, CHECKSUM, FLUSH, CONTINUE = (
    "update_weights_from_disk",
    "weights_checker",
    "flush_cache",
    "continue_generation",
)


weights = functools.cache(weights_of)


def hashes(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Of SGLang's parameters: joined, and without a head of its own where it is the embeddings."""
    made = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            parts = [tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            made[name.replace("q_proj", "qkv_proj")] = cpu_hash(torch.cat(parts))
        elif "gate_proj" in name:
            parts = [tensors[name.replace("gate_proj", part)] for part in ("gate_proj", "up_proj")]
            made[name.replace("gate_proj", "gate_up_proj")] = cpu_hash(torch.cat(parts))
        elif not any(part in name for part in ("k_proj", "v_proj", "up_proj")):
            made[name] = cpu_hash(tensor)
    return made


class FakeSglang:
    """``fail`` counts how often a call still does so, ``hang`` names one; ``broadcast`` is what a broadcast brings."""

    def __init__(self, folder: Path, broadcast: Mapping[str, torch.Tensor]) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.weights = hashes(weights(folder))
        self.broadcast = broadcast
        self.fail: dict[str, int] = {}
        self.hang = ""
        self.error: Exception = SglangError("broke")
        self.paused = self.session = False
        self.group = ""
        self.label = "0"
        self.served: list[dict[str, str]] = []
        self.spoil: Callable[[dict[str, str]], Any] = lambda found: None

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def bodies(self, call: str) -> list[Mapping[str, Any]]:
        return [body for name, body in self.calls if name == call]

    async def control(self, call: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 30.0) -> Any:
        self.calls.append((call, body or {}))
        try:
            await asyncio.sleep(60 if call == self.hang else 0)
        except asyncio.CancelledError:
            self.hang = ""
            raise
        if self.fail.get(call, 0) > 0:
            self.fail[call] -= 1
            # What failed half-way may have written anything.
            if call in (BUCKET, DISK):
                self.weights = {name: "?" for name in self.weights}
            raise self.error
        return self._do(call, body or {})

    def _do(self, call: str, body: Mapping[str, Any]) -> Any:
        if call == INIT:
            self.group = body["group_name"]
        elif call == DESTROY:
            if self.group != body["group_name"]:
                raise Refusal("no such group")
            self.group = ""
        elif call == PAUSE:
            self.paused = True
        elif call == BEGIN:
            if self.session:
                raise Refusal("a weight-update session is already open")
            self.session = True
        elif call == END:
            if not self.session:
                raise Refusal("no weight-update session is open")
            self.session = False
        elif call == BUCKET:
            self._load(hashes(self.broadcast), body)
        elif call == DISK:
            if self.session:
                raise Refusal("a session is open")
            files = Path(body["model_path"]).glob("*.safetensors")
            self._load(hashes({name: tensor for file in files for name, tensor in load_file(file).items()}), body)
        elif call == CHECKSUM:
            found = dict(self.weights)
            self.spoil(found)
            return {"ranks": [{"checksums": found}]}
        elif call == CONTINUE:
            self.paused = False
            self.served.append(self.weights)
        return {"success": True}

    def _load(self, weights: dict[str, str], body: Mapping[str, Any]) -> None:
        assert self.paused, "weights may change only while requests are held"
        self.weights = weights
        self.label = body["weight_version"] or self.label


@dataclasses.dataclass
class Stage:
    """A fake SGLang with its weights, a version 1 to publish, and what the folder of the start holds."""

    api: FakeSglang
    weights: SglangWeights
    manifest: WeightManifest
    snapshot: Path
    start: Path
    first: dict[str, str]

    def broadcast(self, timeout_s: float = 30.0) -> WeightSource:
        meeting = Rendezvous(host="h", port=9, name="meet", world=3, transport="gloo", timeout_s=timeout_s)
        return Broadcast(meeting=meeting, rank=2)

    @property
    def on_disk(self) -> WeightSource:
        return OnDisk(folder=str(self.snapshot))

    async def load(self, source: WeightSource | None = None) -> None:
        await self.weights.prepare(self.manifest, self.snapshot)
        self.api.calls.clear()
        await self.weights.receive(source or self.broadcast())

    @property
    def second(self) -> dict[str, str]:
        return hashes(self.api.broadcast)

    def went_on_with_the_first(self) -> None:
        """Nothing of the failed version is left, and requests run under the old one."""
        assert not self.api.paused and not self.api.session and self.api.group == ""
        assert self.api.weights == self.first and all(served == self.first for served in self.api.served)
        assert self.weights.version == 0
        self.weights.check()


def staged(
    tiny_folder: Path,
    other_tiny_folder: Path,
    root: Path,
    story: Callable[[Stage], Awaitable[None]],
    *,
    pause_mode: str = "retract",
    sessions: bool = True,
    decide_within_s: float = 60.0,
    running: int = 0,
) -> None:
    tensors = weights(other_tiny_folder)
    manifest = build_manifest(1, tensors, bucket_bytes=60_000)
    snapshot = write_snapshot(root, manifest, tensors)

    async def run() -> None:
        api = FakeSglang(tiny_folder, tensors)
        made = SglangWeights(
            api,  # type: ignore[arg-type]
            tiny_folder,
            SglangConfig(pause_mode=pause_mode),  # type: ignore[arg-type]
            dtype=torch.float32,
            sessions=sessions,
            decide_within_s=decide_within_s,
            running=lambda: running,
        )
        await made.start()
        try:
            await story(Stage(api, made, manifest, snapshot, tiny_folder, dict(api.weights)))
        finally:
            await made.stop()

    run_on_idle_clock(run())


Play = Callable[..., None]

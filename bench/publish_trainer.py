"""The side that has the weights, as a process of its own: two contents of one model, written and sent when told to.

`Trainer` is the handle on it; one call at a time. The process ends with its handle, however that one ends.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from clawrl.messages import WeightManifest
from clawrl.weights.broadcast import Sender
from clawrl.weights.manifest import build_manifest, pack_bucket
from clawrl.weights.snapshot import write_snapshot

HOST = "127.0.0.1"
TIMEOUT_S = 120.0
_DONE = b""
_END_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One content. Its manifest is one bucket; digest and snapshot hold for any way of cutting it, and any version."""

    content: int
    manifest: WeightManifest
    snapshot: Path
    manifest_s: float
    snapshot_s: float


class Trainer:
    def __init__(self, model: Path, snapshots: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, model, snapshots), daemon=True)
        self._process.start()
        theirs.close()

    def offers(self) -> list[Offer]:
        found: list[Offer] = self.call("offers")
        return found

    def call(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, arguments))
        ok, result = self._pipe.recv()
        if not ok:
            raise RuntimeError(f"the trainer could not {name}: {result}")
        return result

    def push_each(self, content: int, take: Callable[[str, torch.Tensor], None]) -> None:
        """The naive way: a message for each tensor, pickled, answered before the next one comes."""
        self._pipe.send(("push_each", (content,)))
        while (message := self._pipe.recv_bytes()) != _DONE:
            take(*pickle.loads(message))
            self._pipe.send_bytes(b"ok")
        ok, result = self._pipe.recv()
        if not ok:
            raise RuntimeError(f"the trainer could not push: {result}")

    def stop(self) -> None:
        """A transfer that hangs is not waited for."""
        self._pipe.close()
        self._process.join(_END_S)
        self._process.kill()
        self._process.join()


class _Sending:
    def __init__(self, pipe: Connection, model: Path, snapshots: Path) -> None:
        self._pipe = pipe
        self._snapshots = snapshots
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        first = {name: parameter.detach() for name, parameter in loaded.named_parameters()}
        # Close enough to the first that answers stay answers, and different in nearly every number.
        self._contents: list[Mapping[str, torch.Tensor]] = [first, {name: t * 1.0001 for name, t in first.items()}]
        self._sender: Sender | None = None

    def offers(self) -> list[Offer]:
        found = []
        for content, tensors in enumerate(self._contents):
            began = time.perf_counter()
            manifest = build_manifest(1 + content, tensors, bucket_bytes=2**62)
            built = time.perf_counter()
            snapshot = write_snapshot(self._snapshots, manifest, tensors)
            found.append(
                Offer(
                    content=content,
                    manifest=manifest,
                    snapshot=snapshot,
                    manifest_s=built - began,
                    snapshot_s=time.perf_counter() - built,
                )
            )
        return found

    def open(self) -> int:
        """Where to meet for the broadcast that is told next."""
        self._sender = Sender(HOST, "gloo", TIMEOUT_S)
        return self._sender.address[1]

    def broadcast(self, name: str, content: int, manifest: WeightManifest) -> None:
        sender = self._meet(name)
        for bucket in range(len(manifest.buckets)):
            sender.send(pack_bucket(manifest, bucket, self._contents[content]))
        sender.close()

    def broadcast_each(self, name: str, content: int) -> None:
        sender = self._meet(name)
        for tensor in self._contents[content].values():
            sender.send(tensor)
        sender.close()

    def push_each(self, content: int) -> None:
        try:
            for item in self._contents[content].items():
                self._pipe.send_bytes(pickle.dumps(item))
                self._pipe.recv_bytes()
        finally:
            self._pipe.send_bytes(_DONE)

    def _meet(self, name: str) -> Sender:
        sender, self._sender = self._sender, None
        assert sender is not None, "open comes first"
        sender.connect(name, 2)
        return sender


def _serve(pipe: Connection, model: Path, snapshots: Path) -> None:
    # The one who holds the handle decides when it is over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    sending: _Sending | None = None
    with suppress(EOFError, BrokenPipeError):
        while True:
            name, arguments = pipe.recv()
            try:
                sending = sending or _Sending(pipe, model, snapshots)
                answer = True, getattr(sending, name)(*arguments)
            except Exception as error:
                answer = False, repr(error)
            pipe.send(answer)

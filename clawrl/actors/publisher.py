"""Rank 0's part of a publish: a snapshot on disk, a meeting with the replicas, buckets, the coordinator's word.

A publish that fails costs nothing but freshness. The old version serves on, and `send` says so after a rest that grows
with every failure in a row: engines that load in place hold their users for each attempt. How long all of it may take
is in `clawrl.weights.patience`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import ray.util
import torch

from clawrl.config import Deployment
from clawrl.messages import PolicyVersion, WeightKind, WeightManifest
from clawrl.training.outgoing import Contents
from clawrl.weights.broadcast import Sender, TransferError
from clawrl.weights.manifest import pack_bucket
from clawrl.weights.patience import LONGEST_REST_S
from clawrl.weights.snapshot import prune, write_snapshot
from clawrl.weights.sources import Rendezvous

log = logging.getLogger(__name__)


class Ask(Protocol):
    """Asks the coordinator; ``more_s`` is added to the usual patience."""

    def __call__(self, method: str, *arguments: Any, more_s: float = 0.0) -> Any: ...


class Publisher:
    def __init__(self, deployment: Deployment, ask: Ask, run_id: str, *, longest_rest_s: float) -> None:
        self._settings = deployment.publish
        self._snapshots = deployment.state_path / "snapshots"
        self._poll_s = deployment.trainer.training.poll_s
        self._longest_rest_s = min(longest_rest_s, LONGEST_REST_S)
        self._ask = ask
        self._run_id = run_id
        self._failures = 0

    def register_start(self, contents: Contents) -> None:
        """The starting weights become version 0, so that there is always something to go back to."""
        manifest, folder = self._snapshot(0, contents, ())
        start = PolicyVersion(version=0, step=0, snapshot=str(folder), digest=manifest.digest, published_at=time.time())
        self._ask("start_version", self._run_id, start)

    def send(self, contents: Contents, step: int, needed: Collection[Path]) -> bool:
        """Whether ``contents`` are served now. ``needed`` are snapshots that must stay."""
        publish_id = None
        try:
            version: int = self._ask("next_version")
            manifest, folder = self._snapshot(version, contents, needed)
            sender = self._open_sender(manifest.kind)
            try:
                # It waits until the replicas have the snapshot where they read it, and have prepared.
                prepare_s = self._settings.begin_s
                meeting = self._ask(
                    "begin_publish", self._run_id, manifest, step, str(folder), *sender.address, more_s=prepare_s
                )
                publish_id = meeting.name
                began = time.monotonic()
                if meeting.world > 1:
                    _transfer(sender, meeting, manifest, contents.tensors)
                # Since then the replicas' time is running.
                receiving_s = max(0.0, self._settings.receive_timeout_s - (time.monotonic() - began))
                self._ask("finish_publish", meeting.name, more_s=receiving_s + self._settings.commit_timeout_s)
            finally:
                sender.close()
        except Exception as error:
            # Of any kind: what was learned is in the trainer, and serving goes on with the old version.
            log.warning("a publish of step %d failed and will be tried again: %r", step, error)
            if publish_id is not None:
                with contextlib.suppress(Exception):
                    self._ask("abort_publish", publish_id, repr(error)[:500])
            self._failures += 1
            self._rest(min(self._poll_s * 2 ** (self._failures - 1), self._longest_rest_s))
            return False
        self._failures = 0
        return True

    def _snapshot(self, version: int, contents: Contents, needed: Collection[Path]) -> tuple[WeightManifest, Path]:
        """Old snapshots go first, so that failing publishes do not fill the disk; the current one stays."""
        prune(
            self._snapshots,
            self._settings.keep_snapshots,
            spare=[*self._in_use(), *needed],
            in_use=self._in_use,
        )
        manifest = contents.describe(version)
        return manifest, write_snapshot(self._snapshots, manifest, contents.tensors, contents.learned)

    def _in_use(self) -> list[Path]:
        return [Path(folder) for folder in self._ask("snapshots_in_use")]

    def _rest(self, seconds: float) -> None:
        """An operator may end it. Where the coordinator is what failed, it is slept through, and takes no longer."""
        began = time.monotonic()
        try:
            self._ask("rest", seconds)
        except Exception:
            time.sleep(max(0.0, seconds - (time.monotonic() - began)))

    def _open_sender(self, kind: WeightKind) -> Sender:
        settings = self._settings
        return Sender(ray.util.get_node_ip_address(), settings.transport_of(kind), settings.transfer_timeout_s)


def _transfer(
    sender: Sender, meeting: Rendezvous, manifest: WeightManifest, tensors: Mapping[str, torch.Tensor]
) -> None:
    """One replica that died breaks this for the sender; those that have every byte will say so."""
    try:
        sender.connect(meeting.name, meeting.world)
        for bucket in range(len(manifest.buckets)):
            sender.send(pack_bucket(manifest, bucket, tensors))
    except TransferError as error:
        log.warning("sending version %d broke off: %s", manifest.version, error)
        sender.close()

"""One-to-many transfer of buckets over a process group of its own, beside the trainer's WORLD.

The sender (trainer rank 0) opens a store on a port that the kernel picks, tells the receivers about it by
other means, and broadcasts bucket after bucket. Receivers are replicas, which come by `receive_buckets`, or the ranks
of SGLang, which join the same group by themselves. The group lives for one publish: a fresh name and port
each time, short timeouts, no state to repair when a member dies. Errors of any kind come out as
`TransferError`. Meeting and every bucket take no longer than the timeout, and no bucket is begun after it.
"""

from __future__ import annotations

import datetime
import math
import socket
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from clawrl.messages import WeightManifest
from clawrl.weights.manifest import bucket_size
from clawrl.weights.sources import Rendezvous


class TransferError(RuntimeError):
    """The transfer did not complete on this side."""


class Sender:
    """Rank 0. Opening the store picks the port; `connect` waits for every receiver."""

    def __init__(self, host: str, transport: str, timeout_s: float) -> None:
        self._host = host
        self._transport = transport
        self._timeout_s = timeout_s
        self._group: Any = None
        self._ends_at = math.inf
        self._store: dist.TCPStore | None = dist.TCPStore(
            host, 0, None, is_master=True, timeout=datetime.timedelta(seconds=timeout_s), wait_for_workers=False
        )

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._opened().port

    def connect(self, name: str, world: int) -> None:
        meeting = Rendezvous(
            host=self._host,
            port=self._opened().port,
            name=name,
            world=world,
            transport=self._transport,
            timeout_s=self._timeout_s,
        )
        self._ends_at = time.monotonic() + self._timeout_s
        self._group = _open_group(self._opened(), meeting, rank=0)

    def send(self, data: torch.Tensor) -> None:
        if self._group is None:
            raise TransferError("send before connect")
        if time.monotonic() > self._ends_at:
            raise TransferError(f"not everything was sent within {self._timeout_s:g} s (publish.transfer_timeout_s)")
        if data.numel():
            _broadcast(self._group, data.to("cuda") if self._transport == "nccl" else data, self._timeout_s)

    def _opened(self) -> dist.TCPStore:
        if self._store is None:
            raise TransferError("this sender is closed")
        return self._store

    def close(self) -> None:
        """Safe to call again."""
        self._group = None
        self._store = None


def receive_buckets(meeting: Rendezvous, rank: int, manifest: WeightManifest) -> Iterator[tuple[int, torch.Tensor]]:
    """Join as ``rank`` and yield ``(bucket, bytes)`` in order as they arrive."""
    try:
        store = dist.TCPStore(
            meeting.host,
            meeting.port,
            None,
            is_master=False,
            timeout=datetime.timedelta(seconds=meeting.timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise TransferError(f"cannot reach the sender at {meeting.host}:{meeting.port}: {error}") from error
    group = _open_group(store, meeting, rank)
    for bucket in range(len(manifest.buckets)):
        data = torch.empty(bucket_size(manifest, bucket), dtype=torch.uint8)
        if data.numel():
            _broadcast(group, data, meeting.timeout_s)
        yield bucket, data


def _open_group(store: dist.Store, meeting: Rendezvous, rank: int) -> Any:
    """Private names of torch, kept to this function and the next: a group that does not touch WORLD."""
    timeout = datetime.timedelta(seconds=meeting.timeout_s)
    try:
        if meeting.transport == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            # Its watchdog would end the whole process at the timeout; `_finish` gives up before.
            options._timeout = 2 * timeout
            return dist.ProcessGroupNCCL(_below(store, meeting.name, "cuda"), rank, meeting.world, options)
        settings = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        settings._timeout = timeout
        address = meeting.host if rank == 0 else _own_address(meeting.host)
        settings._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        return dist.ProcessGroupGloo(_below(store, meeting.name, "cpu"), rank, meeting.world, settings)
    except RuntimeError as error:
        raise TransferError(f"rank {rank} of {meeting.world} could not join {meeting.name}: {error}") from error
    except AttributeError as error:
        raise TransferError(f"publish.transport {meeting.transport}: this torch was built without it") from error


def _below(store: dist.Store, name: str, device: str) -> dist.Store:
    """The keys under which torch's own helper, and so SGLang, looks for the members of a group called ``name``."""
    return dist.PrefixStore(f"{device}/", dist.PrefixStore(f"{name}/", dist.PrefixStore(name, store)))


def _broadcast(group: Any, data: torch.Tensor, timeout_s: float) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    try:
        work = group.broadcast([data], options)
        if data.is_cuda:
            _finish(work, time.monotonic() + timeout_s)
        else:
            work.wait()
    except RuntimeError as error:
        if data.is_cuda:
            group.abort()
        raise TransferError(f"a broadcast of {data.numel()} bytes failed: {error}") from error


def _finish(work: Any, deadline: float) -> None:
    """NCCL's own ``wait`` only orders streams, and says nothing of a peer that died."""
    while not work.is_completed():
        if time.monotonic() > deadline:
            raise RuntimeError("a peer did not take part in time")
        time.sleep(0.001)


def _own_address(peer: str) -> str:
    """The address of the interface that reaches ``peer``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])

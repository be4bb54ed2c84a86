"""Bytes really cross between processes over gloo, and a missing or dying peer is an error, not a hang."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable

import pytest
import torch

from clawrl.weights.broadcast import Sender, TransferError, receive_buckets
from clawrl.weights.manifest import build_manifest, pack_bucket
from clawrl.weights.sources import Rendezvous

TENSORS = {f"t{i}": torch.full((1000 + i,), float(i)) for i in range(6)}
MANIFEST = build_manifest(1, TENSORS, bucket_bytes=9000)


def _receive(meeting: Rendezvous, rank: int, die_after: int | None, results: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    torch.set_num_threads(1)
    try:
        for bucket, data in receive_buckets(meeting, rank, MANIFEST):
            if bucket == die_after:
                multiprocessing.current_process().kill()
                time.sleep(10)
            results.put((rank, bucket, bytes(data.numpy())))
    except TransferError as error:
        results.put((rank, "error", str(error)))


def _start(sender: Sender, world: int, present: int, die_after: int | None = None, *, timeout_s: float):  # type: ignore[no-untyped-def]
    host, port = sender.address
    meeting = Rendezvous(host=host, port=port, name="test", world=world, transport="gloo", timeout_s=timeout_s)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    receivers = [
        context.Process(target=_receive, args=(meeting, rank, die_after if rank == 1 else None, results), daemon=True)
        for rank in range(1, present + 1)
    ]
    for receiver in receivers:
        receiver.start()
    return receivers, results


def test_two_receivers_get_every_bucket_byte_for_byte() -> None:
    sender = Sender("127.0.0.1", "gloo", 120.0)
    receivers, results = _start(sender, world=3, present=2, timeout_s=120.0)
    sender.connect("test", 3)
    for bucket in range(len(MANIFEST.buckets)):
        sender.send(pack_bucket(MANIFEST, bucket, TENSORS))
    got = {results.get(timeout=120)[:] for _ in range(2 * len(MANIFEST.buckets))}
    for bucket in range(len(MANIFEST.buckets)):
        expected = bytes(pack_bucket(MANIFEST, bucket, TENSORS).numpy())
        assert {(1, bucket, expected), (2, bucket, expected)} <= got
    for receiver in receivers:
        receiver.join(10)
    sender.close()


def _within(seconds: float, work: Callable[[], None]) -> None:
    began = time.monotonic()
    with pytest.raises(TransferError):
        work()
    assert time.monotonic() - began < seconds


def test_a_receiver_that_never_comes_ends_in_an_error_within_the_timeout() -> None:
    sender = Sender("127.0.0.1", "gloo", 2.0)
    _within(60.0, lambda: sender.connect("test", 2))


def test_a_receiver_that_is_killed_in_the_middle_is_an_error_for_the_sender() -> None:
    sender = Sender("127.0.0.1", "gloo", 120.0)
    receivers, _ = _start(sender, world=2, present=1, die_after=1, timeout_s=120.0)
    sender.connect("test", 2)

    def send_all() -> None:
        for _ in range(20):
            for bucket in range(len(MANIFEST.buckets)):
                sender.send(pack_bucket(MANIFEST, bucket, TENSORS))

    _within(100.0, send_all)
    receivers[0].join(10)


def test_two_transfers_at_once_do_not_meet() -> None:
    senders = [Sender("127.0.0.1", "gloo", 120.0) for _ in range(2)]
    assert senders[0].address[1] != senders[1].address[1]
    finished: list[int] = []

    def run(index: int) -> None:
        host, port = senders[index].address
        meeting = Rendezvous(host=host, port=port, name=f"m{index}", world=2, transport="gloo", timeout_s=120.0)
        receiver = threading.Thread(target=lambda: finished.extend(b for b, _ in receive_buckets(meeting, 1, MANIFEST)))
        receiver.start()
        senders[index].connect(f"m{index}", 2)
        for bucket in range(len(MANIFEST.buckets)):
            senders[index].send(pack_bucket(MANIFEST, bucket, TENSORS))
        receiver.join(120)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert sorted(finished) == sorted(list(range(len(MANIFEST.buckets))) * 2)

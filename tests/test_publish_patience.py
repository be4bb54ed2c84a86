"""No legal configuration lets rank 0 be in a publish for longer than the collectives let the other ranks wait."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clawrl.actors import publisher
from clawrl.actors.publisher import Publisher
from clawrl.config import Deployment
from clawrl.training.outgoing import Contents
from clawrl.weights.broadcast import Sender, TransferError
from clawrl.weights.config import PublishConfig
from clawrl.weights.manifest import build_manifest
from clawrl.weights.patience import patience_s, why_too_impatient
from tests.live import tiny_deployment

CALLS = ("next_version", "snapshots_in_use", "begin_publish", "finish_publish", "abort_publish", "rest")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SlowestSender:
    """Meets at the last moment, and its last bucket begins right before the time is up and takes all it may."""

    address = ("127.0.0.1", 1)

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock, self._timeout_s = clock, timeout_s

    def connect(self, name: str, world: int) -> None:
        self._clock.sleep(self._timeout_s)

    def send(self, data: torch.Tensor) -> None:
        self._clock.sleep(self._timeout_s)
        raise TransferError("the receiver died")

    def close(self) -> None:
        pass


def _slowest(
    monkeypatch: pytest.MonkeyPatch, folder: Path, config: PublishConfig, patience: float, poll_s: float, fails: str
) -> float:
    """How long a publish takes where every call takes all the time that it has, and that one fails; the fifth in a row.

    The coordinator itself keeps to its own limits: it answers a patience late, and works for no longer than it says.
    """
    clock = Clock()

    def ask(method: str, *arguments: Any, more_s: float = 0.0) -> Any:
        clock.sleep(patience + more_s)
        if method == fails:
            raise RuntimeError("away")
        return {
            "next_version": 1,
            "snapshots_in_use": [],
            "begin_publish": SimpleNamespace(name="p", world=2),
            "finish_publish": None,
            "abort_publish": None,
            "rest": None,
        }[method]

    monkeypatch.setattr(publisher, "time", clock)
    monkeypatch.setattr(publisher.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(publisher, "Sender", lambda host, transport, timeout_s: SlowestSender(clock, timeout_s))
    monkeypatch.setattr(publisher, "prune", lambda *_, in_use, **__: in_use())
    monkeypatch.setattr(publisher, "write_snapshot", lambda *_: folder)
    deployment = SimpleNamespace(
        publish=config, state_path=folder, trainer=SimpleNamespace(training=SimpleNamespace(poll_s=poll_s))
    )
    sends = Publisher(deployment, ask, "run", longest_rest_s=patience)  # type: ignore[arg-type]
    sends._failures = 4
    tensors = {"w": torch.ones(2)}
    contents = Contents(tensors, lambda version: build_manifest(version, tensors, bucket_bytes=64))
    began = clock.now
    sends.send(contents, 1, ())
    return clock.now - began


def test_in_any_legal_configuration_the_others_wait_long_enough_for_the_slowest_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, legal, closest = random.Random(12), 0, 0.0
    for _ in range(400):
        limits = {
            f"{name}_timeout_s": draw.choice([0.1, 1.0, 7.0, 60.0, 600.0]) * draw.uniform(0.5, 2.0)
            for name in ("fetch", "prepare", "transfer", "commit", "go_back")
        }
        config, poll_s = PublishConfig(**limits), draw.uniform(0.05, 5.0)
        bound: dict[str, Any] = {
            "collective_timeout_s": config.whole_s * draw.uniform(0.5, 2.0) + draw.uniform(0.0, 50.0),
            "world": draw.choice([2, 4]),
        }
        if why_too_impatient(config, least_patience_s=poll_s, **bound) is not None:
            continue
        legal += 1
        patience = patience_s(config, **bound, least_s=poll_s)
        assert patience == patience_s(config, **bound, least_s=poll_s * 0.999), "the least is never what decides"
        for fails in (*CALLS, "nothing"):
            took = _slowest(monkeypatch, tmp_path, config, patience, poll_s, fails)
            assert took <= bound["collective_timeout_s"] * 1.000001, (limits, poll_s, bound, fails)
            closest = max(closest, took / bound["collective_timeout_s"])
    assert legal > 100 and closest > 0.95, "neither is the bound idle"


def test_a_configuration_in_which_the_others_would_give_up_is_refused_and_names_both_sides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits = {"fetch": 1.0, "prepare": 5.0, "transfer": 6.0, "commit": 5.0, "go_back": 5.0}
    changes: dict[str, Any] = {f"publish__{name}_timeout_s": value for name, value in limits.items()}
    changes |= {"trainer__training__fsdp_size": 2, "trainer__training__poll_s": 2.0}

    def problems(timeout_s: float) -> list[str]:
        file = tiny_deployment(tmp_path, 1, **changes, trainer__training__collective_timeout_s=timeout_s)
        deployment = Deployment.model_validate(file["applications"][0]["args"])
        return [problem for problem in deployment.problems() if "collective_timeout_s" in problem]

    # 1 + 2 * 5 + 2 * 6 + 5, and seven waits of two seconds.
    assert problems(42.0) == []
    (problem,) = problems(41.9)
    assert "trainer.training.collective_timeout_s: 41.9, but a publish may take 42 s" in problem
    for name in ("fetch_timeout_s 1", "prepare_timeout_s 5", "transfer_timeout_s 6", "commit_timeout_s 5", "poll_s 2"):
        assert name in problem, name


def test_alone_rank_0_keeps_nobody_waiting() -> None:
    config = PublishConfig(fetch_timeout_s=9_999.0)
    assert patience_s(config, collective_timeout_s=1.0, world=1, least_s=1.0) == 300.0
    assert why_too_impatient(config, collective_timeout_s=1.0, world=1, least_patience_s=5.0) is None


def test_a_sender_begins_no_bucket_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr("clawrl.weights.broadcast._broadcast", lambda group, data, timeout_s: sent.append(len(data)))
    monkeypatch.setattr("clawrl.weights.broadcast._open_group", lambda *_, **__: object())
    sender = Sender("127.0.0.1", "gloo", 0.2)
    sender.connect("p", 2)
    sender.send(torch.ones(1))
    sender._ends_at -= 0.3
    with pytest.raises(TransferError, match=r"within 0.2 s \(publish.transfer_timeout_s\)"):
        sender.send(torch.ones(2))
    assert sent == [1]
    sender.close()

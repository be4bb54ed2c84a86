"""The real training loop beside a real coordinator, without Ray: for tests that kill both, or leave them idle.

`prepare` makes a state folder whose ledger has turns in the queue. `train` runs the loop there until a step is taken;
a `Killed` process ends itself with SIGKILL the moment that the coordinator has answered a certain call.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from clawrl.actors.coordinator import Coordinator
from clawrl.actors.train_loop import TrainingRun
from clawrl.ledger.config import LedgerConfig
from clawrl.messages import Judgement, JudgeRequest, Lease, Message, TurnState, Verdict
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.opening import open_ledger
from clawrl.training.ranks import Ranks
from tests.live import GUARDS_FOR_RANDOM_WEIGHTS
from tests.office import Office, says_good, turn
from tests.tiny_model import build_tiny_model

BATCH = 2


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``model`` is a folder. ``kill_at`` is a call and the step that it is about; ``stop_after`` is the last step."""

    state: Path
    model: Path
    checkpoint_every: int
    stop_after: int
    kill_at: tuple[str, int] | None = None
    lends_after: Mapping[int, int] | None = None
    """No lease for one of these steps before the checkpoint of the step that stands with it is complete."""
    ranks: int = 1
    collective_timeout_s: float = 600.0

    @property
    def office(self) -> Office:
        return Office(
            self.state,
            policy__model={"source": str(self.model)},
            guards=GUARDS_FOR_RANDOM_WEIGHTS,
            trainer__training__batch_size=BATCH,
            trainer__training__checkpoint_every=self.checkpoint_every,
            trainer__training__fsdp_size=self.ranks,
            trainer__training__poll_s=0.2,
            trainer__training__collective_timeout_s=self.collective_timeout_s,
        )


class Desk:
    """A coordinator on a thread of its own, asked as its actor is."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._coordinator: Coordinator = self._do(_open(plan.office))
        self._lent: dict[str, int] = {}
        self.answered: list[tuple[str, int]] = []

    def ask_now(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        plan, about = self._plan, self._about(method, arguments)
        if method == "lease" and self._lends_later(about):
            time.sleep(0.05)
            return None
        answer = self._do(getattr(self._coordinator, method)(*arguments))
        if isinstance(answer, Lease):
            self._lent[answer.lease_id] = answer.step
        self.answered.append((method, about))
        if (method, about) == plan.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if (method, about) == ("applied", plan.stop_after):
            self._do(self._coordinator.end_training())
        return answer

    def _lends_later(self, step: int) -> bool:
        waits_for = (self._plan.lends_after or {}).get(step)
        return waits_for is not None and ("checkpointed", waits_for) not in self.answered

    def _about(self, method: str, arguments: tuple[Any, ...]) -> int:
        """The step that a call names, or its lease does; 0 for the others."""
        if method in ("confirm", "applied"):
            return self._lent[arguments[0]]
        return int(arguments[1]) if method in ("lease", "checkpointing", "checkpointed") else 0

    def feed(self, turns: int, session: str) -> None:
        self._do(_talk(self._coordinator, turns, session))

    def close(self) -> None:
        self._do(self._coordinator.close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(240)


class NoDesk:
    """What the other ranks have: they never ask."""

    def ask_now(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        raise AssertionError(f"only rank 0 talks to the coordinator, not about {method}")


async def _open(office: Office) -> Coordinator:
    return office.open(_judge)


async def _judge(request: JudgeRequest) -> Judgement:
    good = await says_good(request)
    odd = int(request.turn_id.rpartition("-")[2]) % 3 == 1
    return Judgement(
        turn_id=good.turn_id,
        verdict=Verdict.BAD if odd else Verdict.GOOD,
        score=-1.0 if odd else 1.0,
        votes=(-1,) if odd else (1,),
        judge="fake",
        seconds=0.0,
    )


async def _talk(coordinator: Coordinator, turns: int, session: str) -> None:
    """Turns of a session each, all different, each with a reaction."""
    for number in range(turns):
        name = f"{session}-{number}"
        numbers = np.random.default_rng(list(name.encode()))
        asked = [Message(role="user", content=f"question {name}")]
        served = turn(
            name,
            asked,
            f"answer {name}",
            session=name,
            prompt_ids=numbers.integers(3, 390, 6).astype(np.int32),
            response_ids=numbers.integers(3, 390, 4).astype(np.int32),
            response_logps=np.full(4, -5.0, dtype=np.float32),
        )
        await coordinator.arrive(served.arrival)
        await coordinator.record(served)
        talk = [*asked, Message(role="assistant", content=f"answer {name}"), Message(role="user", content="so")]
        await coordinator.arrive(turn(f"{name}-next-0", talk, "", session=name).arrival)
    async with asyncio.timeout(120):
        while sum(_queued(await coordinator.status())) < turns:
            await asyncio.sleep(0.01)


def _queued(status: dict[str, Any]) -> list[int]:
    return [
        n for state, n in status["turns"]["by_state"].items() if state in ("queued", "leased", "applied", "trained")
    ]


def prepare(plan: Plan, turns: int) -> None:
    build_tiny_model(plan.model)
    desk = Desk(plan)
    desk.feed(turns, "t")
    desk.close()


def train(plan: Plan, while_training: Callable[[Desk], None] | None = None) -> None:
    """Returns when ``stop_after`` is in a checkpoint."""
    desk = Desk(plan)
    run = TrainingRun(plan.office.deployment, desk, Ranks(), torch.device("cpu"))
    if while_training is not None:
        threading.Thread(target=while_training, args=(desk,), daemon=True).start()
    run.run()
    desk.close()


def train_rank(rank: int, plan: Plan, idle_s: float = 0.0) -> None:
    """One of several; rank 0 has the coordinator. After ``idle_s`` without any it is given more turns."""
    dist.init_process_group("gloo", init_method=f"file://{plan.state}/rendezvous", rank=rank, world_size=plan.ranks)
    desk = Desk(plan) if rank == 0 else NoDesk()
    run = TrainingRun(plan.office.deployment, desk, Ranks(rank, plan.ranks), torch.device("cpu"))
    if isinstance(desk, Desk) and idle_s:
        threading.Timer(idle_s, desk.feed, (BATCH * plan.stop_after, "late")).start()
    run.run()
    if isinstance(desk, Desk):
        desk.close()
    dist.destroy_process_group()


def forks() -> ForkServerContext:
    """Processes that have torch and our modules already, but no thread and no state of the tests'."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training_kit"])
    return context


def copy_state(state: Path, target: Path) -> None:
    """A state folder with its keys, which lie beside it."""
    privacy = PrivacyConfig()
    shutil.copytree(state, target)
    shutil.copytree(privacy.keys_path(state), privacy.keys_path(target))


def trained(state: Path) -> dict[int, list[str]]:
    """Which turns each step learned from, all of them in a checkpoint."""
    with open_ledger(state, LedgerConfig(), PrivacyConfig()) as ledger:
        rows = ledger.turns(1000, state=TurnState.TRAINED)
        assert ledger.counts().adds_up and len(rows) == sum(
            ledger.counts().by_state.get(s, 0) for s in (TurnState.TRAINED, TurnState.APPLIED, TurnState.LEASED)
        )
    steps: dict[int, list[str]] = {}
    for row in sorted(rows, key=lambda row: row.seq):
        assert row.step is not None
        steps.setdefault(row.step, []).append(row.turn_id)
    return steps


def versions(state: Path) -> list[int]:
    """In the order in which they were published."""
    with open_ledger(state, LedgerConfig(), PrivacyConfig()) as ledger:
        return [v.version for v in sorted(ledger.versions(), key=lambda v: v.published_at)]


def final_state(state: Path, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """What the newest checkpoint holds of one rank."""
    newest = max(path for path in (state / "checkpoints").iterdir() if (path / "checkpoint.json").exists())
    loaded: dict[str, Any] = torch.load(newest / f"rank-{rank}-of-{world}.pt", weights_only=True)
    return loaded

"""Finds the victim of a fault among the running processes and kills it, the way that its kind asks for.

Killing is SIGKILL by process id, without a word to anyone. A rank that sleeps is stopped, as a machine that swaps would
stop it, until the others have given it up; then it wakes up and finds itself replaced, or is gone already.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable

import httpx
import psutil

from tests.chaos.history import run_starts
from tests.chaos.notes import DeathNote
from tests.chaos.plan import STOPS_TRAINING, Fault, Kind
from tests.chaos.rig import RANKS, REPLICAS, Rig
from tests.chaos.watch import Watch

TITLES = {
    Kind.COORDINATOR: "ray::CoordinatorActor",
    Kind.DRIVER: "ray::TrainerDriver",
    Kind.RANK: "ray::RayTrainWorker",
    Kind.SLEEPING_RANK: "ray::RayTrainWorker",
    Kind.REPLICA: "ray::ServeReplica:clawrl:Rollout",
    Kind.MID_BROADCAST: "ray::ServeReplica:clawrl:Rollout",
    Kind.JUDGE: "ray::ServeReplica:clawrl:Judge",
}
_VICTIM_WITHIN_S = 60.0
_PUBLISH_WITHIN_S = 60.0
_TRAINING_WITHIN_S = 120.0
_SNAPSHOT_WITHIN_S, _JOINS_WITHIN_S = 5.0, 3.0
_LOOK_S, _WAIT_S = 0.005, 0.3
_WAKES_AFTER_S = 2.0


class NoVictim(Exception):
    """The fault cannot be done now; the text says why."""


class Faults:
    def __init__(self, rig: Rig, seed: int, watch: Watch) -> None:
        self._rig = rig
        self._draw = random.Random(seed)
        self._watch = watch
        self._state = rig.home / "tiny"
        self._ids: dict[int, str] = {}
        self._asleep: dict[int, float] = {}
        self.deaths: list[DeathNote] = []

    # -- what is alive ------------------------------------------------------------------------------

    def serving(self) -> bool:
        """Both replicas have joined and hold the current version, and a request would be answered and judged."""
        return self._rig.ready() and self._replicas_are_whole()

    @property
    def asleep(self) -> bool:
        return bool(self._asleep)

    def wake_those_given_up(self) -> None:
        """A stopped rank wakes up when a run without it has begun, and is killed if it goes on all the same."""
        for pid, slept_at in list(self._asleep.items()):
            if any(start > slept_at for start in run_starts(self._state)):
                _signal(pid, signal.SIGCONT)
                time.sleep(_WAKES_AFTER_S)
                _signal(pid, signal.SIGKILL)
                del self._asleep[pid]

    def end_sleep(self) -> int:
        """Kills ranks that nobody gave up; returns how many there were."""
        for pid in self._asleep:
            _signal(pid, signal.SIGKILL)
        count = len(self._asleep)
        self._asleep.clear()
        return count

    def _replicas_are_whole(self) -> bool:
        try:
            status = self._rig.status()
        except (httpx.HTTPError, ValueError):
            return False
        dead = {pid for death in self.deaths for pid in death.pids}
        alive = [r for r in status["replicas"] if "pid" in r and r["pid"] not in dead and psutil.pid_exists(r["pid"])]
        self._ids.update((int(replica["pid"]), str(replica["replica"])) for replica in alive)
        return len(alive) == REPLICAS and all(replica["version"] == status["version"] for replica in alive)

    def _pids(self, kind: Kind) -> list[int]:
        return sorted(pid for pid in self._rig.pids(TITLES[kind]) if pid not in self._asleep)

    # -- killing ------------------------------------------------------------------------------------

    def do(self, fault: Fault) -> DeathNote:
        """Raises `NoVictim`. The note is in ``deaths`` and its recovery is being watched when this returns."""
        match fault.kind:
            case Kind.NODE:
                death = self._lose_node(fault)
            case Kind.SLEEPING_RANK:
                death = self._put_to_sleep(fault)
            case Kind.MID_BROADCAST:
                death = self._kill_in_broadcast(fault)
            case _:
                death = self._kill(fault, self._victim(fault.kind))
        self._watch.expect(death, self._is_back(death))
        return death

    def _victim(self, kind: Kind) -> int:
        """One of them, when there are as many as there should be."""
        wanted = RANKS if kind in (Kind.RANK, Kind.SLEEPING_RANK) else 1
        deadline = time.monotonic() + _VICTIM_WITHIN_S
        while len(pids := self._pids(kind)) < wanted:
            if time.monotonic() > deadline:
                raise NoVictim(f"{len(pids)} of kind {kind} in {_VICTIM_WITHIN_S:g} s")
            time.sleep(_WAIT_S)
        return self._draw.choice(pids)

    def _kill(self, fault: Fault, *pids: int, detail: str = "") -> DeathNote:
        death = self._note(fault, pids, detail)
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        return death

    def _note(self, fault: Fault, pids: tuple[int, ...], detail: str = "") -> DeathNote:
        replicas = tuple(self._ids.get(pid, f"pid {pid}") for pid in pids if pid in self._pids(Kind.REPLICA))
        death = DeathNote(
            number=fault.number, kind=fault.kind, at=time.time(), pids=pids, replicas=replicas, detail=detail
        )
        self.deaths.append(death)
        return death

    def _put_to_sleep(self, fault: Fault) -> DeathNote:
        self._wait_until_training()
        pid = self._victim(fault.kind)
        death = self._note(fault, (pid,))
        _signal(pid, signal.SIGSTOP)
        self._asleep[pid] = death.at
        return death

    def _wait_until_training(self) -> None:
        """A rank that sleeps before its run has begun holds up Ray Train's start, which has no time limit."""
        stopped_at = max((death.at for death in self.deaths if death.kind in STOPS_TRAINING), default=0.0)
        deadline = time.monotonic() + _TRAINING_WITHIN_S
        while not any(start > stopped_at for start in run_starts(self._state)):
            if time.monotonic() > deadline:
                raise NoVictim(f"no training run began in {_TRAINING_WITHIN_S:g} s")
            time.sleep(_WAIT_S)

    def _lose_node(self, fault: Fault) -> DeathNote:
        death = self._note(fault, tuple(self._rig.worker_pids()))
        self._rig.lose_node()
        for pid in death.pids:
            self._asleep.pop(pid, None)
        self._rig.add_node()
        return death

    def _kill_in_broadcast(self, fault: Fault) -> DeathNote:
        """Stops the sender when the victim has joined it, so that the broadcast cannot be over before the kill."""
        deadline = time.monotonic() + _PUBLISH_WITHIN_S
        while time.monotonic() < deadline:
            # Looked up before it begins, since it takes longer to find them than to publish.
            ranks, replicas = self._pids(Kind.RANK), self._pids(Kind.REPLICA)
            if len(ranks) < RANKS or len(replicas) < REPLICAS:
                time.sleep(_WAIT_S)
            elif self._next_snapshot() and (joined := self._first_to_join(ranks, replicas)) is not None:
                sender, victim = joined
                death = self._kill(fault, victim)
                _signal(sender, signal.SIGCONT)
                return death
        raise NoVictim(f"nothing was published within {_PUBLISH_WITHIN_S:g} s")

    def _next_snapshot(self) -> bool:
        """A version is written to disk right before the replicas are told of it. False when none comes for a while."""
        deadline = time.monotonic() + _SNAPSHOT_WITHIN_S
        folder = self._state / "snapshots"
        known = set(os.listdir(folder)) if folder.exists() else set()
        while time.monotonic() < deadline:
            if folder.exists() and set(os.listdir(folder)) - known:
                return True
            time.sleep(_LOOK_S)
        return False

    def _first_to_join(self, ranks: list[int], replicas: list[int]) -> tuple[int, int] | None:
        """The sender, stopped, and a replica that is connected to it."""
        until = time.monotonic() + _JOINS_WITHIN_S
        while time.monotonic() < until:
            for rank in ranks:
                if (replica := _connected_to(rank, replicas)) is not None:
                    _signal(rank, signal.SIGSTOP)
                    return rank, replica
        return None

    # -- recoveries ---------------------------------------------------------------------------------

    def _is_back(self, death: DeathNote) -> Callable[[], bool]:
        match death.kind:
            case Kind.COORDINATOR | Kind.JUDGE:
                return lambda: bool(set(self._pids(death.kind)) - set(death.pids)) and self._rig.ready()
            case Kind.REPLICA | Kind.MID_BROADCAST:
                return self._replicas_are_whole
            case _:
                return lambda: any(start > death.at for start in run_starts(self._state))


def _connected_to(sender: int, candidates: list[int]) -> int | None:
    """The candidate with a connection to a port that the sender listens on."""
    with contextlib.suppress(psutil.Error):
        mine = psutil.Process(sender).net_connections("tcp")
        listening = {c.laddr.port for c in mine if c.status == psutil.CONN_LISTEN}
        coming = {
            c.raddr.port for c in mine if c.status == psutil.CONN_ESTABLISHED and c.laddr.port in listening and c.raddr
        }
        for candidate in candidates if coming else ():
            theirs = psutil.Process(candidate).net_connections("tcp")
            if any(c.raddr and c.laddr.port in coming and c.raddr.port in listening for c in theirs):
                return candidate
    return None


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

"""One chaos run: start, traffic, the plan fault by fault, a quiet end, the audit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.chaos.audit import audit
from tests.chaos.faults import Faults, NoVictim
from tests.chaos.history import History, read_history
from tests.chaos.notes import DeathNote, RequestNote
from tests.chaos.plan import STOPS_TRAINING, TAKES_A_REPLICA, Fault
from tests.chaos.reaper import end_family
from tests.chaos.rig import BATCH_SIZE, LONGEST_PUBLISH_S, Rig
from tests.chaos.traffic import Users
from tests.chaos.watch import Recovery, Watch

log = logging.getLogger(__name__)
_USERS, _PAUSE_S = 4, 1.0
_LOOK_S = 0.3
# The next fault does not wait for longer than this for the graph to serve; one that takes a replica needs another.
_SERVING_CAP_S, _WHOLE_CAP_S = 20.0, 90.0
_SLEEP_CAP_S = 120.0
_START_S, _SETTLE_S, _DRAIN_S = 180.0, 150.0, 120.0
_FLOOR_GRACE_S = LONGEST_PUBLISH_S + 5.0


class NotLearning(Exception):
    """The graph does not do what it should before anything was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    seed: int
    planned: int
    seconds: float
    deaths: Sequence[DeathNote]
    skipped: Sequence[str]
    recoveries: Sequence[Recovery]
    notes: Sequence[RequestNote]
    history: History
    complaints: Sequence[str]


def run_chaos(model: Path, plan: Sequence[Fault], seed: int, *, within_s: float, keep: Path | None) -> Result:
    """No fault comes later than ``within_s`` after the first could. ``keep`` is where logs and ledger are copied to."""
    began = time.monotonic()
    rig, watch = Rig(model), Watch()
    faults = Faults(rig, seed, watch)
    skipped: list[str] = []
    complaints: list[str] = []
    try:
        rig.start()
        log.info("serving after %.0f s", time.monotonic() - began)
        with Users(rig.url, count=_USERS, pause_s=_PAUSE_S) as users:
            if not _until(lambda: _published_since(rig, 0.0), _START_S):
                raise NotLearning(f"nothing was published within {_START_S:g} s of the start")
            log.info("learning after %.0f s", time.monotonic() - began)
            first = time.monotonic()
            for fault in plan:
                if time.monotonic() - first > within_s:
                    skipped.append(f"{fault.number} and later: {within_s:g} s are over")
                    break
                _wait_for_turn(fault, faults, watch)
                try:
                    death = faults.do(fault)
                    log.info("%3d/%d %s %s", fault.number, len(plan), fault.kind, death.pids[:3])
                except NoVictim as why:
                    skipped.append(f"{fault.number} {fault.kind}: {why}")
                    log.warning("%3d/%d skipped: %s", fault.number, len(plan), why)
            complaints += _settle(rig, faults, watch, users)
        complaints += _drain(rig)
        left = rig.stop()
        complaints += [f"left behind: {name}" for name in [*rig.left, *map(str, left)]]
        history = read_history(rig.home / "tiny")
        notes = users.notes
    finally:
        end_family(rig.folder)
        if keep is not None:
            rig.keep(keep)
        rig.remove()
    complaints += audit(history, notes, faults.deaths, batch_size=BATCH_SIZE, floor_grace_s=_FLOOR_GRACE_S)
    return Result(
        seed=seed,
        planned=len(plan),
        seconds=time.monotonic() - began,
        deaths=faults.deaths,
        skipped=skipped,
        recoveries=watch.recovered,
        notes=notes,
        history=history,
        complaints=complaints,
    )


def _wait_for_turn(fault: Fault, faults: Faults, watch: Watch) -> None:
    """Until the graph serves again, for as long as this fault needs it to; sooner for one that comes at once."""

    def look() -> None:
        watch.look()
        faults.wake_those_given_up()

    if fault.kind in STOPS_TRAINING:
        # Whatever else stopped the run would hide that the sleeper alone does.
        _until(lambda: not faults.asleep, _SLEEP_CAP_S, look)
    if fault.kind in TAKES_A_REPLICA:
        _until(faults.serving, _WHOLE_CAP_S, look)
    elif not fault.at_once:
        _until(faults.serving, _SERVING_CAP_S, look)
    time.sleep(fault.rest_s)


def _settle(rig: Rig, faults: Faults, watch: Watch, users: Users) -> list[str]:
    """Everything comes back, and learning and serving go on."""

    def look() -> None:
        watch.look()
        faults.wake_those_given_up()

    wrong = []
    _until(lambda: not watch.waiting and not faults.asleep, _SETTLE_S, look)
    wrong += [f"{death.kind} number {death.number} did not come back" for death in watch.waiting]
    if faults.end_sleep():
        wrong.append("a rank slept on and was never given up")
    now = time.time()
    if not _until(lambda: _published_since(rig, now), _SETTLE_S):
        wrong.append(f"nothing was published in {_SETTLE_S:g} s after the last fault")
    if not _until(lambda: users.answered_since(now) > _USERS, 30.0):
        wrong.append("hardly anything was answered after the last fault")
    if not _until(faults.serving, 60.0):
        wrong.append("the graph did not get whole again")
    return wrong


def _published_since(rig: Rig, moment: float) -> bool:
    try:
        return any(v["published_at"] > moment and v["step"] for v in rig.status()["versions"][:1])
    except (httpx.HTTPError, ValueError):
        return False


def _drain(rig: Rig) -> list[str]:
    """No more requests come: what is judged or lent is seen through."""

    def is_drained() -> bool:
        try:
            status = rig.status()
        except (httpx.HTTPError, ValueError):
            return False
        states = status["turns"]["by_state"]
        under_way = sum(states.get(state, 0) for state in ("served", "judging", "judged", "leased"))
        return under_way == 0 and states.get("queued", 0) < BATCH_SIZE and status["unrecorded"] == 0

    return [] if _until(is_drained, _DRAIN_S) else [f"not drained: {rig.status()['turns']}"]


def _until(condition: Callable[[], bool], limit_s: float, meanwhile: Callable[[], None] = lambda: None) -> bool:
    deadline = time.monotonic() + limit_s
    while True:
        meanwhile()
        if condition():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)

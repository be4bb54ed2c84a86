"""The replicas that hold the policy, as the coordinator knows them.

Replicas speak first: each keeps one `poll` open and gets its next command as the answer; the outcome
comes back through `report`. So a command never queues behind generation, a replica that died simply
stops asking, and after a restart of the coordinator the polls themselves rebuild this table.

A replica is in service from its `Admit` on and says so in each poll. The `floor` is the newest version such that none
in service holds an older one; it never falls.

One that has said goodbye stays gone: the number of a replica is never used again, so that a poll of it that comes after
that is an old one on its way. (A coordinator that restarted does not know who left; those who left do not ask it.)

Plain asyncio, one event loop. A command is answered once or times out; a late report is ignored.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clawrl.messages import PolicyVersion, WeightManifest
from clawrl.weights.sources import WeightSource

# More replicas than can have a poll on its way.
_REMEMBERED = 1000


COPYING = "copying"
"""In the figures of an outcome: the snapshot is still on its way; ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Have the snapshot of this version at hand, if the engine will read it. ``read_by_all``: it is the transport."""

    version: int
    snapshot: str
    read_by_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """``snapshot`` is the folder where the version lies on disk."""

    manifest: WeightManifest
    snapshot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    source: WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """Load this version from its snapshot; sent to a replica that is behind and in no publish."""

    version: PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """The replica holds the current version and is in every publish from now on: it may serve."""


Command = Fetch | Prepare | Receive | Commit | Abort | CatchUp | Admit


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command with the number under which its outcome is reported."""

    number: int
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    ok: bool
    detail: str = ""
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Member:
    version: int
    seen_at: float
    stats: Mapping[str, Any]
    inbox: asyncio.Queue[Order] = field(default_factory=asyncio.Queue)
    executing: int | None = None
    serving: bool = False
    calls: set[int] = field(default_factory=set)


class Members:
    """``expires_s`` after its last sign of life a replica is forgotten."""

    def __init__(self, *, expires_s: float = 15.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._members: dict[str, _Member] = {}
        self._left: dict[str, None] = {}
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._numbers = itertools.count(int(time.time() * 1000))
        self._expires_s = expires_s
        self._clock = clock
        self._floor = 0

    async def poll(self, replica: str, version: int, stats: Mapping[str, Any], *, timeout_s: float) -> Order | None:
        """The next command for ``replica``, or ``None`` when there is none within ``timeout_s``."""
        if replica in self._left:
            await asyncio.sleep(timeout_s)
            return None
        member = self._members.get(replica)
        if member is None:
            member = self._members[replica] = _Member(version=version, seen_at=self._clock(), stats=stats)
        member.version, member.seen_at, member.stats = version, self._clock(), stats
        member.serving = member.serving or bool(stats.get("serving"))
        # Who asks for work has none, whatever became of the last order.
        member.executing = None
        try:
            async with asyncio.timeout(timeout_s):
                order = await member.inbox.get()
        except TimeoutError:
            return None
        finally:
            member.seen_at = self._clock()
        member.executing = order.number
        return order

    def report(self, replica: str, number: int, version: int, outcome: Outcome) -> None:
        member = self._members.get(replica)
        if member is not None:
            member.version, member.seen_at = version, self._clock()
            if member.executing == number:
                member.executing = None
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    def admitted(self, replica: str) -> None:
        """From here on the floor counts it, since from here on it answers."""
        if (member := self._members.get(replica)) is not None:
            member.serving = True

    def joining(self, version: int | None) -> list[str]:
        """Replicas that hold ``version`` (any, if there is none yet), are not in service and do nothing else now."""
        found = ((replica, self._members[replica]) for replica in self.alive())
        return [
            replica
            for replica, member in found
            if not (member.serving or member.calls or member.executing) and version in (None, member.version)
        ]

    def floor(self) -> int:
        held = [self._members[r].version for r in self.alive() if self._members[r].serving]
        self._floor = max(self._floor, min(held, default=0))
        return self._floor

    async def call(self, replica: str, command: Command, *, timeout_s: float, remedy: str = "") -> Outcome:
        """Send a command and wait for its outcome. A replica that does not answer in time counts as failed.

        ``remedy`` is what to do then.
        """
        member = self._members.get(replica)
        if member is None:
            return Outcome(ok=False, detail=f"replica {replica} is gone")
        order = Order(number=next(self._numbers), command=command)
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[order.number] = outcome
        member.calls.add(order.number)
        member.inbox.put_nowait(order)
        try:
            async with asyncio.timeout(timeout_s):
                return await outcome
        except TimeoutError:
            name = type(command).__name__
            return Outcome(ok=False, detail=f"replica {replica} did not answer {name} in {timeout_s} s{remedy}")
        finally:
            self._waiting.pop(order.number, None)
            member.calls.discard(order.number)

    def leave(self, replica: str) -> None:
        """A replica says goodbye, for good: whoever waits for it need not."""
        self._left[replica] = None
        while len(self._left) > _REMEMBERED:
            del self._left[next(iter(self._left))]
        member = self._members.pop(replica, None)
        for number in member.calls if member else ():
            waiting = self._waiting.pop(number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(Outcome(ok=False, detail=f"replica {replica} has left"))

    def forget(self, replica: str) -> None:
        """Drop a replica that failed a call; if it lives after all, its next poll brings it back."""
        self._members.pop(replica, None)

    def alive(self) -> list[str]:
        """Replicas that polled recently or are executing a command; the silent ones are forgotten here."""
        now = self._clock()
        for replica, member in list(self._members.items()):
            grace = 10 * self._expires_s if member.executing is not None else self._expires_s
            # Whoever is waited for has a time limit already, and must not vanish before it.
            if not member.calls and now - member.seen_at > grace:
                del self._members[replica]
        return sorted(self._members)

    def behind(self, version: int) -> list[str]:
        """Idle replicas that hold another version than ``version``."""
        return [r for r in self.alive() if self._members[r].version != version and self._members[r].executing is None]

    def ranks(self, replica: str) -> int:
        """How many members of a broadcast the replica is: those of its engine."""
        member = self._members.get(replica)
        return int(member.stats.get("ranks", 1)) if member else 1

    def busy(self) -> bool:
        """Whether any replica is writing an answer, or has a request waiting, as far as its last poll tells."""
        stats = [self._members[replica].stats for replica in self.alive()]
        return any(one.get("running") or one.get("waiting") for one in stats)

    def describe(self) -> list[dict[str, Any]]:
        return [{"replica": r, "version": self._members[r].version, **self._members[r].stats} for r in self.alive()]

"""The publish transaction, as the coordinator runs it.

``begin`` sees to it that every replica which reads snapshots has this one on its machine (for up to
``fetch_timeout_s``, while it says that it copies), then asks all to prepare and leaves out those that do not answer;
``finish`` waits for the rest (the check of the digest is a replica's vote), writes the decision down if anyone has
every byte, and only then lets those commit. Without one vote in favour the publish aborts: replicas forget what they
staged, the old version serves, the next publish starts clean. After the decision the version stands: a replica that
misses the commit catches up from the snapshot. A coordinator that restarts between the two knows only decisions, so
an undecided publish is simply gone and its trainer is told so.

Publishes are one at a time; a new ``begin`` aborts an open one (its trainer died).

A replica that comes is admitted, and serves, once it holds the current version and no publish is under way without it:
admitted between the two it would serve an old version as soon as that one is decided. One that says goodbye, because it
drains, is neither waited for nor counted; its requests end under the version that it holds.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from clawrl.messages import PolicyVersion, WeightKind, WeightManifest
from clawrl.tasks import spawn
from clawrl.weights.config import PublishConfig
from clawrl.weights.members import (
    COPYING,
    Abort,
    Admit,
    CatchUp,
    Commit,
    Fetch,
    Members,
    Outcome,
    Prepare,
    Receive,
)
from clawrl.weights.sources import Broadcast, OnDisk, Rendezvous, WeightSource

log = logging.getLogger(__name__)
# A trainer that has sent everything asks at once for the decision.
_WORD_S = 10.0
_LOOK_S = 0.5
_PREPARE = " (publish.prepare_timeout_s: raise it if the replica is well and only slow)"


class PublishFailed(RuntimeError):
    """This publish did not happen; the version before it is still the current one."""


@dataclass(slots=True)
class _Open:
    publish_id: str
    manifest: WeightManifest
    step: int
    snapshot: str
    replicas: list[str]
    began_at: float
    receiving: dict[str, asyncio.Task[Outcome]] = field(default_factory=dict)
    received_at: float = 0.0
    finishing: bool = False


class Publishing:
    """``decide`` stores a version durably and returns when it is on disk."""

    def __init__(
        self, members: Members, config: PublishConfig, decide: Callable[[PolicyVersion], Awaitable[None]]
    ) -> None:
        self._members = members
        self._config = config
        self._decide = decide
        self._open: _Open | None = None
        self._committing: _Open | None = None
        self._decided = 0
        # Replicas that were told to catch up, or that they may serve, and have not answered yet.
        self._catching_up: set[str] = set()
        self._admitting: set[str] = set()

    @property
    def busy(self) -> bool:
        return self._open is not None or self._committing is not None

    async def begin(self, manifest: WeightManifest, step: int, snapshot: str, host: str, port: int) -> Rendezvous:
        """Start publishing. The answer says under which name and with how many the sender meets."""
        if self._open is not None:
            await self.abort(self._open.publish_id, "a newer publish began")
        # Set before the first await: replicas must not be told to catch up from here on.
        self._open = current = _Open(
            publish_id=uuid.uuid4().hex,
            manifest=manifest,
            step=step,
            snapshot=snapshot,
            replicas=self._members.alive(),
            began_at=time.time(),
        )
        refused = self._narrow(current, await self._fetched(current))
        offer = Prepare(manifest=manifest, snapshot=snapshot)
        answers = await self._ask_all(current.replicas, offer, self._config.prepare_timeout_s)
        refused += self._narrow(current, answers)
        if refused and not current.replicas:
            # A version that nobody can take must not become the one that everybody has to have.
            await self.abort(current.publish_id, "; ".join(refused))
            raise PublishFailed(f"version {manifest.version}: no replica can take it: {'; '.join(refused)}")
        if refused:
            log.warning(
                "publish of version %d goes on without %d replicas: %s", manifest.version, len(refused), refused
            )
        meeting, sources = self._sources(current, host, port)
        current.receiving = {
            replica: asyncio.create_task(
                self._members.call(
                    replica,
                    Receive(source=source),
                    timeout_s=self._config.receive_timeout_s,
                )
            )
            for replica, source in zip(current.replicas, sources, strict=True)
        }
        return meeting

    def _narrow(self, current: _Open, answers: Mapping[str, Outcome]) -> list[str]:
        """Leave out those who refused or did not answer, and say why. Raises `PublishFailed` if it was aborted."""
        if self._open is not current:
            raise PublishFailed("a newer publish began")
        for replica, outcome in answers.items():
            if not outcome.ok:
                self._members.forget(replica)
        current.replicas = [replica for replica, outcome in answers.items() if outcome.ok]
        return [outcome.detail for outcome in answers.values() if not outcome.ok]

    async def _fetched(self, current: _Open) -> dict[str, Outcome]:
        """Of each replica, whether it has the snapshot at hand, or needs none."""
        config, manifest = self._config, current.manifest
        by_all = config.transport_of(manifest.kind) == "disk"
        wanted = Fetch(version=manifest.version, snapshot=current.snapshot, read_by_all=by_all)
        deadline = time.monotonic() + config.fetch_timeout_s

        async def fetched(replica: str) -> Outcome:
            while self._open is current:
                outcome = await self._members.call(replica, wanted, timeout_s=config.prepare_timeout_s, remedy=_PREPARE)
                if not outcome.ok or not outcome.stats.get(COPYING):
                    return outcome
                if time.monotonic() > deadline:
                    return Outcome(ok=False, detail=f"replica {replica} {_fetch_remedy(wanted, config)}")
            return Outcome(ok=False, detail="a newer publish began")

        asked: dict[str, asyncio.Task[Outcome]] = {}
        try:
            while self._open is current:
                # Copies take minutes, and who comes meanwhile is in this publish, too: it must not wait for its end.
                for replica in self._members.alive():
                    if replica not in asked:
                        asked[replica] = asyncio.create_task(fetched(replica))
                current.replicas = list(asked)
                if not (missing := [task for task in asked.values() if not task.done()]):
                    break
                await asyncio.wait(missing, timeout=_LOOK_S)
            return {replica: await task for replica, task in asked.items()}
        finally:
            for task in asked.values():
                task.cancel()

    def _sources(self, current: _Open, host: str, port: int) -> tuple[Rendezvous, list[WeightSource]]:
        """The meeting, and where each replica gets the bytes; with snapshots from disk the trainer meets nobody."""
        first_ranks, world = [], 1
        kind = current.manifest.kind
        transport = self._config.transport_of(kind)
        if transport != "disk":
            for replica in current.replicas:
                first_ranks.append(world)
                # Adapters go to the replica itself, which hands them to its engine.
                world += self._members.ranks(replica) if kind is WeightKind.FULL else 1
        meeting = Rendezvous(
            host=host,
            port=port,
            name=current.publish_id,
            world=world,
            transport=transport,
            timeout_s=self._config.transfer_timeout_s,
        )
        if transport == "disk":
            return meeting, [OnDisk(folder=current.snapshot) for _ in current.replicas]
        return meeting, [Broadcast(meeting=meeting, rank=rank) for rank in first_ranks]

    async def finish(self, publish_id: str) -> PolicyVersion:
        """Decide and commit. Raises `PublishFailed` when there were replicas and none got everything."""
        current = self._current(publish_id)
        current.finishing = True
        votes = await asyncio.gather(*current.receiving.values())
        failed = [vote.detail for vote in votes if not vote.ok]
        for replica, vote in zip(current.replicas, votes, strict=True):
            if not vote.ok:
                self._members.forget(replica)
        if failed and len(failed) == len(votes):
            await self.abort(publish_id, "; ".join(failed))
            raise PublishFailed(f"version {current.manifest.version}: {'; '.join(failed)}")
        if failed:
            # They hold what they held, and catch up from the snapshot.
            log.warning("version %d is published without some replicas: %s", current.manifest.version, failed)
            current.replicas = [r for r, vote in zip(current.replicas, votes, strict=True) if vote.ok]
        # A publish that was aborted while its votes came in must not be decided.
        current = self._current(publish_id)
        self._committing, self._open = current, None
        try:
            return await self._commit(current)
        finally:
            self._committing = None

    async def abort(self, publish_id: str, reason: str) -> None:
        """Forget an undecided publish. Unknown ones are forgotten already."""
        current = self._open
        if current is None or current.publish_id != publish_id:
            return
        self._open = None
        log.warning("publish of version %d aborted: %s", current.manifest.version, reason)
        for task in current.receiving.values():
            task.cancel()
        await asyncio.gather(*current.receiving.values(), return_exceptions=True)
        # Not awaited: a replica stuck in a dead transfer answers only after the transfer's own timeout,
        # and its next `prepare` drops whatever it staged anyway.
        for replica in current.replicas:
            spawn(self._members.call(replica, Abort(version=current.manifest.version), timeout_s=5.0))

    async def abort_open(self, reason: str) -> None:
        """Forget whatever is undecided: its trainer is gone."""
        if self._open is not None:
            await self.abort(self._open.publish_id, reason)

    async def catch_up(self, current: PolicyVersion | None) -> None:
        """Admit replicas that hold the current version; between publishes, send its snapshot to idle ones that do not.

        Does not wait for them: a slow replica must not keep the others old.
        """
        if self._open is not None and (why := self._is_abandoned(self._open)) is not None:
            await self.abort_open(why)
        self._admit(current)
        if self.busy or current is None:
            return
        for replica in self._members.behind(current.version):
            if replica not in self._catching_up:
                self._catching_up.add(replica)
                task = spawn(
                    self._members.call(replica, CatchUp(version=current), timeout_s=self._config.transfer_timeout_s)
                )
                task.add_done_callback(functools.partial(self._caught_up, replica))

    def _caught_up(self, replica: str, task: asyncio.Task[Outcome]) -> None:
        self._catching_up.discard(replica)

    def _admit(self, current: PolicyVersion | None) -> None:
        if current is not None and current.version < self._decided:
            # What the caller read is out of date already.
            return
        for replica in self._members.joining(None if current is None else current.version):
            if replica not in self._admitting and self._is_in(replica):
                self._admitting.add(replica)
                self._members.admitted(replica)
                task = spawn(self._members.call(replica, Admit(), timeout_s=self._config.prepare_timeout_s))
                task.add_done_callback(functools.partial(self._was_admitted, replica))

    def _was_admitted(self, replica: str, task: asyncio.Task[Outcome]) -> None:
        self._admitting.discard(replica)
        if task.cancelled() or not task.result().ok:
            # It may not have heard: it is told again.
            self._members.forget(replica)

    def _is_in(self, replica: str) -> bool:
        """Whether the publish under way, if there is one, will bring this replica the new version."""
        current = self._open or self._committing
        if current is None:
            return True
        vote = current.receiving.get(replica)
        failed = vote is not None and vote.done() and (vote.cancelled() or not vote.result().ok)
        return replica in current.replicas and not failed

    def _is_abandoned(self, current: _Open) -> str | None:
        """Why nobody will finish it: no publish whose trainer lives is open for longer. Requests may be held for it."""
        now = time.time()
        if current.receiving and all(task.done() for task in current.receiving.values()):
            current.received_at = current.received_at or now
            if not current.finishing and now - current.received_at > _WORD_S:
                return "every replica has it, and its trainer is silent"
        config = self._config
        longest_s = config.begin_s + 2 * config.receive_timeout_s
        return "its trainer is silent" if now - current.began_at > longest_s else None

    async def _commit(self, current: _Open) -> PolicyVersion:
        began = time.time()
        version = PolicyVersion(
            version=current.manifest.version,
            step=current.step,
            snapshot=current.snapshot,
            digest=current.manifest.digest,
            published_at=began,
            stats={"replicas": len(current.replicas), "transfer_s": round(began - current.began_at, 4)},
        )
        await self._decide(version)
        self._decided = version.version
        answers = await self._ask_all(current.replicas, Commit(version=version.version), self._config.commit_timeout_s)
        committed = [outcome.stats for outcome in answers.values() if outcome.ok]
        holds = [stats["hold_ms"] for stats in committed]
        stats = {
            **version.stats,
            "publish_s": round(time.time() - current.began_at, 4),
            "hold_ms": max(holds, default=0.0),
            "committed": len(holds),
            "carried": sum(stats.get("carried", 0) for stats in committed),
            "bytes": current.manifest.size,
        }
        return replace(version, stats=stats)

    async def _ask_all(self, replicas: list[str], command: Prepare | Commit, timeout_s: float) -> dict[str, Outcome]:
        remedy = _PREPARE if isinstance(command, Prepare) else ""
        outcomes = await asyncio.gather(
            *(self._members.call(replica, command, timeout_s=timeout_s, remedy=remedy) for replica in replicas)
        )
        return dict(zip(replicas, outcomes, strict=True))

    def _current(self, publish_id: str) -> _Open:
        if self._open is None or self._open.publish_id != publish_id:
            raise PublishFailed("this publish is not open any more: it was aborted, or the coordinator restarted")
        return self._open


def _fetch_remedy(wanted: Fetch, config: PublishConfig) -> str:
    return (
        f"has not copied the snapshot of version {wanted.version} within {config.fetch_timeout_s:g} s "
        "(publish.fetch_timeout_s): raise it, put state_dir on a file system that the replica's machine shares, or "
        "give the two machines a faster network"
    )

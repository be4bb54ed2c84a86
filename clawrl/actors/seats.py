"""The seats of trainer ranks: those that nobody sits on and nobody frees, and those of a start that hangs.

Ray Train reserves a placement group for its ranks. When the controller fails while the ranks are starting, because a
node is lost, say, the group stays: Ray frees it only at the end of the job, which is the end of the deployment, and Ray
Train's own cleaner has not heard of it yet. Where there are no other seats the next controller would wait for ever.

A controller also waits without limit for ranks that are starting. Where one of them sleeps, as on a machine that swaps,
nothing would ever end that start; taking the seats away kills the ranks, and Ray Train starts others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import ray
from ray._private.state import state
from ray.core.generated.gcs_pb2 import PlacementGroupTableData
from ray.util.placement_group import PlacementGroup, remove_placement_group


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A placement group as the cluster knows it. ``job`` is hexadecimal; one that is not taken waits for resources."""

    group_id: bytes
    job: str
    bundles: tuple[Mapping[str, float], ...]
    is_detached: bool
    is_removed: bool
    is_taken: bool
    made_by_actor: bool
    maker_is_dead: bool


class SeatWatch:
    """Of the groups of ``ranks`` times ``resources``, frees the orphaned, and those whose run does not begin in time.

    ``starts_within_s`` counts from when the ranks were seen to have their seats until `note_begun`. For one thread;
    `note_begun` may come from another.
    """

    def __init__(self, ranks: int, resources: Mapping[str, float], starts_within_s: float) -> None:
        self._ranks = ranks
        self._seat = {name: amount for name, amount in resources.items() if amount}
        self._starts_within_s = starts_within_s
        self._taken_at: dict[bytes, float] = {}
        self._begun: bytes | None = None

    def note_begun(self, group_id: bytes) -> None:
        """The ranks on these seats hold the model and have reported to the coordinator."""
        self._begun = group_id

    def free(self, now: float) -> tuple[int, int]:
        """How many orphaned groups and how many late ones were freed. ``now`` is in seconds."""
        ours = self._of_the_trainer(reserved(), ray.get_runtime_context().get_job_id())
        orphans, late = orphaned(ours), self.late(ours, now)
        for group in (*orphans, *late):
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.group_id)))
        return len(orphans), len(late)

    def late(self, groups: Iterable[Reserved], now: float) -> list[Reserved]:
        """Those that have had their seats for too long and have not begun."""
        taken = {group.group_id: group for group in groups if group.is_taken and not group.maker_is_dead}
        self._taken_at = {group_id: self._taken_at.get(group_id, now) for group_id in taken}
        return [
            taken[group_id]
            for group_id, since in self._taken_at.items()
            if group_id != self._begun and now - since > self._starts_within_s
        ]

    def _of_the_trainer(self, groups: Iterable[Reserved], job: str) -> list[Reserved]:
        return of_the_trainer(groups, job, self._ranks, self._seat)


def of_the_trainer(groups: Iterable[Reserved], job: str, ranks: int, resources: Mapping[str, float]) -> list[Reserved]:
    """Only those of this job and of a trainer's form: what others may want to keep is not ours to free."""
    seat = {name: amount for name, amount in resources.items() if amount}
    return [
        group
        for group in groups
        if seat
        and group.job == job
        and group.made_by_actor
        and not (group.is_detached or group.is_removed)
        and len(group.bundles) == ranks
        # Ray adds the type of the GPU to what was asked for.
        and all(seat.items() <= bundle.items() for bundle in group.bundles)
    ]


def orphaned(groups: Iterable[Reserved]) -> list[Reserved]:
    """Those whose maker is dead. A group that no actor made, Ray calls its maker dead from the start."""
    return [group for group in groups if group.made_by_actor and group.maker_is_dead]


def reserved() -> list[Reserved]:
    """Ray's public tables do not say who made a group, so this asks for the row itself."""
    rows = state._connect_and_get_accessor().get_placement_group_table()
    found = []
    for row in map(PlacementGroupTableData.FromString, rows):
        found.append(
            Reserved(
                group_id=row.placement_group_id,
                job=row.creator_job_id.hex(),
                bundles=tuple(dict(bundle.unit_resources) for bundle in row.bundles),
                is_detached=row.is_detached,
                is_removed=row.state == PlacementGroupTableData.REMOVED,
                is_taken=row.state == PlacementGroupTableData.CREATED,
                made_by_actor=bool(row.creator_actor_id.strip(b"\xff")),
                maker_is_dead=row.creator_actor_dead,
            )
        )
    return found

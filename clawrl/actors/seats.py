"""The seats of trainer ranks that nobody sits on and nobody frees.

Ray Train reserves a placement group for its ranks. When the controller fails while the ranks are starting, because a
node is lost, say, the group stays: Ray frees it only at the end of the job, which is the end of the deployment, and Ray
Train's own cleaner has not heard of it yet. Where there are no other seats the next controller would wait for ever.
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
    """A placement group as the cluster knows it. ``job`` is hexadecimal."""

    group_id: bytes
    job: str
    bundles: tuple[Mapping[str, float], ...]
    is_detached: bool
    is_removed: bool
    made_by_actor: bool
    maker_is_dead: bool


def free_orphaned_seats(ranks: int, resources: Mapping[str, float]) -> int:
    """Removes placement groups of ``ranks`` times ``resources`` whose maker is dead; returns how many."""
    orphans = orphaned(reserved(), ray.get_runtime_context().get_job_id(), ranks, resources)
    for orphan in orphans:
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(orphan.group_id)))
    return len(orphans)


def orphaned(groups: Iterable[Reserved], job: str, ranks: int, resources: Mapping[str, float]) -> list[Reserved]:
    """Only those of this job and of a trainer's form: what others may want to keep is not ours to free."""
    seat = {name: amount for name, amount in resources.items() if amount}
    return [
        group
        for group in groups
        # A group that no actor made, Ray calls its maker dead from the start.
        if seat
        and group.job == job
        and group.made_by_actor
        and group.maker_is_dead
        and not (group.is_detached or group.is_removed)
        and len(group.bundles) == ranks
        # Ray adds the type of the GPU to what was asked for.
        and all(seat.items() <= bundle.items() for bundle in group.bundles)
    ]


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
                made_by_actor=bool(row.creator_actor_id.strip(b"\xff")),
                maker_is_dead=row.creator_actor_dead,
            )
        )
    return found

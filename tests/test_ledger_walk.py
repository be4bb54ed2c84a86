"""A long random life with crashes, lost replies and replaced trainers, checked against what a trainer holds.

The model beside the ledger is the trainer's own memory: the turns in its weights, and a copy of that
set for every checkpoint. Whatever happens, the ledger's trained turns are those of a checkpoint that
exists, no turn is applied to weights that hold it already, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clawrl.ledger import FeedbackOutcome
from clawrl.messages import DropReason, TurnId, TurnState
from clawrl.privacy.forgetting import Wanted, forget, run_steps
from tests.ledger_kit import ids, queue
from tests.ledger_world import World


def live(world: World, moments: int, *more: tuple[Callable[[], None], int]) -> None:
    operations = [
        (world.talk, 30),
        (world.record_again, 3),
        (world.judge, 12),
        (world.give_feedback, 4),
        (world.pause_or_resume, 2),
        (world.borrow, 12),
        (world.take_step, 12),
        (world.drop_one, 1),
        (world.tidy, 4),
        (world.restart_trainer, 1),
        (world.crash, 1),
        (world.reopen, 1),
        *more,
    ]
    chosen = world.random.choices([op for op, _ in operations], [weight for _, weight in operations], k=moments)
    for count, operation in enumerate(chosen):
        operation()
        if count % 50 == 0:
            world.check()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_life_adds_up_trains_nothing_twice_and_moves_only_legally(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    live(world, 1_500)
    world.restart_trainer()
    world.check()
    counts = world.ledger.counts()
    assert counts.by_state[TurnState.TRAINED] > 30 and counts.by_state[TurnState.DROPPED] > 100
    assert world.crashes > 5 and world.runs > 10, "the walk went where it was meant to go"
    revived = {state for outcome, state in world.outcomes if outcome is FeedbackOutcome.TAKEN}
    assert revived >= {TurnState.AWAITING_NEXT, TurnState.QUEUED, TurnState.DROPPED}
    assert counts.dropped[DropReason.STALE] > 0
    assert world.late_evidence > 0


@pytest.mark.parametrize("seed", [4, 5])
def test_so_does_one_in_which_people_are_forgotten(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    live(world, 900, (world.forget, 2), (world.teach, 4), (world.expire, 1))
    world.restart_trainer()
    world.check()
    counts = world.ledger.counts()
    assert counts.dropped[DropReason.FORGOTTEN] > 20 and counts.by_state[TurnState.TRAINED] > 5
    assert world.forgotten > counts.dropped[DropReason.FORGOTTEN], "also of what was dropped or trained before"
    assert world.expired > 20 and world.retaught > 5


def test_the_walk_expects_another_lease_where_all_of_a_confirmed_one_was_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    queue(world.ledger, "a", "b", owner="A", version=world.version)
    world.borrow()
    first = world.lease
    assert ids(first) == ["a", "b"] and first is not None
    assert world.ledger.confirm(first.lease_id, world.run, world.clock.now)
    queue(world.ledger, "c", owner="B", version=world.version)
    assert run_steps(world.ledger, forget(Wanted(owner="A")))["leases_voided"] == 0
    world.borrow()
    assert ids(world.lease) == ["c"]
    assert not world.ledger.confirm(first.lease_id, world.run, world.clock.now)


def test_the_walk_expects_the_rest_of_a_confirmed_lease_of_which_a_part_was_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    queue(world.ledger, "a", "b", version=world.version)
    world.borrow()
    assert ids(world.lease) == ["a", "b"] and world.lease is not None
    assert world.ledger.confirm(world.lease.lease_id, world.run, world.clock.now)
    queue(world.ledger, "c", version=world.version)
    run_steps(world.ledger, forget(Wanted(turn_id=TurnId("a"))))
    world.borrow()
    assert ids(world.lease) == ["b"]

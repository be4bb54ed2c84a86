"""Training 4 steps equals any 4 steps with a `kill -9` on the way: same samples, same weights, growing versions."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
import torch

from tests.training_kit import BATCH, Plan, copy_state, final_state, forks, prepare, train, trained, versions

KILLS = {
    # What the coordinator answered last, of which step; checkpoints every so many steps; see `Plan.lends_after`.
    "two steps, kill, two steps": (("checkpointed", 2), 2, {3: 2}),
    "checkpoint of 3 of 4 steps": (("applied", 4), 3, {4: 3}),
    # The second is due only once the first is written, and is left out where that takes until the third step.
    "between fence and optimizer": (("confirm", 3), 1, {2: 1, 3: 2}),
    "a checkpoint on its way": (("applied", 3), 2, None),
    "valid and not yet reported": (("checkpointing", 2), 2, None),
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Four steps without a kill, and beside them the folder that they began from."""
    folder = tmp_path_factory.mktemp("exactly-once")
    plan = Plan(state=folder / "start", model=folder / "model", checkpoint_every=1, stop_after=4)
    prepare(plan, 4 * BATCH)
    plan = replace(plan, state=folder / "straight")
    copy_state(folder / "start", plan.state)
    train(plan)
    return plan


def test_four_steps_take_each_turn_once_and_in_order(straight: Plan) -> None:
    assert trained(straight.state) == {s + 1: [f"t-{2 * s}", f"t-{2 * s + 1}"] for s in range(4)}


@pytest.mark.parametrize("kill", KILLS)
def test_a_killed_and_resumed_run_ends_where_an_undisturbed_one_does(straight: Plan, kill: str) -> None:
    call, every, lends_after = KILLS[kill]
    state = straight.state.with_name(kill.replace(" ", "-"))
    copy_state(straight.state.with_name("start"), state)
    plan = replace(straight, state=state, checkpoint_every=every, kill_at=call, lends_after=lends_after)
    process = forks().Process(target=train, args=(plan,))
    process.start()
    process.join(240)
    assert process.exitcode == -signal.SIGKILL
    before = versions(state)
    train(replace(plan, kill_at=None, lends_after=None))
    assert trained(state) == trained(straight.state)
    ours, theirs = final_state(state), final_state(straight.state)
    assert ours["step"] == theirs["step"] == 4
    for name, master in theirs["optimizer"]["masters"].items():
        assert torch.equal(ours["optimizer"]["masters"][name], master), name
    for index, moments in theirs["optimizer"]["adam"]["state"].items():
        assert all(torch.equal(ours["optimizer"]["adam"]["state"][index][key], moments[key]) for key in moments), index
    after = versions(state)
    assert after == sorted(set(after)) and after[: len(before)] == before and len(after) > len(before)

"""When a batch is handed out: at once when it is full, by the clock, in quiet hours, never during a pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from clawrl.actors.coordinator import Coordinator
from clawrl.messages import Lease, Message, PolicyVersion, VersionSpan
from tests.office import Office, talk, turn, until

HOUR, DAY = 3600.0, 86_400.0
HOURLY = {"when": "timer", "every_s": HOUR}
Test = Callable[[Coordinator, "DayClock"], Awaitable[None]]


class DayClock:
    """The time of day as the desk sees it, which only a test moves; the ledger's own goes on beside it."""

    def __init__(self, now: float) -> None:
        self.now, self.ahead = now, 0.0

    def __call__(self) -> float:
        return self.now + self.ahead


def play(folder: Path, test: Test, **training: Any) -> None:
    settings = {f"trainer__training__{name}": value for name, value in training.items()}

    async def run() -> None:
        coordinator = Office(folder, **settings).open()
        # In the middle of an hour, so that no round begins while the test runs; two hours ahead one has for certain.
        hourly = training.get("schedule", {}).get("when") == "timer"
        clock = DayClock(time.time() // HOUR * HOUR + HOUR / 2 if hourly else time.time())
        coordinator._leases._clock = clock
        await coordinator.restored("run", 0)
        async with asyncio.timeout(240):
            await test(coordinator, clock)
        await coordinator.close()

    asyncio.run(run())


async def queue(coordinator: Coordinator, turns: int, session: str = "s") -> None:
    before = (await coordinator.status())["turns"]["by_state"].get("queued", 0)
    await talk(coordinator, turns + 1, session)
    await until(coordinator, lambda s: s["turns"]["by_state"].get("queued", 0) == before + turns)


async def waits(coordinator: Coordinator) -> str | None:
    text: str | None = (await coordinator.status())["trainer"]["waits"]
    return text


async def borrowed(coordinator: Coordinator, step: int = 1) -> int:
    """How many turns are lent without waiting for any."""
    order = await coordinator.lease("run", step, 0.0)
    assert order is None or isinstance(order, Lease)
    return len(order.samples) if order else 0


async def take(coordinator: Coordinator, step: int, wait_s: float = 0.0) -> Lease:
    order = await coordinator.lease("run", step, wait_s)
    assert isinstance(order, Lease)
    assert await coordinator.confirm(order.lease_id, "run")
    assert await coordinator.applied(order.lease_id, "run", {"loss": 0.5, "changed": True})
    return order


def test_a_full_batch_leaves_at_once_whatever_the_trainer_would_have_waited(tmp_path: Path) -> None:
    async def test(coordinator: Coordinator, _: DayClock) -> None:
        await queue(coordinator, 5)
        # An hour each; the whole test has minutes.
        first, second = await take(coordinator, 1, wait_s=HOUR), await take(coordinator, 2, wait_s=HOUR)
        assert [len(lease.samples) for lease in (first, second)] == [2, 2]
        assert await waits(coordinator) == "for 1 more turn"
        waiting = asyncio.ensure_future(take(coordinator, 3, wait_s=HOUR))
        await talk(coordinator, 2, session="another")
        assert len((await waiting).samples) == 2

    play(tmp_path, test)


def test_with_a_timer_each_round_lends_all_that_was_ready_and_nothing_that_came_later(tmp_path: Path) -> None:
    async def test(coordinator: Coordinator, clock: DayClock) -> None:
        await queue(coordinator, 3)
        assert await borrowed(coordinator) == 0
        assert str(await waits(coordinator)).startswith("until the round at ")
        clock.ahead = 2 * HOUR
        assert await waits(coordinator) is None
        assert len((await take(coordinator, 1)).samples) == 2
        assert len((await take(coordinator, 2)).samples) == 1
        assert await borrowed(coordinator, 3) == 0

    play(tmp_path, test, schedule=HOURLY)


def test_a_waiting_trainer_is_woken_by_the_clock_alone(tmp_path: Path) -> None:
    async def test(coordinator: Coordinator, _: DayClock) -> None:
        await queue(coordinator, 1)
        # A tenth of a second before the next round, by a clock that goes.
        ahead = DAY - time.time() % DAY - 0.1
        coordinator._leases._clock = lambda: time.time() + ahead
        assert len((await take(coordinator, 1, wait_s=HOUR)).samples) == 1

    play(tmp_path, test, schedule={"when": "timer", "every_s": DAY})


def test_nothing_is_lent_until_nobody_has_asked_for_a_while_also_after_a_restart(tmp_path: Path) -> None:
    quiet = {"when": "idle", "quiet_s": 600.0}

    async def noisy(coordinator: Coordinator, _: DayClock) -> None:
        await queue(coordinator, 2)
        assert await borrowed(coordinator) == 0
        assert "seconds without a request" in str(await waits(coordinator))

    async def after_a_restart(coordinator: Coordinator, clock: DayClock) -> None:
        assert await borrowed(coordinator) == 0
        clock.ahead = 601.0
        await coordinator.arrive(turn("x", [Message(role="user", content="hi")], "hi", session="new").arrival)
        assert await borrowed(coordinator) == 0
        clock.ahead = 1_300.0
        assert await borrowed(coordinator) == 2

    play(tmp_path, noisy, schedule=quiet)
    play(tmp_path, after_a_restart, schedule=quiet)


def test_an_answer_that_is_being_written_is_a_request_until_it_ends(tmp_path: Path) -> None:
    async def test(coordinator: Coordinator, clock: DayClock) -> None:
        await queue(coordinator, 2)
        await coordinator.poll("r", 0, {"running": 1, "waiting": 0}, 0.0)
        clock.ahead = 601.0
        assert await borrowed(coordinator) == 0
        await coordinator.poll("r", 0, {"running": 0, "waiting": 0}, 0.0)
        assert await borrowed(coordinator) == 0, "it ended just now"
        clock.ahead = 1_300.0
        assert await borrowed(coordinator) == 2

    play(tmp_path, test, schedule={"when": "idle", "quiet_s": 600.0})


def test_a_pause_outranks_the_schedule_and_the_schedule_outlives_a_pause(tmp_path: Path) -> None:
    async def paused(coordinator: Coordinator, clock: DayClock) -> None:
        await queue(coordinator, 2)
        await coordinator.pause("operator", "lunch")
        clock.ahead = 2 * HOUR
        assert await borrowed(coordinator) == 0 and await waits(coordinator) == "to be resumed"

    async def after_a_restart(coordinator: Coordinator, clock: DayClock) -> None:
        assert (await coordinator.status())["pause_reason"] == "lunch"
        clock.ahead = 2 * HOUR
        assert await borrowed(coordinator) == 0
        await coordinator.resume()
        clock.ahead = 0.0
        assert await borrowed(coordinator) == 0, "resumed, and between two rounds"
        clock.ahead = 2 * HOUR
        assert await borrowed(coordinator) == 2

    play(tmp_path, paused, schedule=HOURLY)
    play(tmp_path, after_a_restart, schedule=HOURLY)


def test_a_schedule_loses_no_turn_however_long_it_keeps_them(tmp_path: Path) -> None:
    async def test(coordinator: Coordinator, clock: DayClock) -> None:
        await queue(coordinator, 4)
        for hour in range(20):
            clock.ahead = HOUR * hour
            assert await borrowed(coordinator) == 0
        status = await coordinator.status()
        assert status["turns"]["by_state"]["queued"] == 4 and status["turns"]["dropped"] == {}

    play(tmp_path, test, schedule={"when": "timer", "every_s": 1e9}, staleness={"max_steps": 0})


def test_a_trainer_whose_lease_was_lost_on_the_way_gets_the_same_one_between_two_rounds(tmp_path: Path) -> None:
    async def test(coordinator: Coordinator, clock: DayClock) -> None:
        await queue(coordinator, 2)
        clock.ahead = 2 * HOUR
        first, again = await coordinator.lease("run", 1, 0.0), await coordinator.lease("run", 1, 0.0)
        assert isinstance(first, Lease) and isinstance(again, Lease) and first.lease_id == again.lease_id
        assert await waits(coordinator) is None

    play(tmp_path, test, schedule=HOURLY)


async def of_version(coordinator: Coordinator, name: str, number: int) -> None:
    spans = (VersionSpan(start=0, end=4, version=number),)
    asked = [Message(role="user", content=f"hello {name}")]
    said = [*asked, Message(role="assistant", content="hi"), Message(role="user", content="ok")]
    await coordinator.record(turn(name, asked, "hi", session=name, spans=spans))
    await coordinator.arrive(turn(f"{name}-next", said, "hi", session=name).arrival)


async def decide(coordinator: Coordinator, number: int, step: int) -> None:
    await coordinator._decide(
        PolicyVersion(version=number, step=step, snapshot="s", digest=f"d{number}", published_at=1.0)
    )


@pytest.mark.parametrize(
    ("staleness", "trained", "dropped"),
    [
        ({"max_steps": 4}, {"1": 1, "3": 1}, {"stale": 1}),
        ({"max_steps": 1}, {"1": 1}, {"stale": 2}),
        ({"max_steps": 2, "beyond": "correct", "correct_up_to": 99}, {"1": 1, "3": 1, "5": 1}, {}),
    ],
)
def test_the_age_of_what_was_trained_is_in_the_steps_figures_and_in_the_status(
    tmp_path: Path, staleness: dict[str, Any], trained: dict[str, int], dropped: dict[str, int]
) -> None:
    async def test(coordinator: Coordinator, clock: DayClock) -> None:
        for number in range(5):
            await decide(coordinator, number, number)
        await coordinator.checkpointed("run", 4)
        # One, two and three batches back, and two passes over each.
        for name, number in (("a", 4), ("b", 3), ("c", 2)):
            await of_version(coordinator, name, number)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 3)
        clock.ahead = 2 * HOUR
        await take(coordinator, 5)
        await decide(coordinator, 5, 5)
        status = await coordinator.status()
        limit = staleness.get("correct_up_to", staleness["max_steps"])
        assert status["staleness"] == {
            "max_steps": staleness["max_steps"],
            "limit": limit,
            "lag": trained,
            "of_steps": 1,
            "dropped": dropped.get("stale", 0),
        }
        assert status["turns"]["dropped"] == dropped
        figures = status["versions"][0]["stats"]
        beyond = sum(n for lag, n in trained.items() if int(lag) > staleness["max_steps"])
        assert figures["lag"] == trained and figures["loss"] == 0.5
        assert (figures["lag_max"], figures["lag_corrected"]) == (max(map(int, trained)), beyond)

    play(tmp_path, test, staleness=staleness, batch_size=3, updates_per_batch=2, schedule=HOURLY)

"""A coordinator that is away for longer than a client waits: nothing is lost, and what is lost is counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from clawrl.actors.calls import CoordinatorAway
from clawrl.actors.recording import Recorder, take_in_orphans
from clawrl.ledger.codec import Codec, PlainVault
from clawrl.ledger.journal import Journal
from clawrl.messages import Message, Turn
from tests.office import Office, turn, until

CODEC = Codec(PlainVault())


class Line:
    """To a coordinator that may be away. Counts what was recorded."""

    def __init__(self) -> None:
        self.away = True
        self.refuses: set[str] = set()
        self.recorded: list[str] = []

    async def ask(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        if self.away:
            await asyncio.sleep(min(timeout_s, 0.01))
            raise CoordinatorAway("it is away")
        if arguments[0].turn_id in self.refuses:
            raise RuntimeError("the ledger's disk is full")
        self.recorded.append(arguments[0].turn_id)


def a_turn(name: str) -> Turn:
    return turn(name, [Message(role="user", content=name)], f"answer {name}", session=name)


def open_recorder(line: Line, folder: Path, limit_bytes: int = 1_000_000) -> Recorder:
    journal = Journal.of_process(folder, "replica", CODEC, limit_bytes=limit_bytes)
    return Recorder(line, journal, 0.05)  # type: ignore[arg-type]


async def _until(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


def test_turns_wait_in_the_journal_while_the_coordinator_is_away_and_are_handed_in_once(tmp_path: Path) -> None:
    async def run() -> None:
        line = Line()
        recorder = open_recorder(line, tmp_path)
        await recorder.record(a_turn("a"))
        recorder.record_unawaited(a_turn("b"))
        await _until(lambda: recorder.journaled == 2)
        assert recorder.unrecorded == 0 and len(list(tmp_path.iterdir())) == 1
        line.away = False
        await _until(lambda: recorder.journaled == 0)
        assert sorted(line.recorded) == ["a", "b"] and list(tmp_path.iterdir()) == []
        await recorder.record(a_turn("c"))
        assert line.recorded[2:] == ["c"]
        await recorder.finish()

    asyncio.run(run())


def test_what_the_ledger_refuses_stays_and_holds_up_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        line = Line()
        recorder = open_recorder(line, tmp_path)
        for name in ("a", "b"):
            await recorder.record(a_turn(name))
        line.refuses, line.away = {"a"}, False
        await _until(lambda: line.recorded == ["b"] and recorder.journaled == 1)
        line.refuses = set()
        await _until(lambda: recorder.journaled == 0)
        assert line.recorded == ["b", "a"]
        await recorder.finish()

    asyncio.run(run())


def test_what_does_not_fit_the_journal_is_counted_as_lost(tmp_path: Path) -> None:
    async def run() -> None:
        recorder = open_recorder(Line(), tmp_path, limit_bytes=100)
        await recorder.record(a_turn("a"))
        assert (recorder.unrecorded, recorder.journaled) == (1, 0)
        await recorder.finish()

    asyncio.run(run())


def test_a_replica_takes_over_what_a_dead_one_on_its_machine_left(tmp_path: Path) -> None:
    async def run() -> None:
        before = open_recorder(Line(), tmp_path)
        await before.record(a_turn("a"))
        await before.finish()
        (left,) = tmp_path.iterdir()
        left.rename(tmp_path / "of-the-dead-1.journal")
        line = Line()
        line.away = False
        recorder = open_recorder(line, tmp_path)
        recorder.adopt(tmp_path, CODEC)
        await _until(lambda: list(tmp_path.iterdir()) == [])
        assert line.recorded == ["a"]
        await recorder.finish()

    asyncio.run(run())


def test_what_the_ledger_refuses_holds_up_nothing_in_a_dead_ones_journal_and_stays_there(tmp_path: Path) -> None:
    async def run() -> None:
        before = open_recorder(Line(), tmp_path)
        for name in ("a", "b", "c"):
            await before.record(a_turn(name))
        await before.finish()
        (left,) = tmp_path.iterdir()
        left.rename(left := tmp_path / "of-the-dead-1.journal")
        line = Line()
        line.refuses, line.away = {"a"}, False
        assert await take_in_orphans(tmp_path, CODEC, lambda turn: line.ask("record", turn, timeout_s=1.0)) == 0
        assert line.recorded == ["b", "c"] and left.exists()
        line.refuses = set()
        await take_in_orphans(tmp_path, CODEC, lambda turn: line.ask("record", turn, timeout_s=1.0))
        assert line.recorded == ["b", "c", "a", "b", "c"] and not left.exists()

    asyncio.run(run())


def test_the_coordinator_takes_in_what_dead_replicas_left_on_its_disk_and_counts_what_is_spoiled(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        recorder = open_recorder(Line(), tmp_path / "journal")
        for name in ("a", "b", "c"):
            await recorder.record(a_turn(name))
        await recorder.finish()
        (left,) = (tmp_path / "journal").iterdir()
        lines = left.read_bytes().splitlines(keepends=True)
        left.write_bytes(lines[0] + lines[1].replace(b'"b"', b'"x"') + lines[2])
        living = open_recorder(Line(), tmp_path / "journal")
        left.rename(left.with_name("of-the-dead-1.journal"))
        await living.record(a_turn("d"))
        coordinator = Office(tmp_path).open()
        await coordinator._journals.take_in()
        status = await until(coordinator, lambda s: s["turns"]["recorded"] == 2)
        assert (status["unrecorded"], status["journaled"]) == (1, 0)
        assert [path.name for path in (tmp_path / "journal").iterdir()] != [], "the living one's is its own"
        await coordinator._journals.take_in()
        assert (await coordinator.status())["turns"]["recorded"] == 2
        await coordinator.poll("r", 0, {"unrecorded": 2, "journaled": 1}, 0.0)
        status = await coordinator.status()
        assert (status["unrecorded"], status["journaled"]) == (3, 1)
        await coordinator.close()

    asyncio.run(run())

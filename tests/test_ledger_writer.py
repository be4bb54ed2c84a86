"""Calls from an event loop reach the ledger in order, many to a commit, each with its own fate."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.store import Ledger
from clawrl.ledger.writer import LedgerThread


def _thread(path: Path) -> LedgerThread:
    return LedgerThread(lambda: Ledger(path / "ledger.sqlite", LedgerConfig()))


def test_results_come_back_and_are_on_disk(tmp_path: Path) -> None:
    async def run() -> None:
        writer = _thread(tmp_path)
        assert await writer.run(lambda ledger: ledger.next_version()) == 1
        with Ledger(tmp_path / "ledger.sqlite", LedgerConfig()) as other:
            assert other.next_version() == 2
        writer.close()

    asyncio.run(run())


def test_one_call_that_raises_undoes_only_itself(tmp_path: Path) -> None:
    async def run() -> None:
        writer = _thread(tmp_path)

        def reserve_and_fail(ledger: Ledger) -> None:
            ledger.next_version()
            raise LookupError("mine")

        results = await asyncio.gather(
            writer.run(lambda ledger: ledger.next_version()),
            writer.run(reserve_and_fail),
            writer.run(lambda ledger: ledger.next_version()),
            return_exceptions=True,
        )
        assert results[0] == 1 and isinstance(results[1], LookupError) and results[2] == 2
        writer.close()

    asyncio.run(run())


def test_calls_that_wait_share_one_commit_and_keep_their_order(tmp_path: Path) -> None:
    async def run() -> None:
        writer = _thread(tmp_path)
        commits = []
        original = writer._commit
        writer._commit = lambda calls: (commits.append(len(calls)), original(calls))[1]  # type: ignore[method-assign]
        taken, gate = threading.Event(), threading.Event()
        first = asyncio.ensure_future(writer.run(lambda ledger: (taken.set(), gate.wait(120.0))))
        assert await asyncio.to_thread(taken.wait, 120.0)
        others = [asyncio.ensure_future(writer.run(lambda ledger: ledger.next_version())) for _ in range(20)]
        await asyncio.sleep(0)
        gate.set()
        await first
        assert await asyncio.gather(*others) == list(range(1, 21))
        assert commits == [1, 20]
        writer.close()

    asyncio.run(run())


def test_closing_finishes_what_was_handed_over(tmp_path: Path) -> None:
    async def run() -> None:
        writer = _thread(tmp_path)
        calls = [asyncio.ensure_future(writer.run(lambda ledger: ledger.next_version())) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.to_thread(writer.close)
        assert await asyncio.gather(*calls) == [1, 2, 3, 4, 5]

    asyncio.run(run())


def test_a_ledger_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("not a database at all, but long enough to be read as one" * 20)
    with pytest.raises(Exception, match=r"ledger|database"):
        _thread(tmp_path)

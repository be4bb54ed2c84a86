"""Turns, sessions, versions and steps in pages, as an operator gets them from the coordinator."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clawrl.ledger.looking import TurnFilter
from clawrl.messages import DropReason, FinishReason, Lease, TurnState, VersionSpan
from tests.office import Office, talk, turn
from tests.operator_kit import ALL, HELLO, kept_version, look, one, refused, run, until, with_versions


def test_turns_are_found_by_every_filter_and_paged_without_gap_or_repeat(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.restored("run", 0)
        for name in ("a", "b", "c"):
            await talk(coordinator, 3, session=name)
        await coordinator.record(one("greedy", finish_reason=FinishReason.ABORTED))
        newer = (VersionSpan(start=0, end=2, version=3), VersionSpan(start=2, end=4, version=5))
        await coordinator.record(one("span", reply="other", spans=newer, session="d"))
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 6)
        lease = await coordinator.lease("run", 1, 1.0)
        assert isinstance(lease, Lease)

        async def names(wanted: TurnFilter) -> list[str]:
            return [row["turn_id"] for row in await look(coordinator, "turns", wanted, None, 100)]

        everything = await names(ALL)
        assert len(everything) == 11 and everything[0] == "span"
        paged: list[str] = []
        before = None
        while page := await look(coordinator, "turns", ALL, before, 4):
            paged += [row["turn_id"] for row in page]
            before = page[-1]["seq"]
        assert paged == everything
        assert await names(TurnFilter(state=TurnState.AWAITING_NEXT)) == ["span", "c-2", "b-2", "a-2"]
        assert await names(TurnFilter(reason=DropReason.ABORTED)) == ["greedy"]
        assert await names(TurnFilter(state=TurnState.DROPPED)) == ["greedy"]
        assert await names(TurnFilter(session="b")) == ["b-2", "b-1", "b-0"]
        assert await names(TurnFilter(session="b", owner="nobody")) == []
        assert await names(TurnFilter(version=4)) == ["span"], "between its first token and its last"
        assert await names(TurnFilter(version=3)) == ["span"] and await names(TurnFilter(version=6)) == []
        assert sorted(await names(TurnFilter(step=1))) == sorted(sample.turn_id for sample in lease.samples)
        assert await names(TurnFilter(step=1, state=TurnState.QUEUED)) == []
        assert await names(TurnFilter(session="a", state=TurnState.AWAITING_NEXT)) == ["a-2"]
        await coordinator.close()

    run(test)


def test_sessions_come_by_their_newest_turn_and_of_two_people_each_has_their_own(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        for name in ("a", "b"):
            await talk(coordinator, 2, session=name)
        other = turn("other", HELLO, "hi", session="a")
        await coordinator.record(replace(other, arrival=replace(other.arrival, owner="p")))
        await talk(coordinator, 1, session="c")
        await coordinator.record(turn("late", HELLO, "hm", session="b"))
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)
        rows = await look(coordinator, "sessions", None, 10)
        order = [("b", "o"), ("c", "o"), ("a", "p"), ("a", "o")]
        assert [(row["session"], row["owner"]) for row in rows] == order
        assert rows[0]["by_state"] == {"awaiting_next": 2, "queued": 1} and rows[0]["last_turn"] == "late"
        assert all(row["active"] and row["turns"] == sum(row["by_state"].values()) for row in rows)
        paged: list[Any] = []
        before = None
        while page := await look(coordinator, "sessions", before, 1):
            paged += page
            before = page[-1]["seq"]
        assert paged == rows
        both = await look(coordinator, "session", "a", None, 10)
        assert [row["owner"] for row in both["of"]] == ["o", "p"]
        assert [row["turn_id"] for row in both["turns"]] == ["other", "a-1", "a-0"]
        assert (await refused(coordinator, "session", "nowhere", None, 10)).code == "session_not_found"
        await coordinator.close()

    run(test)


def test_a_large_ledger_is_looked_through_in_pieces_between_which_turns_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        monkeypatch.setattr("clawrl.ledger.looking.SCAN", 20)
        monkeypatch.setattr("clawrl.actors.operator_desk._PIECE", 7)
        coordinator = Office(tmp_path, guards__filters={"duplicates": "keep"}).open()
        for number in range(95):
            await coordinator.record(one(f"t{number}", session=f"s{number % 30}"))
        await coordinator.record(turn("mark", HELLO, "x", session="first", finish_reason=FinishReason.ABORTED))
        for number in range(95, 150):
            await coordinator.record(one(f"t{number}", session=f"s{number % 30}"))
        # The one that fits lies three pieces back, and none of those in between is the end.
        dropped = await look(coordinator, "turns", TurnFilter(state=TurnState.DROPPED), None, 5)
        assert [row["turn_id"] for row in dropped] == ["mark"]
        assert len(await look(coordinator, "turns", ALL, None, 1000)) == 151
        assert len(await look(coordinator, "sessions", None, 1000)) == 31

        order: list[str] = []

        async def page() -> None:
            await coordinator.operator("turns", ALL, None, 1000)
            order.append("page")

        async def record() -> None:
            await asyncio.sleep(0)
            await coordinator.record(one("between"))
            order.append("record")

        await asyncio.gather(page(), record())
        assert order == ["record", "page"]
        await coordinator.close()

    run(test)


def test_versions_say_what_serves_what_is_kept_and_where_a_rollback_came_from(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 3)
        (tmp_path / "snapshots" / Path(kept_version(1, tmp_path).snapshot).name / "manifest.json").unlink()
        assert (await look(coordinator, "roll_back", 2))["version"] == 4
        rows = await look(coordinator, "versions", None, 10)
        assert [row["version"] for row in rows] == [4, 3, 2, 1, 0]
        assert [row["version"] for row in rows if row["current"]] == [4]
        assert [row["version"] for row in rows if not row["kept"]] == [1]
        assert (rows[0]["rolled_back_to"], rows[0]["rolled_back_from"], rows[0]["step"]) == (2, 3, 2)
        assert rows[0]["stats"]["by"] == "operator"
        assert [row["version"] for row in await look(coordinator, "versions", 3, 1)] == [2]
        await coordinator.close()

    run(test)


def test_steps_are_paged_with_what_the_curves_need(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.restored("run", 0)
        for step in (1, 2):
            await talk(coordinator, 3, session=f"s{step}")
            lease = await coordinator.lease("run", step, 5.0)
            assert isinstance(lease, Lease) and await coordinator.confirm(lease.lease_id, "run")
            assert await coordinator.applied(lease.lease_id, "run", {"kl": 0.25 * step, "loss": float("nan")})
        rows = await look(coordinator, "steps", None, 10)
        assert [(row["step"], row["state"], row["turns"]) for row in rows] == [(2, "applied", 2), (1, "applied", 2)]
        assert rows[0]["reward_mean"] == rows[0]["accepted_share"] == 1.0 and rows[0]["stats"]["kl"] == 0.5
        assert rows[0]["stats"]["loss"] is None
        assert [row["step"] for row in await look(coordinator, "steps", rows[0]["seq"], 10)] == [1]
        await coordinator.close()

    run(test)


def test_a_version_has_what_its_step_measured_and_what_its_publish_did_wherever_it_is_shown(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 0)
        await talk(coordinator, 3)
        lease = await coordinator.lease("run", 1, 5.0)
        assert isinstance(lease, Lease) and await coordinator.confirm(lease.lease_id, "run")
        assert await coordinator.applied(lease.lease_id, "run", {"kl": 0.25})
        await coordinator._decide(replace(kept_version(1, tmp_path), stats={"committed": 2, "hold_ms": 3.0}))
        rows = await look(coordinator, "versions", None, 10)
        shown = (await coordinator.status())["versions"]
        assert [row["stats"] for row in shown] == [row["stats"] for row in rows]
        expected = {"kl": 0.25, "reward_mean": 1.0, "committed": 2, "hold_ms": 3.0}
        assert {name: rows[0]["stats"].get(name) for name in expected} == expected
        assert "kl" not in rows[1]["stats"], "no step made it"
        await coordinator.close()

    run(test)


def test_adapters_are_kept_only_with_the_weights_that_they_are_an_addition_to(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 1)
        base = kept_version(0, tmp_path)
        manifest = Path(kept_version(1, tmp_path).snapshot) / "manifest.json"
        manifest.write_text(json.dumps({"addition": {"base_version": 0, "base_digest": base.digest}}))
        assert [row["kept"] for row in await look(coordinator, "versions", None, 9)] == [True, True]
        (Path(base.snapshot) / "manifest.json").unlink()
        assert [row["kept"] for row in await look(coordinator, "versions", None, 9)] == [False, False]
        await coordinator.close()

    run(test)

"""What an operator sees and does through the coordinator: pages, lives, rollbacks, publishes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clawrl.actors.coordinator import Coordinator
from clawrl.actors.generation import Refused
from clawrl.actors.lease_desk import Rewind
from clawrl.inspection.life import with_pieces
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import DropReason, FinishReason, Lease, Message, TurnState, VersionSpan, WeightKind, WeightManifest
from clawrl.weights import members as weights
from clawrl.weights.transaction import PublishFailed
from tests.office import Office, talk, turn
from tests.operator_kit import HELLO, hints, kept_version, one, run, until
from tests.test_coordinator_guards import ALARMS, SOUND, serve_version

ALL = TurnFilter()


async def look(coordinator: Coordinator, view: str, *arguments: Any) -> Any:
    answer = await coordinator.operator(view, *arguments)
    assert not isinstance(answer, Refused), answer
    return json.loads(json.dumps(answer, allow_nan=False))


async def refused(coordinator: Coordinator, view: str, *arguments: Any) -> Any:
    answer = await coordinator.operator(view, *arguments)
    assert isinstance(answer, Refused)
    return answer.error


async def with_versions(coordinator: Coordinator, folder: Path, newest: int) -> None:
    """A run has published versions up to ``newest``, each of a step of its own."""
    await coordinator.restored("run", 0)
    await coordinator.start_version("run", kept_version(0, folder))
    for number in range(1, newest + 1):
        await coordinator._decide(kept_version(number, folder))
    await coordinator.checkpointed("run", newest)


def test_a_turns_life_has_its_words_its_tokens_its_judgement_and_its_way(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(
            tmp_path, trainer__method={"name": "combine", "baseline": "none"}, judge__hints={"source": "quoting"}
        ).open(judge=hints)
        await talk(coordinator, 2)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 1)
        life = await look(coordinator, "turn", "s-0")
        assert life["request"]["messages"] == [{"role": "user", "content": "hello s"}]
        assert life["answer"] == {"role": "assistant", "content": "answer 0"}
        assert life["evidence"] == {"from_turn": "s-1", "messages": [{"role": "user", "content": "ok"}]}
        assert life["judgement"]["hints"] == ["be brief"] and life["judgement"]["reward"] == 1.0
        way = ["served", "awaiting_next", "judging", "judged", "queued"]
        assert [move["to"] for move in life["transitions"]] == way
        # The reward, and the teacher's term: log-probs of -1 on both sides.
        token = {"piece": None, "logp": -1.0, "version": 0, "teacher_logp": -1.0, "advantage": 1.0}
        assert life["tokens"] == [{"id": number, **token} for number in range(4)]
        assert life["credit"] == {
            "method": "combine",
            "reward": 1.0,
            "baseline": "none",
            "step_reward_mean": None,
            "taught": True,
            "in_weights": False,
            "advantage_of": "reward 1 + (teacher's log-prob - policy's, within 1 nat)",
            "advantage_note": None,
        }
        shown = with_pieces(life, ["a", "b", "c", "d"])
        assert "".join(token["piece"] for token in shown["tokens"]) == "abcd"
        assert with_pieces(life, ["a"]) == life, "pieces of another answer are not laid beside it"
        await coordinator.close()

    run(test)


def test_feedback_is_part_of_a_life_whether_it_came_in_time_or_not(tmp_path: Path) -> None:
    from clawrl.serving.feedback import FeedbackRequest

    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.record(one())
        await coordinator.feedback(FeedbackRequest(turn_id="t", session=None, score=-1.0, comment="no"), "o")
        life = await look(coordinator, "turn", "t")
        assert (life["feedback"]["score"], life["feedback"]["comment"], life["feedback"]["taken"]) == (-1.0, "no", True)
        await coordinator.close()

    run(test)


def test_a_turn_whose_words_cannot_be_read_any_more_says_so_and_tells_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.record(one())

        def lost(*_: Any) -> Any:
            raise ValueError("no key of this owner")

        monkeypatch.setattr("clawrl.privacy.vault.LedgerVault.unseal", lost)
        life = await look(coordinator, "turn", "t")
        assert "gone" in life["text_gone"] and life["tokens"] == [] and life["answer"] is None
        assert life["state"] == "awaiting_next" and "waits for what comes next" in life["why"]["sentence"]
        (row,) = (await look(coordinator, "export", ALL, None, 10))["rows"]
        assert row["text_gone"] and row["response_ids"] == [] and row["messages"] == []
        await coordinator.close()

    run(test)


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
        from dataclasses import replace

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


def test_a_long_life_is_put_together_and_written_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clawrl.actors import operator_desk, operator_routes

    where: list[threading.Thread] = []

    def noting(function: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            where.append(threading.current_thread())
            return function(*arguments)

        return noted

    monkeypatch.setattr(operator_desk, "life_document", noting(operator_desk.life_document))
    monkeypatch.setattr(operator_routes, "_sent", noting(operator_routes._sent))

    class Routes(operator_routes.OperatorRoutes):
        def __init__(self, coordinator: Coordinator) -> None:
            self._keys, self._office = SimpleNamespace(operator=lambda headers: None), coordinator  # type: ignore[assignment]

        async def _look(self, view: str, *arguments: Any) -> Any:
            return await self._office.operator(view, *arguments)

        async def _texts_of(self, ids: Any) -> list[str]:
            return ["x"] * len(ids)

    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.record(one())
        request: Any = SimpleNamespace(headers={}, query_params={})
        routes = Routes(coordinator)
        for sent in (routes.turn(request, "t"), routes.turns(request), routes.export(request)):
            assert (await sent).status_code == 200
        assert len(where) == 4 and threading.current_thread() not in where
        await coordinator.close()

    run(test)


@pytest.mark.parametrize(
    "document",
    [
        {}, [], None, 1.5, "a\n\ud83d", [1], [[]], [{}], {"a": {"b": [{"c": None}]}},
        [1, {"a": 1}], [{"a": list(range(1_001))}, 2], {"rows": [{"n": n, "x": [n]} for n in range(1_250)]},
        [{"n": n} for n in range(500)], [[n, "x"] for n in range(501)], {"1": [True, False, "é"]},
    ],
    ids=range(15),
)  # fmt: skip
def test_what_is_written_in_pieces_is_written_as_in_one(document: Any) -> None:
    from clawrl.actors.operator_routes import written

    assert written(document) == json.dumps(document, separators=(",", ":"))
    with pytest.raises(ValueError, match="JSON"):
        written({"rows": [document, float("nan")]})


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


def test_an_operator_rolls_back_with_the_guard_off_while_paused_repeatedly_and_to_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path, guards__alarms={"enabled": False}).open()
        await with_versions(coordinator, tmp_path, 5)
        await coordinator.pause("operator", "looking")
        first = await look(coordinator, "roll_back", 3)
        assert first == {"version": 6, "rolled_back_to": 3, "rolled_back_from": 5, "step": 3}
        assert await look(coordinator, "roll_back", 3) == first, "asked again it is one rollback"
        order = await coordinator.lease("run", 6, 0.05)
        assert isinstance(order, Rewind) and order.version.version == 6, "the trainer hears of it while paused"
        assert (await look(coordinator, "roll_back", 0))["version"] == 7
        # The trainer had begun to go back to 6: that is not the last word.
        await coordinator.rewound("run", 6)
        order = await coordinator.lease("run", 6, 0.05)
        assert isinstance(order, Rewind) and order.version.version == 7
        assert order.version.snapshot == kept_version(0, tmp_path).snapshot
        await coordinator.rewound("run", 7)
        assert await coordinator.lease("run", 6, 0.05) is None, "paused: nothing more to hear"
        assert (await coordinator.status())["paused"], "a rollback lifts no pause"
        current = await coordinator.current_version()
        assert current is not None and current.version == 7
        assert current.snapshot in await coordinator.snapshots_in_use()
        assert await coordinator.next_version() == 8, "versions never go back"
        await coordinator.close()

    run(test)


def test_rolled_back_again_after_the_trainer_moved_on_it_is_another_rollback(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 3)
        assert (await look(coordinator, "roll_back", 1))["version"] == 4
        await coordinator.rewound("run", 4)
        assert (await look(coordinator, "roll_back", 1))["version"] == 4
        await coordinator.checkpointed("run", 4)
        assert (await look(coordinator, "roll_back", 1))["version"] == 5, "a step was taken from these weights"
        await coordinator.close()

    run(test)


def test_a_version_that_is_unknown_or_pruned_is_refused_with_those_that_are_kept(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 3)
        import shutil

        shutil.rmtree(kept_version(2, tmp_path).snapshot)
        manifest = WeightManifest(version=4, kind=WeightKind.FULL, tensors=(), buckets=(), digest="d")
        meeting = await coordinator.begin_publish("run", manifest, 4, "/snapshots/4", "127.0.0.1", 1)
        for number in (2, 99):
            error = await refused(coordinator, "roll_back", number)
            assert (error.status, error.code) == (404, "version_not_kept")
            assert f"Version {number}" in error.message and "Kept are: 0, 1, 3" in error.message
        current = await coordinator.current_version()
        assert current is not None and current.version == 3, "a refusal changes nothing"
        assert (await coordinator.finish_publish(meeting.name)).version == 4, "nor does it disturb a publish"
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


@pytest.mark.parametrize("when", ["open", "committing"])
def test_a_rollback_during_a_publish_has_the_last_word(tmp_path: Path, when: str) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 2)
        committing, rolled_back = asyncio.Event(), asyncio.Event()

        async def replica() -> None:
            """Does what it is told; its commit takes until the rollback is through."""
            held = 2
            while True:
                order = await coordinator.poll("r", held, {"serving": True}, 0.2)
                if order is None:
                    continue
                if isinstance(order.command, weights.Commit):
                    committing.set()
                    await rolled_back.wait()
                    held = order.command.version
                if isinstance(order.command, weights.CatchUp):
                    held = order.command.version.version
                stats = {"hold_ms": 1.0} if isinstance(order.command, weights.Commit) else {}
                await coordinator.report("r", order.number, held, weights.Outcome(ok=True, stats=stats))

        living = asyncio.create_task(replica())
        await until(coordinator, lambda s: len(s["replicas"]) == 1)
        number = await coordinator.next_version()
        new = kept_version(number, tmp_path)
        manifest = WeightManifest(version=number, kind=WeightKind.FULL, tensors=(), buckets=(), digest=new.digest)
        meeting = await coordinator.begin_publish("run", manifest, 3, new.snapshot, "127.0.0.1", 1)
        if when == "open":
            again = await look(coordinator, "roll_back", 1)
            rolled_back.set()
            with pytest.raises(PublishFailed):
                await coordinator.finish_publish(meeting.name)
        else:
            finishing = asyncio.create_task(coordinator.finish_publish(meeting.name))
            await committing.wait()
            again = await look(coordinator, "roll_back", 1)
            rolled_back.set()
            assert (await finishing).version == number
        assert again["version"] > number
        with pytest.raises(PublishFailed, match="rewind"):
            await coordinator.next_version()
        began = time.monotonic()
        await until(coordinator, lambda s: s["replicas"] and s["replicas"][0]["version"] == again["version"])
        assert time.monotonic() - began < 4.0
        current = await coordinator.current_version()
        assert current is not None and current.version == again["version"]
        living.cancel()
        await coordinator.close()

    run(test)


def test_after_an_operators_rollback_the_guard_still_watches_and_rolls_back_itself(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path, **ALARMS).open()
        await coordinator.restored("run", 0)
        await coordinator.start_version("run", kept_version(0, tmp_path))
        await serve_version(coordinator, 0, text=SOUND)
        await coordinator._decide(kept_version(1, tmp_path))
        await serve_version(coordinator, 1, text=SOUND)
        await until(coordinator, lambda s: s["guards"]["good_version"] == 1)
        await coordinator._decide(kept_version(2, tmp_path))
        assert (await look(coordinator, "roll_back", 2))["version"] == 3
        await serve_version(coordinator, 3, text="no")
        status = await until(coordinator, lambda s: s["version"] == 4)
        assert status["paused"] and status["versions"][0]["stats"]["rolled_back_to"] == 1
        assert status["versions"][0]["stats"]["by"] == "guard"
        await coordinator.close()

    run(test)


def test_publish_says_that_nothing_is_new_and_ends_the_rest_of_a_trainer_that_has_something(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 0)
        answer = await look(coordinator, "publish")
        assert (answer["outcome"], answer["version"], answer["newest_step"]) == ("nothing_new", 0, None)
        await talk(coordinator, 3)
        lease = await coordinator.lease("run", 1, 5.0)
        assert isinstance(lease, Lease) and await coordinator.confirm(lease.lease_id, "run")
        assert await coordinator.applied(lease.lease_id, "run", {"changed": True})
        began = time.monotonic()
        resting = asyncio.create_task(coordinator.rest(20.0))
        await asyncio.sleep(0.01)
        answer = await look(coordinator, "publish")
        assert (answer["outcome"], answer["step"], answer["newest_step"]) == ("asked", 0, 1)
        assert answer["trainer"] == "running"
        await resting
        assert time.monotonic() - began < 10.0
        await coordinator._decide(kept_version(1, tmp_path))
        assert (await look(coordinator, "publish"))["outcome"] == "nothing_new"
        await look(coordinator, "roll_back", 0)
        error = await refused(coordinator, "publish")
        assert error.status == 409 and "rewind" in error.message
        await coordinator.rewound("run", 2)
        assert (await look(coordinator, "publish"))["outcome"] == "nothing_new", "step 1 was taken back"
        await coordinator.close()

    run(test)


def test_an_export_has_ids_log_probs_spans_reward_and_texts(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await talk(coordinator, 3)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)
        first = await look(coordinator, "export", ALL, None, 2)
        rest = await look(coordinator, "export", ALL, first["before"], 2)
        assert [row["turn_id"] for row in (*first["rows"], *rest["rows"])] == ["s-2", "s-1", "s-0"]
        assert rest["before"] is None
        row = rest["rows"][0]
        made = turn("s-0", [Message(role="user", content="hello s")], "answer 0")
        assert row["response_ids"] == made.response_ids.tolist() and row["prompt_ids"] == made.prompt_ids.tolist()
        assert np.array_equal(np.float32(row["response_logps"]), made.response_logps)
        assert row["spans"] == [{"start": 0, "end": 4, "version": 0}] and row["reward"] == 1.0
        assert row["answer"][0]["content"] == "answer 0" and row["evidence"][0]["content"] == "ok"
        await coordinator.close()

    run(test)

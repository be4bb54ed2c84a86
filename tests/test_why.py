"""Why a turn has not trained: for every reason and every state, through the code that makes it so."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from clawrl.actors.coordinator import Coordinator
from clawrl.actors.generation import Refused
from clawrl.config import Deployment
from clawrl.inspection.why import STATES
from clawrl.inspection.why_dropped import DROPS as EXPLAINED
from clawrl.ledger.codec import SEALED_MARK
from clawrl.messages import DropReason, JudgeRequest, Lease, TurnId, TurnState
from clawrl.privacy.forgetting import Wanted
from clawrl.strict import StrictConfig
from tests.office import Office, says_good, talk
from tests.operator_kit import DROPS, Dropped, drop, one, run, until
from tests.privacy_kit import found_in

_FIELD = re.compile(r"\b(?:serving|policy|judge|trainer|guards|publish|ledger)(?:\.[a-z_]+)+")


async def asked_why(coordinator: Coordinator, turn_id: str) -> dict[str, Any]:
    document = await coordinator.operator("turn", turn_id)
    assert not isinstance(document, Refused)
    json.dumps(document, allow_nan=False)
    why = document["why"]
    for sentence in why.values():
        assert sentence[0].isupper() or sentence[0] == "`", sentence
        assert sentence.endswith("."), sentence
    return dict(document)


def has(deployment: Deployment, path: str) -> bool:
    """Whether a dotted path names a field of the deployment, or of any form that the field may have."""
    kinds: list[Any] = [type(deployment)]
    for name in path.split("."):
        fields = [kind.model_fields[name].annotation for kind in kinds if name in getattr(kind, "model_fields", {})]
        if not fields:
            return False
        kinds = [part for field in fields for part in _parts(field)]
    return True


def _parts(annotation: Any) -> list[Any]:
    inner = getattr(annotation, "__args__", None)
    return [annotation] if not inner else [found for part in inner for found in _parts(part)]


def test_every_drop_reason_and_every_state_has_an_explanation_and_a_test_that_produces_it() -> None:
    assert set(EXPLAINED) == set(DropReason)
    assert set(STATES) == set(TurnState)
    assert {case.reason for case in DROPS} == set(DropReason)


def test_a_forgotten_turn_says_whether_somebody_asked_and_whether_it_keeps_its_text(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path / "state").open()
        await talk(coordinator, 3)
        await coordinator.forget(Wanted(turn_id=TurnId("s-1")))
        asked, before = await asked_why(coordinator, "s-1"), await asked_why(coordinator, "s-0")
        assert asked["drop_reason"] == before["drop_reason"] == "forgotten"
        assert "somebody asked for it" in asked["why"]["sentence"] and "retention" not in asked["why"]["sentence"]
        assert "its own text is still here" in before["why"]["sentence"] and before["response_text"] == "answer 0"
        await talk(coordinator, 3, session="t")
        await until(coordinator, lambda status: status["turns"]["by_state"].get("queued") == 2)
        coordinator._keys.shred("o")
        await coordinator.restored("run", 0)
        assert await coordinator.lease("run", 1, 0.1) is None
        gone = await asked_why(coordinator, "t-0")
        assert gone["drop_reason"] == "forgotten" and "key of its user is gone" in gone["why"]["sentence"]
        await coordinator.close()

    run(test)


def test_a_turn_that_could_not_be_read_does_not_put_it_on_the_method(tmp_path: Path) -> None:
    async def test() -> None:
        office = Office(tmp_path / "state")
        coordinator = office.open()
        await talk(coordinator, 2, session="a")
        await talk(coordinator, 2, session="b")
        await until(coordinator, lambda status: status["turns"]["by_state"].get("queued") == 2)
        await coordinator.close()
        with sqlite3.connect(tmp_path / "state" / "ledger.sqlite") as file:
            file.execute("UPDATE payloads SET answer = ? WHERE turn_id = 'a-0'", (SEALED_MARK + bytes(40),))
            ((key_id,),) = file.execute("SELECT substr(answer, 5, 8) FROM payloads WHERE turn_id = 'b-0'")
            file.execute("UPDATE payloads SET answer = ? WHERE turn_id = 'a-0'", (SEALED_MARK + key_id + bytes(40),))
        file.close()
        coordinator = office.open()
        await coordinator.restored("run", 0)
        assert await coordinator.lease("run", 1, 0.1) is None
        altered = await asked_why(coordinator, "a-0")
        assert altered["drop_reason"] == "malformed" and "altered" in altered["why"]["sentence"]
        path = coordinator._keys._path("o")
        await coordinator.close()
        path.write_bytes(b"")
        coordinator = office.open()
        await coordinator.restored("again", 0)
        lend = lambda ledger: ledger.lease("again", 1, 1, now=0.0, timeout_s=60.0, minimum=1)  # noqa: E731
        assert await coordinator._db.run(lend) is None
        damaged = await asked_why(coordinator, "b-0")
        assert damaged["drop_reason"] == "malformed" and "key of its user" in damaged["why"]["sentence"]
        assert "put a copy of it back" in damaged["why"]["remedy"]
        await coordinator.close()

    run(test)


@pytest.mark.parametrize("case", DROPS, ids=lambda case: case.reason.value)
def test_a_dropped_turn_says_why_in_a_sentence_and_what_to_do(tmp_path: Path, case: Dropped) -> None:
    async def test() -> None:
        coordinator, turn_id = await drop(tmp_path, case)
        document = await asked_why(coordinator, turn_id)
        assert document["drop_reason"] == case.reason.value
        said = f"{document['why']['sentence']} {document['why']['remedy']}"
        assert case.says in said, said
        named = set(_FIELD.findall(said))
        assert all(has(coordinator._deployment, path) for path in named), named
        await coordinator.close()

    run(test)


def test_no_word_of_a_conversation_that_a_filter_quotes_gets_into_the_ledger_in_the_open(tmp_path: Path) -> None:
    (case,) = [case for case in DROPS if case.reason is DropReason.REFUSED_BY_FILTER]

    async def test() -> None:
        coordinator, turn_id = await drop(tmp_path, case)
        document = await asked_why(coordinator, turn_id)
        assert "an answer" not in json.dumps(document["transitions"])
        assert "an answer" in document["why"]["sentence"]
        await coordinator.close()
        assert found_in(tmp_path, "an answer") == []

    run(test)


def test_the_paths_that_are_looked_for_are_told_from_those_that_do_not_exist(tmp_path: Path) -> None:
    deployment = Office(tmp_path).deployment
    assert has(deployment, "trainer.training.staleness.max_steps") and has(deployment, "judge.verdict.timeout_s")
    assert not has(deployment, "trainer.training.no_such_field") and not has(deployment, "judge.verdicts")
    assert isinstance(deployment, StrictConfig)


def test_a_turn_says_at_each_station_of_its_way_what_it_waits_for(tmp_path: Path) -> None:
    async def test() -> None:
        gate: dict[str, bool] = {"open": False}

        async def slow(request: JudgeRequest) -> Any:
            import asyncio

            while not gate["open"]:
                await asyncio.sleep(0.005)
            return await says_good(request)

        coordinator = Office(tmp_path).open(judge=slow)
        await coordinator.restored("run", 0)
        first = one("alone", session="alone")
        await coordinator.record(first)
        said = (await asked_why(coordinator, "alone"))["why"]
        assert "waits for what comes next in session 'alone'" in said["sentence"]
        assert "ledger.idle_timeout_s is 600" in said["sentence"] and "clawrl feedback --turn alone" in said["remedy"]

        await talk(coordinator, 3)
        said = (await asked_why(coordinator, "s-1"))["why"]
        assert "The judge has it in hand" in said["sentence"] and "judge.verdict.concurrency" in said["remedy"]

        await coordinator.pause("operator", "a new disk")
        gate["open"] = True
        await until(coordinator, lambda s: s["turns"]["by_state"].get("judged") == 2)
        said = (await asked_why(coordinator, "s-0"))["why"]
        assert "paused by operator" in said["sentence"] and "a new disk" in said["sentence"]
        assert "clawrl resume" in said["remedy"]

        await coordinator.resume()
        said = (await asked_why(coordinator, "s-1"))["why"]
        assert "number 2 of 2 in the queue" in said["sentence"] and "has not taken it" in said["sentence"]

        lease = await coordinator.lease("run", 1, 1.0)
        assert isinstance(lease, Lease)
        said = (await asked_why(coordinator, "s-0"))["why"]
        assert "in the batch of step 1" in said["sentence"] and "more seconds before" in said["sentence"]

        await talk(coordinator, 2, session="later")
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 1)
        said = (await asked_why(coordinator, "later-0"))["why"]
        assert "the trainer has the turns of step 1 in hand" in said["sentence"]

        assert await coordinator.confirm(lease.lease_id, "run")
        assert "is being taken" in (await asked_why(coordinator, "s-0"))["why"]["sentence"]
        assert await coordinator.applied(lease.lease_id, "run", {"loss": 0.5, "changed": True})
        applied = await asked_why(coordinator, "s-0")
        assert "Step 1 has learned from it" in applied["why"]["sentence"]
        assert applied["trained_by"]["stats"]["loss"] == 0.5 and applied["trained_by"]["accepted_share"] == 1.0

        said = (await asked_why(coordinator, "later-0"))["why"]
        assert "the trainer waits for 1 more turn" in said["sentence"]
        assert "A batch needs 2 turns" in said["remedy"]

        await coordinator.checkpointed("run", 1)
        trained = await asked_why(coordinator, "s-0")
        assert "It has trained" in trained["why"]["sentence"] and trained["credit"]["in_weights"]
        await coordinator.close()

    run(test)


def test_a_schedule_says_from_when_on_it_trains(tmp_path: Path) -> None:
    async def test() -> None:
        schedule = {"when": "idle", "hours": "03:00-03:01", "time_zone": "Europe/Berlin"}
        coordinator = Office(tmp_path, trainer__training__schedule=schedule).open()
        await coordinator.restored("run", 0)
        await talk(coordinator, 4)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 3)
        said = (await asked_why(coordinator, "s-0"))["why"]
        assert "the trainer waits until 03:00 (Europe/Berlin)" in said["sentence"] and "`idle`" in said["remedy"]
        await coordinator.close()

    run(test)


def test_a_turn_that_nobody_knows_is_one_clear_refusal(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        refused = await coordinator.operator("turn", "gone")
        assert isinstance(refused, Refused) and refused.error.code == "turn_not_found"
        assert "ledger.keep_finished_turns" in refused.error.message
        await coordinator.close()

    run(test)

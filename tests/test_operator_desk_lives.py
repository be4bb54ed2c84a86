"""A turn's life and its row in an export, as an operator gets them from the coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from clawrl.actors.coordinator import Coordinator
from clawrl.cli.view import turn_life
from clawrl.inspection.life import with_pieces
from clawrl.messages import Message
from clawrl.privacy.forgetting import Wanted
from tests.office import Office, talk, turn
from tests.operator_kit import ALL, arriving, hints, look, one, run, until


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


async def forgotten(folder: Path) -> Coordinator:
    coordinator = Office(folder).open()
    await coordinator.record(one())
    await coordinator.forget(Wanted(turn_id="t"))
    return coordinator


async def not_recorded(folder: Path) -> Coordinator:
    coordinator = Office(folder, privacy={"record_untrainable": False}).open()
    await coordinator.record(arriving(one(), may_train=False, train_wish=False))
    return coordinator


@pytest.mark.parametrize("opened", [forgotten, not_recorded], ids=["forgotten", "not recorded"])
def test_a_turn_of_which_no_word_was_kept_says_so_and_shows_no_empty_answer(
    tmp_path: Path, opened: Callable[[Path], Awaitable[Coordinator]]
) -> None:
    async def test() -> None:
        coordinator = await opened(tmp_path)
        life = await look(coordinator, "turn", "t")
        assert "they were not to be kept" in life["text_gone"]
        for part in ("request", "answer", "response_text", "evidence", "feedback", "judgement", "sampling"):
            assert life[part] is None, part
        assert life["tokens"] == life["spans"] == []
        shown = Console(file=StringIO(), width=200)
        shown.print(turn_life(life))
        told = shown.file.getvalue()  # type: ignore[attr-defined]
        assert life["text_gone"] in told and "assistant>" not in told and life["why"]["sentence"] in told
        (row,) = (await look(coordinator, "export", ALL, None, 10))["rows"]
        assert row["text_gone"] and row["answer"] == [] and row["temperature"] is None
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

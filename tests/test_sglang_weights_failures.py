"""Whatever fails while SGLang takes new weights: the old ones go on, or the engine says that it is broken."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from clawrl.engine import sglang_weights
from clawrl.engine.errors import EngineError, WeightsRefused
from clawrl.engine.sglang_api import Refusal, SglangError
from tests.sglang_fake import (
    BEGIN,
    BUCKET,
    CHECKSUM,
    CONTINUE,
    DESTROY,
    DISK,
    END,
    FLUSH,
    INIT,
    PAUSE,
    Play,
    Stage,
)

STEPS = [INIT, PAUSE, FLUSH, BEGIN, BUCKET, END, DESTROY, CHECKSUM]
UNTOUCHED = {INIT, PAUSE, FLUSH, BEGIN}


@pytest.mark.parametrize("kind", [SglangError, Refusal])
@pytest.mark.parametrize("step", STEPS)
def test_a_failure_at_any_step_of_a_broadcast_ends_with_the_old_weights_going_on(
    play: Play, step: str, kind: type[Exception]
) -> None:
    async def story(stage: Stage) -> None:
        stage.api.error = kind("broke here")
        stage.api.fail[step] = 1
        if step == FLUSH and kind is Refusal:
            await stage.load()  # it is tried again
            return await stage.weights.abort()
        if step == DESTROY:
            # The group is gone either way; the publish goes on.
            await stage.load()
            await stage.weights.commit(1)
            assert stage.api.served == [stage.second]
            return
        with pytest.raises(WeightsRefused, match="version 1: broke here"):
            await stage.load()
        stage.went_on_with_the_first()
        after = stage.api.names[stage.api.names.index(step) + 1 :]
        if step in UNTOUCHED:
            assert DISK not in stage.api.names and CHECKSUM not in stage.api.names, "nothing was changed"
        else:
            assert after[-3:] == [DISK, CHECKSUM, CONTINUE]
            assert stage.api.bodies(DISK)[-1]["model_path"] == str(stage.start)
            assert stage.api.label == "0"
        assert stage.api.names.count(PAUSE) == (0 if step == INIT else 1)
        assert stage.api.names.count(CONTINUE) == (0 if step == INIT else 1)
        failure = stage.weights.stats()
        assert failure["failed_loads"] == 1
        assert failure["last_failed_load"]["version"] == 1 and failure["last_failed_load"]["hold_ms"] > 0
        assert "broke here" in failure["last_failed_load"]["why"]

    play(story)


@pytest.mark.parametrize("step", [PAUSE, DISK, CHECKSUM, FLUSH])
def test_a_failure_at_any_step_from_disk_ends_with_the_old_weights_going_on(play: Play, step: str) -> None:
    async def story(stage: Stage) -> None:
        stage.api.fail[step] = 1
        with pytest.raises(WeightsRefused):
            await stage.load(stage.on_disk)
        stage.went_on_with_the_first()
        assert stage.api.names[-1] == CONTINUE and stage.weights.failures == 1

    play(story)


@pytest.mark.parametrize("step", [INIT, PAUSE, BEGIN, BUCKET, END, CHECKSUM, FLUSH])
def test_a_step_that_hangs_is_given_up_after_the_time_of_the_transfer(
    play: Play, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_weights, "_MARGIN_S", 0.0)

    async def story(stage: Stage) -> None:
        stage.api.hang = step
        with pytest.raises(WeightsRefused, match="version 1: TimeoutError"):
            await asyncio.wait_for(stage.load(stage.broadcast(timeout_s=0.2)), 10.0)
        stage.went_on_with_the_first()

    play(story)


def test_a_session_that_began_though_its_answer_was_lost_is_ended(play: Play) -> None:
    async def story(stage: Stage) -> None:
        do = stage.api._do

        def lost(call: str, body: Mapping[str, Any]) -> Any:
            do(call, body)
            if call == BEGIN:
                stage.api._do = do  # type: ignore[method-assign]
                raise SglangError("no answer")

        stage.api._do = lost  # type: ignore[method-assign]
        with pytest.raises(WeightsRefused, match="no answer"):
            await stage.load()
        stage.went_on_with_the_first()
        await stage.load()
        await stage.weights.commit(1)
        assert stage.api.served[-1] == stage.second

    play(story)


def test_the_refusal_is_raised_after_requests_have_gone_on(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.api.fail[BUCKET] = 1
        went_on: list[bool] = []
        try:
            await stage.load()
        except WeightsRefused:
            went_on.append(not stage.api.paused and stage.api.names[-1] == CONTINUE)
        assert went_on == [True]

    play(story)


def test_weights_that_hash_to_something_else_do_not_serve(play: Play) -> None:
    async def story(stage: Stage) -> None:
        name = "model.layers.1.self_attn.v_proj.weight"
        stage.api.broadcast = {**stage.api.broadcast, name: stage.api.broadcast[name] + 1e-3}
        with pytest.raises(WeightsRefused, match=r"1 of SGLang's parameters .*layers\.1\.self_attn\.qkv_proj"):
            await stage.load()
        stage.went_on_with_the_first()

    play(story)


@pytest.mark.parametrize("reply", [None, {}, {"ranks": [{}]}, {"ranks": None}, []])
def test_an_answer_without_checksums_is_a_failure_like_any_other(play: Play, reply: Any) -> None:
    async def story(stage: Stage) -> None:
        do, asked = stage.api._do, []

        def once(call: str, body: Mapping[str, Any]) -> Any:
            if call == CHECKSUM:
                asked.append(call)
                if len(asked) == 1:
                    return reply
            return do(call, body)

        stage.api._do = once  # type: ignore[method-assign]
        with pytest.raises(WeightsRefused, match="without checksums"):
            await stage.load()
        stage.went_on_with_the_first()

    play(story)


@pytest.mark.parametrize("step", [DISK, CHECKSUM, "other weights", "no checksums"])
def test_where_going_back_fails_too_requests_stay_held_and_the_engine_says_that_it_is_broken(
    play: Play, step: str
) -> None:
    async def story(stage: Stage) -> None:
        stage.api.fail[BUCKET] = 1
        if step == "other weights":
            stage.api.spoil = lambda found: found.update({"model.norm.weight": "0" * 16})
        elif step == "no checksums":
            stage.api.spoil = lambda found: found.clear()
        else:
            stage.api.fail[step] = 1
        with pytest.raises(WeightsRefused):
            await stage.load()
        assert CONTINUE not in stage.api.names and stage.api.served == []
        with pytest.raises(EngineError, match="could not go back to version 0"):
            stage.weights.check()
        with pytest.raises(EngineError):
            await stage.weights.prepare(stage.manifest, stage.snapshot)

    play(story)


def test_an_sglang_that_does_not_go_on_at_the_commit_is_broken(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.load()
        stage.api.fail[CONTINUE] = 1
        with pytest.raises(EngineError, match="did not go on"):
            await stage.weights.commit(1)
        with pytest.raises(EngineError):
            stage.weights.check()
        assert stage.weights.version == 0

    play(story)


def test_a_receive_that_is_cancelled_goes_back_as_well(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.weights.prepare(stage.manifest, stage.snapshot)
        stage.api.hang = END
        receiving = asyncio.create_task(stage.weights.receive(stage.broadcast()))
        while END not in stage.api.names:
            await asyncio.sleep(0.01)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        stage.went_on_with_the_first()

    play(story)


def test_after_a_failure_the_next_version_is_loaded_and_a_later_failure_goes_back_to_that(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.api.fail[BUCKET] = 1
        with pytest.raises(WeightsRefused):
            await stage.load()
        await stage.load()
        await stage.weights.commit(1)
        stage.manifest = dataclasses.replace(stage.manifest, version=2)
        stage.api.fail[BUCKET] = 1
        with pytest.raises(WeightsRefused, match="version 2"):
            await stage.load()
        assert stage.api.bodies(DISK)[-1] == {
            "model_path": str(stage.snapshot),
            "weight_version": "1",
            "flush_cache": False,
        }
        assert stage.weights.version == 1 and stage.api.weights == stage.second and stage.weights.failures == 2

    play(story)

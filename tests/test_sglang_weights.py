"""New weights for a running SGLang: the order of calls of a good publish, the decision, and what is refused before."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clawrl.engine import sglang_weights
from clawrl.engine.errors import EngineError, WeightsRefused
from clawrl.engine.sglang_api import Refusal
from clawrl.messages import AdapterShape, Addition, WeightKind, WeightManifest
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
    staged,
)


def test_a_broadcast_is_held_loaded_checked_and_goes_on_only_at_the_commit(play: Play) -> None:
    async def story(stage: Stage) -> None:
        buckets = len(stage.manifest.buckets)
        assert buckets > 2
        await stage.load()
        assert stage.api.names == [INIT, PAUSE, FLUSH, BEGIN, *[BUCKET] * buckets, END, DESTROY, CHECKSUM]
        assert stage.weights.version == 0
        report = await stage.weights.commit(1)
        assert stage.api.names[-2:] == [CHECKSUM, CONTINUE] and stage.api.names.count(CONTINUE) == 1
        assert stage.weights.version == 1
        assert stage.api.served == [stage.second] and stage.api.label == "1"
        assert report.version == 1 and report.hold_s > 0 and report.requests_carried == 3
        assert stage.weights.stats() == {"failed_loads": 0, "last_failed_load": None}

    play(story, running=3)


def test_sglang_is_told_where_it_meets_whom_and_what_comes_in_which_bucket(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.load()
        (meeting,) = stage.api.bodies(INIT)
        assert meeting == {
            "master_address": "h",
            "master_port": 9,
            "rank_offset": 2,
            "world_size": 3,
            "group_name": "meet",
            "backend": "gloo",
        }
        bodies = stage.api.bodies(BUCKET)
        assert [name for body in bodies for name in body["names"]] == [spec.name for spec in stage.manifest.tensors]
        assert [shape for body in bodies for shape in body["shapes"]] == [
            list(spec.shape) for spec in stage.manifest.tensors
        ]
        assert {dtype for body in bodies for dtype in body["dtypes"]} == {"float32"}
        assert [body["weight_version"] for body in bodies] == [None] * (len(bodies) - 1) + ["1"]
        assert all(body["flush_cache"] is False and body["load_format"] == "flattened_bucket" for body in bodies)
        assert stage.api.bodies(DESTROY) == [{"group_name": "meet"}]

    play(story)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_requests_are_held_in_the_configured_way(play: Play, mode: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.load()
        await stage.weights.commit(1)
        assert stage.api.bodies(PAUSE) == [{"mode": mode}] and stage.api.names.count(FLUSH) == 1

    play(story, pause_mode=mode)


def test_in_place_keeps_the_prefixes_of_running_requests_where_sglang_does_not_forget_them(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.api.fail[FLUSH], stage.api.error = 1, Refusal("requests are running")
        await stage.load()
        await stage.weights.commit(1)
        assert stage.api.names.count(FLUSH) == 1 and stage.api.served == [stage.second]

    play(story, pause_mode="in_place")


def test_a_grammar_that_is_being_compiled_is_let_go_on_for_a_moment(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.api.fail[FLUSH], stage.api.error = 3, Refusal("requests are queued")
        await stage.load()
        assert [name for name in stage.api.names if name in (PAUSE, FLUSH, CONTINUE)] == [
            *[PAUSE, FLUSH, CONTINUE] * 3,
            PAUSE,
            FLUSH,
        ]
        await stage.weights.commit(1)
        assert stage.api.served == [stage.first] * 3 + [stage.second]

    play(story)


def test_prefixes_that_are_never_forgotten_end_the_publish_with_nothing_changed(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_weights, "_FLUSH_REST_S", 0.0)

    async def story(stage: Stage) -> None:
        stage.api.fail[FLUSH], stage.api.error = 1000, Refusal("requests are queued")
        with pytest.raises(WeightsRefused, match="could not be forgotten in 40 attempts"):
            await stage.load()
        stage.went_on_with_the_first()
        assert DISK not in stage.api.names

    play(story)


def test_a_version_from_disk_needs_no_group_and_no_session(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.load(stage.on_disk)
        assert stage.api.names == [PAUSE, FLUSH, DISK, CHECKSUM]
        assert stage.api.bodies(DISK) == [
            {"model_path": str(stage.snapshot), "weight_version": "1", "flush_cache": False}
        ]
        await stage.weights.commit(1)
        assert stage.api.names[-1] == CONTINUE and stage.api.served == [stage.second] and stage.api.label == "1"

    play(story)


def test_an_sglang_without_sessions_is_not_asked_for_one(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.load()
        assert BEGIN not in stage.api.names and END not in stage.api.names and BUCKET in stage.api.names
        await stage.weights.abort()
        assert BEGIN not in stage.api.names and END not in stage.api.names
        stage.went_on_with_the_first()

    play(story, sessions=False)


def test_a_bucket_without_bytes_is_not_sent_and_the_last_with_bytes_carries_the_label(play: Play) -> None:
    async def story(stage: Stage) -> None:
        end = len(stage.manifest.tensors)
        stage.manifest = dataclasses.replace(stage.manifest, buckets=(*stage.manifest.buckets, (end, end)))
        await stage.load()
        bodies = stage.api.bodies(BUCKET)
        assert len(bodies) == len(stage.manifest.buckets) - 1 and bodies[-1]["weight_version"] == "1"

    play(story)


# -- the decision -------------------------------------------------------------------------------------------------


def test_an_abort_after_the_load_goes_back(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.load()
        await stage.weights.abort()
        stage.went_on_with_the_first()
        assert stage.api.names[-3:] == [DISK, CHECKSUM, CONTINUE]
        assert stage.weights.stats()["last_failed_load"]["why"] == "it was called off"
        with pytest.raises(WeightsRefused, match="without a prepared version"):
            await stage.weights.commit(1)

    play(story)


def test_an_abort_before_the_load_touches_nothing_and_may_come_at_any_time(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.api.calls.clear()
        await stage.weights.abort()
        await stage.weights.prepare(stage.manifest, stage.snapshot)
        await stage.weights.abort()
        assert stage.api.calls == [] and stage.weights.failures == 0
        with pytest.raises(WeightsRefused, match="receive without a prepared version"):
            await stage.weights.receive(stage.broadcast())

    play(story)


def test_without_a_word_in_time_it_goes_back_by_itself_and_a_late_commit_is_refused(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.load()
        assert stage.api.paused
        async with asyncio.timeout(5.0):
            while stage.weights.failures == 0:
                await asyncio.sleep(0.01)
        stage.went_on_with_the_first()
        assert "no word within 0.1 s" in stage.weights.stats()["last_failed_load"]["why"]
        with pytest.raises(WeightsRefused):
            await stage.weights.commit(1)
        assert stage.weights.version == 0

    play(story, decide_within_s=0.1)


def test_a_word_in_time_ends_the_wait_for_it(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.load()
        await stage.weights.commit(1)
        await asyncio.sleep(0.3)
        assert stage.weights.version == 1 and stage.weights.failures == 0 and stage.api.weights == stage.second

    play(story, decide_within_s=0.1)


def test_a_second_prepare_calls_the_first_off(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.load()
        await stage.weights.prepare(dataclasses.replace(stage.manifest, version=2), stage.snapshot)
        stage.went_on_with_the_first()
        with pytest.raises(WeightsRefused, match="version 1"):
            await stage.weights.commit(1)
        await stage.weights.receive(stage.broadcast())
        await stage.weights.commit(2)
        assert stage.weights.version == 2 and stage.api.label == "2"

    play(story)


def test_another_version_than_the_one_loaded_is_not_committed(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.weights.prepare(stage.manifest, stage.snapshot)
        with pytest.raises(WeightsRefused, match="not loaded"):
            await stage.weights.commit(1)
        await stage.weights.receive(stage.broadcast())
        with pytest.raises(WeightsRefused, match="version 2"):
            await stage.weights.commit(2)
        assert stage.api.paused and stage.weights.version == 0
        await stage.weights.commit(1)
        assert stage.weights.version == 1

    play(story)


# -- what is refused before anything is held ----------------------------------------------------------------------


def altered(stage: Stage, fault: str) -> WeightManifest:
    specs = list(stage.manifest.tensors)
    if fault == "adapter":
        shape = AdapterShape(rank=4, alpha=8.0, targets=("q_proj",))
        addition = Addition(shape=shape, base_version=0, base_digest="")
        return dataclasses.replace(stage.manifest, kind=WeightKind.ADAPTER, addition=addition)
    if fault == "missing":
        specs.pop(3)
    elif fault == "shape":
        specs[3] = dataclasses.replace(specs[3], shape=(*specs[3].shape[:-1], specs[3].shape[-1] + 1))
    elif fault == "dtype":
        specs[3] = dataclasses.replace(specs[3], dtype="bfloat16")
    elif fault == "unknown dtype":
        specs[3] = dataclasses.replace(specs[3], dtype="float7")
    elif fault == "unknown tensor":
        specs.append(dataclasses.replace(specs[3], name="model.layers.9.mlp.gate_proj.weight"))
    return dataclasses.replace(stage.manifest, tensors=tuple(specs))


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("adapter", "full weights"),
        ("missing", "1 tensors do not fit"),
        ("shape", "1 tensors do not fit"),
        ("dtype", "1 tensors do not fit"),
        ("unknown dtype", "1 tensors do not fit"),
        ("unknown tensor", "layers.9"),
    ],
)
def test_a_version_that_does_not_fit_is_refused_with_nothing_held(play: Play, fault: str, told: str) -> None:
    async def story(stage: Stage) -> None:
        stage.api.calls.clear()
        with pytest.raises(WeightsRefused, match=told):
            await stage.weights.prepare(altered(stage, fault), stage.snapshot)
        assert stage.api.calls == [] and stage.weights.failures == 0
        with pytest.raises(WeightsRefused, match="without a prepared"):
            await stage.weights.receive(stage.broadcast())

    play(story)


@pytest.mark.parametrize("fault", ["elsewhere", "torn", "another digest"])
def test_a_snapshot_that_cannot_be_read_here_names_the_file_system_that_must_be_shared(play: Play, fault: str) -> None:
    async def story(stage: Stage) -> None:
        stage.api.calls.clear()
        snapshot, manifest = stage.snapshot, stage.manifest
        if fault == "elsewhere":
            snapshot = Path("/not/on/this/machine")
        elif fault == "torn":
            file = snapshot / "model.safetensors"
            file.write_bytes(file.read_bytes()[:1000])
        else:
            manifest = dataclasses.replace(manifest, digest="f" * 64)
        with pytest.raises(WeightsRefused, match="state_dir must be on a file system that every replica's machine"):
            await stage.weights.prepare(manifest, snapshot)
        assert stage.api.calls == []

    play(story)


def test_parameters_that_cannot_be_checked_keep_the_engine_from_starting(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.api.weights["model.layers.0.experts.w13_weight"] = "1" * 16
        with pytest.raises(EngineError, match=r"w13_weight.*cannot be checked"):
            await stage.weights.start()

    play(story)


def test_what_the_starting_folder_holds_beyond_sglangs_parameters_need_not_be_published(
    tiny_folder: Path, other_tiny_folder: Path, tmp_path: Path
) -> None:
    """Such as a head that is the embeddings, or tables that old checkpoints carry."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    save_file({"lm_head.weight": torch.ones(2, 2), "x.inv_freq": torch.ones(2)}, folder / "more.safetensors")

    async def story(stage: Stage) -> None:
        await stage.load()
        await stage.weights.commit(1)
        assert stage.api.served == [stage.second]

    staged(folder, other_tiny_folder, tmp_path / "snapshots", story)

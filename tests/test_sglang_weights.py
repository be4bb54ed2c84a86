"""New weights for a running SGLang: the order of calls, and that whatever fails ends with the old weights going on.

SGLang is a fake that holds a version, names the hashes of its parameters, and can be told at which call to fail.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from clawrl.engine import sglang_weights
from clawrl.engine.config import SglangConfig
from clawrl.engine.errors import EngineError, WeightsRefused
from clawrl.engine.sglang_api import Refusal, SglangError
from clawrl.engine.sglang_checksums import cpu_hash
from clawrl.engine.sglang_weights import SglangWeights
from clawrl.messages import WeightKind, WeightManifest
from clawrl.weights.manifest import build_manifest
from clawrl.weights.snapshot import write_snapshot
from clawrl.weights.sources import Broadcast, OnDisk, Rendezvous, WeightSource
from tests.engine_tools import weights_of

INIT, PAUSE, BEGIN = "init_weights_update_group", "pause_generation", "begin_weight_update"
BUCKET, END, DESTROY = "update_weights_from_distributed", "end_weight_update", "destroy_weights_update_group"
DISK, CHECKSUM, FLUSH, CONTINUE = (
    "update_weights_from_disk",
    "weights_checker",
    "flush_cache",
    "continue_generation",
)


weights = functools.cache(weights_of)


def hashes(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Of SGLang's parameters: joined, and without a head of its own where it is the embeddings."""
    made = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            parts = [tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            made[name.replace("q_proj", "qkv_proj")] = cpu_hash(torch.cat(parts))
        elif "gate_proj" in name:
            parts = [tensors[name.replace("gate_proj", part)] for part in ("gate_proj", "up_proj")]
            made[name.replace("gate_proj", "gate_up_proj")] = cpu_hash(torch.cat(parts))
        elif not any(part in name for part in ("k_proj", "v_proj", "up_proj")):
            made[name] = cpu_hash(tensor)
    return made


class FakeSglang:
    """``fail`` counts how often a call still does so, ``hang`` names one; ``broadcast`` is what a broadcast brings."""

    def __init__(self, folder: Path, broadcast: Mapping[str, torch.Tensor]) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.weights = hashes(weights(folder))
        self.broadcast = broadcast
        self.fail: dict[str, int] = {}
        self.hang = ""
        self.error: Exception = SglangError("broke")
        self.paused = self.session = False
        self.group = ""
        self.label = "0"
        self.served: list[dict[str, str]] = []
        self.spoil: Callable[[dict[str, str]], Any] = lambda found: None

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def bodies(self, call: str) -> list[Mapping[str, Any]]:
        return [body for name, body in self.calls if name == call]

    async def control(self, call: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 30.0) -> Any:
        self.calls.append((call, body or {}))
        try:
            await asyncio.sleep(60 if call == self.hang else 0)
        except asyncio.CancelledError:
            self.hang = ""
            raise
        if self.fail.get(call, 0) > 0:
            self.fail[call] -= 1
            # What failed half-way may have written anything.
            if call in (BUCKET, DISK):
                self.weights = {name: "?" for name in self.weights}
            raise self.error
        return self._do(call, body or {})

    def _do(self, call: str, body: Mapping[str, Any]) -> Any:
        if call == INIT:
            self.group = body["group_name"]
        elif call == DESTROY:
            if self.group != body["group_name"]:
                raise Refusal("no such group")
            self.group = ""
        elif call == PAUSE:
            self.paused = True
        elif call == BEGIN:
            if self.session:
                raise Refusal("a weight-update session is already open")
            self.session = True
        elif call == END:
            if not self.session:
                raise Refusal("no weight-update session is open")
            self.session = False
        elif call == BUCKET:
            self._load(hashes(self.broadcast), body)
        elif call == DISK:
            if self.session:
                raise Refusal("a session is open")
            files = Path(body["model_path"]).glob("*.safetensors")
            self._load(hashes({name: tensor for file in files for name, tensor in load_file(file).items()}), body)
        elif call == CHECKSUM:
            found = dict(self.weights)
            self.spoil(found)
            return {"ranks": [{"checksums": found}]}
        elif call == CONTINUE:
            self.paused = False
            self.served.append(self.weights)
        return {"success": True}

    def _load(self, weights: dict[str, str], body: Mapping[str, Any]) -> None:
        assert self.paused, "weights may change only while requests are held"
        self.weights = weights
        self.label = body["weight_version"] or self.label


@dataclasses.dataclass
class Stage:
    """A fake SGLang with its weights, a version 1 to publish, and what the folder of the start holds."""

    api: FakeSglang
    weights: SglangWeights
    manifest: WeightManifest
    snapshot: Path
    start: Path
    first: dict[str, str]

    def broadcast(self, timeout_s: float = 30.0) -> WeightSource:
        meeting = Rendezvous(host="h", port=9, name="meet", world=3, transport="gloo", timeout_s=timeout_s)
        return Broadcast(meeting=meeting, rank=2)

    @property
    def on_disk(self) -> WeightSource:
        return OnDisk(folder=str(self.snapshot))

    async def load(self, source: WeightSource | None = None) -> None:
        await self.weights.prepare(self.manifest, self.snapshot)
        self.api.calls.clear()
        await self.weights.receive(source or self.broadcast())

    @property
    def second(self) -> dict[str, str]:
        return hashes(self.api.broadcast)

    def went_on_with_the_first(self) -> None:
        """Nothing of the failed version is left, and requests run under the old one."""
        assert not self.api.paused and not self.api.session and self.api.group == ""
        assert self.api.weights == self.first and all(served == self.first for served in self.api.served)
        assert self.weights.version == 0
        self.weights.check()


def staged(
    tiny_folder: Path,
    other_tiny_folder: Path,
    root: Path,
    story: Callable[[Stage], Awaitable[None]],
    *,
    pause_mode: str = "retract",
    sessions: bool = True,
    decide_within_s: float = 60.0,
    running: int = 0,
) -> None:
    tensors = weights(other_tiny_folder)
    manifest = build_manifest(1, tensors, bucket_bytes=60_000)
    snapshot = write_snapshot(root, manifest, tensors)

    async def run() -> None:
        api = FakeSglang(tiny_folder, tensors)
        made = SglangWeights(
            api,  # type: ignore[arg-type]
            tiny_folder,
            SglangConfig(pause_mode=pause_mode),  # type: ignore[arg-type]
            dtype=torch.float32,
            sessions=sessions,
            decide_within_s=decide_within_s,
            running=lambda: running,
        )
        await made.start()
        try:
            await story(Stage(api, made, manifest, snapshot, tiny_folder, dict(api.weights)))
        finally:
            await made.stop()

    asyncio.run(run())


Play = Callable[..., None]


@pytest.fixture
def play(tiny_folder: Path, other_tiny_folder: Path, tmp_path: Path) -> Play:
    return lambda story, **settings: staged(tiny_folder, other_tiny_folder, tmp_path, story, **settings)


# -- a good publish -----------------------------------------------------------------------------------------------


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


# -- what fails ---------------------------------------------------------------------------------------------------

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
        return dataclasses.replace(stage.manifest, kind=WeightKind.ADAPTER)
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

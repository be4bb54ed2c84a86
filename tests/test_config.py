"""A wrong deployment file is one clear error before anything starts; the shipped ones are right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train.torch
import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from clawrl.actors.trainer_driver import TrainerDriver
from clawrl.config import Deployment
from clawrl.graph import NotDeployable, app
from tests.live import REPOSITORY, tiny_deployment

FILES = sorted((REPOSITORY / "deployments").glob("*.yaml"))


def _args(tmp_path: Path, **overrides: Any) -> dict[str, Any]:
    return tiny_deployment(tmp_path, 8000, **overrides)["applications"][0]["args"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_shipped_deployment_is_valid_and_binds_to_loopback(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    schema = ServeDeploySchema.model_validate(content)
    assert schema.http_options.host == "127.0.0.1"
    Deployment.model_validate(content["applications"][0]["args"])


def test_laptop_needs_no_gpu_and_openclaw_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_API_KEY", "k")
    loaded = {
        f.stem: Deployment.model_validate(yaml.safe_load(f.read_text())["applications"][0]["args"]) for f in FILES
    }
    assert loaded["laptop"].problems() == [] and loaded["openclaw"].problems() == []
    assert sum(row.replicas * row.num_gpus for row in loaded["laptop"].placement()) == 0
    rows = {row.actor: row for row in loaded["openclaw"].placement()}
    assert sum(row.replicas * row.num_gpus for row in rows.values()) == 8
    assert rows["Trainer"].replicas == 4


def test_what_cannot_run_is_refused_when_the_graph_is_built(tmp_path: Path) -> None:
    args = Deployment.model_validate(_args(tmp_path, policy__engine__tp_size=2))
    with pytest.raises(NotDeployable, match=r"policy\.engine\.tp_size"):
        app(args)


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        ({"serving__sampling__temprature": 1.0}, "serving.sampling.temprature"),
        ({"trainer__training__batch_size": 0}, "trainer.training.batch_size"),
        ({"trainer__method__name": "magic"}, "trainer.method there is no such method; set name to one of binary_rl"),
        ({"trainer__method__kl_coeff": 1.0}, "trainer.method.binary_rl.kl_coeff"),
        ({"trainer__loss": 3}, "trainer.loss"),
        ({"judge__hints": {"source": "guessing"}}, "judge.hints.source Value error, source 'guessing' is unknown"),
        ({"judge__hints": {"max_hints": 0}}, "judge.hints.max_hints"),
        (
            {"judge__hints": {"source": "written", "temperature": 0.001}},
            "judge.hints.temperature Value error, temperat",
        ),
        ({"judge__verdict__temperature": 0.001}, "judge.verdict.temperature Value error, temperature 0.001 is too low"),
        ({"judge__hints": {"reuse": "owner"}}, "judge.hints Value error, reuse: owner has no hints to reuse"),
        ({"trainer__method__group_size": 4}, "trainer.method.binary_rl Value error, group_size 4 belongs to baseline"),
        ({"judge__teacher": {"version": 3}}, "version 3 needs model: policy"),
        ({"judge__teacher": {"model": "policy", "version": -1}}, "version -1 does not exist; use 0"),
        ({"guards": {"filters": {"min_zlib_ratio": 1.0}}}, "guards.filters.min_zlib_ratio"),
        ({"guards": {"alarms": {"min_turns": 49}}}, "window 48 cannot hold min_turns 49; raise window"),
        ({"policy__engine__kv_blocks": 1}, "kv_blocks"),
        ({"policy__engine__dtype": "bfloat16"}, "trainer.training.dtype"),
        ({"trainer__training__micro_batch_tokens": 10}, "micro_batch_tokens"),
        (
            {"trainer__training__max_staleness": 2},
            "max_staleness is now staleness.max_steps",
        ),
        ({"trainer__training__staleness": {"max_lag": 2}}, "trainer.training.staleness.max_lag"),
        ({"trainer__training__schedule": {"when": "never"}}, "trainer.training.schedule"),
        ({"trainer__training__lora": {"rank": 0}}, "trainer.training.lora.rank"),
        ({"trainer__training__lora": {"alpha": 0}}, "trainer.training.lora.alpha"),
        ({"trainer__training__lora": {"targets": []}}, "trainer.training.lora.targets"),
        ({"trainer__training__lora": {"r": 16}}, "trainer.training.lora.r"),
        ({"name": "Not A Name"}, "name"),
    ],
)
def test_a_wrong_value_is_refused_by_its_path(tmp_path: Path, overrides: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Deployment.model_validate(_args(tmp_path, **overrides))
    paths = [".".join(str(part) for part in error["loc"]) + " " + error["msg"] for error in caught.value.errors()]
    assert any(where in path for path in paths), paths


def test_a_missing_key_in_the_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLAWRL_TEST_KEY", raising=False)
    problems = Deployment.model_validate(_args(tmp_path)).problems()
    assert any("serving.api_key" in problem and "CLAWRL_TEST_KEY" in problem for problem in problems)


def test_keys_that_the_ingress_would_refuse_are_found_before_it_starts(tmp_path: Path) -> None:
    def problems(**serving: Any) -> list[str]:
        given = {f"serving__{name}": value for name, value in serving.items()}
        return Deployment.model_validate(_args(tmp_path, **given)).problems()

    ann = {"name": "ann", "key": "a"}
    assert any("users have keys but the operator has none" in p for p in problems(api_key=None, users=[ann]))
    taken = problems(api_key="k", users=[ann, {"name": "bob", "key": "a"}])
    assert any("serving.users[1].key is already somebody else's" in p for p in taken)
    absent = problems(api_key="k", users=[{"name": "bob", "key": "env:CLAWRL_NO_SUCH_KEY"}])
    assert any("serving.users[0].key" in p and "CLAWRL_NO_SUCH_KEY" in p for p in absent)
    with pytest.raises(ValidationError, match="'ann' is there twice"):
        problems(api_key="k", users=[ann, ann])


def test_heads_that_do_not_divide_are_found_without_loading_the_model(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWRL_TEST_KEY", "k")
    fits = Deployment.model_validate(_args(tiny_folder, trainer__training__tp_size=2))
    assert fits.problems() == []
    cut = Deployment.model_validate(_args(tiny_folder, trainer__training__tp_size=4))
    assert any("trainer.training.tp_size" in problem for problem in cut.problems())


def test_adapters_across_tensor_parallel_ranks_are_refused_with_the_way_out(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWRL_TEST_KEY", "k")

    def problems(**training: Any) -> list[str]:
        given = {f"trainer__training__{name}": value for name, value in training.items()}
        return Deployment.model_validate(_args(tiny_folder, **given)).problems()

    assert problems(lora={"rank": 8}, fsdp_size=2) == []
    found = problems(lora={"rank": 8}, tp_size=2)
    assert len(found) == 1 and "trainer.training.lora" in found[0] and "tp_size to 1" in found[0]


@pytest.mark.parametrize(
    ("how", "engine", "sent"),
    [
        ("auto", {}, True),
        ("auto", {"kind": "sglang", "device": "cpu"}, True),
        ("auto", {"kind": "sglang"}, False),
        ("alone", {"kind": "sglang"}, True),
        ("merged", {}, False),
    ],
    ids=str,
)
def test_adapters_are_sent_alone_where_that_was_tried_and_where_it_is_asked_for(
    tiny_folder: Path, how: str, engine: dict[str, Any], sent: bool
) -> None:
    given = {f"policy__engine__{name}": value for name, value in engine.items()}
    args = _args(tiny_folder, **given, publish__adapters=how, trainer__training__lora={"rank": 8, "alpha": 4})
    shape = Deployment.model_validate(args).adapters
    assert (shape is not None) is sent and (shape is None or (shape.rank, shape.scale) == (8, 0.5))
    assert Deployment.model_validate(_args(tiny_folder, publish__adapters=how)).adapters is None


@pytest.mark.parametrize(
    ("targets", "why"),
    [
        (["q_proj", "v_proj"], "all of q_proj, k_proj, v_proj or on none, and k_proj lacks; set merged"),
        (["lm_head"], "not known to take adapters on lm_head; set merged"),
        (["o_proj", "down_proj"], None),
    ],
    ids=str,
)
def test_targets_that_sglang_does_not_take_are_published_merged_or_named(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, targets: list[str], why: str | None
) -> None:
    monkeypatch.setenv("CLAWRL_TEST_KEY", "k")

    def deployment(how: str) -> Deployment:
        engine = {"policy__engine__kind": "sglang", "policy__engine__device": "cpu", "serving__hold_timeout_s": 900}
        lora = {"trainer__training__lora": {"targets": targets}}
        return Deployment.model_validate(_args(tiny_folder, **engine, **lora, publish__adapters=how))

    found = [problem for problem in deployment("alone").problems() if "publish.adapters" in problem]
    assert [why in problem for problem in found] == ([] if why is None else [True])
    assert (deployment("auto").adapters is None) is (why is not None)
    assert not any("publish.adapters" in problem for problem in deployment("auto").problems())


def test_state_lies_below_the_home_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_HOME", str(tmp_path))
    assert Deployment.model_validate(_args(tmp_path)).state_path == tmp_path / "tiny"
    assert Deployment.model_validate(_args(tmp_path, state_dir="/elsewhere")).state_path == Path("/elsewhere")


@pytest.mark.parametrize("name", ["opd", "combine", "opd_topk", "combine_topk"])
def test_a_method_that_learns_from_hints_needs_a_source_of_hints(tmp_path: Path, name: str) -> None:
    wanted = {"trainer__method": {"name": name}}
    with pytest.raises(ValidationError, match=rf"trainer\.method {name} .*judge\.hints\.source is none; set it to"):
        Deployment.model_validate(_args(tmp_path, **wanted))
    Deployment.model_validate(_args(tmp_path, **wanted, judge__hints={"source": "quoting"}))
    Deployment.model_validate(_args(tmp_path, trainer__method={"name": "binary_rl"}))


def test_a_group_that_never_fits_into_a_batch_is_refused(tmp_path: Path) -> None:
    def args(group_size: int) -> dict[str, Any]:
        return _args(tmp_path, trainer__method={"baseline": "group", "group_size": group_size})

    with pytest.raises(ValidationError, match=r"group_size 5 does not fit trainer\.training\.batch_size 4; raise"):
        Deployment.model_validate(args(5))
    Deployment.model_validate(args(4))


def test_a_batch_that_could_hold_only_part_of_a_group_is_refused(tmp_path: Path) -> None:
    def args(minimum: int) -> dict[str, Any]:
        timer = {"when": "timer", "every_s": 60, "minimum": minimum}
        grouped = {"baseline": "group", "group_size": 3}
        return _args(tmp_path, trainer__method=grouped, trainer__training__schedule=timer)

    with pytest.raises(ValidationError, match=r"group_size 3 does not fit .*schedule\.minimum 2.* set minimum to 3"):
        Deployment.model_validate(args(2))
    Deployment.model_validate(args(3))


def test_what_the_page_on_training_says_can_be_written_into_a_file(tmp_path: Path) -> None:
    blocks = (REPOSITORY / "docs" / "operations-schedules.md").read_text().split("```yaml\n")[1:]
    staleness, schedules = (block.split("```")[0] for block in blocks)
    written = [line for line in schedules.splitlines() if line]
    assert len(written) == 4
    for line in written:
        Deployment.model_validate(
            _args(
                tmp_path, trainer__training__batch_size=8, trainer__training__schedule=yaml.safe_load(line)["schedule"]
            )
        )
    settings = yaml.safe_load(staleness)["trainer"]["training"]["staleness"]
    Deployment.model_validate(_args(tmp_path, trainer__training__staleness=settings))


@pytest.mark.parametrize(("field", "switch"), [("verdict", "kind"), ("hints", "source")])
def test_a_judge_that_has_no_room_for_its_words_is_refused(tmp_path: Path, field: str, switch: str) -> None:
    def load(value: str, max_tokens: int) -> Deployment:
        return Deployment.model_validate(
            _args(tmp_path, **{f"judge__{field}": {switch: value, "max_tokens": max_tokens}})
        )

    wrong = rf"judge\.{field}\.max_tokens 769 and the question .* judge\.engine\.context_length 1024; lower the one"
    with pytest.raises(ValidationError, match=wrong):
        load("written", 769)
    load("written", 768)
    load({"kind": "probability", "source": "quoting"}[switch], 5000)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"trainer__loss": "no_such_module:loss"}, "trainer.loss"),
        ({"judge__hints": {"source": "no_such_module:hint"}}, "judge.hints.source"),
        ({"judge__verdict__kind": "no_such_module:reward"}, "judge.verdict.kind"),
        ({"guards": {"filters": {"extra": ["pathlib:Path", "no_such_module:filter"]}}}, "guards.filters.extra[1]"),
    ],
)
def test_code_of_ones_own_that_cannot_be_had_is_named_with_its_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], field: str
) -> None:
    monkeypatch.setenv("CLAWRL_TEST_KEY", "k")
    (problem,) = Deployment.model_validate(_args(tmp_path, **overrides)).problems()
    assert problem.startswith(f"{field}: 'no_such_module:") and "PYTHONPATH" in problem


SHORT = {"dtype": "float32", "context_length": 512}
ON_GPUS = {
    "policy__engine": {"kind": "sglang", **SHORT, "tp_size": 2},
    "policy__resources": {"num_gpus": 2},
    "trainer__resources": {"num_gpus": 1},
    "publish__transport": "nccl",
}


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({}, None),
        ({"policy__engine": {**SHORT, "tp_size": 2}, "publish__transport": "gloo"}, "policy.engine.tp_size"),
        ({"policy__resources": {"num_gpus": 1}}, "policy.resources.num_gpus: 1, but the engine needs one for each"),
        ({"policy__resources": {}}, "policy.resources.num_gpus: 0, but the engine needs one for each"),
        ({"judge__engine__kind": "sglang"}, "judge.resources.num_gpus: 0, but the engine needs one for each"),
        ({"judge__engine": {"kind": "sglang", **SHORT, "device": "cpu"}}, None),
        (
            {
                "judge__engine": {"kind": "sglang", **SHORT, "device": "cpu"},
                "judge__resources": {"num_gpus": 1},
            },
            "judge.resources.num_gpus: 1, but judge.engine.device is cpu; set 0",
        ),
        ({"trainer__resources": {}}, "publish.transport: nccl needs a trainer on GPUs; set trainer.resources.num_gpus"),
        (
            {"policy__engine": {**SHORT}},
            "publish.transport: nccl needs policy.engine.kind sglang on device cuda",
        ),
        (
            {
                "policy__engine": {"kind": "sglang", **SHORT, "device": "cpu"},
                "policy__resources": {},
            },
            "publish.transport: nccl needs policy.engine.kind sglang on device cuda",
        ),
        (
            {
                "judge__engine": {"kind": "sglang", **SHORT},
                "judge__resources": {"num_gpus": 1},
                "judge__model": {"source": "some/other"},
            },
            "guards.alarms.probe_every with a judge.model of its own; set it to 0",
        ),
        (
            {
                "judge__engine": {"kind": "sglang", **SHORT},
                "judge__resources": {"num_gpus": 1},
                "judge__teacher": {"model": "policy", "version": 3},
                "judge__hints": {"source": "quoting"},
                "trainer__method": {"name": "combine"},
            },
            "judge.teacher.model policy; set judge, or version: current: an SGLang takes its GPUs for itself",
        ),
        ({"judge__engine": {"kind": "sglang", **SHORT}, "judge__resources": {"num_gpus": 1}}, None),
        ({"trainer__resources": {}, "publish__transport": "gloo"}, None),
        ({"trainer__resources": {}, "publish__transport": "disk"}, None),
    ],
)
def test_engine_gpus_and_transport_must_be_of_one_mind(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], problem: str | None
) -> None:
    monkeypatch.setenv("CLAWRL_TEST_KEY", "k")
    found = Deployment.model_validate(_args(tiny_folder, **(ON_GPUS | overrides))).problems()
    assert len(found) == (problem is not None) and all(problem and problem in line for line in found), found


@pytest.mark.parametrize(
    ("resources", "wrong"),
    [
        (
            {"num_gpus": 1, "accelerator_type": "H1000"},
            r"'H1000' is unknown; use one of T4.*or say with gpu_memory_gib",
        ),
        ({"accelerator_type": "H100"}, "accelerator_type is of GPUs, but num_gpus is 0"),
        ({"gpu_memory_gib": 3.0}, "gpu_memory_gib is of GPUs, but num_gpus is 0"),
        ({"num_gpus": 1, "gpu_memory_gib": 0.0}, "gpu_memory_gib"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused(tmp_path: Path, resources: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        Deployment.model_validate(_args(tmp_path, policy__resources=resources))


def test_the_gpus_type_and_custom_resources_reach_serve_and_train(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWRL_TEST_KEY", "k")
    asked = {"num_cpus": 1, "num_gpus": 2, "accelerator_type": "H100", "custom": {"serving": 1}}
    args = Deployment.model_validate(
        _args(
            tiny_folder,
            **ON_GPUS
            | {
                "policy__resources": asked,
                "trainer__resources": {"num_gpus": 1, "accelerator_type": "L4", "custom": {"training": 1}},
            },
        )
    )
    rollout = app(args)._bound_deployment.init_args[1]._bound_deployment
    assert rollout.name == "Rollout"
    wanted = {"num_cpus": 1.0, "num_gpus": 2.0, "accelerator_type": "H100", "resources": {"serving": 1.0}}
    assert wanted.items() <= rollout.ray_actor_options.items()
    # Serve takes no option that is not there, such as a type that is None.
    assert args.judge.resources.ray_options() == {"num_cpus": 0.1, "num_gpus": 0.0}

    monkeypatch.setattr(ray.train.torch, "TorchTrainer", lambda *_, **settings: SimpleNamespace(**settings))
    driver = object.__new__(TrainerDriver)
    driver._deployment = args
    scaling = driver._trainer().scaling_config  # type: ignore[attr-defined]
    assert scaling.accelerator_type == "L4"
    ranks = scaling._resources_per_worker_not_none
    assert ranks["GPU"] == 1 and ranks["training"] == 1 and "accelerator_type:L4" in ranks


def test_no_key_is_in_what_ray_train_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        "serving__api_key": "operators-secret",
        "serving__users": [{"name": "ann", "key": "anns-secret"}],
        "serving__console": {"key": "consoles-secret"},
    }
    args = Deployment.model_validate(_args(tmp_path, **keys))
    assert json.dumps(args.model_dump(mode="json")).count("-secret") == 3
    settings: dict[str, Any] = {}
    monkeypatch.setattr(ray.train.torch, "TorchTrainer", lambda *_, **given: settings.update(given))
    driver = object.__new__(TrainerDriver)
    driver._deployment = args
    driver._trainer()
    assert "-secret" not in repr(settings) and "'ann'" not in repr(settings)
    # What the ranks make of it differs in nothing else.
    told = Deployment.model_validate(settings["train_loop_config"]["deployment"])
    assert told == args.without_keys() and told.trainer == args.trainer and told.privacy == args.privacy
    fields = {name for name, value in args.serving if value != getattr(told.serving, name)}
    assert fields == {"api_key", "users", "console"}


def test_ranks_must_wait_for_each_other_longer_than_a_publish_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", "1")
    monkeypatch.delenv("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S")
    impatient = {"trainer__training__collective_timeout_s": 30.5}
    alone = Deployment.model_validate(_args(tmp_path, **impatient))
    assert not any("collective_timeout_s" in problem for problem in alone.problems())
    two = Deployment.model_validate(_args(tmp_path, trainer__training__fsdp_size=2, **impatient))
    assert any("collective_timeout_s: 30.5, but a publish may take" in problem for problem in two.problems())
    settings: dict[str, Any] = {}
    monkeypatch.setattr(ray.train.torch, "TorchTrainer", lambda *_, **given: settings.update(given))
    driver = object.__new__(TrainerDriver)
    driver._deployment = two
    driver._trainer()
    assert settings["torch_config"].timeout_s == 31
    assert os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] == "30.5"

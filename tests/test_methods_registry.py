"""A method is found by its name or its dotted path, its settings are checked by their path, and no torch is loaded."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field, ValidationError

import clawrl.methods
from clawrl.config import Deployment, TrainerArgs
from clawrl.methods import registry
from clawrl.methods.base import LossInputs, LossOutput
from clawrl.methods.binary_rl import BinaryRL, BinaryRLConfig
from clawrl.methods.custom_loss import with_loss
from clawrl.methods.registry import build_method, builtin_names, method_class
from clawrl.plugins import PluginError
from clawrl.strict import StrictConfig
from tests.live import REPOSITORY, tiny_deployment
from tests.training_samples import mixed_batch, run_loss

torch.set_num_threads(1)

HERE = "tests.test_methods_registry"


class GentleConfig(BinaryRLConfig):
    name: str = f"{HERE}:Gentle"  # type: ignore[assignment]
    gentleness: float = Field(0.5, ge=0.0)


class Gentle(BinaryRL):
    Config = GentleConfig  # type: ignore[assignment]
    name = "gentle"

    def __init__(self, config: GentleConfig) -> None:
        super().__init__(config)  # type: ignore[arg-type]
        self.gentleness = config.gentleness


class WithoutConfig:
    name = "without"


class WithoutName:
    class Config(StrictConfig):
        speed: float = 1.0


def twice(inputs: LossInputs) -> LossOutput:
    return LossOutput(loss=2.0 * (inputs.logp_BT * inputs.mask_BT).sum(), metrics={"twice": torch.tensor(2.0)})


def pulled_back(inputs: LossInputs) -> LossOutput:
    assert inputs.ref_logp_BT is not None
    return twice(inputs)


pulled_back.needs_reference = True  # type: ignore[attr-defined]


def only_a_tensor(inputs: LossInputs) -> torch.Tensor:
    return inputs.logp_BT.sum()


def test_every_file_with_a_method_is_found_under_the_name_of_its_file() -> None:
    files = {
        file.stem
        for folder in clawrl.methods.__path__
        for file in Path(folder).glob("*.py")
        if "\nMETHOD = " in file.read_text()
    }
    assert set(builtin_names()) == files == {"binary_rl", "opd", "combine", "opd_topk", "combine_topk"}
    for name in builtin_names():
        built = build_method(method_class(name).Config())
        assert built.name == name and method_class(name).Config().name == name


def test_adding_a_file_is_all_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "newcomer.py").write_text("class Newcomer:\n    name = 'newcomer'\n\nMETHOD = Newcomer\n")
    (tmp_path / "tool_of_newcomer.py").write_text("")
    monkeypatch.setattr(clawrl.methods, "__path__", [*clawrl.methods.__path__, str(tmp_path)])
    found = registry._builtin.__wrapped__()
    for name in ("newcomer", "tool_of_newcomer"):
        sys.modules.pop(f"clawrl.methods.{name}", None)
    assert set(found) == {*builtin_names(), "newcomer"}


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(ValueError, match=r"no method 'magic'.*binary_rl, combine, .* or package\.module:Class"):
        method_class("magic")
    assert complaint({"name": "magic"}) == (
        ("method",),
        "there is no such method; set name to one of binary_rl, combine, combine_topk, opd, opd_topk "
        "or package.module:Class",
    )


def complaint(method: Any) -> tuple[tuple[Any, ...], str]:
    with pytest.raises(ValidationError) as caught:
        TrainerArgs.model_validate({"method": method})
    (error,) = caught.value.errors()
    return error["loc"], error["msg"]


@pytest.mark.parametrize(
    ("method", "where", "text"),
    [
        ({"name": "opd", "advantge_clip": 1.0}, ("method", "opd", "advantge_clip"), "not permitted"),
        ({"name": "combine", "w_rl": -1}, ("method", "combine", "w_rl"), "greater than or equal to 0"),
        ({"baseline": "best"}, ("method", "binary_rl", "baseline"), "'leave_one_out'"),
        ({"name": "opd_topk", "k": 9, "teacher_top_k": 8}, ("method", "opd_topk"), "teacher_top_k 8 must be .* k 9"),
        (
            {"name": "binary_rl", "baseline": "group", "normalize": True},
            ("method", "binary_rl"),
            "set group_size to 2",
        ),
        (
            {"name": f"{HERE}:Gentle", "gentleness": -1},
            ("method", "package.module:Class", "gentleness"),
            "greater than or equal to 0",
        ),
        ({"name": f"{HERE}:Harsh"}, ("method", "package.module:Class"), "has no 'Harsh'; check the spelling"),
        ({"name": "nowhere_at_all:X"}, ("method", "package.module:Class"), "no module 'nowhere_at_all'; install it"),
        ({"name": f"{HERE}:WithoutConfig"}, ("method", "package.module:Class"), "needs a class attribute Config"),
        ({"name": f"{HERE}:WithoutName"}, ("method", "package.module:Class"), "with a field `name`"),
        ("opd", ("method", "binary_rl"), "valid dictionary"),
    ],
)
def test_a_wrong_setting_is_one_clear_error_at_its_place(method: Any, where: tuple[str, ...], text: str) -> None:
    loc, message = complaint(method)
    assert loc == where and re.search(text, message), message


def test_the_default_method_is_binary_rl() -> None:
    assert isinstance(build_method(TrainerArgs().method), BinaryRL)
    assert isinstance(build_method(TrainerArgs.model_validate({"method": {"kl_coef": 0.1}}).method), BinaryRL)


def deployment(tmp_path: Path, **settings: Any) -> Deployment:
    args = tiny_deployment(tmp_path, 8000, trainer__method=settings)["applications"][0]["args"]
    args["judge"]["hints"] = {"source": "quoting"}
    return Deployment.model_validate(args)


@pytest.mark.parametrize("name", builtin_names())
def test_a_deployment_keeps_a_methods_settings_through_a_dump(tmp_path: Path, name: str) -> None:
    one = deployment(tmp_path, name=name, kl_coef=0.125)
    for mode in ("python", "json"):
        again = Deployment.model_validate(one.model_dump(mode=mode))
        assert again == one
        assert type(again.trainer.method) is method_class(name).Config and again.trainer.method.kl_coef == 0.125


def test_a_class_of_ones_own_is_named_by_its_path_and_survives_a_dump(tmp_path: Path) -> None:
    one = deployment(tmp_path, name=f"{HERE}:Gentle", gentleness=0.75)
    dumped = one.model_dump(mode="json")
    assert dumped["trainer"]["method"]["gentleness"] == 0.75
    again = Deployment.model_validate(dumped)
    assert again == one and Deployment.model_validate_json(one.model_dump_json()) == one
    built = build_method(again.trainer.method)
    assert isinstance(built, Gentle) and built.gentleness == 0.75


def test_a_loss_of_ones_own_replaces_the_methods_and_nothing_else() -> None:
    plain = build_method(BinaryRLConfig(kl_coef=0.1, baseline="none"))
    mine = with_loss(plain, f"{HERE}:twice")
    assert with_loss(plain, None) is plain
    assert (mine.name, mine.needs, mine.needs_reference) == (plain.name, plain.needs, True)
    samples, now, old, ref = mixed_batch(plain)
    theirs, got = run_loss(plain, samples, now, old, ref), run_loss(mine, samples, now, old, ref)
    assert got.metrics == {"twice": 2.0} and got.advantages == theirs.advantages
    assert got.loss != pytest.approx(theirs.loss, abs=0.1)


def test_a_loss_says_by_itself_that_it_reads_the_reference() -> None:
    without, with_kl = build_method(BinaryRLConfig()), build_method(BinaryRLConfig(kl_coef=0.1))
    assert not without.needs_reference and not with_loss(without, f"{HERE}:twice").needs_reference
    assert with_loss(without, f"{HERE}:pulled_back").needs_reference
    assert with_loss(with_kl, f"{HERE}:twice").needs_reference


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        (f"{HERE}:only_a_tensor", TypeError, "trainer.loss .*:only_a_tensor returned Tensor; return a LossOutput"),
        (f"{HERE}:thrice", PluginError, "has no 'thrice'"),
        ("ppo", PluginError, "'ppo': this is not a path to code; write it as package.module:name"),
    ],
)
def test_a_loss_that_cannot_be_used_says_why(path: str, error: type[Exception], text: str) -> None:
    samples, now, *_ = mixed_batch(build_method(BinaryRLConfig()))
    with pytest.raises(error, match=text):
        run_loss(with_loss(build_method(BinaryRLConfig()), path), samples, now)


def test_choosing_a_method_and_making_a_sample_loads_no_torch() -> None:
    program = """
import sys
from clawrl.methods.registry import build_method, builtin_names, method_class
from clawrl.messages import Sample
from tests.ledger_kit import ask, serve, taught, user, verdict
turn = serve(ask("t", user("hello")), user("hello"), "answer")
for name in builtin_names():
    method = build_method(method_class(name).Config())
    sample = method.sample(turn, verdict("t"), taught(top_k=method.teacher_top_k))
    assert isinstance(sample, Sample) and method.columns(sample) is not None and method.token_mask(sample).all()
assert "torch" not in sys.modules, "torch was loaded"
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

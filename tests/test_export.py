"""`clawrl export`: a version as a plain folder that transformers loads, or one line that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from clawrl import cli
from clawrl.export import ExportError, export, export_file
from clawrl.training.model import full_parameters
from tests.export_kit import Trained, publish_adapters, trained_deployment


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained_deployment(tmp_path_factory.mktemp("published"))


def test_the_version_that_serves_loads_in_transformers_with_exactly_its_weights(
    published: Trained, tmp_path: Path
) -> None:
    target = tmp_path / "exports" / "mine"
    with published.ledger:
        # As if the deployment were running: its coordinator has the ledger open.
        written = export(published.deployment, target)
    assert (written.version, written.step) == (2, 4)
    loaded = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert loaded.dtype is torch.float32
    for name, tensor in full_parameters(loaded):
        assert torch.equal(tensor, published.weights[2][name]), name
    assert list(dict(full_parameters(loaded))) == list(published.weights[2])
    assert list(target.parent.iterdir()) == [target], "nothing else stays behind"


def test_tokenizer_template_and_generation_config_are_those_of_the_model(published: Trained, tmp_path: Path) -> None:
    export(published.deployment, tmp_path / "mine")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        assert (tmp_path / "mine" / name).read_bytes() == (published.model / name).read_bytes(), name
    talk = [{"role": "user", "content": "hello"}]
    ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path / "mine", published.model))
    assert ours.apply_chat_template(talk, tokenize=False) == theirs.apply_chat_template(talk, tokenize=False)


def test_an_older_version_can_be_had_while_its_snapshot_is_there(published: Trained, tmp_path: Path) -> None:
    assert export(published.deployment, tmp_path / "first", 1).version == 1
    loaded = dict(full_parameters(AutoModelForCausalLM.from_pretrained(tmp_path / "first")))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in published.weights[1].items())


def test_a_version_of_adapters_is_exported_with_them_added_in(tmp_path: Path) -> None:
    trained = trained_deployment(tmp_path, versions=1)
    expected = publish_adapters(trained, 1)
    assert export(trained.deployment, tmp_path / "whole").version == 1
    loaded = dict(full_parameters(AutoModelForCausalLM.from_pretrained(tmp_path / "whole")))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    assert any(not torch.equal(loaded[name], tensor) for name, tensor in trained.weights[0].items())
    trained.forget(0)
    with pytest.raises(ExportError, match=r"version 1 cannot be exported: .* addition to version 0"):
        export(trained.deployment, tmp_path / "again")


def test_a_folder_that_holds_something_is_never_overwritten(published: Trained, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    for target in (tmp_path, tmp_path / "precious.txt"):
        with pytest.raises(ExportError, match="is there already and is not overwritten"):
            export(published.deployment, target)
    (tmp_path / "empty").mkdir()
    export(published.deployment, tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").exists() and (tmp_path / "precious.txt").read_text() == "mine"


def test_each_thing_that_is_not_there_is_named_with_its_remedy(tmp_path: Path) -> None:
    trained, target = trained_deployment(tmp_path), tmp_path / "out"
    trained.forget(0)
    with pytest.raises(ExportError, match=r"version 0 is gone.*raise publish\.keep_snapshots"):
        export(trained.deployment, target, 0)
    with pytest.raises(ExportError, match="version 9 is not known; these can be exported: 1, 2"):
        export(trained.deployment, target, 9)
    (file,) = (tmp_path / "state" / "snapshots").glob("v000002-*/model.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ExportError, match=r"version 2 cannot be exported: .* has digest"):
        export(trained.deployment, target)
    other = trained_deployment(tmp_path / "other", versions=0)
    with pytest.raises(ExportError, match="has not published a version yet"):
        export(other.deployment, target)
    (tmp_path / "other" / "state" / "ledger.sqlite").write_bytes(b"no database at all, whatever its name says" * 100)
    with pytest.raises(ExportError, match="cannot be read"):
        export(other.deployment, target)
    (tmp_path / "other" / "state" / "ledger.sqlite").unlink()
    with pytest.raises(ExportError, match="holds no ledger"):
        export(other.deployment, target)
    with pytest.raises(ExportError, match=r"nothing\.yaml is not a deployment file"):
        export_file(tmp_path / "nothing.yaml", target)
    assert not target.exists() and not list(tmp_path.glob(".out*"))


def test_another_model_in_the_file_than_the_one_that_was_trained_is_noticed(tmp_path: Path) -> None:
    trained = trained_deployment(tmp_path)
    other = trained_deployment(tmp_path / "other", versions=0, kind="qwen2")
    settings = trained.deployment
    policy = settings.policy.model_copy(update={"model": other.deployment.policy.model})
    with pytest.raises(ExportError, match=r"is not both in the version and in the model of policy\.model"):
        export(settings.model_copy(update={"policy": policy}), tmp_path / "out")


def test_the_command_says_what_it_wrote_or_one_line_about_why_not(published: Trained, tmp_path: Path) -> None:
    command = ["export", str(tmp_path / "mine"), "--deployment", str(published.file), "--version", "1"]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 0 and "version 1 (step 2) is in" in result.output.replace("\n", " ")
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 1 and "not overwritten" in result.output

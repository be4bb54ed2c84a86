"""The Python interpreters of SGLang engines: are they here, and do both ends of NCCL speak the same version of it?

Only this machine is looked at. An interpreter that is missing may be present where the replica will run, so that is a
note. With ``transport: nccl`` each side is asked for the NCCL of its torch, by a short run of the interpreter itself;
two releases of NCCL do not promise to understand each other, and what then happens is a hang, not an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clawrl.config import Deployment
    from clawrl.engine.config import EngineConfig

_TIMEOUT_S = 60.0
_MARK = "nccl="
_QUESTION = f"""
import torch
try:
    version = torch.cuda.nccl.version()
    text = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
except Exception:
    text = "none"
print("{_MARK}" + text)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an interpreter said of its NCCL: a version, or why there is none."""

    version: tuple[int, ...] | None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Lines by the path of the field below ``args``."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def look_at_interpreters(deployment: Deployment, own: str = sys.executable, timeout_s: float = _TIMEOUT_S) -> Findings:
    """``own`` is the interpreter that runs clawrl, and so the trainer."""
    missing: dict[Path, list[str]] = {}
    for part, engine in (("policy", deployment.policy.engine), ("judge", deployment.judge.engine)):
        path = Path(_interpreter(engine))
        if engine.kind == "sglang" and path.is_absolute() and not path.exists():
            missing.setdefault(path, []).append(f"{part}.engine.sglang.python")
    notes = [
        f"{', '.join(fields)}: {path} is not on this machine; each one that runs the engine needs it"
        for path, fields in missing.items()
    ]
    if deployment.publish.transport != "nccl":
        return Findings(notes=tuple(notes))
    problems, more = _compare(_interpreter(deployment.policy.engine), own, timeout_s)
    return Findings(problems=tuple(problems), notes=(*notes, *more))


def _interpreter(engine: EngineConfig) -> str:
    """Empty where it is ours, or not known: a variable that is not set is a problem of the deployment's own."""
    try:
        return engine.sglang.interpreter(os.environ) if engine.sglang.python else ""
    except ValueError:
        return ""


def _compare(theirs: str, own: str, timeout_s: float) -> tuple[list[str], list[str]]:
    """Problems and notes."""
    if not theirs:
        # One interpreter for both sides has one NCCL.
        return [], []
    answers = {python: ask_nccl(python, timeout_s) for python in (theirs, own)}
    for python, asked in answers.items():
        if asked.version is None:
            return [], [f"publish.transport: the NCCL of both sides was not compared: {python} {asked.why_not}"]
    engine, trainer = (answers[python].version or () for python in (theirs, own))
    if engine[:2] == trainer[:2]:
        return [], []
    return [
        f"policy.engine.sglang.python: its torch has NCCL {_dotted(engine)}, the trainer's has {_dotted(trainer)}, and "
        "the two must agree in their first two numbers; install torch with the same NCCL on both sides, or set "
        "publish.transport: gloo"
    ], []


def ask_nccl(python: str, timeout_s: float = _TIMEOUT_S) -> Asked:
    try:
        done = subprocess.run([python, "-c", _QUESTION], capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Asked(version=None, why_not=f"did not answer in {timeout_s:g} s")
    except OSError as error:
        return Asked(version=None, why_not=f"cannot be run here: {error.strerror}")
    answers = [line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode != 0 or not answers:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Asked(version=None, why_not=f"cannot import torch: {last[:200]}")
    try:
        return Asked(version=tuple(int(number) for number in answers[-1].split(".")))
    except ValueError:
        return Asked(version=None, why_not="has a torch without NCCL")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))

"""Run one section in a process of its own, under a time limit, and keep whatever it reported before it ended.

A GPU that was led astray stays so for its process, and memory counts per process: hence one each. A section that
raises, crashes, hangs or runs out of time costs only the figures that it had not reported yet. Standard library only;
the section's module is imported in its process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from tests.gpu.report import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """``section`` is its name in the table: ``parity float32``. ``fails`` makes it raise, to see what becomes of it."""

    shape: str
    section: str
    folder: Path
    device: str
    fails: bool = False


@dataclass(slots=True)
class Outcome:
    """``problem`` is empty where the section ran to its end; ``facts`` are what it said of the machine."""

    rows: list[Row] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0


def run_section(context: BaseContext, target: str, job: Job, limit_s: float) -> Outcome:
    """``target`` is ``module:function``, called as ``function(job, tell)``; ``tell`` takes rows and dicts of facts."""
    outcome = Outcome()
    began = time.monotonic()
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_section, args=(sending, target, job))  # type: ignore[attr-defined]
    process.start()
    sending.close()
    try:
        outcome.problem = _listen(receiving, outcome, began + limit_s) or ""
        if outcome.problem == _SILENT:
            process.join(5.0)
            outcome.problem = f"its process ended with code {process.exitcode}"
        elif outcome.problem == _LATE:
            outcome.problem = f"stopped after {limit_s:.0f} s"
            _show_where_it_stands(process.pid)
    finally:
        _end(process)
        receiving.close()
    outcome.seconds = time.monotonic() - began
    return outcome


_SILENT, _LATE = "silent", "late"


def _listen(receiving: Connection, outcome: Outcome, deadline: float) -> str | None:
    """Until the section says that it is through, and with what problem."""
    while receiving.poll(max(0.0, deadline - time.monotonic())):
        try:
            said = receiving.recv()
        except EOFError:
            return _SILENT
        if isinstance(said, Row):
            outcome.rows.append(said)
        elif isinstance(said, dict):
            outcome.facts.update(said)
        else:
            return str(said)
    return _LATE


def _section(sending: Connection, target: str, job: Job) -> None:
    # Its own process group: whatever it starts ends with it.
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    problem = ""
    try:
        module, _, name = target.partition(":")
        getattr(importlib.import_module(module), name)(job, sending.send)
    except BaseException as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]
    sys.stdout.flush()
    sys.stderr.flush()
    sending.send(problem)


def _show_where_it_stands(pid: int) -> None:
    """Its stacks on stderr, before it is ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)


def _end(process: Any) -> None:
    # A section that is through may hang in its own end, in a thread of a library; nothing is waited for.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()

"""What one GPU does with clawrl: seconds of a training step, tokens a second, log-probs that must agree, publishing.

    python -m tests.gpu.one_gpu [--wheels DIR] [--json FILE]

Nothing is downloaded; weights are random. Each section runs in a process of its own and under a time limit, so that
a failure costs no other figure, and the table comes in any case. The exit status is 0 when every figure was measured
and every check passed. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.gpu.report import Row, as_json, complete, failures, table
from tests.gpu.runner import Job, Outcome, run_section
from tests.gpu.wheels import use_wheels

# Seconds that a section may take, at most. The order is that of the table; what comes first is sure of its time.
LIMITS_S = {"weights": 70, "trainer": 75, "engine": 75, "parity bfloat16": 60, "parity float32": 50, "publish": 150}
SECTIONS = {
    "0.6b": tuple(LIMITS_S),
    "4b": ("weights", "trainer", "engine", "parity bfloat16", "publish"),
    "tiny": tuple(LIMITS_S),
}


def main() -> int:
    options = _options()
    began = time.monotonic()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    # Whoever runs this under a limit of its own stops it so; the table is still due.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped from outside"))
    rows: list[Row] = []
    facts: dict[str, str] = {}
    work = Path(tempfile.mkdtemp(prefix="one-gpu-", dir=options.work))
    try:
        if options.wheels:
            unpacked = use_wheels(options.wheels, work / "site")
            _say(f"wheels: {', '.join(unpacked)}")
        for shape in options.shapes:
            _measure_shape(options, shape, work / shape, began, rows, facts)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        rows = _whole(options, rows)
        facts["seconds"] = f"{time.monotonic() - began:.0f}"
        _say("\n" + ", ".join(f"{name} {value}" for name, value in facts.items()) + "\n\n" + table(rows))
        if options.json:
            options.json.write_text(json.dumps(as_json(rows, **facts), indent=1))
    wrong = failures(rows)
    _say(f"\n{len(wrong)} of {len(rows)} rows failed or are missing" if wrong else f"\nall {len(rows)} rows are good")
    return 1 if wrong else 0


def _measure_shape(
    options: argparse.Namespace, shape: str, folder: Path, began: float, rows: list[Row], facts: dict[str, str]
) -> None:
    """Appends the rows of each section as it ends."""
    for section in _sections(options, shape):
        # Something must be left for the table.
        left = options.budget_s - (time.monotonic() - began) - 5.0
        limit = min(left, LIMITS_S[section])
        if limit < 5.0:
            outcome = Outcome(problem="not begun: the time was up")
        else:
            job = Job(shape=shape, section=section, folder=folder, device=options.device, fails=section in options.fail)
            outcome = run_section(_context(options), "tests.gpu.sections:run", job, limit)
        facts |= outcome.facts
        fresh = complete(shape, section, outcome.rows, outcome.problem)
        rows += fresh
        _say(f"[{time.monotonic() - began:5.0f} s] {shape} {section}: {outcome.problem or 'done'}")
        _say("\n".join(f"    {line}" for line in table(fresh).splitlines()[1:]))
    shutil.rmtree(folder, ignore_errors=True)


def _sections(options: argparse.Namespace, shape: str) -> list[str]:
    return [name for name in SECTIONS[shape] if not options.sections or name in options.sections]


def _whole(options: argparse.Namespace, rows: list[Row]) -> list[Row]:
    """With the rows of sections that were never reached."""
    known = {(row.shape, row.section) for row in rows}
    for shape in options.shapes:
        for section in _sections(options, shape):
            if (shape, section) not in known:
                rows = rows + complete(shape, section, [], "never reached")
    return rows


def _context(options: argparse.Namespace) -> Any:
    """A GPU cannot be used by the fork of a process that has looked at it; on a CPU a fork saves the imports."""
    if options.start == "fork":
        import tests.gpu.sections  # noqa: F401
    return multiprocessing.get_context(options.start)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shapes", default="0.6b,4b", help=f"of {', '.join(SECTIONS)}, with commas")
    parser.add_argument("--sections", default="", help=f"of {', '.join(LIMITS_S)}, with commas; all by default")
    parser.add_argument("--budget-s", type=float, default=540.0, help="for all of it")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to import from, ahead of what is installed")
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    parser.add_argument("--work", type=Path, help="where the weights go while it runs (10 GB); default: TMPDIR")
    parser.add_argument("--start", choices=["spawn", "fork"], help="how a section's process starts")
    parser.add_argument("--fail", default="", help="sections that raise, to see how a failure is reported")
    options = parser.parse_args()
    for name, known in (("shapes", SECTIONS), ("sections", LIMITS_S), ("fail", LIMITS_S)):
        asked = [part for part in getattr(options, name).split(",") if part]
        if unknown := set(asked) - set(known):
            parser.error(f"--{name}: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
        setattr(options, name, asked)
    options.start = options.start or ("fork" if options.device == "cpu" else "spawn")
    return options


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

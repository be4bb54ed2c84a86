"""Which method learns a person's preference, how soon, and at what price? The real graph, measured (see `make help`).

    python bench/learning.py [--methods combine,opd] [--preferences one_sentence] [--seeds 0] [--sessions 160] [--quick]
    python bench/learning.py --methods combine_topk --preferences one_sentence --seeds 0 --past 200 --time-limit 9000

All of it takes hours: a run takes minutes, and there are methods x preferences x seeds of them. Finished runs are kept
and skipped the next time; a folder of results takes in no others than those of the same deployment, sessions and users.
``--quick``: no training against the combined method, one preference, one seed. ``--past``: does the policy stay sound
when it goes on learning? The exit code is 1 if it did not, or if a run failed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from clawrl.evaluation.learning import run_bench
from clawrl.evaluation.learning_plan import METHODS, SEEDS, LearningOptions
from clawrl.evaluation.preferences import PREFERENCES

_QUICK = {"methods": ("none", "combine"), "preferences": ("one_sentence",), "seeds": (0,), "sessions": 64}
_WHOLE = {"methods": METHODS, "preferences": tuple(PREFERENCES), "seeds": SEEDS, "sessions": 240}


def names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in names(text))


def parse(arguments: list[str] | None = None) -> LearningOptions:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployment", type=Path, default=Path("deployments/laptop.yaml"))
    parser.add_argument("--output", type=Path, default=Path("bench-output"))
    parser.add_argument("--methods", type=names, help=f"of {','.join(METHODS)}, or package.module:Class")
    parser.add_argument("--preferences", type=names, help=f"of {','.join(PREFERENCES)}")
    parser.add_argument("--seeds", type=numbers, help="such as 0,1,2")
    parser.add_argument("--sessions", type=int, help="of one run; each gives one first answer")
    parser.add_argument("--time-limit", type=float, default=900.0, help="seconds of talking in one run")
    parser.add_argument("--users", type=int, default=8, help="who talk at once")
    parser.add_argument("--past", type=int, default=0, help="updates to go on for after the preference holds")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(arguments)
    defaults = _QUICK if asked.quick else _WHOLE
    chosen = {name: value if (value := getattr(asked, name)) is not None else defaults[name] for name in defaults}
    return LearningOptions(
        deployment=asked.deployment,
        output=asked.output,
        time_limit_s=asked.time_limit,
        users=asked.users,
        past=asked.past,
        **chosen,
    )


if __name__ == "__main__":
    raise SystemExit(run_bench(parse(), Console()))

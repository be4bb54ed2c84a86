"""Kills parts of a running graph at random under steady traffic, then audits every turn. Exits with 1 on a complaint.

python -m tests.chaos [--kills 200] [--seed 7] [--within 3600] [--json FILE] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from clawrl.evaluation.demo_server import hear_ctrl_c
from tests.chaos.plan import make_plan
from tests.tiny_model import build_tiny_model

log = logging.getLogger("tests.chaos")


def main() -> int:
    asked = _parse()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout)
    log.setLevel(logging.INFO)
    hear_ctrl_c()
    # Whoever ends this program ends the graph with it: see `tests.chaos.reaper`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    log.info("seed %d, %d kills within %.0f s", asked.seed, asked.kills, asked.within)
    # Ray is slow to load: not for --help.
    from tests.chaos.report import document, show
    from tests.chaos.run import run_chaos

    with tempfile.TemporaryDirectory(prefix="clm") as models:
        model = build_tiny_model(Path(models) / "tiny")
        plan = make_plan(asked.seed, asked.kills)
        result = run_chaos(model, plan, asked.seed, within_s=asked.within, keep=asked.keep)
    report = document(result)
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2))
    show(report, Console())
    return 1 if report["complaints"] else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="of the order; default: drawn")
    parser.add_argument("--within", type=float, default=3600.0, help="seconds that the faults may take")
    parser.add_argument("--json", type=Path, help="where the report goes")
    parser.add_argument("--keep", type=Path, help="where logs and ledger of the run are copied to")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""The demo: start the graph, ask held-out questions, let users talk, ask again, say whether it learned.

In: a deployment file. Out: `learning.png`, `turns.jsonl`, `summary.json` and `server.log` in the output
folder, tables on the console, and an exit code: 0 only if every check passed. The server is a child that
ends with this function however it ends; what the starting model says of the answers is measured from the
ledger's file after that, and where that fails a check says why. The state folder is removed when the run
passed and kept for a look when it did not.
"""

import asyncio
import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from clawrl.client import ApiClient, ApiProblem
from clawrl.evaluation import demo_report as report
from clawrl.evaluation.demo_progress import Display, take_snapshot
from clawrl.evaluation.demo_server import DemoServer
from clawrl.evaluation.demo_users import UserPool, open_client
from clawrl.evaluation.live_graph import (
    Address,
    RunProblem,
    attempt,
    fresh_home,
    preflight,
    running_graph,
    settle,
    talk,
)
from clawrl.evaluation.observations import Observations
from clawrl.evaluation.preferences import ONE_SENTENCE
from clawrl.evaluation.simulated_user import HELD_OUT_QUESTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Talking ends after ``sessions`` conversations, at ``target_version`` if there is one, or after the time limit."""

    deployment: Path
    output: Path
    users: int = 8
    sessions: int = 160
    target_version: int | None = None
    time_limit_s: float = 480.0
    questions_per_session: int = 1
    seed: int = 0

    @property
    def required_versions(self) -> int:
        """Who asks for a shorter run is held to what they asked for."""
        return min(report.REQUIRED_VERSIONS, self.target_version or report.REQUIRED_VERSIONS)


def run_demo(options: DemoOptions, console: Console) -> int:
    began = time.monotonic()
    seen = Observations()
    home = options.output / "home"
    say = partial(console.print, style="dim", markup=False, highlight=False, soft_wrap=True)
    try:
        address = preflight(options.deployment)
        options.output.mkdir(parents=True, exist_ok=True)
        fresh_home(home)
        with running_graph(options.deployment, address, home, options.output / "server.log", seen, say) as server:
            asyncio.run(_observe(options, server, address, seen, console))
        say("measuring the answers with the starting model")
        _measure_or_note(options.deployment, home, seen)
    except (RunProblem, ApiProblem) as error:
        console.print(f"demo: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    seen.seconds["total"] = round(time.monotonic() - began, 1)
    passed = _tell(options, seen, console)
    if passed:
        shutil.rmtree(home)
    return 0 if passed else 1


async def _observe(
    options: DemoOptions, server: DemoServer, address: Address, seen: Observations, console: Console
) -> None:
    """Everything between ready and stop. Fills ``seen``."""
    with ApiClient(address.url, address.api_key, timeout_s=30.0) as api:
        async with open_client(address.url, address.api_key) as client:
            pool = UserPool(
                client,
                api.model_name(),
                seen.record,
                ONE_SENTENCE,
                users=options.users,
                sessions=options.sessions,
                questions=options.questions_per_session,
                seed=options.seed,
            )
            console.print(f"asking {len(HELD_OUT_QUESTIONS)} held-out questions", style="dim")
            seen.before = await pool.ask_aside(HELD_OUT_QUESTIONS, "held_out", "before")
            with Display(console) as display:
                await talk(
                    pool,
                    api,
                    server,
                    seen,
                    time_limit_s=options.time_limit_s,
                    stop=partial(_over, options.target_version),
                    show=lambda elapsed: display.show(take_snapshot(seen, elapsed, options.sessions)),
                )
            # Nothing more is to be learned while the last version shows what it can do.
            await attempt(seen, api.pause, "the demo asks its held-out questions")
            console.print("asking the held-out questions again", style="dim")
            seen.after = await pool.ask_aside(HELD_OUT_QUESTIONS, "held_out", "after")
        seen.memory_mb = server.memory_mb()
        await settle(api, seen)


def _over(target_version: int | None, seen: Observations) -> str | None:
    if seen.status.get("paused"):
        return f"training was paused: {seen.status.get('pause_reason')}"
    if target_version is not None and int(seen.status.get("version") or 0) >= target_version:
        return f"version {target_version} was reached"
    return None


def _measure_or_note(deployment: Path, home: Path, seen: Observations) -> None:
    """The run is over and has its report to write, whatever can be measured of it."""
    try:
        asyncio.run(_measure(deployment, home, seen))
    except RunProblem as problem:
        seen.not_measured = str(problem)


async def _measure(deployment: Path, home: Path, seen: Observations) -> None:
    from clawrl.evaluation.blocks import BLOCK, by_version, spread_out
    from clawrl.evaluation.frozen import frozen_start
    from clawrl.evaluation.measures import mean_of

    answers = seen.record.first_answers()
    # Version 0 answers only a few sessions before the next one comes; the held-out questions make its mean less noisy.
    start = [*seen.before, *spread_out(by_version(answers).get(0, []), BLOCK)]
    # Two blocks: the figure is a mean of few answers, and its noise was as large as what may be lost.
    end = [*answers[-2 * BLOCK :], *seen.after]
    async with frozen_start(deployment, home) as model:
        seen.start = mean_of(list((await model.measure(start, ONE_SENTENCE.instruction)).values()))
        seen.end = mean_of(list((await model.measure(end, ONE_SENTENCE.instruction)).values()))


def _tell(options: DemoOptions, seen: Observations, console: Console) -> bool:
    from clawrl.evaluation.demo_plot import write_plot

    verdicts = report.checks(seen, options.required_versions)
    report.write_files(seen, verdicts, options.output)
    write_plot(seen, ONE_SENTENCE.words, options.output / "learning.png")
    console.print(report.held_out_table(seen.before, seen.after))
    console.print(report.figures_table(seen))
    agreement = report.judge_agreement(seen.record.answers, seen.turns)
    share = agreement["share"]
    said = f"{share:.0%} of {agreement['compared']} verdicts" if share is not None else "no verdict to compare"
    console.print(f"judge and user's rule agree on {said}", highlight=False)
    console.print(f"talking ended: {seen.ended}", markup=False, highlight=False)
    console.print(report.checks_table(verdicts))
    console.print(f"written to {options.output}: learning.png, turns.jsonl, summary.json, server.log", markup=False)
    outcomes = {
        report.About.LOOP: ("the loop closed", "the loop did NOT close"),
        report.About.LEARNING: ("it learned", "it did NOT learn"),
    }
    for about, (yes, no) in outcomes.items():
        passed = all(check.passed for check in verdicts if check.about is about)
        console.print(yes if passed else no, style="bold green" if passed else "bold red")
    return all(check.passed for check in verdicts)

"""One run of the learning bench on the real graph, from a fresh state folder to its figures.

The server is stopped before anything is measured. A run that could not be finished raises: `RunProblem` or `ApiProblem`
say why, and its folder stays for a look. The state folder of a run that was finished is removed.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from clawrl.client import ApiClient
from clawrl.evaluation.blocks import sessions_until_held
from clawrl.evaluation.demo_server import DemoServer
from clawrl.evaluation.demo_users import UserPool, open_client
from clawrl.evaluation.learning_figures import buckets_of, run_figures
from clawrl.evaluation.learning_plan import RunPlan, run_document
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
from clawrl.evaluation.measures import Measures, mean_of
from clawrl.evaluation.observations import Observations
from clawrl.evaluation.probes import PROBES, probe_figures

_OUR_PAUSE = "the learning bench trains nothing here"
_BROKEN = ("the server ended", "too many failed requests")
_SAY_EVERY_S = 30.0


class Ending:
    """Decides when a run is over that trains past the moment from which its preference holds. Asked again and again.

    ``stopped_by`` is the reason of an alarm that paused training, if one did; ``held_at_step`` the updates that had
    been applied when the preference was first seen to hold, in a run that trains on past that.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self.held_at_step: int | None = None
        self.stopped_by: str | None = None

    def __call__(self, seen: Observations) -> str | None:
        if self._plan.trains and seen.status.get("paused") and self.stopped_by is None:
            self.stopped_by = str(seen.status.get("pause_reason") or "paused, no reason given")
        if not self._plan.past:
            return None
        if self.stopped_by is not None:
            return f"training was paused: {self.stopped_by}"
        answers = seen.record.first_answers()
        step = int(seen.status.get("step") or 0)
        if self.held_at_step is None:
            if sessions_until_held(answers) is not None:
                self.held_at_step = step
            elif len(answers) >= self._plan.sessions:
                return f"the preference did not hold within {self._plan.sessions} sessions"
        if self.held_at_step is not None and step >= self.held_at_step + self._plan.past:
            return f"{self._plan.past} updates past the moment from which the preference held"
        return None


def run_one(plan: RunPlan, document: Mapping[str, Any], folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    began = time.monotonic()
    seen, ending = Observations(), Ending(plan)
    folder.mkdir(parents=True, exist_ok=True)
    deployment, home = folder / "deployment.yaml", folder / "home"
    try:
        deployment.write_text(yaml.safe_dump(run_document(document, plan), sort_keys=False))
    except ValueError as error:
        raise RunProblem(str(error)) from error
    address = preflight(deployment)
    fresh_home(home)
    with running_graph(deployment, address, home, folder / "server.log", seen, say) as server:
        asyncio.run(_observe(plan, server, address, seen, ending, say))
    if seen.ended in _BROKEN or not seen.record.first_answers():
        last = seen.record.failures[-1] if seen.record.failures else "no request failed"
        raise RunProblem(f"{seen.ended or 'no answer came'} ({last}); see {folder / 'server.log'}")
    say("measuring the answers with the starting model")
    figures = asyncio.run(_figures(plan, seen, ending, deployment, home))
    figures["seconds"]["total"] = round(time.monotonic() - began, 1)
    shutil.rmtree(home)
    return figures


async def _observe(
    plan: RunPlan,
    server: DemoServer,
    address: Address,
    seen: Observations,
    ending: Ending,
    say: Callable[[str], None],
) -> None:
    prompts = [probe.prompt for probe in PROBES]
    with ApiClient(address.url, address.api_key, timeout_s=30.0) as api:
        if not plan.trains:
            api.pause(_OUR_PAUSE)
        async with open_client(address.url, address.api_key) as client:
            pool = UserPool(
                client,
                api.model_name(),
                seen.record,
                plan.wish,
                users=plan.users,
                sessions=None if plan.past else plan.sessions,
                seed=plan.seed,
                system=plan.system,
            )
            seen.before = await pool.ask_aside(prompts, "probe", "before")
            await talk(
                pool,
                api,
                server,
                seen,
                time_limit_s=plan.time_limit_s,
                stop=ending,
                show=_Teller(seen, say).show,
            )
            if plan.trains:
                await attempt(seen, api.pause, "the learning bench asks its last questions")
            seen.after = await pool.ask_aside(prompts, "probe", "after")
        seen.memory_mb = server.memory_mb()
        await settle(api, seen)


class _Teller:
    def __init__(self, seen: Observations, say: Callable[[str], None]) -> None:
        self._seen = seen
        self._say = say
        self._said_at = 0.0

    def show(self, elapsed_s: float) -> None:
        if elapsed_s - self._said_at < _SAY_EVERY_S:
            return
        self._said_at = elapsed_s
        recent = self._seen.record.first_answers()[-16:]
        accepted = sum(answer.accepted for answer in recent)
        version = self._seen.status.get("version")
        begun = self._seen.record.sessions_begun
        self._say(f"{elapsed_s:5.0f} s  session {begun}  version {version}  accepted {accepted} of {len(recent)}")


async def _figures(plan: RunPlan, seen: Observations, ending: Ending, deployment: Path, home: Path) -> dict[str, Any]:
    from clawrl.evaluation.frozen import frozen_start

    answers = seen.record.first_answers()
    measured: dict[str, Measures | None] = {}
    async with frozen_start(deployment, home) as model:
        for bucket, chosen in buckets_of(answers, plan.measured_per_version).items():
            found = await model.measure(chosen, plan.wish.instruction)
            measured[bucket] = mean_of(list(found.values()))
        probes = {
            name: probe_figures(asked, await model.measure(asked, None))
            for name, asked in (("before", seen.before), ("after", seen.after))
        }
        tokens = model.tokens(answers)
    return run_figures(plan, seen, measured, tokens, probes, ending.stopped_by, ending.held_at_step)

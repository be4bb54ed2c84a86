"""mini-swe-agent: its own agent and prompts, with commands that really run in a folder of the caller's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

from tests.clients.heard import Endpoint

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
MAX_STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """``status`` and ``submission`` as the agent ended, ``commands`` what it ran, in order."""

    status: str
    submission: str
    commands: tuple[str, ...]


def solve(at: Endpoint, task: str, folder: Path) -> Solved:
    """Runs until the model submits. What LiteLLM raises goes through once the agent has given up trying again."""
    config: dict[str, Any] = yaml.safe_load((Path(package_dir) / "config" / "mini.yaml").read_text())
    known = {"system_template", "instance_template"}
    model_config = dict(config["model"])
    reached = {
        "api_base": at.v1,
        "api_key": at.key,
        "extra_headers": dict(at.headers),
        "max_retries": at.retries,
        "timeout": 60,
    }
    model = LitellmModel(
        model_name=f"openai/{at.model}",
        model_kwargs=model_config.pop("model_kwargs") | reached,
        cost_tracking="ignore_errors",
        **model_config,
    )
    agent = DefaultAgent(
        model,
        LocalEnvironment(cwd=str(folder), env=config["environment"]["env"]),
        **{name: config["agent"][name] for name in known},
        step_limit=MAX_STEPS,
    )
    ended = agent.run(task)
    actions = [action for message in agent.messages for action in message.get("extra", {}).get("actions", [])]
    return Solved(
        status=ended["exit_status"],
        submission=ended["submission"],
        commands=tuple(action["command"] for action in actions),
    )

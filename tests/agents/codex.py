"""Codex without a terminal: ``codex exec``, resumed for each further thing that the user says."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agents import run
from tests.clients import CACHE, npm
from tests.clients.heard import Endpoint

VERSION = "0.171.0"
_CONFIG = """
model = {model}
model_provider = "clawrl"
check_for_update_on_startup = false

[model_providers.clawrl]
name = "clawrl"
base_url = {url}
env_key = "CLAWRL_API_KEY"
wire_api = "responses"
"""


def converse(at: Endpoint, folder: Path, *texts: str) -> tuple[str, ...]:
    """Its sessions have names of its own; ``at.session`` is not used."""
    place = npm.installed(CACHE, "codex", {"@openai/codex": VERSION})
    home = folder / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(_CONFIG.format(model=json.dumps(at.model), url=json.dumps(at.v1)))
    env = {"CODEX_HOME": str(home), "CLAWRL_API_KEY": at.key}
    said: list[str] = []
    for text in texts:
        answer = folder / "answer.txt"
        # The folder is the test's own, so that nothing has to be fenced in.
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-o", str(answer)]
        again = ["resume", "--last"] if said else []
        run([place / "node_modules" / ".bin" / "codex", "exec", *again, *options, text], folder, env)
        said.append(answer.read_text().strip())
    return tuple(said)


def session_in(folder: Path) -> str:
    """What Codex itself calls the one conversation that was held in this home."""
    (kept,) = (folder / ".codex" / "sessions").rglob("rollout-*.jsonl")
    first = json.loads(kept.read_text().splitlines()[0])
    return str(first["payload"]["id"])

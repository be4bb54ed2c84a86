"""Claude Code without a terminal: one process for each thing that the user says, all in one conversation."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from tests.agents import run
from tests.clients import CACHE, npm
from tests.clients.heard import Endpoint

VERSION = "2.1.332"


def converse(at: Endpoint, folder: Path, *texts: str) -> tuple[str, ...]:
    """``at.session`` must be a UUID, or ``None`` for a new one."""
    place = npm.installed(CACHE, "claude-code", {"@anthropic-ai/claude-code-linux-x64": VERSION})
    program = place / "node_modules" / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
    program.chmod(0o755)
    env = {
        "ANTHROPIC_BASE_URL": at.base_url,
        "ANTHROPIC_AUTH_TOKEN": at.key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    session = at.session or str(uuid.uuid4())
    said: list[str] = []
    for text in texts:
        which = ("--resume" if said else "--session-id", session)
        options = ("--model", at.model, "--output-format", "json", "--allowedTools", "Bash")
        said.append(str(json.loads(run([program, "-p", text, *options, *which], folder, env))["result"]))
    return tuple(said)

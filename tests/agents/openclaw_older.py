"""OpenClaw 2026.3.2, which no plugin of ours knows: its requests name no session, and texts are lists of parts."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.agents import openclaw, run
from tests.clients import CACHE
from tests.clients.heard import Endpoint

VERSION = "2026.3.2"
_INSTALL_TIMEOUT_S = 1800
_IMPORTED = {
    "crypto.js": ("calculateMAC", "decrypt", "deriveSecrets", "encrypt"),
    "curve.js": ("calculateSignature", "generateKeyPair", "verifySignature"),
}


def converse(at: Endpoint, folder: Path, *texts: str) -> tuple[str, ...]:
    """One process for each text, all in the session ``at.session``, of which the server is told nothing."""
    configure(at, folder)
    node, _ = openclaw.program_of(openclaw.VERSION)
    program = (node, installed() / "node_modules" / "openclaw" / "openclaw.mjs")
    session = at.session or "main"
    options = ["agent", "--local", "--agent", "main", "--session-id", session, "--json", "--message"]
    return tuple(
        openclaw.answer(run([*program, *options, text], folder, openclaw.environment(program))) for text in texts
    )


def configure(at: Endpoint, folder: Path) -> None:
    model: dict[str, Any] = {
        "id": at.model,
        "name": "The model behind clawrl",
        "reasoning": True,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": openclaw.WINDOW,
        "maxTokens": 8192,
    }
    provider = {"baseUrl": at.v1, "apiKey": at.key, "api": "openai-completions", "models": [model]}
    config = {
        "models": {"mode": "merge", "providers": {"clawrl": provider}},
        "agents": {"defaults": {"model": {"primary": f"clawrl/{at.model}"}, "workspace": str(folder)}},
        "gateway": {"mode": "local"},
    }
    home = folder / ".openclaw"
    home.mkdir(exist_ok=True)
    (home / "openclaw.json").write_text(json.dumps(config))


def installed() -> Path:
    """One of its packages comes from a repository rather than the registry; a shell of it is put there instead."""
    folder = CACHE / f"openclaw-{VERSION}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=CACHE))
    _write_shell(building / "libsignal")
    wanted = {"private": True, "dependencies": {"openclaw": VERSION}, "overrides": {"libsignal": "file:./libsignal"}}
    (building / "package.json").write_text(json.dumps(wanted))
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
    ran = subprocess.run(command, cwd=building, capture_output=True, text=True, check=False, timeout=_INSTALL_TIMEOUT_S)
    if ran.returncode != 0:
        shutil.rmtree(building)
        raise RuntimeError(f"npm could not install openclaw {VERSION}:\n{ran.stderr[-2000:]}")
    building.rename(folder)
    return folder


def _write_shell(package: Path) -> None:
    """What is imported by name, without any of it: it is for a messenger that nobody here is on."""
    (package / "src").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "libsignal", "version": "1.0.0", "main": "index.js"}')
    (package / "index.js").write_text("module.exports = {};\n")
    for module, names in _IMPORTED.items():
        (package / "src" / module).write_text("".join(f"exports.{name} = undefined;\n" for name in names))

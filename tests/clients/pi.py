"""pi-ai, the client library of OpenClaw and its kin, in two versions and its three ways to speak to a server.

It is JavaScript: `installed` has npm put both versions into a folder, and `PiAi` runs ``pi.mjs`` with Node.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.clients import npm
from tests.clients.heard import FETCH, MAX_ROUNDS, SYSTEM, Endpoint, Heard, HeardCall

PROGRAM = Path(__file__).with_name("pi.mjs")
OLDEST_NODE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """``entry`` is the module that exports ``streamSimple``."""

    name: str
    version: str
    entry: str


OLDER = Package(name="@mariozechner/pi-ai", version="0.73.1", entry="dist/index.js")
NEWER = Package(name="@earendil-works/pi-ai", version="1.6.0", entry="dist/compat.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """``affinity``: the session is named in pi-ai's own headers; without it, in a header that the caller adds."""

    package: Package
    api: str = "openai-completions"
    affinity: bool = False


class PiError(RuntimeError):
    """An answer that pi-ai calls an error, in its words; ``heard`` are all answers, with what came of that one."""

    def __init__(self, message: str, heard: tuple[Heard, ...]) -> None:
        super().__init__(message)
        self.heard = heard


class PiAi:
    """A Node program that holds one conversation at a time. ``folder`` is what `installed` returns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = subprocess.Popen(
            [_node(), str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.kill()
        self._program.communicate()

    def converse(self, way: Way, at: Endpoint, *texts: str) -> tuple[Heard, ...]:
        """Raises `PiError` where an answer is an error to pi-ai."""
        assert self._program.stdin is not None and self._program.stdout is not None
        self._program.stdin.write(json.dumps(self._asked(way, at, texts)) + "\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        if not line:
            raise RuntimeError("the Node program ended; what it said is in stderr")
        got = json.loads(line)
        if "failed" in got:
            raise RuntimeError(got["failed"])
        answers = got["answers"]
        heard = tuple(_heard(answer) for answer in answers)
        if answers[-1]["error"] is not None or answers[-1]["finish"] == "error":
            raise PiError(answers[-1]["error"] or "no message", heard)
        return heard

    def _asked(self, way: Way, at: Endpoint, texts: tuple[str, ...]) -> dict[str, Any]:
        return {
            "module": str(self._folder / "node_modules" / way.package.name / way.package.entry),
            "api": way.api,
            "baseUrl": at.base_url if way.api == "anthropic-messages" else at.v1,
            "key": at.key,
            "model": at.model,
            "headers": {} if way.affinity else at.headers,
            "sessionId": at.session if way.affinity else None,
            "compat": {"sendSessionAffinityHeaders": True} if way.affinity else None,
            "maxTokens": at.max_tokens,
            "retries": at.retries,
            "system": SYSTEM,
            "tool": FETCH if at.tools else None,
            "texts": texts,
            "maxRounds": MAX_ROUNDS,
        }


def why_not() -> str | None:
    """Why pi-ai cannot run on this machine; ``None`` if it can."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "node and npm are not installed"
    version = subprocess.run([_node(), "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    major = int(version.strip().removeprefix("v").split(".")[0])
    return f"node is {version.strip()}, older than v{OLDEST_NODE}" if major < OLDEST_NODE else None


def installed(cache: Path) -> Path:
    """A folder in ``cache`` with both versions in it; npm runs the first time only. Raises ``RuntimeError``."""
    return npm.installed(cache, "pi-ai", {package.name: package.version for package in (OLDER, NEWER)})


def _node() -> str:
    return shutil.which("node") or "node"


def _heard(answer: dict[str, Any]) -> Heard:
    return Heard(
        text=answer["text"],
        finish=answer["finish"],
        reasoning=answer["reasoning"],
        calls=tuple(HeardCall(**call) for call in answer["calls"]),
        prompt_tokens=answer["promptTokens"],
        completion_tokens=answer["completionTokens"],
        pieces=answer["pieces"],
    )

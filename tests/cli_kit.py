"""What tests of the command line share: a command typed, and a server with a conversation in it to type at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from clawrl import cli
from tests.office import talk
from tests.operator_house import House
from tests.operator_kit import until


def run(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), input=text)


async def talked(home: House) -> None:
    """Three turns, of which two are judged and wait to be trained."""
    await talk(home.coordinator, 3)
    await until(home.coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines() if line]

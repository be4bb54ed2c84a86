"""What every command uses: the two consoles, the options that name a server, and how a failure ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from clawrl.client import ApiClient, ApiProblem

console = Console()
errors = Console(stderr=True)

Url = Annotated[str, typer.Option(envvar="CLAWRL_URL", help="The server.")]


def _sendable(key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable()):
        raise typer.BadParameter("no server has such a key: keys are printable ASCII")
    return key


Key = Annotated[
    str | None,
    typer.Option("--api-key", envvar="CLAWRL_API_KEY", help="The key, if it wants one.", callback=_sendable),
]
AsJson = Annotated[bool, typer.Option("--json", help="The server's own JSON, for programs.")]


def fail(message: str) -> NoReturn:
    errors.print(f"clawrl: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1)


@contextmanager
def talking(url: str, api_key: str | None, timeout_s: float = 10.0) -> Iterator[ApiClient]:
    """A client for one command; what goes wrong is one line and exit code 1."""
    with ApiClient(url, api_key, timeout_s) as client:
        try:
            yield client
        except ApiProblem as problem:
            fail(str(problem))


def show_json(document: Any) -> None:
    """One line where nobody looks on, so that programs can read it line by line."""
    if console.is_terminal:
        console.print_json(json.dumps(document))
    else:
        console.print(json.dumps(document), markup=False, highlight=False, soft_wrap=True)


def say(line: str, style: str | None = None) -> None:
    """A line as it is, whatever a conversation holds."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

"""What every command uses: the two consoles, the options that name a server, and how a failure ends.

What people wrote is shown as it is: ``:smile:`` in it is no emoji, and what the terminal's encoding has no bytes for is
an escape and not an error.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from clawrl.client import ApiClient, ApiProblem

console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)

Url = Annotated[str, typer.Option(envvar="CLAWRL_URL", help="The server.")]
Key = Annotated[
    str | None,
    typer.Option("--api-key", envvar="CLAWRL_API_KEY", help="The key, if it wants one."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]


def fail(message: str) -> NoReturn:
    """One line, whatever a library's error has several of."""
    message = " ".join(line.strip() for line in message.splitlines())
    errors.print(f"clawrl: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1)


@contextmanager
def talking(url: str, api_key: str | None, timeout_s: float = 10.0) -> Iterator[ApiClient]:
    """A client for one command; what goes wrong is one line and exit code 1."""
    try:
        with ApiClient(url, api_key, timeout_s) as client:
            yield client
    except ApiProblem as problem:
        fail(str(problem))


def show_json(document: Any) -> None:
    """One line of ASCII where nobody looks on, so that programs can read it line by line, whatever their locale."""
    # Not `console.is_terminal`: FORCE_COLOR makes that true for a pipe.
    if sys.stdout.isatty():
        console.print_json(json.dumps(document))
    else:
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


def escape_what_cannot_be_written() -> None:
    """Half a character, or any at all where the locale knows ASCII only, ends no command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(line: str, style: str | None = None) -> None:
    """A line as it is, whatever a conversation holds."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

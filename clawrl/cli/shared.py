"""What every command uses: the two consoles, the options that name a server, and how a failure ends.

What people wrote is shown as it is: ``:smile:`` in it is no emoji, and what the terminal's encoding has no bytes for is
an escape and not an error. Nor does a terminal obey it: control characters are shown by their pictures.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from clawrl.client import ApiClient, ApiProblem

# C0 and DEL have pictures, C1 has none. New lines and tabs are text.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


class _Tame(Console):
    """Rich strips a bell and the like, but lets through what moves the cursor, or types in its reader's name."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else text.translate(_PICTURES), style, control)


console = _Tame(emoji=False)
errors = _Tame(stderr=True, emoji=False)

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

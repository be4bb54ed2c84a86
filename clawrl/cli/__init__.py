"""The `clawrl` command: talk to a server, look at it, steer it; check a file, a judge or a plug-in; run the demo.

A thin edge: every command calls one thing and turns its failure into one line and exit code 1. Heavy
imports (Ray for `check`, matplotlib for `demo`) happen inside the command that needs them. A file holds a group of
commands; they all stand at the top, but for those under `turns` and `sessions`, which list when nothing else is said.
"""

import typer

from clawrl.cli import checking, demonstrating, keeping, looking, moving, steering, talking, watching
from clawrl.cli.shared import console, errors, escape_what_cannot_be_written, fail

__all__ = ["app", "console", "errors", "fail", "main"]

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Serve a language model and train it online.")
for group in (watching, steering, looking, checking, talking, moving, keeping, demonstrating):
    app.add_typer(group.app)
app.add_typer(looking.turns, name="turns", help="What became of each turn, and why; alone it is `list`.")
app.add_typer(looking.sessions, name="sessions", help="Conversations; alone it is `list`.")


def main() -> None:
    escape_what_cannot_be_written()
    app()

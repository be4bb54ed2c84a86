"""Commands that look: turns, sessions, versions."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clawrl.cli import view
from clawrl.cli.shared import AsJson, Key, Url, console, say, show_json, talking
from clawrl.client import DEFAULT_URL

app = typer.Typer()


class ListsWhenBare(TyperGroup):
    """A group whose ``list`` is meant where no command is named, with its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


turns = typer.Typer(cls=ListsWhenBare)
sessions = typer.Typer(cls=ListsWhenBare)

Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")]
Before = Annotated[int | None, typer.Option(min=0, help="Only older than this `seq`: the next page.")]
TurnId = Annotated[str, typer.Argument(help="The turn, by the X-Clawrl-Turn-Id of its answer.")]


@turns.command("list")
def list_turns(
    state: Annotated[str | None, typer.Option(help="Such as queued, trained or dropped.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why it was dropped, such as greedy.")] = None,
    session: Annotated[str | None, typer.Option(help="Of this session.")] = None,
    version: Annotated[int | None, typer.Option(min=0, help="Of this policy version.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="In the batch of this step.")] = None,
    before: Before = None,
    limit: Limit = 50,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """The newest turns, without their texts."""
    wanted = {"state": state, "reason": reason, "session": session, "version": version, "step": step, "before": before}
    with talking(url, api_key) as client:
        rows = client.turns(limit, **{name: value for name, value in wanted.items() if value is not None})
    if as_json:
        return show_json(rows)
    console.print(view.turn_table(rows))
    _say_more(rows, limit)


@turns.command("show")
def show_turn(turn_id: TurnId, url: Url = DEFAULT_URL, api_key: Key = None, as_json: AsJson = False) -> None:
    """A turn's whole life: what was asked and said, what came of it, its tokens, and why it is where it is."""
    with talking(url, api_key, 20.0) as client:
        document = client.turn(turn_id)
    show_json(document) if as_json else console.print(view.turn_life(document))


@turns.command()
def why(turn_id: TurnId, url: Url = DEFAULT_URL, api_key: Key = None, as_json: AsJson = False) -> None:
    """Why a turn has not trained, or not yet, and what to do about it."""
    with talking(url, api_key, 20.0) as client:
        document = client.turn(turn_id)
    found: dict[str, Any] = {name: document[name] for name in ("turn_id", "state", "drop_reason", "why")}
    if as_json:
        return show_json(found)
    reason = f" ({found['drop_reason']})" if found["drop_reason"] else ""
    say(f"{found['state']}{reason}: {found['why']['sentence']}")
    say(found["why"]["remedy"], style="dim")


@sessions.command("list")
def list_sessions(
    before: Before = None, limit: Limit = 50, url: Url = DEFAULT_URL, api_key: Key = None, as_json: AsJson = False
) -> None:
    """The conversations in which something was said last."""
    with talking(url, api_key) as client:
        rows = client.sessions(limit, before)
    if as_json:
        return show_json(rows)
    console.print(view.session_table(rows))
    _say_more(rows, limit)


@sessions.command("show")
def show_session(
    session: Annotated[str, typer.Argument(help="Its name.")],
    limit: Limit = 50,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """A conversation and the newest of its turns."""
    with talking(url, api_key) as client:
        document = client.session(session, limit)
    if as_json:
        return show_json(document)
    console.print(view.session_table(document["of"]))
    console.print(view.turn_table(document["turns"]))


@app.command()
def versions(
    before: Annotated[int | None, typer.Option(min=0, help="Only older than this version.")] = None,
    limit: Limit = 20,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """The policy's versions, and which of them can be rolled back to."""
    with talking(url, api_key) as client:
        rows = client.versions(limit, before)
    show_json(rows) if as_json else console.print(view.version_table(rows))


def _say_more(rows: list[dict[str, Any]], limit: int) -> None:
    if len(rows) == limit:
        say(f"older ones: --before {rows[-1]['seq']}", style="dim")

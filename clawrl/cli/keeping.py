"""Commands about what is kept: backup, forget."""

from pathlib import Path
from typing import Annotated

import typer

from clawrl.cli.shared import AsJson, Key, Url, console, fail, show_json
from clawrl.client import DEFAULT_URL, ApiProblem

app = typer.Typer()


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="The folder to write; it must not be there yet.")],
    deployment: Annotated[Path, typer.Option(help="Whose state.")] = Path("deployments/laptop.yaml"),
) -> None:
    """Copy a deployment's state so that it can be put back. It may run meanwhile; run this where its coordinator is."""
    from clawrl.backup import BackupError, back_up_file

    try:
        made = back_up_file(deployment, target)
    except (BackupError, OSError) as error:
        fail(str(error))
    step = "no checkpoint yet" if made.step is None else f"checkpoint of step {made.step}"
    version = "no version yet" if made.version is None else f"version {made.version}"
    console.print(f"{made.turns} turns, {step}, {version}: in {target}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def forget(
    user: Annotated[str | None, typer.Option(help="By the name in serving.users, or an owner id.")] = None,
    session: Annotated[str | None, typer.Option(help="With --user that user's only.")] = None,
    turn: Annotated[str | None, typer.Option(help="And the later ones of its session, which repeat it.")] = None,
    deployment: Annotated[Path | None, typer.Option(help="A stopped deployment's file; no server is asked.")] = None,
    lost_keys: Annotated[
        bool, typer.Option("--lost-keys", help="With --deployment: what its keys do not open; newer ones are lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether it is meant; --json needs it.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """Delete for good what a user said, or what was said in a session or a turn; a user's key goes, too."""
    from clawrl.forget import ForgetError, forget_by_file, forget_by_server, told

    named = {name: value for name, value in (("user", user), ("session", session), ("turn_id", turn)) if value}
    if lost_keys and deployment is None:
        fail("--lost-keys is about a deployment that does not run: name it by --deployment")
    if not (named or lost_keys) or (turn and len(named) > 1):
        fail("name what is to be forgotten: --user, --session (of a --user), --turn, or --lost-keys")
    if as_json and not yes:
        fail("with --json nobody is asked whether it is meant, and what is deleted does not come back: add --yes")
    what = f"{', '.join(named)} {' '.join(named.values())}" if named else "whatever its keys do not open"
    if not yes and not typer.confirm(f"delete {what} for good?"):
        raise typer.Exit(1)
    try:
        if deployment is None:
            report = forget_by_server(url, api_key, named)
        else:
            report = forget_by_file(deployment, named, lost_keys=lost_keys)
    except (ForgetError, ApiProblem) as problem:
        fail(str(problem))
    if as_json:
        show_json(report)
    else:
        for line in told(report):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not (report["found"] or lost_keys):
        raise typer.Exit(1)

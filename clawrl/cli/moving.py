"""Commands that move conversations: export-turns, open-turns, import-turns."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress as Bar

from clawrl.cli.shared import AsJson, Key, Url, errors, fail, say, show_json, talking
from clawrl.client import DEFAULT_URL, ApiProblem
from clawrl.serving.errors import ApiError

app = typer.Typer()


@app.command("export-turns")
def export_turns(
    target: Annotated[Path, typer.Argument(help="The file to write: its name ends in .jsonl or .parquet.")],
    state: Annotated[str | None, typer.Option(help="Only turns in this state, such as trained.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only turns that were dropped for this reason.")] = None,
    session: Annotated[str | None, typer.Option(help="Only of this session.")] = None,
    version: Annotated[int | None, typer.Option(min=0, help="Only of this policy version.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Only in the batch of this step.")] = None,
    deployment: Annotated[
        Path | None, typer.Option(help="Read the ledger of this deployment, which has stopped, instead of a server.")
    ] = None,
    sealed: Annotated[
        bool, typer.Option("--sealed", help="Under the users' keys: `clawrl open-turns` reads it until they are gone.")
    ] = False,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Write turns, with texts, token ids, log-probs and what came of them, as a data set. Newest first."""
    from clawrl.turn_files.export import rows_of_server, rows_of_stopped
    from clawrl.turn_files.rows import TurnFileError, check_target, write

    wanted = {"state": state, "reason": reason, "session": session, "version": version, "step": step}
    filters: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    try:
        check_target(target, sealed=sealed)
        if deployment is not None:
            count = write(rows_of_stopped(deployment, filters, sealed=sealed), target)
        else:
            with talking(url, api_key, 60.0) as client:
                count = write(rows_of_server(client, filters, sealed=sealed), target)
    except (TurnFileError, ApiError, OSError) as error:
        fail(str(error))
    show_json({"file": str(target), "turns": count}) if as_json else say(f"{count} turns are in {target}")


@app.command("open-turns")
def open_turns(
    file: Annotated[Path, typer.Argument(help="A sealed export: JSON lines of `export-turns --sealed`.")],
    target: Annotated[Path, typer.Argument(help="The plain file to write: its name ends in .jsonl or .parquet.")],
    deployment: Annotated[Path, typer.Option(help="Whose keys; it may run meanwhile.")] = Path(
        "deployments/laptop.yaml"
    ),
    as_json: AsJson = False,
) -> None:
    """Make a plain export of a sealed one, with the keys that are still there. Run it where the keys are."""
    from clawrl.turn_files.rows import TurnFileError, check_target, write
    from clawrl.turn_files.sealed import OpenedRows

    try:
        check_target(target)
        rows = OpenedRows(file, deployment)
        count = write(rows, target)
    except (TurnFileError, OSError) as error:
        fail(str(error))
    if as_json:
        return show_json({"file": str(target), "turns": count, "closed": rows.closed})
    say(f"{count} turns are in {target}" + (f", {rows.closed} of them without their texts" if rows.closed else ""))


@app.command("import-turns")
def import_turns(
    file: Annotated[Path, typer.Argument(help="JSON lines with `messages`, or an export of turns.")],
    history: Annotated[str, typer.Option(help="own: the policy's answers stay; recorded: the file's.")] = "own",
    per_minute: Annotated[float, typer.Option(min=0.1, help="Requests a minute at most.")] = 60.0,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Conversations at once.")] = 4,
    side: Annotated[bool, typer.Option("--side", help="As side turns: answered and recorded, never trained.")] = False,
    model: Annotated[str | None, typer.Option(help="The served model; the server's first otherwise.")] = None,
    progress: Annotated[Path | None, typer.Option(help="Where what is done is noted; FILE.imported otherwise.")] = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Replay conversations as traffic: what people said is sent, the policy answers anew. Goes on where it stopped."""
    from clawrl.turn_files.conversations import read_conversations
    from clawrl.turn_files.replay import Options, Progress, Replay
    from clawrl.turn_files.rows import TurnFileError

    if history not in ("own", "recorded"):
        fail(f"--history is own or recorded, not {history}")
    try:
        conversations = read_conversations(file)
        notes = Progress(progress or file.with_name(f"{file.name}.imported"))
    except (TurnFileError, OSError) as error:
        fail(str(error))
    options = Options(
        history="own" if history == "own" else "recorded",
        per_minute=per_minute,
        parallel=parallel,
        side=side,
        model=model,
    )
    left = [conversation for conversation in conversations if not notes.is_done(conversation)]
    answers = cut = 0
    failed: list[str] = []
    try:
        replay = Replay(url, api_key, options, attempt=f"{int(time.time()):x}")
    except ApiProblem as problem:
        fail(str(problem))
    with Bar(console=errors, transient=True, disable=as_json) as bar:
        task = bar.add_task("conversations", total=len(conversations), completed=len(conversations) - len(left))
        try:
            for played in replay.play_all(left):
                answers, cut = answers + played.answers, cut + played.cut
                if played.problem:
                    failed.append(f"conversation {played.conversation.number}: {played.problem}")
                else:
                    notes.note(played)
                bar.advance(task)
        except TurnFileError as error:
            fail(str(error))
        except KeyboardInterrupt:
            fail("stopped; the same command goes on from here")
        finally:
            replay.close()
    summary = {"conversations": len(conversations), "played": len(left) - len(failed), "answers": answers}
    summary |= {"done_before": len(conversations) - len(left), "left_out_messages": cut, "failed": len(failed)}
    if as_json:
        show_json({**summary, "problems": failed})
    else:
        say(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in summary.items()))
    if failed:
        fail(f"{len(failed)} conversations broke off, the first: {failed[0]}; the same command tries them again")

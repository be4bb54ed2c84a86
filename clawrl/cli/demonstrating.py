"""`clawrl demo`."""

from pathlib import Path
from typing import Annotated

import typer

from clawrl.cli.shared import console

app = typer.Typer()


@app.command()
def demo(
    deployment: Annotated[Path, typer.Option(help="The graph to start.")] = Path("deployments/laptop.yaml"),
    output: Annotated[Path, typer.Option(help="Where results go.")] = Path("demo-output"),
    users: Annotated[int, typer.Option(min=1, help="Simulated users who talk at once.")] = 8,
    sessions: Annotated[int, typer.Option(min=1, help="Conversations in all.")] = 160,
    target_version: Annotated[int | None, typer.Option(min=1, help="Stop early when the policy is this new.")] = None,
    time_limit: Annotated[float, typer.Option(min=1.0, help="Seconds of talking at most.")] = 480.0,
    questions: Annotated[int, typer.Option(min=1, help="Questions in one session.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the users' words.")] = 0,
) -> None:
    """Start the graph, let simulated users talk to it, and say whether it learned what they want."""
    from clawrl.evaluation.demo import DemoOptions, run_demo

    options = DemoOptions(
        deployment=deployment,
        output=output,
        users=users,
        sessions=sessions,
        target_version=target_version,
        time_limit_s=time_limit,
        questions_per_session=questions,
        seed=seed,
    )
    raise typer.Exit(run_demo(options, console))

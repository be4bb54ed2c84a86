"""`clawrl status` and `clawrl wait-ready`."""

import time
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.live import Live

from clawrl.cli.shared import AsJson, Key, Url, console, fail, show_json, talking
from clawrl.client import DEFAULT_URL, ApiClient
from clawrl.status_view import render_status

app = typer.Typer()


@app.command()
def status(
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes.")] = 2.0,
) -> None:
    """What the server is doing: version, turns by state, replicas, judge, trainer."""
    with talking(url, api_key) as client, suppress(KeyboardInterrupt):
        first = client.status()
        if not watch:
            show_json(first) if as_json else console.print(render_status(first))
        elif as_json:
            _watch_lines(client, first, every)
        else:
            _watch_panel(client, first, every)


def _watch_lines(client: ApiClient, reading: dict[str, Any], every: float) -> None:
    while True:
        show_json(reading)
        time.sleep(every)
        reading = client.status()


def _watch_panel(client: ApiClient, reading: dict[str, Any], every: float) -> None:
    with Live(render_status(reading), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(render_status(client.status()), refresh=True)


@app.command("wait-ready")
def wait_ready(
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds to wait.")] = 600.0,
    poll: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Return when the server is ready to answer; say meanwhile what is missing."""
    said: tuple[str, ...] | None = None
    with talking(url, api_key) as client:
        for reading in client.wait_ready(timeout, poll):
            if reading.ready:
                console.print(f"ready: {url}")
                return
            if reading.missing != said:
                said = reading.missing
                console.print(f"waiting for {', '.join(said) or 'the server'}", markup=False)
    fail(f"not ready after {timeout:g} s; still missing: {', '.join(said or ('server',))}")

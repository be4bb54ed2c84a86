"""Commands that change what a running server does: pause, resume, rollback, publish."""

import time
from typing import Annotated, Any

import typer

from clawrl.cli.shared import AsJson, Key, Url, fail, say, show_json, talking
from clawrl.client import DEFAULT_URL, ApiClient, ApiProblem

app = typer.Typer()
_PAUSE_S = 0.25


@app.command()
def pause(
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    reason: Annotated[str, typer.Option(help="Shown by status.")] = "paused by an operator",
    as_json: AsJson = False,
) -> None:
    """Stop feeding turns to the trainer. Serving and recording go on."""
    with talking(url, api_key) as client:
        answer = client.pause(reason)
    show_json(answer) if as_json else say("paused: turns are served and recorded, nothing is queued for training")


@app.command()
def resume(url: Url = DEFAULT_URL, api_key: Key = None, as_json: AsJson = False) -> None:
    """Feed turns to the trainer again, those judged during the pause first."""
    with talking(url, api_key) as client:
        answer = client.resume()
    show_json(answer) if as_json else say("resumed")


@app.command()
def rollback(
    version: Annotated[int, typer.Argument(min=0, help="One that is kept: see `clawrl versions`.")],
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait until every replica serves it.")] = 30.0,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Serve the weights of a kept version again, under a new number, and go on training from them."""
    with talking(url, api_key) as client:
        answer = client.rollback(version)
        serving, problem = False, ""
        try:
            serving = _everywhere(client, int(answer["version"]), wait)
        except ApiProblem as found:
            problem = str(found)
    if as_json:
        show_json({**answer, "everywhere": serving})
    else:
        say(f"version {answer['version']} has the weights of version {version} (step {answer['step']})")
        if serving:
            say("every replica serves it; the trainer goes on from it with its next batch")
    if problem:
        fail(f"the rollback is done, but whether every replica serves it cannot be seen: {problem}")
    if not serving and wait:
        fail(f"not every replica had it within {wait:g} s; `clawrl status` shows who lags")


def _everywhere(client: ApiClient, version: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        replicas: list[dict[str, Any]] = client.status().get("replicas") or []
        if replicas and all(replica["version"] >= version for replica in replicas):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)


@app.command()
def publish(url: Url = DEFAULT_URL, api_key: Key = None, as_json: AsJson = False) -> None:
    """Have the trainer publish what it holds now, if that is not what serves."""
    with talking(url, api_key) as client:
        answer = client.publish()
    if as_json:
        return show_json(answer)
    serving = f"version {answer['version']} has everything up to step {answer['step']}"
    if answer["outcome"] == "nothing_new":
        return say(f"nothing is new: {serving}")
    say(
        f"asked: {serving}, the trainer holds step {answer['newest_step']} and publishes it (it is {answer['trainer']})"
    )

"""Commands for whoever talks to the policy: `clawrl chat` and `clawrl feedback`."""

import uuid
from typing import Annotated, Any

import typer

from clawrl.cli.shared import AsJson, Key, Url, console, errors, fail, show_json, talking
from clawrl.client import DEFAULT_URL, is_local, unreachable

app = typer.Typer()


@app.command()
def feedback(
    score: Annotated[float, typer.Argument(min=-1.0, max=1.0, help="-1 bad to 1 good.")],
    turn: Annotated[str | None, typer.Option(help="The turn, by the X-Clawrl-Turn-Id of its answer.")] = None,
    session: Annotated[str | None, typer.Option(help="Or the newest turn of this session.")] = None,
    comment: Annotated[str, typer.Option(help="What would have been better.")] = "",
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say what an answer was worth; it outranks the judge. A negative score comes after `--`."""
    named = {"turn_id": turn} if turn else {"session_id": session}
    if bool(turn) == bool(session):
        fail("name the answer: either --turn or --session")
    with talking(url, api_key) as client:
        taken = client.feedback({**named, "score": score, "comment": comment})
    if as_json:
        return show_json(taken)
    said = "it will be learned from" if taken["outcome"] == "taken" else "too late to learn from it"
    console.print(f"turn {taken['turn_id']} ({taken['state']}): {said}", highlight=False)


@app.command()
def chat(
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    session: Annotated[str | None, typer.Option(help="A session id; a new one otherwise.")] = None,
    model: Annotated[str | None, typer.Option(help="The served model; the server's first otherwise.")] = None,
) -> None:
    """Talk to the policy. What you say next is what its last answer is judged by. /quit leaves."""
    session = session or f"chat-{uuid.uuid4().hex[:12]}"
    with talking(url, api_key) as client:
        model = model or client.model_name()
    console.print(f"{model} at {url}, session {session}; /quit to leave", style="dim", markup=False, highlight=False)
    _chat_loop(url, api_key, session, model)


def _chat_loop(url: str, api_key: str | None, session: str, model: str) -> None:
    from openai import APIConnectionError, APIError, DefaultHttpxClient, OpenAI

    http = DefaultHttpxClient(trust_env=not is_local(url))
    client = OpenAI(
        base_url=f"{url.rstrip('/')}/v1", api_key=api_key or "none", max_retries=0, timeout=600.0, http_client=http
    )
    history: list[Any] = []
    with client:
        while (line := _read_line()) is not None:
            if not line:
                continue
            history.append({"role": "user", "content": line})
            try:
                answer = _stream_answer(client, model, history, session)
            except APIConnectionError:
                fail(unreachable(url))
            except APIError as error:
                # Refused, or broken off in mid-stream: either way there is no answer to keep.
                history.pop()
                errors.print(f"clawrl: {error.message}", style="red", markup=False, highlight=False, soft_wrap=True)
                continue
            history.append({"role": "assistant", "content": answer})


def _read_line() -> str | None:
    """One message of the person's, or None when they leave."""
    try:
        line = console.input("[bold green]you>[/] ").strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return None
    return None if line in {"/quit", "/exit"} else line


def _stream_answer(client: Any, model: str, history: list[Any], session: str) -> str:
    """Print the answer as it comes, then which policy version gave it."""
    pieces: list[str] = []
    versions: list[str] = []
    stream = client.chat.completions.create(
        model=model, messages=history, stream=True, extra_headers={"X-Session-Id": session}
    )
    for chunk in stream:
        if chunk.system_fingerprint and chunk.system_fingerprint not in versions:
            versions.append(chunk.system_fingerprint)
        if chunk.choices and chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
            console.print(pieces[-1], end="", markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(f"policy {' then '.join(versions) or 'version unknown'}", style="dim", markup=False, highlight=False)
    return "".join(pieces)

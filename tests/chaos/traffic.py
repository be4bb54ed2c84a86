"""Users that talk, stream and react until they are told to stop, and who note every request of theirs.

What fails ends the conversation and is never asked again by the user, so that each failure shows. A stream counts as
whole when its finish reason and its end came.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx

from tests.chaos.notes import Outcome, RequestNote
from tests.live import AUTH, MODEL
from tests.traffic import REACTIONS

_TURNS = 4
_TIMEOUT_S = 120.0


class Users:
    """``count`` threads inside ``with``; each rests ``pause_s`` after an answer."""

    def __init__(self, url: str, *, count: int, pause_s: float) -> None:
        self._url = url
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._user, args=(n,), daemon=True) for n in range(count)]
        self._notes: list[RequestNote] = []

    def __enter__(self) -> Users:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        # When the run is being given up nobody waits for answers.
        for thread in self._threads if kind is None else ():
            thread.join(_TIMEOUT_S)

    @property
    def notes(self) -> list[RequestNote]:
        with self._lock:
            return list(self._notes)

    def answered_since(self, moment: float) -> int:
        return sum(note.asked_at > moment and note.outcome is not Outcome.FAILED for note in self.notes)

    def _user(self, number: int) -> None:
        # A connection for each request: one that is kept alive may be broken by whatever is killed next.
        with httpx.Client(timeout=_TIMEOUT_S, headers=AUTH, limits=httpx.Limits(max_keepalive_connections=0)) as client:
            conversation = 0
            while not self._stop.is_set():
                conversation += 1
                self._talk(client, number, conversation)

    def _talk(self, client: httpx.Client, number: int, conversation: int) -> None:
        session = f"user{number}-{conversation}"
        messages = [{"role": "user", "content": f"tell me about {session}"}]
        for turn in range(_TURNS):
            note = self._ask(client, messages, session, stream=(number + turn) % 2 == 0)
            with self._lock:
                self._notes.append(note)
            if self._stop.wait(self._pause_s) or note.outcome is not Outcome.WHOLE:
                return
            reaction = REACTIONS[(number + conversation + turn) % len(REACTIONS)]
            messages += [{"role": "assistant", "content": note.text}, {"role": "user", "content": reaction}]

    def _ask(self, client: httpx.Client, messages: list[dict[str, str]], session: str, *, stream: bool) -> RequestNote:
        note = RequestNote(session=session, stream=stream, asked_at=time.time(), ended_at=0.0, outcome=Outcome.FAILED)
        body = {"model": MODEL, "messages": messages, "stream": stream}
        try:
            with client.stream(
                "POST", f"{self._url}/v1/chat/completions", json=body, headers={"X-Session-Id": session}
            ) as reply:
                note = replace(note, turn_id=reply.headers.get("X-Clawrl-Turn-Id"))
                if reply.status_code != 200:
                    note = _refused(note, reply.status_code, reply.read().decode(errors="replace"))
                elif stream:
                    for seen in _as_it_comes(note, reply):
                        note = seen
                else:
                    note = _whole(note, json.loads(reply.read()))
        except (httpx.HTTPError, ValueError, KeyError) as error:
            note = replace(note, outcome=Outcome.FAILED, problem=f"{type(error).__name__}: {error}")
        return replace(note, ended_at=time.time())


def _lines(reply: httpx.Response) -> Iterator[str]:
    """Cut at line feeds alone: random weights also write what else Python takes for the end of a line."""
    rest = b""
    for part in reply.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        yield from (line.decode() for line in lines)


def _refused(note: RequestNote, status: int, text: str) -> RequestNote:
    outcome = Outcome.EMPTY if '"empty_answer"' in text else Outcome.FAILED
    return replace(note, outcome=outcome, problem=f"{status}: {text[:300]}")


def _whole(note: RequestNote, document: dict[str, Any]) -> RequestNote:
    choice = document["choices"][0]
    return replace(
        note,
        outcome=Outcome.WHOLE,
        turn_id=document["clawrl"]["turn_id"],
        version=int(document["system_fingerprint"][1:]),
        text=choice["message"]["content"],
        finish_reason=choice["finish_reason"],
    )


def _as_it_comes(note: RequestNote, reply: httpx.Response) -> Iterator[RequestNote]:
    """The note after each event, so that what had come is known when the stream breaks. An empty one is a refusal."""
    for line in _lines(reply):
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            yield replace(note, outcome=Outcome.WHOLE if note.finish_reason else Outcome.FAILED)
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            yield _refused(note, 200, line)
            return
        if event.get("system_fingerprint"):
            note = replace(note, version=int(event["system_fingerprint"][1:]), first_at=note.first_at or time.time())
        for choice in event["choices"]:
            note = replace(
                note,
                text=note.text + (choice["delta"].get("content") or ""),
                finish_reason=choice["finish_reason"] or note.finish_reason,
            )
        yield replace(note, problem="the stream ended in the middle")

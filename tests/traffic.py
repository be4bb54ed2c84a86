"""Constant load on a live deployment: users that talk, stream, and react, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import openai

from tests.live import MODEL, Live

T = TypeVar("T")
REACTIONS = (
    "thanks, that is good",
    "no, that is bad, do it again",
    "good. now tell me about plants",
    "bad. a list, please",
)


@dataclass(frozen=True)
class Answer:
    text: str
    version: int
    finish_reason: str | None
    asked_at: float
    answered_at: float


def until_said(request: Callable[[], T]) -> T:
    """What ``request`` returns. Random weights may end an answer without a word, which is a 502: asked again."""
    for _ in range(9):
        try:
            return request()
        except openai.APIError as error:
            if error.code != "empty_answer":
                raise
    return request()


def ask(
    client: openai.OpenAI, messages: Sequence[dict[str, str]], *, stream: bool, session: str | None, **extra: object
) -> Answer:
    """One answer, streamed or not. A stream that is cut raises, as it does for any user of the SDK."""
    return until_said(lambda: _ask(client, messages, stream=stream, session=session, **extra))


def _ask(
    client: openai.OpenAI, messages: Sequence[dict[str, str]], *, stream: bool, session: str | None, **extra: object
) -> Answer:
    headers = {"X-Session-Id": session} if session else {}
    asked_at = time.time()
    if not stream:
        reply = client.chat.completions.create(model=MODEL, messages=list(messages), extra_headers=headers, **extra)  # type: ignore[call-overload]
        choice = reply.choices[0]
        return Answer(
            choice.message.content, int(reply.system_fingerprint[1:]), choice.finish_reason, asked_at, time.time()
        )
    pieces, finish, version = [], None, -1
    for chunk in client.chat.completions.create(
        model=MODEL, messages=list(messages), stream=True, extra_headers=headers, **extra
    ):  # type: ignore[call-overload]
        if chunk.system_fingerprint is not None:  # unknown before the first token
            version = int(chunk.system_fingerprint[1:])
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    if finish is None:
        raise AssertionError("a stream ended without a finish reason")
    return Answer("".join(pieces), version, finish, asked_at, time.time())


class Traffic:
    """``users`` threads inside ``with``; each rests ``pause_s`` after an answer. What went wrong is in ``failures``."""

    def __init__(self, live: Live, users: int = 3, pause_s: float = 0.0) -> None:
        self._live = live
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._user, args=(number,), daemon=True) for number in range(users)]
        self.answers: list[Answer] = []
        self.failures: list[tuple[float, str]] = []

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _user(self, number: int) -> None:
        client = self._live.client()
        round_ = 0
        while not self._stop.is_set():
            round_ += 1
            session = f"user{number}-{round_}-{time.time()}"
            messages = [{"role": "user", "content": f"tell me about {session}"}]
            for turn in range(3):
                try:
                    answer = ask(client, messages, stream=(number + turn) % 2 == 0, session=session)
                except (openai.APIError, AssertionError) as error:
                    with self._lock:
                        self.failures.append((time.time(), f"{type(error).__name__}: {error}"))
                    time.sleep(0.2)
                    break
                with self._lock:
                    self.answers.append(answer)
                reaction = REACTIONS[(number + round_ + turn) % len(REACTIONS)]
                messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": reaction}]
                if self._stop.wait(self._pause_s):
                    break

"""A file of conversations, replayed as traffic: what people said in them is sent, the policy answers anew.

What the file's assistant said was not sampled by this policy. It has no log-probs and is never trained on: every turn
that an import makes is the policy's own, sampled and recorded like any other. What differs is the person, who says what
the file says whatever the answer was:

``own``       the policy's own answers stay in the conversation, and what the person said next in the file follows. The
              judge takes it for a reaction to the policy's answer. That is a scripted user: good for wishes that hold
              whatever the answer was (style, language, form), wrong for praise and blame of a certain answer
``recorded``  each answer continues the conversation as it is in the file. What comes next counts as a reaction only
              where the policy said the very same; all else is dropped for want of evidence

With ``own`` a conversation ends at its first tool call: the file's results belong to calls that the policy did not
make.

Which conversations are done is written beside the file as it happens, so that an import that was broken off goes on
where it was; a conversation that was under way begins again, in a session of its own.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from clawrl.client import ApiClient, ApiProblem, http_client, unreachable
from clawrl.turn_files.conversations import Conversation, History, Message, asks, playable
from clawrl.turn_files.rows import TurnFileError

_TRIES, _FIRST_PAUSE_S = 6, 1.0
_ANSWER_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``per_minute`` bounds the requests of the whole import, ``parallel`` the conversations that go on at once."""

    history: History = "own"
    per_minute: float = 60.0
    parallel: int = 4
    side: bool = False
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """``answers`` were given; ``cut`` messages were left out behind a tool call. ``problem`` is why it broke off."""

    conversation: Conversation
    session: str
    answers: int
    cut: int
    problem: str = ""


class Progress:
    """Which conversations are done, as a file of one JSON object a line. Raises `TurnFileError`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._done: set[tuple[int, str]] = set()
        for line in _noted(file):
            try:
                entry = json.loads(line)
                self._done.add((entry["number"], entry["digest"]))
            except (ValueError, KeyError, TypeError):
                # The last line of an import that was killed.
                continue

    def is_done(self, conversation: Conversation) -> bool:
        return (conversation.number, conversation.digest) in self._done

    def note(self, played: Played) -> None:
        entry = {"number": played.conversation.number, "digest": played.conversation.digest, "session": played.session}
        # A new line first: the last one may be half of one.
        with self._lock:
            try:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write("\n" + json.dumps(entry) + "\n")
            except OSError as error:
                raise TurnFileError(f"{self._file} cannot be written: {error}; name another with --progress") from error


class Pacer:
    """Lets requests through at a steady rate, whoever asks."""

    def __init__(
        self,
        per_minute: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._every_s = 60.0 / per_minute
        self._clock, self._sleep = clock, sleep
        self._next = clock()
        self._lock = threading.Lock()

    def wait(self) -> None:
        with self._lock:
            now = self._clock()
            at = max(self._next, now)
            self._next = at + self._every_s
        if at > now:
            self._sleep(at - now)


class Replay:
    """Plays conversations against one server. ``attempt`` keeps the sessions of several imports apart."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        options: Options,
        attempt: str,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = url.rstrip("/")
        self._http = http_client(url, api_key, _ANSWER_S)
        self._api = ApiClient(url, api_key)
        self._options = options
        self._attempt = attempt
        self._sleep = sleep
        self._pacer = Pacer(options.per_minute, sleep=sleep)
        self._model = options.model or self._api.model_name()

    def close(self) -> None:
        self._http.close()
        self._api.close()

    def play_all(self, conversations: Sequence[Conversation]) -> Iterator[Played]:
        """In the order in which they end."""
        pool = ThreadPoolExecutor(max_workers=self._options.parallel)
        try:
            running = [pool.submit(self.play, conversation) for conversation in conversations]
            for done in as_completed(running):
                yield done.result()
        finally:
            # Whoever stops listening, by Ctrl-C, wants no more to be asked.
            pool.shutdown(wait=True, cancel_futures=True)

    def play(self, conversation: Conversation) -> Played:
        # Stored readable: it says nothing of the conversation. The progress file knows which one it was.
        session = f"import-{self._attempt}-{uuid.uuid4().hex[:16]}"
        messages, cut = playable(conversation.messages, self._options.history)
        answers = 0
        try:
            said: list[Message] = []
            for message in messages:
                # Nobody has asked yet: a greeting is a part of the conversation like any other.
                if message["role"] == "assistant" and asks(said):
                    own = self._answer(said, conversation.tools, session)
                    answers += 1
                    said.append(own if self._options.history == "own" else message)
                else:
                    said.append(message)
            if asks(said) and said[-1]["role"] != "assistant":
                # What was said last is the evidence for the answer before it.
                self._answer(said, conversation.tools, session)
                answers += 1
            self._api.end_session(session)
        except ApiProblem as problem:
            return Played(conversation=conversation, session=session, answers=answers, cut=cut, problem=str(problem))
        return Played(conversation=conversation, session=session, answers=answers, cut=cut)

    def _answer(self, messages: Sequence[Message], tools: Sequence[Any], session: str) -> Message:
        body: dict[str, Any] = {"model": self._model, "messages": list(messages)}
        if tools and self._options.history == "recorded":
            body["tools"] = list(tools)
        headers = {"X-Session-Id": session, "X-Turn-Type": "side" if self._options.side else "main"}
        for attempt in range(_TRIES):
            self._pacer.wait()
            last = attempt == _TRIES - 1
            try:
                response = self._http.post("/v1/chat/completions", json=body, headers=headers)
            except httpx.TransportError as error:
                if last:
                    raise ApiProblem(unreachable(self._url)) from error
                self._sleep(_FIRST_PAUSE_S * 2**attempt)
                continue
            if response.is_success:
                return {"role": "assistant", "content": _said(self._url, response)}
            if response.status_code not in (429, 500, 502, 503) or last:
                raise ApiProblem(f"the server answered {response.status_code}: {_message(response)}")
            self._sleep(_pause_s(response, attempt))
        raise AssertionError("the last attempt returns or raises")


def _noted(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise TurnFileError(
            f"{file} cannot be read for what is done: {error}; name another file with --progress"
        ) from error


def _said(url: str, response: httpx.Response) -> str:
    try:
        return str(response.json()["choices"][0]["message"].get("content") or "")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ApiProblem(f"{url} did not answer with a chat completion; is this a clawrl server?") from error


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return response.text[:200] or "no reason given"


def _pause_s(response: httpx.Response, attempt: int) -> float:
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else _FIRST_PAUSE_S * 2**attempt

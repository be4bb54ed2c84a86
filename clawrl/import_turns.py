"""A file of conversations, replayed as traffic: what people said in them is sent, the policy answers anew.

What the file's assistant said was not sampled by this policy. It has no log-probs and is never trained on: every turn
that an import makes is the policy's own, sampled and recorded like any other. What differs is the person, who says what
the file says whatever the answer was:

``own``       the policy's own answers stay in the conversation, and what the person said next in the file follows. The
              judge takes it for a reaction to the policy's answer. That is a scripted user: good for wishes that hold
              whatever the answer was (style, language, form), wrong for praise and blame of a certain answer
``recorded``  each answer continues the conversation as it is in the file. What comes next counts as a reaction only
              where the policy said the very same; all else is dropped for want of evidence

In: JSON lines of ``{"messages": [...]}`` (also OpenAI's format for fine-tuning), or an export of turns (JSON lines or
Parquet), from which the sessions are put together again. With ``own`` a conversation ends at its first tool call: the
file's results belong to calls that the policy did not make.

Which conversations are done is written beside the file as it happens, so that an import that was broken off goes on
where it was; a conversation that was under way begins again, in a session of its own.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from clawrl.client import ApiClient, ApiProblem, is_local, unreachable

Message = dict[str, Any]
History = Literal["own", "recorded"]
_ROLES = ("system", "developer", "user", "assistant", "tool")
_TRIES, _FIRST_PAUSE_S = 6, 1.0


class ImportTurnsError(RuntimeError):
    """The file cannot be replayed; the text names the line and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """``number`` is its place in the file; ``digest`` names its words."""

    number: int
    messages: tuple[Message, ...]
    tools: tuple[Any, ...] = ()

    @property
    def digest(self) -> str:
        written = json.dumps([self.messages, self.tools], sort_keys=True)
        return hashlib.sha256(written.encode()).hexdigest()[:16]


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


def read_conversations(file: Path) -> list[Conversation]:
    """All of it, checked, before anything is sent. Raises `ImportTurnsError`."""
    rows = list(_rows(file))
    if not rows:
        raise ImportTurnsError(f"{file} holds no conversation")
    if all("turn_id" in row and "answer" in row for _, row in rows):
        found = list(_of_export(row for _, row in rows))
    else:
        found = [_conversation(file, line, number, row) for number, (line, row) in enumerate(rows)]
    if not any(_asks(conversation.messages) for conversation in found):
        raise ImportTurnsError(f"{file} holds no message of a user, so that there is nothing to ask")
    return found


class Progress:
    """Which conversations are done, as a file of one JSON object a line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._done: set[tuple[int, str]] = set()
        for line in file.read_text().splitlines() if file.exists() else ():
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
        with self._lock, self._file.open("a") as file:
            file.write("\n" + json.dumps(entry) + "\n")


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
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = url.rstrip("/")
        self._http = httpx.Client(base_url=self._url, headers=headers, timeout=600.0, trust_env=not is_local(url))
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
                if message["role"] == "assistant" and _asks(said):
                    own = self._answer(said, conversation.tools, session)
                    answers += 1
                    said.append(own if self._options.history == "own" else message)
                else:
                    said.append(message)
            if _asks(said) and said[-1]["role"] != "assistant":
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
                answer: Message = response.json()["choices"][0]["message"]
                return {"role": "assistant", "content": answer.get("content") or ""}
            if response.status_code not in (429, 500, 502, 503) or last:
                raise ApiProblem(f"the server answered {response.status_code}: {_message(response)}")
            self._sleep(_pause_s(response, attempt))
        raise AssertionError("the last attempt returns or raises")


def playable(messages: Sequence[Message], history: History) -> tuple[list[Message], int]:
    """What of a conversation is sent, and how many messages are not."""
    if history == "recorded":
        return list(messages), 0
    for at, message in enumerate(messages):
        if message["role"] == "tool" or message.get("tool_calls"):
            # The answer in the place of the call is asked for; what followed the call is not evidence for it.
            kept = list(messages[: at + 1 if message["role"] == "assistant" else at])
            return kept, len(messages) - len(kept)
    return list(messages), 0


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if file.suffix == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError:
            raise ImportTurnsError("pyarrow is missing; install the extra: pip install 'clawrl[export]'") from None
        try:
            yield from enumerate(parquet.read_table(file).to_pylist(), start=1)
        except (OSError, ValueError) as error:
            raise ImportTurnsError(f"{file} cannot be read as Parquet: {error}") from error
        return
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ImportTurnsError(f"{file} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ImportTurnsError(f"{file}, line {number}: this is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ImportTurnsError(f"{file}, line {number}: a conversation is an object with `messages`")
        yield number, row


def _conversation(file: Path, line: int, number: int, row: dict[str, Any]) -> Conversation:
    where = f"{file}, line {line}"
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ImportTurnsError(f'{where}: a conversation is {{"messages": [...]}} with at least one message')
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ImportTurnsError(f"{where}: messages[{at}] needs a role, one of {', '.join(_ROLES)}")
        if not isinstance(message.get("content"), str | list | None):
            raise ImportTurnsError(f"{where}: messages[{at}].content must be a text or a list of parts")
    # Weights and names of a fine-tuning set are not a server's business.
    kept = tuple({name: value for name, value in message.items() if name in _SENT} for message in messages)
    return Conversation(number=number, messages=kept, tools=tuple(row.get("tools") or ()))


_SENT = ("role", "content", "tool_calls", "tool_call_id", "name")


def _of_export(rows: Iterator[dict[str, Any]]) -> Iterator[Conversation]:
    """One conversation a session: the request of its newest turn, the answer, and what came after that."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["seq"]):
        if row["kind"] == "main" and not row["text_gone"]:
            newest[(row["owner"], row["session"])] = row
    for number, row in enumerate(newest.values()):
        said = [*row["messages"], *row["answer"], *row["evidence"]]
        tools = tuple(json.loads(tool) for tool in row["tools"])
        yield Conversation(number=number, messages=tuple(map(_of_row, said)), tools=tools)


def _of_row(message: dict[str, Any]) -> Message:
    found: Message = {"role": message["role"], "content": message["content"]}
    if message["tool_calls"]:
        found["tool_calls"] = json.loads(message["tool_calls"])
    return found | {name: message[name] for name in ("tool_call_id", "name") if message[name]}


def _asks(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "user" for message in messages)


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return response.text[:200] or "no reason given"


def _pause_s(response: httpx.Response, attempt: int) -> float:
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else _FIRST_PAUSE_S * 2**attempt

"""Simulated users as real clients: `openai.AsyncOpenAI`, streaming, no retries.

A user holds one conversation after the other until all sessions are taken, and finishes the last one; told to stop,
it finishes only the request that it is in: no stream is cut from this side. Every answer received becomes an `Answer`,
every request that did not end as it should a line in ``failures``; nothing is retried and nothing is swallowed. Nobody
waits for anybody: a conversation is one request at a time, users run side by side.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient

from clawrl.client import is_local
from clawrl.evaluation.preferences import Preference
from clawrl.evaluation.simulated_user import Conversation
from clawrl.evaluation.user_words import Objection

# The answer to a goodbye interests nobody and does not train; on a CPU its tokens are better spent elsewhere.
_GOODBYE_TOKENS = 4
_REQUEST_TIMEOUT_S = 600.0
_PAUSE_AFTER_FAILURE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer as the client saw it. ``kind``: talk, goodbye, or the name of a round of side turns.

    ``session_number`` counts sessions in the order in which they began, from 1; side turns have 0. ``first`` marks the
    first answer of a session, before its user has said anything about answers.
    """

    kind: str
    user: int
    session: str
    turn_id: str | None
    question: str
    message: str
    text: str
    words: int
    finish_reason: str
    version: int | None
    objection: Objection | None
    seconds: float
    first_token_s: float | None
    session_number: int = 0
    first: bool = False

    @property
    def accepted(self) -> bool:
        return self.objection is None


@dataclass(slots=True)
class Record:
    """What has happened so far, in the order in which answers ended."""

    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    requests: int = 0
    sessions_begun: int = 0
    sessions_ended: int = 0

    def first_answers(self) -> list[Answer]:
        """In the order in which their sessions began."""
        return sorted((answer for answer in self.answers if answer.first), key=lambda answer: answer.session_number)


class UserPool:
    """``users`` simulated users against one server, ``sessions`` conversations in all (None: until `stop`).

    ``system`` is a system prompt that opens every conversation, if the clients have one.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        record: Record,
        preference: Preference,
        *,
        users: int,
        seed: int,
        sessions: int | None = None,
        questions: int = 1,
        system: str | None = None,
    ) -> None:
        self._client = client
        self._model = model
        self.record = record
        self._preference = preference
        self._users = users
        self._seed = seed
        self._sessions = sessions
        self._questions = questions
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*(self._user(number) for number in range(self._users)))

    def stop(self) -> None:
        self._stopping.set()

    async def ask_aside(self, questions: Sequence[str], kind: str, round_name: str) -> list[Answer]:
        """Each question in a session of its own and as a side turn, which never trains; a failed one is left out."""
        gate = asyncio.Semaphore(self._users)

        async def one(number: int, question: str) -> Answer | None:
            async with gate:
                return await self._request(
                    [*self._opening, {"role": "user", "content": question}],
                    kind=kind,
                    user=-1,
                    session=f"{kind}-{round_name}-{number}",
                    question=question,
                    headers={"X-Turn-Type": "side"},
                    max_tokens=self._preference.answer_tokens,
                )

        answers = await asyncio.gather(*(one(number, question) for number, question in enumerate(questions)))
        return [answer for answer in answers if answer is not None]

    async def _user(self, number: int) -> None:
        # Seeded per user, so that one user's words do not depend on how fast the others are served.
        rng = random.Random(f"{self._seed}/{number}")
        while not self._stopping.is_set() and (self._sessions is None or self.record.sessions_begun < self._sessions):
            self.record.sessions_begun += 1
            await self._conversation(number, self.record.sessions_begun, rng)
            self.record.sessions_ended += 1

    async def _conversation(self, user: int, session_number: int, rng: random.Random) -> None:
        conversation = Conversation(rng, self._preference, questions=self._questions)
        move = conversation.opening()
        messages: list[dict[str, str]] = list(self._opening)
        first = True
        while not self._stopping.is_set():
            messages.append({"role": "user", "content": move.text})
            goodbye = move.ends_session
            answer = await self._request(
                messages,
                kind="goodbye" if goodbye else "talk",
                user=user,
                session=f"user-{user}-{session_number}",
                question=move.question,
                headers={"X-Session-Done": "true"} if goodbye else {},
                max_tokens=_GOODBYE_TOKENS if goodbye else self._preference.answer_tokens,
                session_number=session_number,
                first=first,
            )
            if answer is None:
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
            if answer is None or goodbye:
                return
            first = False
            messages.append({"role": "assistant", "content": answer.text})
            move = conversation.reply(answer.text, answer.finish_reason)

    async def _request(
        self,
        messages: Sequence[dict[str, str]],
        *,
        kind: str,
        user: int,
        session: str,
        question: str,
        headers: dict[str, str],
        max_tokens: int,
        session_number: int = 0,
        first: bool = False,
    ) -> Answer | None:
        self.record.requests += 1
        began = time.monotonic()
        reply = _Reply(began)
        try:
            conversation: Any = list(messages)
            stream = await self._client.chat.completions.create(
                model=self._model,
                messages=conversation,
                stream=True,
                extra_headers={"X-Session-Id": session, **headers},
                max_tokens=max_tokens,
            )
            async for chunk in stream:
                reply.take(chunk)
        except (APIError, OSError) as error:
            self._failed(session, f"{type(error).__name__}: {error}")
            return None
        if reply.finish_reason is None:
            self._failed(session, "the stream ended without a finish_reason")
            return None
        answer = Answer(
            kind=kind,
            user=user,
            session=session,
            turn_id=reply.turn_id,
            question=question,
            message=messages[-1]["content"],
            text=reply.text,
            words=len(reply.text.split()),
            finish_reason=reply.finish_reason,
            version=reply.version,
            objection=self._preference.objection(reply.text, reply.finish_reason),
            seconds=round(time.monotonic() - began, 3),
            first_token_s=reply.first_token_s,
            session_number=session_number,
            first=first,
        )
        self.record.answers.append(answer)
        return answer

    def _failed(self, session: str, why: str) -> None:
        self.record.failures.append(f"{session}: {' '.join(why.split())}")


class _Reply:
    """Gathers the chunks of one stream. The version is that of the last token."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._pieces: list[str] = []
        self.first_token_s: float | None = None
        self.finish_reason: str | None = None
        self.version: int | None = None
        self.turn_id: str | None = None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self, chunk: Any) -> None:
        ours = (chunk.model_extra or {}).get("clawrl") or {}
        self.turn_id = ours.get("turn_id") or self.turn_id
        if (version := ours.get("version", version_of(chunk.system_fingerprint))) is not None:
            self.version = version
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        if choice.delta.content:
            if self.first_token_s is None:
                self.first_token_s = round(time.monotonic() - self._began, 3)
            self._pieces.append(choice.delta.content)
        self.finish_reason = choice.finish_reason or self.finish_reason


def version_of(fingerprint: str | None) -> int | None:
    """12 from "v12"."""
    digits = (fingerprint or "").removeprefix("v")
    return int(digits) if digits.isdecimal() else None


def open_client(url: str, api_key: str | None) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key=api_key or "none",
        max_retries=0,
        timeout=_REQUEST_TIMEOUT_S,
        http_client=DefaultAsyncHttpxClient(trust_env=not is_local(url)),
    )

"""Recorded requests of a client to the turns that they would have been, through the project's own dialects and prompts.

In: a folder of ``.json`` files with one request each, or ``.jsonl`` files with one a line, named so that they sort in
the order in which they were sent. A request is the body of ``POST /v1/chat/completions``, or an object with ``body``,
and ``path`` and ``headers`` where there are any: all three dialects are read. Out: a turn for each.

Requests hold no answers, but the next request of a conversation has the answer to the one before it in its history.
From there it is taken, written the way in which the chat template writes it, remembered as the replica remembers what
it sampled, and so the next prompt is made of the same ids that it would be made of there. A request that nothing
continues has no answer here and counts with its prompt alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from starlette.datastructures import Headers
from transformers import PreTrainedTokenizerBase

from bench.sessions_shared import Seen
from clawrl.messages import Arrival, FinishReason, Message, SamplingParams, Turn, TurnId, TurnKind, VersionSpan
from clawrl.serving.config import ServingConfig
from clawrl.serving.dialects import chat, messages, responses
from clawrl.serving.dialects.base import Asked
from clawrl.serving.errors import ApiError
from clawrl.serving.prompts import PromptBuilder
from clawrl.serving.sessions import make_arrival, reply_hash
from clawrl.serving.sessions.canonical import conversation_hash
from clawrl.serving.template import ChatRenderer

_READ: Mapping[str, Callable[..., Asked]] = {
    "/v1/chat/completions": chat.read,
    "/v1/responses": responses.read,
    "/v1/messages": messages.read,
}
_ENDLESS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """``left_out`` says of files and lines that are no request of a main turn why they are none."""

    turns: list[Seen]
    left_out: list[str]


def read_recordings(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Recorded:
    """Raises `ValueError` for a folder with no request in it."""
    arrivals: list[Arrival] = []
    left_out: list[str] = []
    for name, recorded in _requests(folder):
        try:
            arrival = _arrival(name, recorded)
        except ApiError as error:
            left_out.append(f"{name}: refused, {error}")
        except ValueError as error:
            left_out.append(f"{name}: {error}")
        else:
            if arrival.kind is TurnKind.MAIN:
                arrivals.append(arrival)
            else:
                left_out.append(f"{name}: a side turn, which never trains")
    if not arrivals:
        raise ValueError(f"{folder} holds no request: {'; '.join(left_out) or 'no .json and no .jsonl file is there'}")
    return Recorded(turns=_turns(arrivals, tokenizer), left_out=left_out)


def _requests(folder: Path) -> Iterator[tuple[str, Any]]:
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder).with_suffix(""))
        if file.suffix == ".json":
            yield name, _decoded(file.read_text(encoding="utf-8-sig"))
        elif file.suffix == ".jsonl":
            # Not `splitlines`, which also splits at U+2028 and others that JSON has inside its texts.
            lines = file.read_text(encoding="utf-8-sig").split("\n")
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{name}:{number}", _decoded(line)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _arrival(name: str, recorded: Any) -> Arrival:
    """Raises `ApiError` for a request that a server would refuse, `ValueError` for what is no request at all."""
    if not isinstance(recorded, Mapping):
        raise ValueError("no JSON object")
    body = recorded.get("body", recorded)
    path = str(recorded.get("path", "/v1/chat/completions")).partition("?")[0]
    if not isinstance(body, Mapping) or path not in _READ or not {"messages", "input"} & body.keys():
        raise ValueError("no request for an answer")
    config = ServingConfig(served_name=str(body.get("model", "recorded")))
    asked = _READ[path]({"model": config.served_name, **body}, _headers(recorded.get("headers")), config).request
    return make_arrival(
        turn_id=TurnId(name),
        messages=asked.messages,
        inputs=asked.inputs,
        session=asked.facts.session,
        owner="recorded",
        kind=asked.facts.kind,
        ends_session=asked.facts.ends,
        arrived_at=0.0,
    )


def _headers(recorded: Any) -> Headers:
    pairs = recorded.items() if isinstance(recorded, Mapping) else recorded or ()
    return Headers(raw=[(str(k).lower().encode(), str(v).encode()) for k, v in pairs])


def _turns(arrivals: list[Arrival], tokenizer: PreTrainedTokenizerBase) -> list[Seen]:
    parents, answers = _linked(arrivals)
    renderer = ChatRenderer(tokenizer, _ENDLESS)
    prompts = PromptBuilder(renderer, lambda token: str(tokenizer.convert_ids_to_tokens(token)))
    sessions: dict[TurnId, str] = {}
    turns = []
    for arrival in arrivals:
        parent = parents.get(arrival.turn_id)
        session = arrival.session or (sessions[parent] if parent is not None else arrival.turn_id)
        sessions[arrival.turn_id] = session
        prompt = prompts.build(arrival)
        answer = answers.get(arrival.turn_id)
        response_ids = np.zeros(0, dtype=np.int32)
        if answer is not None:
            written = _written(renderer, arrival, answer, str(tokenizer.eos_token))
            response_ids = np.asarray(renderer.encode(written), dtype=np.int32)
            # What the template does not write, a model with that template has not thought.
            heard = answer if answer.reasoning.strip() in written else replace(answer, reasoning="")
            prompts.remember(_turn(arrival, heard, prompt.ids, response_ids), prompt)
        ids = np.concatenate([prompt.ids, response_ids])
        turns.append(Seen(name=arrival.turn_id, session=session, parent=parent, ids=ids))
    return turns


def _linked(arrivals: list[Arrival]) -> tuple[dict[TurnId, TurnId], dict[TurnId, Message]]:
    """Which request each continues, by the hash of everything before the last answer, and what answered that one."""
    asked: dict[str, TurnId] = {}
    parents: dict[TurnId, TurnId] = {}
    answers: dict[TurnId, Message] = {}
    for arrival in arrivals:
        if arrival.history:
            *before, answer = arrival.history
            parent = asked.get(conversation_hash(before))
            if parent is not None:
                parents[arrival.turn_id] = parent
                answers.setdefault(parent, answer)
        asked[arrival.messages_hash] = arrival.turn_id
    return parents, answers


def _written(renderer: ChatRenderer, arrival: Arrival, answer: Message, end: str) -> str:
    """``answer`` as the model would have written it: what the template makes of it behind the prompt."""
    prompt = renderer.text(arrival.messages, arrival.inputs)
    whole = renderer.text([*arrival.messages, answer], arrival.inputs)
    # A template that shows the past otherwise leaves only the text.
    said = whole.removeprefix(prompt).partition(end)[0] if whole.startswith(prompt) else answer.content
    return said + end


def _turn(arrival: Arrival, answer: Message, prompt_ids: Any, response_ids: Any) -> Turn:
    count = len(response_ids)
    return Turn(
        turn_id=arrival.turn_id,
        arrival=arrival,
        reply_hash=reply_hash(arrival.messages_hash, answer),
        answer=answer,
        response_text=answer.content,
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        response_logps=np.zeros(count, dtype=np.float32),
        spans=(VersionSpan(start=0, end=count, version=0),),
        sampling=SamplingParams(),
        finish_reason=FinishReason.STOP,
        started_at=0.0,
        finished_at=0.0,
        replica="recorded",
    )

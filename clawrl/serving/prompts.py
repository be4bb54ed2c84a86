"""The prompt of a turn, made of the exact ids of the turns before it wherever the conversation extends them.

Token ids do not survive the way through text: what an agent sends back as history would often be other ids than the
ones that were sampled, and a conversation would be trained on tokens that it never was. So the ids of recent turns are
remembered, and a request whose history ends with such a turn's answer gets that turn's prompt, its response as sampled,
and only what follows encoded anew. Where the template shows the past differently once it is past (a model whose
reasoning is dropped from earlier turns), the conversation does not extend the turn, and the prompt is rendered afresh.

Remembers at most `capacity` ids, the least recently used turns going first. Not shared: another replica renders afresh.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clawrl.messages import Arrival, FinishReason, Message, TemplateInputs, TokenIds, Turn
from clawrl.serving.errors import ApiError
from clawrl.serving.template import ChatRenderer

# No template, tokenizer or trimming changes it, and nobody says it.
_SENTINEL = "q7Zk2Wn9Xv4Bt1Lm"
_Key = tuple[str, str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """``ids`` int32[P], of which the first ``reused`` are those of an earlier turn.

    ``text_hash`` is of the text that the template made of the request.
    """

    ids: TokenIds
    reused: int
    text_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """``end`` is the text of the token that the answer was ended with, empty where it was cut off."""

    ids: TokenIds
    end: str
    reasoning: str
    text_hash: bytes


class PromptBuilder:
    """``token_text`` is how the template writes a token that ends an answer."""

    def __init__(self, renderer: ChatRenderer, token_text: Callable[[int], str], *, capacity: int = 4_000_000) -> None:
        self._renderer = renderer
        self._token_text = token_text
        self._capacity = capacity
        self._held = 0
        self._past: OrderedDict[_Key, _Past] = OrderedDict()

    def build(self, arrival: Arrival, prefill: Callable[[str], str] = lambda _: "") -> Prompt:
        """``prefill`` says, of the prompt's text, how the answer is to begin. Raises `ApiError` (400)."""
        whole = self._renderer.text(arrival.messages, arrival.inputs)
        started = self._continued(arrival, whole)
        if started is None:
            ids, reused = self._renderer.encode(whole), 0
        else:
            past, tail = started
            ids, reused = [*past.ids.tolist(), *self._renderer.encode(tail)], len(past.ids)
        if begun := prefill(whole):
            ids = [*ids, *self._renderer.encode(begun)]
        fitting = np.asarray(self._renderer.fitting(ids), dtype=np.int32)
        return Prompt(ids=fitting, reused=reused, text_hash=_hash(whole))

    def remember(self, turn: Turn, prompt: Prompt) -> None:
        """What was sampled for this turn, for the requests that will continue it."""
        ids = np.concatenate([turn.prompt_ids, turn.response_ids]).astype(np.int32)
        key = (turn.arrival.owner, turn.reply_hash, _hash_of(turn.arrival.inputs))
        if (old := self._past.pop(key, None)) is not None:
            self._held -= len(old.ids)
        ended = turn.finish_reason is FinishReason.STOP and len(turn.response_ids) > 0
        end = self._token_text(int(turn.response_ids[-1])) if ended else ""
        self._past[key] = _Past(ids=ids, end=end, reasoning=turn.answer.reasoning.strip(), text_hash=prompt.text_hash)
        self._held += len(ids)
        while self._held > self._capacity:
            _, dropped = self._past.popitem(last=False)
            self._held -= len(dropped.ids)

    def _continued(self, arrival: Arrival, whole: str) -> tuple[_Past, str] | None:
        """The turn whose ids this request goes on from, and the text that follows them."""
        key = (arrival.owner, arrival.prefix_hash or "", _hash_of(arrival.inputs))
        past = self._past.get(key)
        if past is None:
            return None
        self._past.move_to_end(key)
        messages = arrival.messages
        spoken = max(i for i, message in enumerate(messages) if message.role == "assistant")
        try:
            tail = self._tail(messages, spoken, arrival.inputs, past, whole)
        except ApiError:
            # The template wants more of an assistant's message than a stand-in has: no harm, only no reuse.
            return None
        # The end of the answer was sampled, and the template writes it once more. Where it writes another, or a stop
        # string ended the answer, of which the history knows nothing, what was sampled is not what the history says.
        return (past, tail.removeprefix(past.end)) if tail is not None and tail.startswith(past.end) else None

    def _tail(
        self, messages: Sequence[Message], spoken: int, inputs: TemplateInputs, past: _Past, whole: str
    ) -> str | None:
        """What the template writes after the text of message ``spoken``; ``None`` if it does not extend what was there
        when that message was about to be said."""
        before = self._renderer.text(messages[:spoken], inputs)
        if _hash(before) != past.text_hash:
            # The same conversation, but a client's passing remark in it has come or gone.
            return None
        stand_in = replace(messages[spoken], content=_SENTINEL, reasoning="", tool_calls=())
        marked = self._renderer.text([*messages[:spoken], stand_in, *messages[spoken + 1 :]], inputs)
        if not whole.startswith(before) or not marked.startswith(before) or marked.count(_SENTINEL) != 1:
            return None
        tail = marked.partition(_SENTINEL)[2]
        said = whole[len(before) :].removesuffix(tail)
        if not whole.endswith(tail) or past.reasoning not in said:
            return None
        return tail


def _hash_of(inputs: TemplateInputs) -> bytes:
    """Instead of the inputs themselves, which may be large and are not counted."""
    return _hash(repr(inputs))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

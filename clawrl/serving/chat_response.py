"""The answer in OpenAI's shape: one object, or the chunks of a stream.

Order of a stream: a delta with the role, deltas of text, a finish chunk with an empty delta, the usage chunk with
``choices: []`` if the client asked for it (otherwise usage rides on the finish chunk), ``[DONE]``. ``finish_reason``
is ``stop`` or ``length``, nothing else: a turn that was aborted or failed has no finish chunk. The policy
version is in ``system_fingerprint`` (``v12``); ours beyond the standard is in one block, ``clawrl``, that other
clients ignore.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clawrl.messages import FinishReason, TurnId, VersionSpan
from clawrl.serving.errors import ApiError

DONE = b"data: [DONE]\n\n"
_LOWEST_LOGPROB = -9999.0  # OpenAI's stand-in for minus infinity, which JSON cannot say


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int

    def as_json(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One sampled token: its text by itself (possibly a fragment of a character) and its log-prob."""

    token: str
    logprob: float

    def as_json(self) -> dict[str, Any]:
        whole = "\ufffd" not in self.token
        finite = max(self.logprob, _LOWEST_LOGPROB) if not math.isnan(self.logprob) else _LOWEST_LOGPROB
        return {
            "token": self.token,
            "logprob": finite,
            "bytes": list(self.token.encode()) if whole else None,
            "top_logprobs": [],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """Builds every object of one answer, which all share id, time, model and turn."""

    turn_id: TurnId
    model: str
    created: int
    session: str | None = None

    @property
    def id(self) -> str:
        return f"chatcmpl-{self.turn_id}"

    def completion(
        self,
        text: str,
        finish_reason: FinishReason,
        spans: Sequence[VersionSpan],
        version: int,
        usage: Usage,
        logprobs: Sequence[TokenLogprob] | None = None,
    ) -> dict[str, Any]:
        """The non-streamed answer. ``version`` is the newest policy that sampled a token of it."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": _logprobs(logprobs),
            "finish_reason": _wire_reason(finish_reason),
        }
        return self._envelope("chat.completion", [choice], version, spans) | {"usage": usage.as_json()}

    def role_chunk(self, version: int) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": ""}, version)

    def text_chunk(self, text: str, version: int, logprobs: Sequence[TokenLogprob] | None = None) -> dict[str, Any]:
        chunk = self._chunk({"content": text}, version)
        if logprobs is not None:
            chunk["choices"][0]["logprobs"] = _logprobs(logprobs)
        return chunk

    def idle_chunk(self, version: int) -> dict[str, Any]:
        """An empty delta: a sign of life that clients count, which a comment line is not."""
        return self._chunk({}, version)

    def finish_chunk(
        self, finish_reason: FinishReason, spans: Sequence[VersionSpan], version: int, usage: Usage | None
    ) -> dict[str, Any]:
        """``usage`` is given when no usage chunk follows."""
        choice = {"index": 0, "delta": {}, "finish_reason": _wire_reason(finish_reason)}
        chunk = self._envelope("chat.completion.chunk", [choice], version, spans)
        return chunk if usage is None else chunk | {"usage": usage.as_json()}

    def usage_chunk(self, usage: Usage, version: int) -> dict[str, Any]:
        return self._envelope("chat.completion.chunk", [], version) | {"usage": usage.as_json()}

    def _chunk(self, delta: dict[str, str], version: int) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return self._envelope("chat.completion.chunk", [choice], version)

    def _envelope(
        self, kind: str, choices: list[dict[str, Any]], version: int, spans: Sequence[VersionSpan] | None = None
    ) -> dict[str, Any]:
        ours: dict[str, Any] = {"turn_id": self.turn_id, "version": version}
        if self.session is not None:
            ours["session"] = self.session
        if spans is not None:
            ours["spans"] = [{"start": s.start, "end": s.end, "version": s.version} for s in spans]
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"v{version}",
            "choices": choices,
            "clawrl": ours,
        }


def sse(event: Mapping[str, Any]) -> bytes:
    """One server-sent event. JSON escapes line breaks, so that the text cannot end the event."""
    return b"data: " + json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"


def sse_error(error: ApiError) -> bytes:
    """The last event of a stream that failed; after it the connection breaks, without ``[DONE]``."""
    return b"data: " + error.json() + b"\n\n"


def _wire_reason(reason: FinishReason) -> str:
    if reason not in (FinishReason.STOP, FinishReason.LENGTH):
        raise ValueError(f"a turn that ended as {reason.value!r} is never shown as a finished answer")
    return reason.value


def _logprobs(entries: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    return None if entries is None else {"content": [entry.as_json() for entry in entries], "refusal": None}

"""The one path that text and token ids take to disk and back.

Everything private that the ledger stores (messages, answers, token ids, log-probabilities, the words of
a judge or of a person) becomes bytes here and passes through a `Vault`, which a privacy layer may
replace: it gets the owner with every blob, so that it can encrypt per owner, or forget one. Ids, hashes,
states, scores, counts and times stay readable.

Arrays are little-endian int32 or float32 and are refused rather than cast when that would lose
anything. JSON is ASCII, so that a lone surrogate in a client's text survives.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from clawrl.messages import (
    LogProbs,
    Message,
    SamplingParams,
    TeacherTargets,
    TemplateInputs,
    TokenIds,
    ToolCall,
    VersionSpan,
)


class Vault(Protocol):
    """What happens to a private blob on its way to disk and back."""

    def seal(self, owner: str, plain: bytes) -> bytes: ...

    def unseal(self, owner: str, sealed: bytes) -> bytes: ...


class PlainVault:
    """Keeps blobs as they are."""

    def seal(self, owner: str, plain: bytes) -> bytes:
        return plain

    def unseal(self, owner: str, sealed: bytes) -> bytes:
        return sealed


class Codec:
    """Packs and unpacks private values for one owner at a time."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def pack_json(self, owner: str, value: Any) -> bytes:
        return self._vault.seal(owner, json.dumps(value, separators=(",", ":")).encode("ascii"))

    def unpack_json(self, owner: str, blob: bytes) -> Any:
        return json.loads(self._vault.unseal(owner, blob))

    def pack_messages(self, owner: str, messages: Iterable[Message]) -> bytes:
        return self.pack_json(owner, [message_row(m) for m in messages])

    def unpack_messages(self, owner: str, blob: bytes) -> tuple[Message, ...]:
        return tuple(read_message(row) for row in self.unpack_json(owner, blob))

    def pack_inputs(self, owner: str, inputs: TemplateInputs) -> bytes:
        return self.pack_json(owner, [list(inputs.tools), inputs.arguments])

    def unpack_inputs(self, owner: str, blob: bytes) -> TemplateInputs:
        tools, arguments = self.unpack_json(owner, blob)
        return TemplateInputs(tools=tuple(tools), arguments=arguments)

    def pack_sampling(self, owner: str, sampling: SamplingParams) -> bytes:
        # Stop strings and schemas are a client's words, hence not plain JSON.
        return self.pack_json(
            owner,
            {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "max_tokens": sampling.max_tokens,
                "stop": list(sampling.stop),
                "json_schema": sampling.json_schema,
            },
        )

    def unpack_sampling(self, owner: str, blob: bytes) -> SamplingParams:
        values = self.unpack_json(owner, blob)
        return SamplingParams(**{**values, "stop": tuple(values["stop"])})

    def pack_ids(self, owner: str, ids: TokenIds) -> bytes:
        return self._vault.seal(owner, _flat_bytes(ids, "<i4"))

    def unpack_ids(self, owner: str, blob: bytes) -> TokenIds:
        return np.frombuffer(self._vault.unseal(owner, blob), dtype="<i4").astype(np.int32)

    def pack_logps(self, owner: str, logps: LogProbs) -> bytes:
        return self._vault.seal(owner, _flat_bytes(logps, "<f4"))

    def unpack_logps(self, owner: str, blob: bytes) -> LogProbs:
        return np.frombuffer(self._vault.unseal(owner, blob), dtype="<f4").astype(np.float32)

    def pack_targets(self, owner: str, targets: TeacherTargets) -> bytes:
        """One line of JSON, then the three arrays row by row; packed small before it is sealed."""
        head = {
            "hints": list(targets.hints),
            "teacher": targets.teacher,
            "version": targets.version,
            "shape": list(targets.topk_ids.shape),
        }
        parts = [
            json.dumps(head, separators=(",", ":")).encode("ascii"),
            b"\n",
            _flat_bytes(targets.logps.reshape(-1), "<f4"),
            _flat_bytes(targets.topk_ids.reshape(-1), "<i4"),
            _flat_bytes(targets.topk_logps.reshape(-1), "<f4"),
        ]
        return self._vault.seal(owner, zlib.compress(b"".join(parts)))

    def unpack_targets(self, owner: str, blob: bytes) -> TeacherTargets:
        line, _, body = zlib.decompress(self._vault.unseal(owner, blob)).partition(b"\n")
        head = json.loads(line)
        hints, tokens, top_k = head["shape"]
        own, top = 4 * hints * tokens, 4 * hints * tokens * top_k
        return TeacherTargets(
            hints=tuple(head["hints"]),
            logps=np.frombuffer(body[:own], "<f4").astype(np.float32).reshape(hints, tokens),
            topk_ids=np.frombuffer(body[own : own + top], "<i4").astype(np.int32).reshape(hints, tokens, top_k),
            topk_logps=np.frombuffer(body[own + top :], "<f4").astype(np.float32).reshape(hints, tokens, top_k),
            teacher=head["teacher"],
            version=head["version"],
        )


def message_row(message: Message) -> list[Any]:
    """Role and text, and what else there is of it: most messages have nothing else."""
    more: dict[str, Any] = {
        "reasoning": message.reasoning,
        "tool_calls": [[call.id, call.name, call.arguments] for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    said = {name: value for name, value in more.items() if value}
    return [message.role, message.content, said] if said else [message.role, message.content]


def read_message(row: list[Any]) -> Message:
    role, content, more = (*row, {})[:3]
    calls = tuple(ToolCall(id=id_, name=name, arguments=text) for id_, name, text in more.pop("tool_calls", ()))
    return Message(role=role, content=content, tool_calls=calls, **more)


def pack_spans(spans: Iterable[VersionSpan]) -> str:
    return json.dumps([[s.start, s.end, s.version] for s in spans], separators=(",", ":"))


def unpack_spans(text: str) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(start=start, end=end, version=version) for start, end, version in json.loads(text))


def pack_stats(stats: Mapping[str, Any]) -> str:
    """Figures as JSON, which knows no infinity: what is not finite becomes null.

    Never refuses: a step that was taken must not go unrecorded over one odd figure.
    """
    text = json.dumps({str(key): value for key, value in stats.items()}, default=_plain, separators=(",", ":"))
    return json.dumps(json.loads(text, parse_constant=lambda _: None), separators=(",", ":"))


def unpack_stats(text: str) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads(text)
    return stats


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    return str(value)


def _flat_bytes(values: npt.NDArray[Any], dtype: str) -> bytes:
    if values.ndim != 1:
        raise ValueError(f"token data of shape {values.shape} is not one row")
    return values.astype(dtype, casting="safe", copy=False).tobytes()

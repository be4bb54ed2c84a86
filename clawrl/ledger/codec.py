"""The one path that text and token ids take to disk and back.

Everything private that the ledger stores (messages, answers, token ids, log-probabilities, the words of
a judge or of a person) becomes bytes here and passes through a `Vault`, which gets the owner with every
blob, so that it can encrypt per owner, or forget one. Hashes over what was said pass through it, too. Names of
sessions, states, scores, counts and times stay readable. What belongs to `NOBODY` says nothing and is never sealed.

Arrays are little-endian int32 or float32 and are refused rather than cast when that would lose
anything. JSON is ASCII, so that a lone surrogate in a client's text survives.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from clawrl.ledger.forgotten import NO_KEY
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

NOBODY = "forgotten"
"""The owner of what is left of turns that were forgotten."""

SEALED_MARK = b"\xc5\xa1\xc0\xff"
"""What a sealed blob begins with, and no other: not ASCII, no token id (it would be negative), no log-prob (it is no
number), no zlib stream."""


class SealedBlob(RuntimeError):
    """A blob is sealed and the ledger was opened without its keys."""


ALTERED = "it was altered"
DAMAGED_KEY = "the key of its owner is damaged"
"""What the log of a turn says of why it was dropped as ``malformed``, where not the method found it so."""


class KeyGone(RuntimeError):
    """What is to be read was sealed with a key that is not there: its user was forgotten, or the keys are others.

    ``said`` is what the log of a turn says of it.
    """

    said = NO_KEY


class Altered(KeyGone):
    """What is to be read is not what was sealed, or not for this owner."""

    said = ALTERED


class Vault(Protocol):
    """What happens to a private blob on its way to disk and back."""

    def seal(self, owner: str, plain: bytes) -> bytes: ...

    def unseal(self, owner: str, sealed: bytes) -> bytes: ...


class KeyedVault(Vault, Protocol):
    """A vault with keys of its own. ``keyring`` names them; ``encrypts``: whether new blobs are sealed."""

    encrypts: bool

    @property
    def keyring(self) -> str: ...

    def digest(self, owner: str, value: str) -> str:
        """Equal for equal values of one owner; says nothing to who lacks the key."""
        ...

    def pseudonym(self, *names: str) -> str:
        """Stands for names where they are only compared; outlives the owner's key."""
        ...

    def has_key(self, owner: str) -> bool:
        """True also of one that cannot be opened."""
        ...

    def is_current(self, owner: str, sealed: bytes) -> bool:
        """Whether this is not sealed, or with the key that the owner has now."""
        ...

    def newest_mark(self) -> str:
        """Of the newest change to the keys; cheap to ask for."""
        ...

    def knows(self, mark: str) -> bool:
        """Whether the keys are as new as this mark."""
        ...

    def shred(self, owner: str) -> bool:
        """The owner's key is gone for good; false if there was none."""
        ...


class PlainVault:
    """Keeps blobs as they are."""

    def seal(self, owner: str, plain: bytes) -> bytes:
        return plain

    def unseal(self, owner: str, sealed: bytes) -> bytes:
        if sealed.startswith(SEALED_MARK):
            raise SealedBlob("this ledger is sealed: open it with its keys, see clawrl.privacy.opening")
        return sealed


class Codec:
    """Packs and unpacks private values for one owner at a time."""

    def __init__(self, vault: Vault | KeyedVault) -> None:
        self._vault = vault

    @property
    def keyed(self) -> KeyedVault | None:
        """The vault, if it has keys."""
        return None if not hasattr(self._vault, "keyring") else cast(KeyedVault, self._vault)

    def seal(self, owner: str, plain: bytes) -> bytes:
        return plain if owner == NOBODY else self._vault.seal(owner, plain)

    def digest(self, owner: str, value: str | None) -> str | None:
        """What is stored of a hash over private text. That of nothing stays what it is."""
        vault = self.keyed
        return value if vault is None or not value or owner == NOBODY else vault.digest(owner, value)

    def pseudonym(self, *names: str) -> str:
        if (vault := self.keyed) is not None:
            return vault.pseudonym(*names)
        return hashlib.sha256("\x00".join(names).encode("utf-8", "surrogatepass")).hexdigest()

    def pack_json(self, owner: str, value: Any) -> bytes:
        return self.seal(owner, json.dumps(value, separators=(",", ":")).encode("ascii"))

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
        return self.seal(owner, _flat_bytes(ids, "<i4"))

    def unpack_ids(self, owner: str, blob: bytes) -> TokenIds:
        return np.frombuffer(self._vault.unseal(owner, blob), dtype="<i4").astype(np.int32)

    def pack_logps(self, owner: str, logps: LogProbs) -> bytes:
        return self.seal(owner, _flat_bytes(logps, "<f4"))

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
        return self.seal(owner, zlib.compress(b"".join(parts)))

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

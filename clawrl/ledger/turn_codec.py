"""A whole turn as one sealed blob, for where it is not cut into columns.

Every field travels by its name, so that a field added later is carried without a word here; only those that are no
plain value have a form of their own. A field that the reader does not know is left out.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from clawrl.ledger.codec import Codec, message_row, pack_spans, read_message, unpack_spans
from clawrl.messages import Arrival, FinishReason, SamplingParams, TemplateInputs, Turn, TurnKind, Withheld

_Form = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def pack_turn(codec: Codec, turn: Turn) -> bytes:
    return codec.pack_json(turn.arrival.owner, _row(turn, _OF_TURN))


def unpack_turn(codec: Codec, owner: str, blob: bytes) -> Turn:
    turn: Turn = _value(Turn, _OF_TURN, codec.unpack_json(owner, blob))
    return turn


def _row(value: Any, forms: Mapping[str, _Form]) -> dict[str, Any]:
    row = {field.name: getattr(value, field.name) for field in fields(value)}
    return row | {name: pack(row[name]) for name, (pack, _) in forms.items()}


def _value(cls: type, forms: Mapping[str, _Form], row: Mapping[str, Any]) -> Any:
    known = {field.name for field in fields(cls)}
    plain = {name: value for name, value in row.items() if name in known}
    # A field that was added since the row was written has its default.
    return cls(**plain | {name: unpack(row[name]) for name, (_, unpack) in forms.items() if name in row})


def _messages(value: Any) -> list[Any] | None:
    return None if value is None else [message_row(message) for message in value]


def _read_messages(rows: list[Any] | None) -> Any:
    return None if rows is None else tuple(map(read_message, rows))


def _array(dtype: str) -> _Form:
    def pack(values: Any) -> str:
        return base64.b64encode(values.astype(dtype, casting="safe", copy=False).tobytes()).decode("ascii")

    def unpack(text: str) -> Any:
        return np.frombuffer(base64.b64decode(text), dtype=dtype).astype(dtype[1:])

    return pack, unpack


_OF_ARRIVAL: dict[str, _Form] = {
    "kind": (str, TurnKind),
    "new_messages": (_messages, _read_messages),
    "history": (_messages, _read_messages),
    "sent": (_messages, _read_messages),
    "inputs": (
        lambda inputs: {"tools": list(inputs.tools), "arguments": inputs.arguments},
        lambda row: TemplateInputs(tools=tuple(row["tools"]), arguments=row["arguments"]),
    ),
}
_OF_TURN: dict[str, _Form] = {
    "arrival": (lambda arrival: _row(arrival, _OF_ARRIVAL), lambda row: _value(Arrival, _OF_ARRIVAL, row)),
    "prompt_ids": _array("<i4"),
    "response_ids": _array("<i4"),
    "response_logps": _array("<f4"),
    "spans": (pack_spans, unpack_spans),
    "sampling": (
        lambda sampling: _row(sampling, {"stop": (list, tuple)}),
        lambda row: _value(SamplingParams, {"stop": (list, tuple)}, row),
    ),
    "finish_reason": (str, FinishReason),
    "withheld": (str, Withheld),
    "answer": (lambda answer: message_row(answer), lambda row: read_message(row)),
}

"""Searches for what was said in the bytes of a folder: as text and as token ids, in whatever form they may have."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from clawrl.ledger import Ledger
from clawrl.ledger.config import LedgerConfig
from clawrl.messages import DropReason, Message, Turn, VersionSpan
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.keys import KeyStore
from clawrl.privacy.opening import open_keys, open_ledger
from clawrl.privacy.redactor import Redactor, finders_of
from tests.ledger_kit import Talk, ask, queue, serve, take_step, to_judging, user

SECRET = "the harbour master drinks at the Blue Anchor"
_PACKED = re.compile(rb"[A-Za-z0-9+/]{24,}={0,2}")
IDS = (71123, 48211, 90017, 33391, 60013)
PRIVATE_RULES = {"redaction": {"builtin": ["token", "private_key", "email", "credit_card", "iban", "phone"]}}


def text_forms(text: str) -> dict[str, bytes]:
    return {
        "utf-8": text.encode(),
        "utf-16": text.encode("utf-16-le"),
        "escaped": json.dumps(text)[1:-1].encode(),
        "upper": text.upper().encode(),
        **_base64(text.encode()),
    }


def id_forms(ids: Sequence[int]) -> dict[str, bytes]:
    little, wide = np.asarray(ids, "<i4").tobytes(), np.asarray(ids, "<i8").tobytes()
    return {
        "int32": little,
        "int64": wide,
        "big-endian": np.asarray(ids, ">i4").tobytes(),
        "varint": b"".join(map(_varint, ids)),
        "json": ",".join(map(str, ids)).encode(),
        "spaced": ", ".join(map(str, ids)).encode(),
        "words": " ".join(map(str, ids)).encode(),
        **_base64(little),
    }


def found_in(folder: Path, text: str, ids: Sequence[int] = ()) -> list[str]:
    """Which file holds which form of the text or of the ids, as it is or packed as base64, twice at most."""
    texts = {f"text as {name}": form for name, form in text_forms(text).items()}
    tokens = {f"ids as {name}": form for name, form in id_forms(ids).items()} if ids else {}
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for layer in _layers(path.read_bytes(), 2):
            found += [f"{path.relative_to(folder)}: {name}" for name, form in (texts | tokens).items() if form in layer]
    return found


def _layers(content: bytes, depth: int) -> Iterator[bytes]:
    yield content
    if depth:
        for packed in _PACKED.findall(content):
            yield from _layers(base64.b64decode(packed.rstrip(b"=")[: len(packed.rstrip(b"=")) // 4 * 4]), depth - 1)


def opened(
    state: Path, keys: KeyStore | None = None, ledger: dict[str, float] | None = None, **privacy: object
) -> Ledger:
    """A ledger as a coordinator opens it, in the folder ``state``."""
    config = PrivacyConfig.model_validate(privacy)
    state.mkdir(parents=True, exist_ok=True)
    return open_ledger(
        state,
        LedgerConfig(**(ledger or {})),
        config,
        keys=keys or open_keys(state, config),
        redactor=Redactor(finders_of(config.redaction)),
    )


def said(
    turn_id: str,
    talk: Talk,
    text: str,
    *,
    session: str | None = None,
    owner: str = "ann",
    at: float = 1_000.0,
    **changes: object,
) -> Turn:
    """A turn whose tokens are `IDS`."""
    turn = serve(ask(turn_id, talk, session=session, owner=owner, at=at), talk, text)
    fields = {
        "answer": Message(role="assistant", content=text),
        "prompt_ids": np.asarray(IDS, np.int32),
        "response_ids": np.asarray(IDS, np.int32),
        "response_logps": -np.ones(len(IDS), np.float32),
        "spans": (VersionSpan(start=0, end=len(IDS), version=0),),
    }
    return replace(turn, **(fields | changes))  # type: ignore[arg-type]


def alter(ledger: Ledger, table: str, column: str, turn_id: str) -> None:
    """As a disk may, or a hand: one bit of what is sealed."""
    blob = bytearray(ledger._db.scalar(f"SELECT {column} FROM {table} WHERE turn_id = ?", turn_id))
    blob[-1] ^= 1
    ledger._db.execute(f"UPDATE {table} SET {column} = ? WHERE turn_id = ?", bytes(blob), turn_id)


def _base64(data: bytes) -> dict[str, bytes]:
    """As part of something longer it may begin at each of three places."""
    forms = {}
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + data)
        forms[f"base64+{shift}"] = whole[4 * (shift > 0) : len(whole) - 4]
    return forms


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def peopled(state: Path, keys: KeyStore, **privacy: object) -> None:
    """Turns of ann's and of bob's in every state."""
    with opened(state, keys, **privacy) as ledger:
        ledger.restored("run", 0)
        for who in ("ann", "bob"):
            queue(ledger, f"{who}-trained", owner=who)
            take_step(ledger, "run", ledger.taken_step() + 1, 1)
        ledger.checkpointed("run", 2)
        for who in ("ann", "bob"):
            queue(ledger, f"{who}-lent", owner=who)
        assert ledger.lease("run", 3, 2, now=0.0, timeout_s=1e12) is not None
        for who in ("ann", "bob"):
            queue(ledger, f"{who}-queued", owner=who)
            to_judging(ledger, f"{who}-judging", owner=who)
            ledger.record(said(f"{who}-awaiting", user(SECRET), SECRET, owner=who, session="x"))
            ledger.record(said(f"{who}-dropped", user("hi"), "x", owner=who, session="y"), DropReason.GREEDY)

"""Which conversation a request belongs to, from what the client sent. Pure functions.

A session is named by the header ``X-Session-Id`` or the body field ``session_id`` (the header wins); ``X-Group-Id`` or
``group_id`` names the answers to one prompt that are compared with each other. Without a session's name the messages
themselves tell: every turn gets the hash of its messages plus its reply, and a request that continues it carries the
same hash as its prefix. The hash is a chain over canonical messages, so that it survives what clients do on replay:
``developer`` for ``system``, parts for strings, trimmed whitespace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clawrl.messages import Arrival, Message, TurnId, TurnKind
from clawrl.serving.errors import invalid_request, quoted
from clawrl.serving.fields import JsonObject, as_text, wrong_type

MAX_SESSION_CHARS = 256
_TRUE = {"1", "true", "yes", "on"}
_ORIGIN = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    session: str | None
    kind: TurnKind
    ends: bool
    group: str | None


def session_facts(headers: Mapping[str, str], body: JsonObject, default_kind: TurnKind) -> SessionFacts:
    """A header that is present and not blank beats the body field of the same meaning."""
    by_name = {name.lower(): value.strip() for name, value in headers.items()}
    return SessionFacts(
        session=named_session(headers, body),
        group=_short_name(by_name.get("x-group-id") or body.get("group_id"), "group_id"),
        kind=_kind(by_name.get("x-turn-type") or body.get("turn_type"), default_kind),
        ends=_done(by_name.get("x-session-done") or body.get("session_done")),
    )


def named_session(headers: Mapping[str, str], body: JsonObject) -> str | None:
    """The session that the client named, in a header or in the body."""
    by_name = {name.lower(): value.strip() for name, value in headers.items()}
    return _short_name(by_name.get("x-session-id") or body.get("session_id"), "session_id")


def canonical(message: Message) -> bytes:
    """The bytes that two spellings of one message share. JSON, so that role and text cannot run into each other."""
    role = "system" if message.role == "developer" else message.role
    return json.dumps([role, message.content.strip()], ensure_ascii=False).encode()


def conversation_hash(messages: Iterable[Message]) -> str:
    """The chained hash of the messages in order, as hex."""
    link = _ORIGIN.hex()
    for message in messages:
        link = _extended(link, message)
    return link


def reply_hash(messages_hash: str, reply_text: str) -> str:
    """What a request that continues this turn will carry as its ``prefix_hash``: one more link in the chain."""
    return _extended(messages_hash, Message(role="assistant", content=reply_text))


def _extended(link: str, message: Message) -> str:
    return hashlib.sha256(bytes.fromhex(link) + canonical(message)).hexdigest()


def make_arrival(
    *,
    turn_id: TurnId,
    messages: Sequence[Message],
    session: str | None,
    owner: str,
    kind: TurnKind,
    ends_session: bool,
    arrived_at: float,
    may_train: bool = True,
    group: str | None = None,
) -> Arrival:
    answered = max((i + 1 for i, message in enumerate(messages) if message.role == "assistant"), default=0)
    return Arrival(
        turn_id=turn_id,
        session=session,
        owner=owner,
        kind=kind,
        prefix_hash=conversation_hash(messages[:answered]) if answered else None,
        messages_hash=conversation_hash(messages),
        history=tuple(messages[:answered]),
        new_messages=tuple(messages[answered:]),
        group=group,
        ends_session=ends_session,
        arrived_at=arrived_at,
        may_train=may_train,
    )


def affinity_key(session: str | None, owner: str, messages: Sequence[Message]) -> str:
    """Equal for all turns of one conversation, so that they reach the replica whose cache knows the prefix.

    Without a session the opening tells: the messages up to and including the first from the user.
    """
    if session is not None:
        return session
    opening = next((i + 1 for i, message in enumerate(messages) if message.role == "user"), len(messages))
    return hashlib.sha256(f"{owner}\n{conversation_hash(messages[:opening])}".encode()).hexdigest()


def _short_name(value: object, field: str) -> str | None:
    if value is None:
        return None
    name = as_text(value, field).strip()
    if len(name) > MAX_SESSION_CHARS:
        raise invalid_request(f"Invalid '{field}': at most {MAX_SESSION_CHARS} characters, but got {len(name)}.", field)
    return name or None


def _kind(value: object, default: TurnKind) -> TurnKind:
    if value is None:
        return default
    name = as_text(value, "turn_type").strip().lower()
    if name not in {kind.value for kind in TurnKind}:
        raise invalid_request(
            f"Invalid value for 'turn_type': {quoted(name)}. It must be 'main' or 'side'.", "turn_type"
        )
    return TurnKind(name)


def _done(value: object) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str | int):
        return str(value).strip().lower() in _TRUE
    raise wrong_type(value, "session_done", "a boolean")

"""What a request says about its conversation, in headers, in the body, or by what its messages look like.

``X-Group-Id`` or ``group_id`` names the answers to one prompt that are compared with each other; ``X-Session-Done`` or
``session_done`` ends the session with this turn. A header that is present and not blank beats the body field of the
same meaning. ``X-Clawrl-Train: no`` forbids to learn from this turn and from those after it in its session, until one
says ``yes``. See `names` for the session and `kinds` for the kind of turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clawrl.messages import Arrival, Message, TurnKind
from clawrl.serving.errors import invalid_request, quoted
from clawrl.serving.fields import JsonObject, wrong_type
from clawrl.serving.sessions.kinds import BY_DEFAULT, turn_kind
from clawrl.serving.sessions.names import checked_name, lowered, named_session

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}
TRAIN_HEADER = "X-Clawrl-Train"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """``reason`` is why of this kind. ``train`` is the wish of who asks, if there is one."""

    session: str | None
    kind: TurnKind
    ends: bool
    group: str | None
    reason: str = ""
    train: bool | None = None

    def going_on_from(self, past: Arrival) -> SessionFacts:
        """Of a request that goes on from ``past`` by its id: what it does not say is as it was there."""
        kind = past.kind if self.reason == BY_DEFAULT else self.kind
        return replace(self, session=self.session or past.session, kind=kind)


def session_facts(
    headers: Mapping[str, str],
    body: JsonObject,
    default_kind: TurnKind,
    messages: Sequence[Message] = (),
    tools: Sequence[str] = (),
) -> SessionFacts:
    """``messages`` and ``tools`` tell what the client does not say; ``tools`` are function tools as JSON text."""
    by_name = lowered(headers)
    found = turn_kind(by_name.get("x-turn-type") or body.get("turn_type"), default_kind, messages, tools)
    return SessionFacts(
        session=named_session(headers, body, messages),
        group=checked_name(by_name.get("x-group-id") or body.get("group_id"), "group_id"),
        kind=found.kind,
        reason=found.reason,
        ends=_done(by_name.get("x-session-done") or body.get("session_done")),
        train=_wish(by_name.get(TRAIN_HEADER.lower())),
    )


def _wish(value: str | None) -> bool | None:
    """Not guessed: a misspelt no must not pass for a yes."""
    if not value:
        return None
    said = value.lower()
    if said not in _TRUE | _FALSE:
        raise invalid_request(f"Invalid header '{TRAIN_HEADER}': {quoted(value)}. Send yes or no.", TRAIN_HEADER)
    return said in _TRUE


def _done(value: object) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str | int):
        return str(value).strip().lower() in _TRUE
    raise wrong_type(value, "session_done", "a boolean")

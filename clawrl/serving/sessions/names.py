"""Which session a request belongs to, by whatever name its client has for it.

In order: the header ``X-Session-Id``; the body field ``session_id``; the headers ``session_id`` and
``x-session-affinity``; ``session-id`` and ``thread-id``; ``x-claude-code-session-id``; the body field
``prompt_cache_key``; the ``session_id`` in the JSON text of ``metadata.user_id``; and ``sessionId=`` in a line
``Runtime: ... | sessionId=... | ...`` of the messages before the first answer, the user's before the system's.
``<id>:<n>`` in the affinity headers and the cache key is the session ``<id>``: with ``n`` the client counts how often
it has rewritten the history. Without any name there is ``None``, and the ledger finds the conversation by its messages.

The first two are meant for us: one that is no string or longer than `MAX_SESSION_CHARS` is a 400 that names the field.
The others have another purpose first; what cannot be a name among them is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from clawrl.messages import Message
from clawrl.serving.errors import ApiError, invalid_request
from clawrl.serving.fields import JsonObject, as_text

MAX_SESSION_CHARS = 256
_COUNTED = ("session_id", "x-session-affinity")
_PLAIN = ("session-id", "thread-id", "x-claude-code-session-id")
_COUNT = re.compile(r"(.+):\d{1,9}", re.DOTALL)
_RUNTIME = re.compile(r"^[ \t]*Runtime:[^\n]*\|[ \t]*sessionId=([^\s|]+)", re.MULTILINE)


def named_session(headers: Mapping[str, str], body: JsonObject, messages: Sequence[Message] = ()) -> str | None:
    by_name = lowered(headers)
    given = checked_name(by_name.get("x-session-id") or body.get("session_id"), "session_id")
    return given if given is not None else next(_borrowed(by_name, body, messages), None)


def lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers by their names in lower case, without the blanks around their values."""
    return {name.lower(): value.strip() for name, value in headers.items()}


def checked_name(value: object, field: str) -> str | None:
    """Raises `ApiError` for what cannot be a name; blank is none."""
    if value is None:
        return None
    name = as_text(value, field).strip()
    if len(name) > MAX_SESSION_CHARS:
        raise invalid_request(
            f"Invalid '{field}': at most {MAX_SESSION_CHARS} characters, but got {len(name)}. Send a shorter name.",
            field,
        )
    return name or None


def _borrowed(by_name: Mapping[str, str], body: JsonObject, messages: Sequence[Message]) -> Iterator[str]:
    for header in _COUNTED:
        yield from _counted(by_name.get(header))
    for header in _PLAIN:
        yield from _plain(by_name.get(header))
    yield from _counted(body.get("prompt_cache_key"))
    yield from _plain(session_of_metadata(body))
    opening = list(takewhile(lambda message: message.role != "assistant", messages))
    for role in ("user", "system"):
        for message in opening:
            if message.role == role and (line := _RUNTIME.search(message.content)):
                yield from _plain(line[1])


def session_of_metadata(body: JsonObject) -> str | None:
    """The ``session_id`` in the JSON text of ``metadata.user_id``, if that is what it is."""
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user, str):
        return None
    try:
        known = json.loads(user)
        session = known.get("session_id") if isinstance(known, dict) else None
        name = session.strip() if isinstance(session, str) else ""
        # Half of a surrogate pair is no name, and a JSON text can spell it.
        name.encode()
    except (ValueError, RecursionError):
        return None
    return name if 0 < len(name) <= MAX_SESSION_CHARS else None


def _counted(value: object) -> Iterator[str]:
    for found in _plain(value):
        split = _COUNT.fullmatch(found)
        yield found if split is None else split[1]


def _plain(value: object) -> Iterator[str]:
    try:
        name = checked_name(value, "name")
    except ApiError:
        return
    if name is not None:
        yield name

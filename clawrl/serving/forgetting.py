"""``POST /clawrl/forget``: delete what was said, for good. Exactly one of these:

    {"user": "ann"}                          all of a user's, and their key
    {"session": "harbour"}                   a session; with "user" that user's only
    {"turn_id": "..."}                       a turn, and the later ones of its session, which repeat it

``user`` is the name in ``serving.users``, of somebody who is no longer there too, or an owner id. Unknown fields are
refused: what is deleted does not come back.
"""

from __future__ import annotations

from clawrl.messages import TurnId
from clawrl.privacy.forgetting import Wanted
from clawrl.serving.auth import owner_of_user
from clawrl.serving.config import looks_like_an_owner
from clawrl.serving.errors import invalid_request, quoted
from clawrl.serving.fields import JsonObject, missing, text

_FIELDS = ("user", "session", "turn_id")


def parse_forget(body: JsonObject) -> Wanted:
    """Raises `ApiError` with the first thing wrong."""
    for name in body:
        if name not in _FIELDS:
            shown = name[:64].encode(errors="replace").decode()
            raise invalid_request(f"Unknown field {quoted(name)}: it takes {', '.join(_FIELDS)}.", shown)
    user, session, turn_id = ((text(body, field) or "").strip() for field in _FIELDS)
    if turn_id and (user or session):
        raise invalid_request("Give 'turn_id' alone, or 'user' and 'session'.", "turn_id")
    if not (user or session or turn_id):
        raise missing("user")
    return wanted(user=user, session=session, turn_id=turn_id)


def wanted(*, user: str | None, session: str | None, turn_id: str | None) -> Wanted:
    owner = None if not user else owner_named(user)
    return Wanted(owner=owner, session=session or None, turn_id=TurnId(turn_id) if turn_id else None)


def owner_named(user: str) -> str:
    """The owner id of a user by their name; an owner id, and the owner of all where there are no keys, stand for
    themselves."""
    return user if looks_like_an_owner(user) else owner_of_user(user)

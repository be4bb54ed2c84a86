"""Who may ask, and whose turns these are.

With no key configured everybody is the owner ``local`` (the API binds to 127.0.0.1). With one, a request carries it
as a bearer token, compared in constant time; its owner id is a short hash, so that the key itself is neither
stored nor logged.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from clawrl.serving.errors import invalid_key

LOCAL_OWNER = "local"
_ENV = "env:"


def resolve_key(configured: str | None, environ: Mapping[str, str]) -> str | None:
    """The key itself. Raises ``ValueError`` at start, rather than serving an endpoint that nobody meant to open."""
    if configured is None:
        return None
    if configured.startswith(_ENV):
        name = configured.removeprefix(_ENV)
        key = environ.get(name, "").strip()
        if not key:
            raise ValueError(f"api_key is '{configured}', but the environment variable {name!r} is not set or empty")
        return key
    if not configured.strip():
        raise ValueError("api_key is empty; leave it out to serve without a key")
    return configured.strip()


def owner_of(key: str | None) -> str:
    return LOCAL_OWNER if key is None else hashlib.sha256(b"clawrl owner " + key.encode()).hexdigest()[:16]


def authenticate(authorization: str | None, key: str | None) -> str:
    """The owner id behind an ``Authorization`` header, or a 401."""
    if key is None:
        return LOCAL_OWNER
    scheme, _, token = (authorization or "").strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise invalid_key(given=bool(authorization))
    if not hmac.compare_digest(_header_bytes(token), key.encode()):
        raise invalid_key(given=True)
    return owner_of(key)


def _header_bytes(token: str) -> bytes:
    # HTTP servers hand out header bytes decoded as latin-1; undo that to compare what was sent.
    try:
        return token.encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "surrogatepass")

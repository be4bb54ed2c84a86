"""Who may ask, whose turns these are, and how often they may ask.

With no key configured everybody is the owner ``local`` and may do everything (the API binds to 127.0.0.1). The key
``api_key`` is the operator's; every entry of ``users`` is a person's, who may talk and give feedback and nothing else.
The console may have a key of its own, which operates too and talks as an owner of its own. A key comes as a bearer
token or in ``x-api-key``; some clients send both, of which one may be of another service, so that either is enough.
All keys are compared in constant time, and are printable ASCII: clients write anything else in different
bytes, or cannot send it at all. An owner id is a short hash of the key, or of the user's name, so that neither
is stored or logged.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clawrl.serving.config import LOCAL_OWNER as LOCAL_OWNER
from clawrl.serving.config import ServingConfig
from clawrl.serving.errors import invalid_key, not_permitted, too_many_requests
from clawrl.serving.rate import RateLimit

_ENV = "env:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """``may_train``: whether anything that comes with this key may be learned from."""

    owner: str
    operator: bool
    may_train: bool = True


def resolve_key(configured: str | None, environ: Mapping[str, str], field: str = "api_key") -> str | None:
    """The key itself. Raises ``ValueError`` at start, rather than serving an endpoint that nobody meant to open, or one
    that nobody can."""
    if configured is None:
        return None
    if configured.startswith(_ENV):
        name = configured.removeprefix(_ENV)
        key = environ.get(name, "").strip()
        where = f"{field} (the environment variable {name!r})"
        if not key:
            raise ValueError(f"{field} is '{configured}', but the environment variable {name!r} is not set or empty")
    else:
        key, where = configured.strip(), field
        if not key:
            raise ValueError(f"{field} is empty; leave it out to serve without a key")
    if not is_sendable(key):
        raise ValueError(
            f"{where} has characters that not every client can send; use letters, digits and signs of ASCII"
        )
    return key


def is_sendable(key: str) -> bool:
    """Whether every client writes it alike in a header."""
    return key.isascii() and key.isprintable()


LOCAL = Identity(owner=LOCAL_OWNER, operator=True)


class KeyRing:
    """All keys of a deployment. Rates are counted by each ingress for itself."""

    def __init__(
        self, config: ServingConfig, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises `ValueError` that names the field, for a key that is empty, missing or somebody else's too."""
        self._clock = clock
        self._keys: list[tuple[bytes, Identity]] = []
        self._limits: dict[str, RateLimit] = {}
        self._local = Identity(owner=LOCAL_OWNER, operator=True, may_train=config.train)
        operator = resolve_key(config.api_key, environ)
        if operator is not None:
            self._keys.append(
                (operator.encode(), Identity(owner=_owner_of_key(operator), operator=True, may_train=config.train))
            )
        elif config.users:
            raise ValueError("users have keys but the operator has none; set api_key, or anybody could operate")
        elif config.console.key is not None:
            raise ValueError("console.key is set but the operator has no key; set api_key, or anybody could operate")
        console = resolve_key(config.console.key, environ, "console.key")
        if console is not None:
            if console == operator:
                raise ValueError("console.key is the operator's; leave it out to open the console with api_key")
            identity = Identity(owner=_owner_of_console(), operator=True, may_train=config.train)
            self._keys.append((console.encode(), identity))
        for number, user in enumerate(config.users):
            key = resolve_key(user.key, environ, f"users[{number}].key")
            assert key is not None
            if any(key.encode() == other for other, _ in self._keys):
                raise ValueError(f"users[{number}].key is already somebody else's")
            identity = Identity(owner=owner_of_user(user.name), operator=False, may_train=user.train)
            self._keys.append((key.encode(), identity))
            if user.requests_per_minute is not None:
                self._limits[identity.owner] = RateLimit(user.requests_per_minute, clock())

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Raises a 401."""
        if not self._keys:
            return self._local
        tokens = _tokens(headers)
        found = [self._holder(token) for token in tokens if token]
        holder = next((identity for identity in found if identity is not None), None)
        if holder is None:
            raise invalid_key(given=bool(tokens))
        return holder

    def _holder(self, token: bytes) -> Identity | None:
        found = None
        # Every key is compared, whichever matches: the time taken says nothing.
        for key, identity in self._keys:
            if hmac.compare_digest(token, key):
                found = identity
        return found

    def operator(self, headers: Mapping[str, str]) -> Identity:
        """Raises a 401, or a 403 for a key that may only talk."""
        identity = self.identify(headers)
        if not identity.operator:
            raise not_permitted()
        return identity

    def admitted(self, headers: Mapping[str, str]) -> Identity:
        """One who asks for an answer. Raises a 401, or a 429 that says when to come again."""
        identity = self.identify(headers)
        limit = self._limits.get(identity.owner)
        if limit is not None and (wait_s := limit.take(self._clock())) > 0.0:
            raise too_many_requests(limit.per_minute, wait_s)
        return identity


def _tokens(headers: Mapping[str, str]) -> list[bytes]:
    """The keys that were sent, the bearer token first. One that was sent in a form that is no key is empty."""
    tokens = []
    if authorization := headers.get("authorization"):
        scheme, _, token = authorization.strip().partition(" ")
        tokens.append(token if scheme.lower() == "bearer" else "")
    if plain := headers.get("x-api-key"):
        tokens.append(plain)
    return [_header_bytes(token.strip()) for token in tokens]


def owner_of_user(name: str) -> str:
    """The owner id of a user."""
    return _short_hash("user", name)


def owners_of(config: ServingConfig, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Everybody who may ask for something, as far as it is known here."""
    try:
        operator = resolve_key(config.api_key, environ)
    except ValueError:
        operator = None
    owner = LOCAL_OWNER if operator is None else _owner_of_key(operator)
    console = [] if config.console.key is None else [_owner_of_console()]
    return [owner, *console, *(owner_of_user(user.name) for user in config.users)]


def _owner_of_console() -> str:
    """Not of its key: with a new one the console still owns what was said from it."""
    return _short_hash("console", "console")


def _owner_of_key(key: str) -> str:
    return _short_hash("owner", key)


def _short_hash(kind: str, value: str) -> str:
    return hashlib.sha256(f"clawrl {kind} {value}".encode()).hexdigest()[:16]


def _header_bytes(token: str) -> bytes:
    # HTTP servers hand out header bytes decoded as latin-1; undo that to compare what was sent.
    try:
        return token.encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "surrogatepass")

"""Which requests a server without a key refuses, since a web page may have had a browser send them.

Without a key whoever reaches the server may do everything, and so may any page that its user visits: the page's browser
reaches it. Two things tell such a request from others, and a page can forge neither:

- **The host it asks for.** A page whose own name was made to lead here (DNS rebinding) still asks for that name. So
  only addresses, ``localhost`` and the names that the configuration lists are answered. An address cannot be rebound: a
  page that asks for one was loaded from it.
- **Where it comes from**, in what may change something: ``Sec-Fetch-Site``, or ``Origin`` where a browser does not send
  that. A page reads no answer of another origin either way: no CORS header is ever sent.

Only a browser's own headers count. What is no browser sends none of them, whatever the type of its body, and is let
through. With a key none of this is looked at: a page does not know it, and would have to ask (CORS) to send it.

In: method, path and headers. Out: the refusal, or none. Nothing is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

from clawrl.serving.errors import ApiError, quoted

OPEN_TO_ALL = frozenset({"/healthz", "/readyz"})
"""They tell nothing and change nothing, and probes ask under whatever name they have."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(?::([0-9]{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Authority(NamedTuple):
    """A host as a URL names it, in lower case; without a port that is the scheme's own, or any."""

    name: str
    port: int | None


def parse_authority(text: str) -> Authority | None:
    """``None`` for what is no host with or without a port."""
    found = _AUTHORITY.fullmatch(text.strip().lower())
    if found is None:
        return None
    name, port = found[1].removesuffix("."), found[2]
    return Authority(name, None if port is None else int(port)) if name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserRules:
    """``allowed``: hosts that requests may be for, and whose pages may send them; one without a port on any port."""

    keyed: bool
    allowed: frozenset[Authority] = frozenset()

    @classmethod
    def of(cls, api_key: str | None, allowed_hosts: Sequence[str]) -> BrowserRules:
        found = (parse_authority(host) for host in allowed_hosts)
        return cls(keyed=api_key is not None, allowed=frozenset(host for host in found if host is not None))

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> ApiError | None:
        """``headers`` are looked up in lower case; ``path`` is the application's own, without a prefix before it."""
        if self.keyed or path in OPEN_TO_ALL:
            return None
        host = headers.get("host")
        if host is not None and not self._may_be_for(host):
            return _other_host(host)
        if method in _SAFE or not self._from_elsewhere(host, headers):
            return None
        return _other_site(headers.get("origin"))

    def _may_be_for(self, host: str) -> bool:
        asked = parse_authority(host)
        return asked is not None and (is_local_or_address(asked.name) or self._lists(asked))

    def _from_elsewhere(self, host: str | None, headers: Mapping[str, str]) -> bool:
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        # `none`: the user did it, by an address bar or an extension. The browser knows better than we do which origin
        # is its own: a proxy in front may have changed the host.
        if site in ("same-origin", "none") or (site is None and origin is None):
            return False
        scheme, _, rest = (origin or "").lower().partition("://")
        page = parse_authority(rest)
        if page is None:
            return True
        port = page.port or _DEFAULT_PORTS.get(scheme)
        own = None if host is None or site is not None else parse_authority(host)
        if own is not None and own.name == page.name and (own.port or _DEFAULT_PORTS.get(scheme)) == port:
            return False
        return not self._lists(Authority(page.name, port))

    def _lists(self, asked: Authority) -> bool:
        ports = {asked.port} if asked.port is not None else set(_DEFAULT_PORTS.values())
        return any(host.name == asked.name and (host.port is None or host.port in ports) for host in self.allowed)


def is_local_or_address(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _other_host(host: str) -> ApiError:
    message = (
        f"Without a key this server answers only for addresses, localhost and the names in serving.allowed_hosts, and "
        f"this request is for {quoted(host)}. Add that name there, or set serving.api_key."
    )
    return ApiError(403, message, code="host_not_allowed")


def _other_site(origin: str | None) -> ApiError:
    message = (
        f"A web page of another origin ({quoted(origin or 'not named')}) asked for this, and this server has no key by "
        "which to tell whether you did. Set serving.api_key, or add the page's host to serving.allowed_hosts."
    )
    return ApiError(403, message, code="cross_site_request")

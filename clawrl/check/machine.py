"""What runs on this machine now that is in the way of a deployment file. It looks; it starts and changes nothing.

A taken port or state folder is a warning and not an error: it may be free again when the file is started, and
only then does it matter. If what holds them is this very deployment (the server at the file's own address
gives its name, and the process that holds its state folder), they are where they belong: one note says that it runs.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clawrl.check.clashes import OPEN_HOSTS, Claims, Listener, StateClaim
from clawrl.client import ApiClient, ApiProblem
from clawrl.ledger.folder import Holder, holder
from clawrl.serving.auth import resolve_key

_ANSWER_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Lines without the file's name. ``notes`` are good to know, ``warnings`` would keep the file from starting now."""

    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """The deployment that answers at an address, by its name and the process of its coordinator."""

    name: str
    pid: int | None


def look(claims: Claims, environ: Mapping[str, str]) -> Seen:
    """``environ`` has the keys that the file names."""
    warnings: list[str] = []
    holders: dict[StateClaim, Holder] = {}
    for state in claims.states:
        try:
            found = holder(state.folder)
        except OSError as error:
            warnings.append(f"{state.path}.state_dir: {state.folder} cannot be looked into: {error.strerror}")
            continue
        if found is not None:
            holders[state] = found
    taken = [listener for listener in claims.listeners if _is_taken(listener)]
    server = _ask(claims, taken, environ)
    for state, found in holders.items():
        if server is not None and (server.name, server.pid) == (state.name, found.pid):
            return Seen(warnings=tuple(warnings), notes=(f"it is running: {found}, state in {state.folder}",))
    for listener in taken:
        whom = "another program"
        if server is not None and listener.path == "http_options.port":
            whom = f"deployment {server.name!r}"
        warnings.append(
            f"{listener.path}: port {listener.port} of {listener.host} is taken by {whom}; "
            "stop that, or change the port"
        )
    for state, found in holders.items():
        warnings.append(
            f"{state.path}.state_dir: {state.folder} is in use by {found}; stop that one, or set another state_dir"
        )
    return Seen(warnings=tuple(warnings))


def _is_taken(listener: Listener) -> bool:
    try:
        found = socket.getaddrinfo(listener.host or "0.0.0.0", listener.port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_bound(family, address) for family, _, _, _, address in found)


def _is_bound(family: int, address: tuple[Any, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As servers do: a connection that just ended is not in the way. Not SO_REUSEPORT, which joins a listener.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _ask(claims: Claims, taken: list[Listener], environ: Mapping[str, str]) -> _Server | None:
    """The deployment at the file's HTTP address, if one answers to the file's key."""
    http = next((listener for listener in taken if listener.path == "http_options.port"), None)
    if http is None:
        return None
    host = "127.0.0.1" if http.host in OPEN_HOSTS else f"[{http.host}]" if ":" in http.host else http.host
    try:
        key = next((resolve_key(state.api_key, environ) for state in claims.states), None)
        with ApiClient(f"http://{host}:{http.port}", key, timeout_s=_ANSWER_S) as client:
            status = client.status()
    except (ApiProblem, ValueError):
        return None
    coordinator: Any = status.get("coordinator")
    pid = coordinator.get("pid") if isinstance(coordinator, dict) else None
    name = status.get("name")
    return _Server(name=name, pid=pid) if isinstance(name, str) else None

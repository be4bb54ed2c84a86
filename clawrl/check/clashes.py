"""What several deployments on one machine cannot share: addresses, names, state folders. Pure: nothing is looked up.

In go the `Claims` of each file, out come one line for each clash: the two files, the field, what is claimed twice, the
remedy; in the order of the files, addresses first, then names, then folders. Two applications in one file
are compared as well. Models and their cache are not claims: any number of deployments may read them, and whoever
fills the cache takes a lock of its own there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

OPEN_HOSTS = frozenset({"0.0.0.0", "::", ""})
_SAME_HOST = {"localhost": "127.0.0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address that one file opens; ``path`` is its port's."""

    path: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateClaim:
    """The name and the state folder of one application of ours; ``path`` is the one of its ``args``.

    ``folder`` is resolved. ``root`` is the folder of state folders within which the name has to be its own.
    """

    path: str
    name: str
    folder: Path
    root: Path
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    file: Path
    listeners: tuple[Listener, ...] = ()
    states: tuple[StateClaim, ...] = ()


def clashes(claims: Sequence[Claims]) -> list[str]:
    """One line for each thing that two of them would use at once."""
    listeners = [(one.file, listener) for one in claims for listener in one.listeners]
    states = [(one.file, state) for one in claims for state in one.states]
    return [*_addresses(listeners), *_names(states), *_folders(states)]


def _addresses(claimed: Sequence[tuple[Path, Listener]]) -> Iterator[str]:
    for (file, one), (other_file, other) in combinations(claimed, 2):
        if one.port == other.port and _meet(one.host, other.host):
            yield (
                f"{file}: {one.path}: {_address(one)} is also {other.path} of {other_file}, {_address(other)}: "
                "both would get some of the requests; change the port in one of them"
            )


def _names(claimed: Sequence[tuple[Path, StateClaim]]) -> Iterator[str]:
    for (file, one), (other_file, other) in combinations(claimed, 2):
        if one.name == other.name and one.root == other.root:
            yield (
                f"{file}: {one.path}.name: {one.name!r} is also {other.path}.name of {other_file}, both with their "
                f"state under {one.root}; rename one of them"
            )


def _folders(claimed: Sequence[tuple[Path, StateClaim]]) -> Iterator[str]:
    for (file, one), (other_file, other) in combinations(claimed, 2):
        if one.folder == other.folder:
            relation = f"is also the state folder of {other_file}"
        elif one.folder.is_relative_to(other.folder):
            relation = f"lies inside {other.folder}, the state folder of {other_file}"
        elif other.folder.is_relative_to(one.folder):
            relation = f"contains {other.folder}, the state folder of {other_file}"
        else:
            continue
        yield f"{file}: {one.path}.state_dir: {one.folder} {relation}; give one of them another state_dir"


def _meet(one: str, other: str) -> bool:
    one, other = (_SAME_HOST.get(host.lower(), host.lower()) for host in (one, other))
    return one == other or bool({one, other} & OPEN_HOSTS)


def _address(listener: Listener) -> str:
    return f"{listener.host}:{listener.port}"

"""The page's files as HTTP answers: read once, the same for everybody.

In: the path below ``/console`` and the request's headers. Out: a response with its type, an ``ETag`` and a policy under
which a browser runs nothing but these files and speaks to nobody but this server. A browser asks again each time and is
told that nothing changed, so that after an upgrade old and new modules are never mixed for long.
A restart changes nothing. Paths are looked up in what was read: none leads elsewhere.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.responses import RedirectResponse, Response

from clawrl.serving.errors import ApiError

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
# Trusted types: a browser that knows them refuses to take text for markup, whatever a later change of the page tries.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """``packed`` is the same in gzip. The tags differ, since what is sent does."""

    media_type: str
    plain: bytes
    packed: bytes
    tag: str


class ConsoleFiles:
    """Every file of the page, by its path below ``/console/``."""

    def __init__(self, enabled: bool = True) -> None:
        self._files = dict(_read(files("clawrl.console") / "static")) if enabled else {}

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted(self._files))

    def answer(self, path: str, headers: Mapping[str, str]) -> Response:
        """``path`` is what follows ``/console``. Raises a 404."""
        if path == "" and self._files:
            # Relative, so that it also holds below a route prefix and behind a proxy that strips one.
            return RedirectResponse("console/", 308, headers=HEADERS)
        file = self._files.get(path.removeprefix("/") or "index.html") if path.startswith("/") else None
        if file is None:
            raise ApiError(404, "There is no such page.", code="not_found")
        packed = "gzip" in headers.get("accept-encoding", "")
        tag = f'"{file.tag}{"-gzip" if packed else ""}"'
        sent = HEADERS | {"ETag": tag} | ({"Content-Encoding": "gzip"} if packed else {})
        # A proxy that changes the encoding marks the tag as weak.
        if tag in [known.strip().removeprefix("W/") for known in headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=HEADERS | {"ETag": tag})
        return Response(file.packed if packed else file.plain, media_type=file.media_type, headers=sent)


def _read(folder: Traversable, below: str = "") -> list[tuple[str, File]]:
    found: list[tuple[str, File]] = []
    for entry in folder.iterdir():
        path = f"{below}{entry.name}"
        if entry.is_dir():
            found += _read(entry, f"{path}/")
            continue
        kind = next((TYPES[end] for end in TYPES if entry.name.endswith(end)), None)
        # Anything else in the folder is not of the page: an editor's copy, say.
        if kind is not None:
            plain = entry.read_bytes()
            tag = hashlib.sha256(plain).hexdigest()[:24]
            found.append((path, File(media_type=kind, plain=plain, packed=gzip.compress(plain, mtime=0), tag=tag)))
    return found

"""A small client of clawrl's own HTTP routes, for the command line and the demo.

Every failure is an `ApiProblem` whose text is one line that says what to do; nothing is retried here.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

# What a clawrl server does not find; any other 404 is another server's.
_OURS = ("turn_not_found", "session_not_found", "version_not_kept")
DEFAULT_URL = "http://127.0.0.1:8000"
_NO_TEXT = "an argument holds bytes that are no UTF-8; give it as text"


class ApiProblem(Exception):
    """The server cannot be reached or did not do what it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """``missing`` names what is not ready yet; it is empty when the server is."""

    ready: bool
    missing: tuple[str, ...]


class ApiClient:
    """Synchronous calls to one server. Close it, or use it as a context manager.

    Raises `ApiProblem` for an address or a key that cannot be one.
    """

    def __init__(self, url: str = DEFAULT_URL, api_key: str | None = None, timeout_s: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self._http = http_client(url, api_key, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def readiness(self) -> Readiness:
        """Whether `/readyz` says ready; an unreachable server is "server", not an error."""
        try:
            response = self._http.get("/readyz")
        except httpx.TransportError:
            return Readiness(ready=False, missing=("server",))
        if response.status_code == 200:
            return Readiness(ready=True, missing=())
        body = _json_object(response)
        if body is None or "ready" not in body:
            return Readiness(ready=False, missing=(f"application (HTTP {response.status_code})",))
        return Readiness(ready=False, missing=tuple(name for name, ok in body.items() if name != "ready" and not ok))

    def wait_ready(self, timeout_s: float, poll_s: float = 1.0) -> Iterator[Readiness]:
        """Every reading of `/readyz` until it is ready or the time is over; the last one tells which."""
        deadline = time.monotonic() + timeout_s
        while True:
            reading = self.readiness()
            yield reading
            if reading.ready or time.monotonic() + poll_s > deadline:
                return
            time.sleep(poll_s)

    def status(self) -> dict[str, Any]:
        return self._object("GET", "/clawrl/status")

    def turns(self, limit: int, **filters: Any) -> list[dict[str, Any]]:
        return self._list("/clawrl/turns", {"limit": limit, **filters})

    def turn(self, turn_id: str) -> dict[str, Any]:
        return self._object("GET", f"/clawrl/turns/{_quoted(turn_id, safe='')}")

    def export_page(self, limit: int, before: int | None, sealed: bool, **filters: Any) -> dict[str, Any]:
        asked = {"limit": limit, "before": before, "sealed": "true" if sealed else None, **filters}
        return self._object("GET", "/clawrl/export", params=_given(asked))

    def sessions(self, limit: int, before: int | None = None) -> list[dict[str, Any]]:
        return self._list("/clawrl/sessions", {"limit": limit, "before": before})

    def session(self, session: str, limit: int) -> dict[str, Any]:
        # Not in the path: one with dots in it would be shortened.
        return self._object("GET", "/clawrl/session", params={"session": session, "limit": limit})

    def end_session(self, session: str) -> dict[str, Any]:
        return self._object("POST", "/clawrl/session/done", params={"session": session})

    def versions(self, limit: int, before: int | None = None) -> list[dict[str, Any]]:
        return self._list("/clawrl/versions", {"limit": limit, "before": before})

    def rollback(self, version: int) -> dict[str, Any]:
        return self._object("POST", "/clawrl/rollback", json={"version": version})

    def publish(self) -> dict[str, Any]:
        return self._object("POST", "/clawrl/publish", json={})

    def pause(self, reason: str) -> dict[str, Any]:
        return self._object("POST", "/clawrl/pause", json={"reason": reason})

    def resume(self) -> dict[str, Any]:
        return self._object("POST", "/clawrl/resume", json={})

    def forget(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._object("POST", "/clawrl/forget", json=dict(body))

    def feedback(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._object("POST", "/v1/feedback", json=dict(body))

    def model_name(self) -> str:
        models = self._object("GET", "/v1/models").get("data") or []
        if not models:
            raise ApiProblem(f"{self.url} serves no model; ask `clawrl status` what it is doing")
        return str(models[0]["id"])

    def _list(self, path: str, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = self._call("GET", path, params=_given(asked))
        if not isinstance(rows, list):
            raise ApiProblem(f"{self.url}{path} did not answer with a list; is this a clawrl server?")
        return rows

    def _object(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        body = self._call(method, path, **kwargs)
        if not isinstance(body, dict):
            raise ApiProblem(f"{self.url}{path} did not answer with a JSON object; is this a clawrl server?")
        return body

    def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        try:
            response = self._http.request(method, path, **kwargs)
        except UnicodeEncodeError as error:
            raise ApiProblem(_NO_TEXT) from error
        except httpx.TimeoutException as error:
            raise ApiProblem(f"{self.url} did not answer {path} in time; is it overloaded?") from error
        except httpx.TransportError as error:
            raise ApiProblem(unreachable(self.url)) from error
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise ApiProblem(f"{self.url}{path} cannot be asked: {error}") from error
        if response.is_success:
            try:
                return response.json()
            except ValueError as error:
                raise ApiProblem(f"{self.url}{path} did not answer with JSON; is this a clawrl server?") from error
        raise ApiProblem(_refusal(self.url + path, response))


def http_client(url: str, api_key: str | None, timeout_s: float) -> httpx.Client:
    """Raises `ApiProblem` for an address or a key that cannot be one."""
    try:
        address = httpx.URL(url.rstrip("/"))
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ApiProblem(f"{url!r} is not the address of a server: {error}") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise ApiProblem(f"{url!r} is not the address of a server: it has to begin with http:// or https://")
    # What a header can hold; a line's end would also begin another header.
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ApiProblem(
            "the key is not of printable ASCII, so that no header takes it; look at --api-key or CLAWRL_API_KEY"
        )
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # A proxy named in the environment must not come between us and this machine.
    return httpx.Client(base_url=address, headers=headers, timeout=timeout_s, trust_env=not is_local(url))


def _quoted(name: str, safe: str = "/") -> str:
    try:
        return quote(name, safe=safe)
    except UnicodeEncodeError as error:
        raise ApiProblem(_NO_TEXT) from error


def _given(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value is not None}


def unreachable(url: str) -> str:
    return f"no server answers at {url}; start one with `serve run deployments/laptop.yaml`, or name another with --url"


def is_local(url: str) -> bool:
    return httpx.URL(url).host in {"127.0.0.1", "localhost", "::1"}


def _refusal(where: str, response: httpx.Response) -> str:
    if response.status_code == 401:
        return f"{where} wants a valid key; pass --api-key or set CLAWRL_API_KEY"
    body = _json_object(response) or {}
    detail = body.get("error", body)
    if response.status_code == 404 and not (isinstance(detail, dict) and detail.get("code") in _OURS):
        return f"{where} does not exist there; is this a clawrl server?"
    message = detail.get("message") if isinstance(detail, dict) else detail
    return f"{where} answered {response.status_code}: {message or response.text[:200] or 'no reason given'}"


def _json_object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        body = response.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None

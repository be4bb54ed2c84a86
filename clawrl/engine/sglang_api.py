"""SGLang's own HTTP interface, as much of it as an engine needs.

`SglangError` is whatever goes wrong between us and the server, in one sentence. `Refusal` is its subclass for a request
that the server looked at and would not serve: the next one may be fine. Bodies are SGLang's, checked where they are
used.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

_CONTROL_S = 30.0


class SglangError(RuntimeError):
    """SGLang cannot be reached, or answered something that is no answer."""


class Refusal(SglangError):
    """SGLang refuses this request; the text is its own."""


class SglangApi:
    def __init__(self, url: str, key: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(_CONTROL_S, read=None, pool=None),
            # Idle connections go before the server closes them, which it does after five seconds: else one that is
            # closed just then fails a request.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0),
            # It is on this machine; a proxy of the user's is not.
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ready(self) -> bool:
        return (await self._request("GET", "/ready", timeout_s=5.0)).status_code == 200

    async def info(self) -> dict[str, Any]:
        """Version and settings of the server."""
        return _json(await self._request("GET", "/server_info", timeout_s=_CONTROL_S))

    async def generate(self, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """One whole reply, or a list of them for a batch."""
        reply = await self._request("POST", "/generate", body=body, timeout_s=timeout_s)
        return await asyncio.to_thread(_json, reply)

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of one reply. Closing the generator closes the connection."""
        try:
            async with self._http.stream("POST", "/generate", json={**body, "stream": True}) as reply:
                if reply.status_code != 200:
                    await reply.aread()
                    raise _refusal(reply)
                async for line in _lines(reply):
                    if not line.startswith(b"data:"):
                        continue
                    text = line.removeprefix(b"data:").strip()
                    if text == b"[DONE]":
                        return
                    try:
                        event = json.loads(text)
                    except ValueError as error:
                        raise SglangError("SGLang broke off in the middle of an event") from error
                    if "error" in event:
                        raise Refusal(_message(event))
                    yield event
        except httpx.HTTPError as error:
            raise _unreachable(error) from error

    async def control(self, call: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = _CONTROL_S) -> Any:
        """A command such as ``pause_generation``. Raises `Refusal` if it did not succeed."""
        reply = await self._request("POST", f"/{call}", body=body or {}, timeout_s=timeout_s)
        try:
            answer = reply.json()
        except ValueError:
            return None
        if isinstance(answer, dict) and answer.get("success") is False:
            raise Refusal(f"{call}: {answer.get('message')}")
        return answer

    async def _request(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, timeout_s: float | None
    ) -> httpx.Response:
        try:
            reply = await self._http.request(
                method, path, json=body, timeout=httpx.Timeout(_CONTROL_S, read=timeout_s, pool=None)
            )
        except httpx.TimeoutException as error:
            raise SglangError(f"SGLang did not answer {path} within {timeout_s} s") from error
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        if path != "/ready" and reply.status_code != 200:
            raise _refusal(reply)
        return reply


async def _lines(reply: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Ended by newlines alone: to httpx's own reading U+2028 and U+0085 end a line, too, and answers may hold those."""
    rest = b""
    async for data in reply.aiter_bytes():
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def _json(reply: httpx.Response) -> Any:
    try:
        return reply.json()
    except ValueError as error:
        raise SglangError(f"SGLang answered {reply.url.path} with what is not JSON") from error


def _refusal(reply: httpx.Response) -> SglangError:
    try:
        text = _message(reply.json())
    except ValueError:
        text = reply.text[:300]
    kind = Refusal if reply.status_code in (400, 404, 422) else SglangError
    return kind(f"{reply.url.path} ({reply.status_code}): {text}")


def _message(body: Any) -> str:
    """Its errors have three shapes."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict):
            return str(inner.get("message", inner))[:500]
    return str(body)[:500]


def _unreachable(error: httpx.HTTPError) -> SglangError:
    return SglangError(f"SGLang cannot be reached: {type(error).__name__}: {error}")

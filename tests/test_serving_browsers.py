"""What a server without a key refuses: requests for a foreign name, and what other pages have a browser send."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from ray import serve

from clawrl.actors import ingress as served
from clawrl.config import read_deployment
from clawrl.serving.browsers import BrowserRules
from clawrl.serving.config import ServingConfig
from clawrl.serving.openapi import description
from tests.ingress_kit import Coordinator, Ingress

LAPTOP = Path(__file__).resolve().parent.parent / "deployments" / "laptop.yaml"
RULES = BrowserRules.of(None, ("box.lan", "ui.lan:3000", "[fd00::5]:8000"))
LOCAL = "127.0.0.1:8000"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:8000", "127.8.9.1:1", "[::1]:8000", "[::1]", "localhost", "LOCALHOST:8000",
        "localhost.:80", "app.localhost:8000", "192.168.1.7:8000", "0.0.0.0:8000", "box.lan", "Box.LAN:9000",
        "box.lan.", "ui.lan:3000",
    ],
)  # fmt: skip
def test_a_request_for_an_address_for_localhost_or_for_a_name_of_the_list_is_answered(method: str, host: str) -> None:
    assert RULES.refusal(method, "/clawrl/pause", {"host": host}) is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example",
        "127.1", "2130706433", "ui.lan", "ui.lan:3001", "sub.box.lan", "box.lan.evil.example",
        "", "localhost:80@evil.example", "localhost/evil.example", "evil.example#localhost", "[::1]evil.example", ".",
        "localhost:8000 evil.example", "host.docker.internal:8000",
    ],
)  # fmt: skip
def test_a_request_for_any_other_name_is_refused_and_told_the_remedy(method: str, host: str) -> None:
    refused = RULES.refusal(method, "/v1/chat/completions", {"host": host})
    assert refused is not None and (refused.status, refused.code) == (403, "host_not_allowed")
    assert "serving.allowed_hosts" in refused.message and "serving.api_key" in refused.message
    assert repr(host)[:70] in refused.message


FROM_ELSEWHERE = [
    {"host": LOCAL, "sec-fetch-site": "cross-site", "origin": "https://evil.example"},
    {"host": LOCAL, "sec-fetch-site": "cross-site"},
    {"host": LOCAL, "sec-fetch-site": "cross-site", "origin": "null"},
    {"host": LOCAL, "sec-fetch-site": "same-site", "origin": "http://127.0.0.1:3000"},
    {"host": LOCAL, "sec-fetch-site": "something-new", "origin": "http://127.0.0.1:8000"},
    # Of older browsers, and of all where the connection is not trusted.
    {"host": LOCAL, "origin": "https://evil.example"},
    {"host": LOCAL, "origin": "null"},
    {"host": LOCAL, "origin": "file://"},
    {"host": LOCAL, "origin": ""},
    {"host": LOCAL, "origin": "http://127.0.0.1:3000"},
    {"host": LOCAL, "origin": "http://127.0.0.1"},
    {"host": "localhost", "origin": "http://localhost:8000"},
    {"host": "localhost:8000", "origin": "http://127.0.0.1:8000"},
    {"host": "box.lan:8000", "origin": "http://ui.lan"},
    {"host": "box.lan:8000", "origin": "http://ui.lan:3001"},
    {"host": "box.lan:8000", "origin": "http://box.lan@evil.example"},
    {"origin": "https://evil.example"},
]


@pytest.mark.parametrize("headers", FROM_ELSEWHERE, ids=lambda headers: " ".join(headers.values()))
def test_what_a_page_of_another_origin_sends_is_refused_where_it_may_change_something(headers: dict[str, str]) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "STRANGE"):
        refused = RULES.refusal(method, "/clawrl/forget", headers)
        assert refused is not None and (refused.status, refused.code) == (403, "cross_site_request")
        assert "serving.allowed_hosts" in refused.message and "serving.api_key" in refused.message
    # A link from elsewhere to the console, say; a page cannot read what it is answered.
    assert RULES.refusal("GET", "/console/", headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": LOCAL},
        {"host": LOCAL, "content-type": "application/x-www-form-urlencoded"},
        {"host": LOCAL, "content-type": "text/plain"},
        {"host": LOCAL, "sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8000"},
        {"host": LOCAL, "sec-fetch-site": "none"},
        {"host": LOCAL, "sec-fetch-site": "none", "origin": "chrome-extension://abc"},
        # A proxy that ends TLS and changes the host.
        {"host": LOCAL, "sec-fetch-site": "same-origin", "origin": "https://models.example"},
        {"host": LOCAL, "origin": "http://127.0.0.1:8000"},
        {"host": "localhost", "origin": "http://LOCALHOST"},
        {"host": "box.lan", "origin": "https://box.lan"},
        {"host": "localhost:443", "origin": "https://localhost"},
        {"host": LOCAL, "sec-fetch-site": "cross-site", "origin": "http://ui.lan:3000"},
        {"host": LOCAL, "sec-fetch-site": "cross-site", "origin": "https://box.lan"},
        {"host": LOCAL, "origin": "http://[fd00::5]:8000"},
    ],
    ids=lambda headers: " ".join(headers.values()) or "nothing",
)
def test_what_no_browser_sent_or_a_page_of_ours_is_let_through_whatever_its_type(headers: dict[str, str]) -> None:
    assert RULES.refusal("POST", "/clawrl/forget", headers) is None


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, *FROM_ELSEWHERE], ids=lambda h: " ".join(h.values()))
def test_with_a_key_the_key_alone_decides(headers: dict[str, str]) -> None:
    assert BrowserRules.of("secret", ()).refusal("POST", "/clawrl/forget", headers) is None


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_ask_under_whatever_name(path: str) -> None:
    assert RULES.refusal("GET", path, {"host": "evil.example", "sec-fetch-site": "cross-site"}) is None


@pytest.mark.parametrize("host", ["http://box.lan", "box.lan/", "*.lan", "", "a b", "box.lan:port", "me@box.lan"])
def test_what_is_no_host_is_refused_at_the_start_with_how_to_write_one(host: str) -> None:
    with pytest.raises(ValidationError, match=r"allowed_hosts[\s\S]*is no host; write a name as in box.lan"):
        ServingConfig(served_name="m", allowed_hosts=(host,))


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    """The laptop's deployment, without a key, and what its coordinator was asked."""
    made = Ingress(read_deployment(LAPTOP), None, None)
    made._coordinator = known = Coordinator()
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(servable_object=made))
    yield known


def _ask(method: str, path: str, *, base: str = "http://127.0.0.1:8000", **sent: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=served.api, root_path=sent.pop("prefix", ""), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return await client.request(method, path, **sent)

    return asyncio.run(send())


def _routes() -> list[tuple[str, str]]:
    """All that are described, which are all that there are (tests/test_openapi.py), and what is not described."""
    paths = description("m")["paths"].items()
    described = [(method.upper(), re.sub("{[^}]*}", "x", path)) for path, methods in paths for method in methods]
    return [*described, *(("GET", path) for path in ("/console", "/console/", "/openapi.json", "/no/such"))]


def test_no_route_that_reads_or_acts_is_reached_under_another_name(laptop: Coordinator) -> None:
    routes = [(m, p) for m, p in _routes() if p not in ("/healthz", "/readyz")]
    assert len(routes) > 20 and ("POST", "/clawrl/sessions/x/done") in routes
    for method, path in routes:
        answer = _ask(method, path, base="http://evil.example")
        assert answer.status_code == 403 and "serving.allowed_hosts" in answer.text, (method, path)
    assert laptop.asked == []
    assert _ask("GET", "/healthz", base="http://evil.example").status_code == 200


def test_no_route_that_acts_is_reached_from_another_page_and_the_error_speaks_the_dialect(laptop: Coordinator) -> None:
    page = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
    acting = [path for method, path in _routes() if method == "POST"]
    assert len(acting) >= 11
    for path in acting:
        answer = _ask("POST", path, content='{"user": "local", "session_id": "x", "score": 1}', headers=page)
        assert answer.status_code == 403 and answer.headers["x-request-id"], path
        assert (answer.json().get("type") == "error") == path.startswith("/v1/messages")
    assert laptop.asked == []


def test_a_form_as_curl_sends_it_is_answered_and_so_is_the_page_itself(laptop: Coordinator) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert _ask("POST", "/clawrl/pause", content='{"reason": "a"}', headers=form).status_code == 200
    page = {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
    assert _ask("POST", "/clawrl/pause", json={}, headers=page).status_code == 200
    assert [method for method, _ in laptop.asked] == ["pause", "pause"]


def test_a_probe_below_a_prefix_is_a_probe(laptop: Coordinator) -> None:
    ask = {"base": "http://pod.name", "prefix": "/policy"}
    assert _ask("GET", "/policy/healthz", **ask).status_code == 200
    assert _ask("GET", "/policy/v1/models", **ask).status_code == 403


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "POST"])
def test_no_page_of_another_origin_is_ever_told_that_it_may_read_an_answer(laptop: Coordinator, method: str) -> None:
    asked = {"Origin": "http://127.0.0.1:3000", "Access-Control-Request-Method": "POST"}
    for _, path in _routes():
        answer = _ask(method, path, headers=asked | {"Access-Control-Request-Headers": "authorization"})
        assert [name for name in answer.headers if name.startswith("access-control")] == [], path

"""A graph without a key behind Serve's own proxy: what a web page may have sent does not get through it either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.live import Live, free_port, tiny_deployment

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture
def graph(tiny_folder: Path) -> Iterator[Live]:
    keyless = {"serving__api_key": None, "serving__allowed_hosts": ["host.docker.internal"]}
    with Live(tiny_deployment(tiny_folder, free_port(), **keyless)) as live:
        yield live


def test_a_server_without_a_key_answers_its_user_and_no_web_page(graph: Live) -> None:
    with httpx.Client(base_url=graph.url, timeout=60.0, trust_env=False) as client:
        page = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
        for path in ("/clawrl/pause", "/clawrl/forget", "/clawrl/rollback", "/v1/chat/completions"):
            assert client.post(path, content='{"user": "local"}', headers=page).status_code == 403, path
        for path in ("/console/", "/clawrl/turns", "/v1/models", "/openapi.json"):
            rebound = client.get(path, headers={"Host": f"evil.example:{graph.port}"})
            assert rebound.status_code == 403 and "serving.allowed_hosts" in rebound.text, path
            for host in (f"localhost:{graph.port}", f"10.1.2.3:{graph.port}", f"host.docker.internal:{graph.port}"):
                assert client.get(path, headers={"Host": host}).status_code == 200, (path, host)
        for path in ("/healthz", "/readyz", "/-/healthz"):
            assert client.get(path, headers={"Host": "pod.name"}).status_code == 200, path
        assert client.get("/clawrl/status").json()["paused"] is False
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert client.post("/clawrl/pause", content='{"reason": "mine"}', headers=form).status_code == 200
        assert client.get("/clawrl/status").json()["paused"] is True

"""A running graph under what the world sends: many sessions, clients that vanish, requests that make no sense."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from clawrl.evaluation.demo_server import role_of
from tests.clients import CACHE
from tests.live import AUTH, KEY, MODEL, Live, free_port, tiny_deployment
from tests.malformed import malformed
from tests.test_fuzz_bodies import HAND_WRITTEN
from tests.tool_model import CONTEXT_LENGTH, build_tool_model
from tests.traffic import ask

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]
ROLES = ("Ingress", "Rollout", "ProxyActor", "CoordinatorActor")
SESSIONS, WARM = 10_000, 2_000
MOST_GROWTH_MB = 64


@pytest.fixture(scope="module")
def graph() -> Iterator[Live]:
    file = tiny_deployment(
        build_tool_model(CACHE / "models"),
        free_port(),
        judge__verdict={"kind": "tests.silent_judge:abstains"},
        policy__engine__context_length=CONTEXT_LENGTH,
        policy__engine__kv_blocks=256,
        policy__engine__max_running_requests=16,
        serving__sampling={"temperature": 0.3, "max_tokens": 60},
        ledger__idle_timeout_s=20,
    )
    with Live(file) as deployment:
        yield deployment


def sizes(graph: Live) -> dict[str, tuple[float, int]]:
    """Memory in MB and open handles, by role."""
    found: dict[str, tuple[float, int]] = {}
    for process in graph.processes():
        try:
            role = role_of(process.cmdline())
            if role in ROLES:
                found[role] = (process.memory_info().rss / 2**20, process.num_fds())
        except psutil.Error:
            continue
    assert set(found) == set(ROLES), found
    return found


async def one_turn_each(graph: Live, numbers: range) -> None:
    async with aiohttp.ClientSession(headers=AUTH, connector=aiohttp.TCPConnector(limit=16)) as client:
        left = iter(numbers)

        async def talk() -> None:
            for number in left:
                body = {"model": MODEL, "messages": [{"role": "user", "content": f"hello {number}"}], "max_tokens": 8}
                headers = {"X-Session-Id": f"once-{number}"}
                async with client.post(f"{graph.url}/v1/chat/completions", json=body, headers=headers) as reply:
                    assert reply.status == 200, await reply.text()

        await asyncio.gather(*(talk() for _ in range(16)))


def test_ten_thousand_sessions_that_nobody_closes_leave_memory_and_handles_flat(graph: Live) -> None:
    asyncio.run(one_turn_each(graph, range(WARM)))
    before = sizes(graph)
    asyncio.run(one_turn_each(graph, range(WARM, SESSIONS)))
    after = sizes(graph)
    print(before, after)
    for role in ROLES:
        assert after[role][0] - before[role][0] < MOST_GROWTH_MB, (role, before[role], after[role])
        assert after[role][1] - before[role][1] < 20, (role, before[role], after[role])
    status = graph.wait_for(lambda s: s["turns"].get("awaiting_next", 0) == 0, timeout_s=120, what="all went idle")
    assert status["turns"]["adds_up"] and status["turns"]["recorded"] >= SESSIONS


def test_two_hundred_clients_that_vanish_take_no_slot_along(graph: Live) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "RUN: LONG"}], "max_tokens": 2000}
    for number in range(200):
        body = json.dumps(asked | {"stream": number % 8 < 4})
        sent = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        with socket.create_connection(("127.0.0.1", graph.port), timeout=30) as client:
            # Some are gone before they have said everything, some before the first byte, some in the middle.
            client.sendall(sent[: len(sent) // 2] if number % 4 == 0 else sent)
            if number % 8 == 1:
                client.recv(2000)
            elif number % 8 == 5:
                # Not streamed: nothing comes before all of it is there, so it leaves while it is being written.
                time.sleep(0.2)
    graph.wait_for(
        lambda s: all(r["running"] == r["waiting"] == 0 for r in s["replicas"]),
        timeout_s=60,
        what="no slot is taken",
    )
    assert ask(graph.client(), [{"role": "user", "content": "hello"}], stream=False, session=None).text


PATHS: Mapping[str, str] = {
    "/v1/chat/completions": "openai",
    "/v1/responses": "openai",
    "/v1/messages": "anthropic",
    "/v1/messages/count_tokens": "anthropic",
    "/v1/feedback": "openai",
}


def in_its_shape(body: Mapping[str, Any], shape: str) -> bool:
    """Whether this is an error as clients of the dialect read it."""
    error = body.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return False
    return body.get("type") == "error" if shape == "anthropic" else {"type", "param", "code"} <= set(error)


def test_malformed_bodies_are_refused_in_the_shape_of_the_dialect(graph: Live) -> None:
    async def run() -> dict[int, int]:
        counts: dict[int, int] = {}
        seeds = iter(range(10_000))
        async with aiohttp.ClientSession(headers=AUTH, connector=aiohttp.TCPConnector(limit=8)) as client:

            async def send() -> None:
                for seed in seeds:
                    path = list(PATHS)[seed % len(PATHS)]
                    raw = malformed(seed, HAND_WRITTEN).replace(b"served_name", MODEL.encode())
                    headers = {"Content-Type": "application/json"}
                    async with client.post(f"{graph.url}{path}", data=raw, headers=headers) as reply:
                        counts[reply.status] = counts.get(reply.status, 0) + 1
                        assert reply.status < 500, (seed, path, await reply.text())
                        if reply.status != 200:
                            assert in_its_shape(await reply.json(), PATHS[path]), (seed, path, await reply.text())
                        else:
                            await reply.read()

            await asyncio.gather(*(send() for _ in range(8)))
        return counts

    counts = asyncio.run(run())
    print(counts)
    assert counts[400] > 2_500


def test_schemathesis_finds_no_server_error(graph: Live, tmp_path: Path) -> None:
    # Random weights end an answer without a word now and then, which is a 502 and the only one.
    expected = "[checks.not_a_server_error]\nexpected-statuses = ['2xx', '3xx', '4xx', 502]\n"
    (tmp_path / "schemathesis.toml").write_text(expected)
    ran = subprocess.run(
        [
            str(Path(sys.executable).parent / "schemathesis"),
            "run",
            f"{graph.url}/openapi.json",
            *("--header", f"Authorization: Bearer {KEY}"),
            *("--checks", "not_a_server_error", "--max-examples", "60", "--seed", "1"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2400,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]

"""The whole graph on real SGLang: policy, judge and teacher; and what becomes of it when SGLang dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.live import GUARDS_FOR_RANDOM_WEIGHTS, Live, free_port, tiny_deployment
from tests.sglang_kit import SGLANG, needs_sglang
from tests.span_kit import spans_that_agree
from tests.teaching_kit import assert_a_comment_teaches
from tests.traffic import Traffic

pytestmark = needs_sglang


@pytest.fixture(scope="module")
def live(tiny_qwen3_folder: Path) -> Iterator[Live]:
    engine = {
        "kind": "sglang",
        "device": "cpu",
        "sglang": SGLANG,
        "dtype": "float32",
        "context_length": 512,
        "max_running_requests": 4,
        "kv_blocks": 128,
        "page_size": 64,
        "threads": 1,
    }
    file = tiny_deployment(
        tiny_qwen3_folder,
        free_port(),
        policy__engine=engine,
        judge__engine={**engine, "context_length": 1024},
        judge__hints={"source": "quoting", "reuse": "session"},
        trainer__method={"name": "combine", "baseline": "none"},
        publish__prepare_timeout_s=20,
        guards=GUARDS_FOR_RANDOM_WEIGHTS,
    )
    with Live(file) as deployment:
        yield deployment


def servers(live: Live) -> dict[int, psutil.Process]:
    """SGLang's main processes, which serve HTTP."""
    return {p.pid: p for p in live.processes() if _is_server(p)}


def _is_server(process: psutil.Process) -> bool:
    command = process.cmdline()
    # Its keeper names the command, too.
    return "sglang.launch_server" in command and not any("sglang_keeper" in part for part in command)


def server_of_the_policy(live: Live) -> psutil.Process:
    (replica,) = live.status()["replicas"]
    family = psutil.Process(replica["pid"]).children(recursive=True)
    (server,) = [p for p in family if _is_server(p)]
    return server


def test_it_serves_judges_teaches_learns_and_publishes(live: Live) -> None:
    with Traffic(live, users=3, pause_s=0.2) as traffic:
        status = live.wait_for(
            lambda s: s["version"] >= 3 and len({answer.version for answer in list(traffic.answers)}) > 1,
            timeout_s=150,
            what="three versions, and answers of two",
        )
    assert traffic.failures == [], live.complaints()
    assert len(traffic.answers) > 6
    assert 0 in {answer.version for answer in traffic.answers}
    assert status["turns"]["adds_up"] and status["replicas"][0]["sglang"]
    assert spans_that_agree(live, most=8) >= 2


def test_the_teacher_speaks_of_the_exact_response(live: Live) -> None:
    assert_a_comment_teaches(live)


@pytest.mark.parametrize("victim", ["SGLang", pytest.param("replica", marks=pytest.mark.nightly)])
def test_a_killed_one_is_replaced_catches_up_and_leaves_nothing_behind(live: Live, victim: str) -> None:
    status = live.status()
    (replica,) = status["replicas"]
    server = server_of_the_policy(live)
    family = [server, *server.children(recursive=True)]
    assert len(family) >= 3
    os.kill(server.pid if victim == "SGLang" else replica["pid"], signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == [], "no orphan"
    back = live.wait_for(
        lambda s: (
            [r["pid"] for r in s["replicas"]] not in ([], [replica["pid"]])
            and replica["pid"] not in [r["pid"] for r in s["replicas"]]
            and s["replicas"][0]["version"] == s["version"]
        ),
        timeout_s=150,
        what="another replica, which has caught up",
    )
    assert back["version"] >= status["version"]
    _until_answered(live)
    assert live.status()["turns"]["adds_up"]


def _until_answered(live: Live) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            reply = live.client().chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "tell me about plants"}], max_tokens=8
            )
            assert reply.choices[0].finish_reason in ("stop", "length")
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def test_a_stopped_deployment_leaves_no_sglang_behind(live: Live) -> None:
    assert len(servers(live)) >= 2
    assert live.stop() == []
    assert [
        p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("RAY_TMPDIR") == str(live.folder)
    ] == []

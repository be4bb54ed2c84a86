"""The demo as a whole, against a child process that plays the server."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import sys
import time
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from clawrl.check import CheckReport
from clawrl.evaluation import demo, demo_server
from clawrl.evaluation.demo_users import Record, UserPool, open_client
from clawrl.evaluation.simulated_user import HELD_OUT_QUESTIONS
from tests.fake_server import FakeState, fake_server

pytestmark = pytest.mark.timeout(120)
FAKE = [sys.executable, str(Path(__file__).with_name("fake_server.py"))]


@pytest.fixture
def console() -> Console:
    return Console(width=160, record=True, file=io.StringIO())


@pytest.fixture(autouse=True)
def _play_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_server, "_serve_command", lambda: FAKE)
    monkeypatch.setattr("clawrl.check.check_file", lambda file: CheckReport(file=file, problems=()))
    monkeypatch.setattr(demo, "_POLL_S", 0.05)
    monkeypatch.setattr(demo, "_SETTLE_S", 0.3)


def options(folder: Path, target_version: int = 12, **fake: object) -> demo.DemoOptions:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = folder / "fake.yaml"
    args = {"serving": {"api_key": None}}
    document = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [{"args": args}], "fake": fake}
    file.write_text(yaml.safe_dump(document))
    return demo.DemoOptions(
        deployment=file, output=folder / "out", users=3, target_version=target_version, time_limit_s=60.0
    )


def test_the_demo_passes_when_the_loop_closes_and_leaves_its_files(tmp_path: Path, console: Console) -> None:
    chosen = options(tmp_path, ready_after=2)
    code = demo.run_demo(chosen, console)
    shown = console.export_text()
    assert code == 0, shown
    figures = json.loads((chosen.output / "summary.json").read_text())
    assert figures["passed"] and figures["versions_published"] >= 12 and figures["failures"] == []
    assert figures["turns"]["recorded"] == figures["answers"] == figures["requests"]
    assert figures["held_out"]["before"]["answered"] == figures["held_out"]["after"]["answered"] == 12
    assert figures["memory_mb"] and figures["judge_agreement"]["share"] == 1.0
    assert {file.name for file in chosen.output.iterdir()} == {
        "learning.png", "summary.json", "turns.jsonl", "server.log"
    }  # fmt: skip
    assert "the loop closed" in shown and "/12  reward" in shown


@pytest.mark.parametrize(
    ("fake", "check"),
    [
        ({"lose_turns": 1}, "every answer is recorded"),
        ({"break_stream": True}, "no failed request"),
        ({"chat_status": 500}, "no failed request"),
    ],
)
def test_the_demo_fails_and_says_which_check_did(
    tmp_path: Path, console: Console, fake: dict[str, object], check: str
) -> None:
    chosen = options(tmp_path, target_version=4, **fake)
    assert demo.run_demo(chosen, console) == 1
    figures = json.loads((chosen.output / "summary.json").read_text())
    assert check in [entry["name"] for entry in figures["checks"] if not entry["passed"]]
    assert "NOT close" in console.export_text()
    assert (chosen.output / "home").is_dir(), "the state of a failed run is kept for a look"


def test_a_server_that_dies_at_once_is_told_with_its_last_words(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_server, "_serve_command", lambda: [sys.executable, "-c", "raise SystemExit('no luck')"])
    assert demo.run_demo(options(tmp_path), console) == 1
    assert "no luck" in console.export_text()


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path, console: Console) -> None:
    chosen = options(tmp_path)
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", yaml.safe_load(chosen.deployment.read_text())["http_options"]["port"]))
        squatter.listen()
        assert demo.run_demo(chosen, console) == 1
    assert "is taken" in console.export_text() and not (chosen.output / "server.log").exists()


def test_a_state_folder_that_is_not_ours_is_never_removed(tmp_path: Path, console: Console) -> None:
    chosen = options(tmp_path)
    (chosen.output / "home").mkdir(parents=True)
    (chosen.output / "home" / "thesis.txt").write_text("years of work")
    assert demo.run_demo(chosen, console) == 1
    assert (chosen.output / "home" / "thesis.txt").exists()


def test_a_process_that_outlives_its_parent_is_found_and_ended(tmp_path: Path) -> None:
    orphans = "['sh', '-c', 'sleep 300 & wait'], start_new_session=True"
    child = f"import subprocess, time; subprocess.Popen({orphans}); time.sleep(300)"
    server = demo_server.DemoServer(tmp_path / "x.yaml", tmp_path, tmp_path / "log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_server, "_serve_command", lambda: [sys.executable, "-c", child])
        patch.setattr(demo_server, "_STRAGGLERS_S", 0.5)
        server.start()
        deadline = time.monotonic() + 20
        while len(server.remember()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        left = server.stop()
    assert sorted(entry.split()[0] for entry in left) == ["sh", "sleep"]
    assert server._stragglers() == []


def test_held_out_questions_are_side_turns_and_goodbyes_end_sessions() -> None:
    state = FakeState()

    async def talk(url: str) -> Record:
        async with open_client(url, None) as client:
            pool = UserPool(client, "fake-model", Record(), users=2, questions=1, seed=0)
            await pool.ask_held_out(HELD_OUT_QUESTIONS[:3], "before")
            running = asyncio.create_task(pool.run())
            while pool.record.sessions_ended < 4:
                await asyncio.sleep(0.02)
            pool.stop()
            await running
            return pool.record

    with fake_server(state) as url:
        record = asyncio.run(talk(url))
    chats = [(headers, body) for _, path, headers, body in state.requests if path == "/v1/chat/completions"]
    assert record.failures == [] and len(record.answers) == record.requests == len(chats)
    side = [body["messages"][0]["content"] for headers, body in chats if headers.get("x-turn-type") == "side"]
    assert sorted(side) == sorted(HELD_OUT_QUESTIONS[:3])
    done = [headers["x-session-id"] for headers, _ in chats if headers.get("x-session-done")]
    assert len(done) == len(set(done)) >= 4
    goodbyes = [answer for answer in record.answers if answer.kind == "goodbye"]
    assert sorted(answer.session for answer in goodbyes) == sorted(done)
    assert all(answer.turn_id and answer.version is not None and answer.first_token_s for answer in record.answers)

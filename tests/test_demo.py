"""The demo as a whole, against a child process that plays the server."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from clawrl.check import CheckReport
from clawrl.cli import demonstrating
from clawrl.evaluation import demo, demo_server, live_graph
from clawrl.evaluation.demo_report import MOST_SECONDS
from clawrl.evaluation.demo_users import Record, UserPool, open_client
from clawrl.evaluation.measures import Measures
from clawrl.evaluation.observations import Observations
from clawrl.evaluation.preferences import ONE_SENTENCE
from clawrl.evaluation.simulated_user import HELD_OUT_QUESTIONS
from tests.fake_server import FakeState, fake_server
from tests.live import free_port

FAKE = [sys.executable, str(Path(__file__).with_name("fake_server.py"))]


@pytest.fixture
def console() -> Console:
    return Console(width=160, record=True, file=io.StringIO())


@pytest.fixture(autouse=True)
def _play_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_server, "_serve_command", lambda: FAKE)
    monkeypatch.setattr("clawrl.check.check_file", lambda file: CheckReport(file=file, problems=()))
    monkeypatch.setattr(live_graph, "POLL_S", 0.05)
    monkeypatch.setattr(live_graph, "SETTLE_S", 0.3)

    async def measure(deployment: Path, home: Path, seen: Observations) -> None:
        # The stand-in keeps no ledger; measuring has tests of its own.
        seen.start = seen.end = Measures(turns=16, tokens=9.0, fluency=-1.5, lift=0.4, kl=0.01)

    monkeypatch.setattr(demo, "_measure", measure)


def options(folder: Path, sessions: int = 48, **fake: object) -> demo.DemoOptions:
    file = folder / "fake.yaml"
    args = {"serving": {"api_key": None}}
    document = {
        "http_options": {"host": "127.0.0.1", "port": free_port()},
        "applications": [{"args": args}],
        "fake": fake,
    }
    file.write_text(yaml.safe_dump(document))
    return demo.DemoOptions(deployment=file, output=folder / "out", users=3, sessions=sessions, time_limit_s=200.0)


def test_the_demo_passes_when_the_policy_learns_and_leaves_its_files(tmp_path: Path, console: Console) -> None:
    chosen = options(tmp_path, ready_after=2, learns_after=70)
    code = demo.run_demo(chosen, console)
    shown = console.export_text()
    assert code == 0, shown
    figures = json.loads((chosen.output / "summary.json").read_text())
    assert figures["passed"] and figures["versions_published"] >= 12 and figures["failures"] == []
    assert figures["turns"]["recorded"] == figures["answers"] == figures["requests"]
    assert figures["held_out"]["before"]["answered"] == figures["held_out"]["after"]["answered"] == 12
    assert (
        len([line for line in (chosen.output / "turns.jsonl").read_text().splitlines() if '"first": true' in line])
        == 48
    )
    assert [block["accepted_share"] for block in figures["first_answers"]["blocks"]] == [
        0.0,
        pytest.approx(0.4, abs=0.4),
        1.0,
    ]
    assert figures["memory_mb"] and figures["judge_agreement"]["share"] == 1.0
    assert {file.name for file in chosen.output.iterdir()} == {
        "learning.png", "summary.json", "turns.jsonl", "server.log"
    }  # fmt: skip
    assert "the loop closed" in shown and "it learned" in shown and "/48  version" in shown


def test_a_demo_that_cannot_measure_its_answers_still_writes_its_report(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def measure(deployment: Path, home: Path, seen: Observations) -> None:
        raise live_graph.RunProblem("the run cannot be measured: turn t7 is odd")

    monkeypatch.setattr(demo, "_measure", measure)
    chosen = options(tmp_path, sessions=12)
    assert demo.run_demo(chosen, console) == 1
    figures = json.loads((chosen.output / "summary.json").read_text())
    told = {entry["name"]: entry["detail"] for entry in figures["checks"] if not entry["passed"]}
    assert told["measured"] == "the run cannot be measured: turn t7 is odd"
    assert (chosen.output / "learning.png").exists() and (chosen.output / "home").is_dir()


def test_twelve_minutes_leave_room_around_the_talking() -> None:
    # Starting, the held-out questions, stopping and measuring took up to 150 s of a run on two cores.
    assert demo.DemoOptions(deployment=Path("x"), output=Path("y")).time_limit_s + 240 <= MOST_SECONDS
    assert inspect.signature(demonstrating.demo).parameters["time_limit"].default == 480.0


def test_a_policy_that_does_not_learn_fails_the_demo_though_the_loop_closed(tmp_path: Path, console: Console) -> None:
    chosen = options(tmp_path)
    assert demo.run_demo(chosen, console) == 1
    shown = console.export_text()
    assert "the loop closed" in shown and "it did NOT learn" in shown


def test_the_demo_stops_at_a_version_or_after_a_time_if_it_is_told_to(tmp_path: Path, console: Console) -> None:
    at_version = replace(options(tmp_path, sessions=10_000), target_version=5)
    demo.run_demo(at_version, console)
    figures = json.loads((at_version.output / "summary.json").read_text())
    assert figures["ended"] == "version 5 was reached" and figures["versions_published"] >= 5
    in_time = replace(options(tmp_path, sessions=10_000), time_limit_s=0.5)
    demo.run_demo(in_time, console)
    assert json.loads((in_time.output / "summary.json").read_text())["ended"] == "time limit"


def test_the_demo_stops_and_says_why_when_an_alarm_pauses_training(tmp_path: Path, console: Console) -> None:
    chosen = options(tmp_path, sessions=10_000, paused="answers are too short")
    assert demo.run_demo(chosen, console) == 1
    assert "talking ended: training was paused: answers are too short" in console.export_text()


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
    chosen = options(tmp_path, sessions=12, **fake)
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
        deadline = time.monotonic() + 120
        while len(server.remember()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        left = server.stop()
    assert sorted(entry.split()[0] for entry in left) == ["sh", "sleep"]
    assert server._stragglers() == []


def test_held_out_questions_are_side_turns_and_goodbyes_end_sessions() -> None:
    state = FakeState()

    async def talk(url: str) -> Record:
        async with open_client(url, None) as client:
            pool = UserPool(
                client, "fake-model", Record(), ONE_SENTENCE, users=2, sessions=5, seed=0, system="Be kind."
            )
            await pool.ask_aside(HELD_OUT_QUESTIONS[:3], "held_out", "before")
            await pool.run()
            return pool.record

    with fake_server(state) as url:
        record = asyncio.run(talk(url))
    chats = [(headers, body) for _, path, headers, body in state.requests if path == "/v1/chat/completions"]
    assert record.failures == [] and len(record.answers) == record.requests == len(chats)
    assert all(body["messages"][0] == {"role": "system", "content": "Be kind."} for _, body in chats)
    side = [body["messages"][1]["content"] for headers, body in chats if headers.get("x-turn-type") == "side"]
    assert sorted(side) == sorted(HELD_OUT_QUESTIONS[:3])
    done = [headers["x-session-id"] for headers, _ in chats if headers.get("x-session-done")]
    assert len(done) == len(set(done)) == record.sessions_begun == record.sessions_ended == 5
    assert [answer.session_number for answer in record.first_answers()] == [1, 2, 3, 4, 5]
    assert all(answer.message == answer.question for answer in record.first_answers())
    goodbyes = [answer for answer in record.answers if answer.kind == "goodbye"]
    assert sorted(answer.session for answer in goodbyes) == sorted(done)
    assert all(answer.turn_id and answer.version is not None and answer.first_token_s for answer in record.answers)

"""The `clawrl` command against a fake server: what it prints, what it sends, how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from clawrl import cli
from tests.cli_kit import run
from tests.fake_server import FakeState, fake_server


@pytest.fixture(autouse=True)
def _wide_consoles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLAWRL_API_KEY", raising=False)
    monkeypatch.delenv("CLAWRL_URL", raising=False)
    monkeypatch.setattr(cli.console, "_width", 160, raising=False)


def test_status_shows_version_turns_replicas_and_holds() -> None:
    state = FakeState(turns=[{"turn_id": "a"}] * 9)
    with fake_server(state) as url:
        result = run("status", "--url", url)
    assert result.exit_code == 0, result.output
    for piece in ("policy version 2", "recorded", "trained", "abc", "p95 2.0 ms", "side 1", "learning"):
        assert piece in result.output


def test_status_as_json_is_the_servers_own_object() -> None:
    state = FakeState(turns=[{"turn_id": "a"}] * 9)
    with fake_server(state) as url:
        result = run("status", "--url", url, "--json")
        assert json.loads(result.output) == state.status()


def test_status_says_when_counts_do_not_add_up_and_when_learning_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    lying = FakeState(paused="maintenance").status()
    lying["turns"]["adds_up"] = False
    lying["unrecorded"] = 3
    monkeypatch.setattr(FakeState, "status", lambda self: lying)
    with fake_server(FakeState()) as url:
        output = run("status", "--url", url).output
    assert "do not add up" in output and "maintenance" in output and "3 answers could not be recorded" in output


def test_status_shows_how_healthy_recent_answers_are_and_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = FakeState().status()
    watched["guards"] = {
        "figures": {"mean_tokens": 3.5, "baseline_mean_tokens": 51.25},
        "good_version": 7,
        "alarm": {"name": "mean_tokens", "reason": "too short; `clawrl resume` goes on", "version": 9},
    }
    monkeypatch.setattr(FakeState, "status", lambda self: watched)
    with fake_server(FakeState()) as url:
        output = run("status", "--url", url).output
    for piece in ("mean tokens", "3.50", "51.25", "last good version: 7", "ALARM mean_tokens", "clawrl resume"):
        assert piece in output


def test_status_shows_how_old_samples_were_and_what_the_trainer_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told = FakeState().status()
    told["staleness"] = {"max_steps": 8, "limit": 32, "lag": {"0": 41, "11": 5}, "of_steps": 6, "dropped": 17}
    told["trainer"]["waits"] = "until 22:00 (Europe/Berlin)"
    monkeypatch.setattr(FakeState, "status", lambda self: told)
    with fake_server(FakeState()) as url:
        output = run("status", "--url", url).output
    for piece in ("optimizer steps behind", "41", "11", "over 6 steps; 17 dropped beyond 32"):
        assert piece in output
    assert "running, waits until 22:00 (Europe/Berlin)" in output


@pytest.mark.parametrize("command", [["status"], ["pause"], ["resume"], ["chat"]])
def test_an_unreachable_server_is_one_clear_line_and_exit_code_1(command: list[str]) -> None:
    result = run(*command, "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert len(result.output.strip().splitlines()) == 1
    assert "no server answers at http://127.0.0.1:9" in result.output and "serve run" in result.output


def test_a_wrong_key_is_told_and_a_right_one_from_the_environment_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server(FakeState(api_key="secret")) as url:
        refused = run("status", "--url", url, "--api-key", "guess")
        assert refused.exit_code == 1 and "CLAWRL_API_KEY" in refused.output
        monkeypatch.setenv("CLAWRL_API_KEY", "secret")
        monkeypatch.setenv("CLAWRL_URL", url)
        assert run("status").exit_code == 0


def test_wait_ready_tells_what_is_missing_and_returns_when_nothing_is() -> None:
    with fake_server(FakeState(ready_after=2)) as url:
        result = run("wait-ready", "--url", url, "--poll", "0.05")
    assert result.exit_code == 0
    assert "waiting for judge, coordinator" in result.output and f"ready: {url}" in result.output


def test_wait_ready_gives_up_with_exit_code_1_and_the_names_of_what_is_missing() -> None:
    with fake_server(FakeState(ready_after=10**6)) as url:
        result = run("wait-ready", "--url", url, "--timeout", "0.2", "--poll", "0.05")
        assert result.exit_code == 1 and "still missing: judge, coordinator" in result.output
    result = run("wait-ready", "--url", "http://127.0.0.1:9", "--timeout", "0", "--poll", "0.05")
    assert result.exit_code == 1 and "still missing: server" in result.output


def test_pause_carries_its_reason_and_resume_undoes_it() -> None:
    state = FakeState()
    with fake_server(state) as url:
        assert run("pause", "--url", url, "--reason", "backup").exit_code == 0
        assert state.paused == "backup"
        assert run("resume", "--url", url).exit_code == 0
        assert state.paused is None


def test_chat_streams_answers_keeps_one_session_and_names_the_version() -> None:
    state = FakeState(turns=[{"turn_id": "a"}] * 9)
    with fake_server(state) as url:
        result = run("chat", "--url", url, "--session", "mine", text="hello\n\nagain\n/quit\nnever sent\n")
    assert result.exit_code == 0, result.output
    assert "policy v2" in result.output and "Rain is" in result.output
    chats = [(headers, body) for _, path, headers, body in state.requests if path == "/v1/chat/completions"]
    assert [headers["x-session-id"] for headers, _ in chats] == ["mine", "mine"]
    assert [message["role"] for message in chats[1][1]["messages"]] == ["user", "assistant", "user"]
    assert chats[1][1]["messages"][-1]["content"] == "again" and chats[1][1]["stream"] is True


def test_chat_reports_a_refused_message_and_does_not_keep_it() -> None:
    state = FakeState(chat_status=429)
    with fake_server(state) as url:
        result = run("chat", "--url", url, text="one\ntwo\n/quit\n")
    assert result.exit_code == 0 and "not today" in result.output
    bodies = [body for _, path, _, body in state.requests if path == "/v1/chat/completions"]
    assert [len(body["messages"]) for body in bodies] == [1, 1], "no retry and no leftover history"


def valid_file(folder: Path, **changes: str) -> Path:
    """The laptop deployment with ``old=new`` replacements, each of which must hit."""
    text = Path("deployments/laptop.yaml").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new, 1)
    file = folder / "file.yaml"
    file.write_text(text)
    return file


def table_rows(output: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line]
    return {row[0]: row[1:4] for row in cells if row and row[0]}


def test_check_of_the_laptop_shows_what_each_actor_needs_and_the_total() -> None:
    result = run("check", "deployments/laptop.yaml")
    assert result.exit_code == 0, result.output
    rows = table_rows(result.output)
    assert rows.keys() >= {"Ingress", "Rollout", "Judge", "Supervisor", "Coordinator", "Trainer"}
    assert float(rows["total"][1]) <= 2 and rows["total"][2] == "0"


def test_check_of_openclaw_shows_eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_API_KEY", "x")
    result = run("check", "deployments/openclaw.yaml")
    assert result.exit_code == 0, result.output
    rows = table_rows(result.output)
    assert [rows[name][2] for name in ("Rollout", "Judge", "Trainer", "total")] == ["2", "2", "1", "8"]


def test_check_lets_the_serve_part_override_replicas_and_resources(tmp_path: Path) -> None:
    file = valid_file(tmp_path)
    overrides = [
        {"name": "Rollout", "autoscaling_config": {"min_replicas": 1, "max_replicas": 3}},
        {"name": "Judge", "num_replicas": 2, "ray_actor_options": {"num_cpus": 4, "num_gpus": 1}},
        {"name": "Ingress", "placement_group_bundles": [{"CPU": 2}, {"CPU": 1, "GPU": 0.5}]},
    ]
    document = yaml.safe_load(file.read_text())
    document["applications"][0]["args"]["policy"]["resources"] = {"num_cpus": 2}
    document["applications"][0]["args"]["trainer"]["resources"] = {"num_cpus": 1}
    document["applications"][0]["deployments"] = overrides
    file.write_text(yaml.safe_dump(document))
    rows = table_rows(run("check", str(file)).output)
    assert rows["Rollout"] == ["1-3", "2", "0"]
    assert rows["Judge"] == ["2", "4", "1"]
    assert rows["Ingress"] == ["1", "3", "0.5"]
    assert rows["total"][1:] == ["14-18", "2.5"]


def test_check_refuses_an_override_of_a_deployment_that_the_graph_does_not_have(tmp_path: Path) -> None:
    file = valid_file(tmp_path, **{"route_prefix: /": "route_prefix: /\n    deployments: [{name: Rolout}]"})
    result = run("check", str(file))
    assert result.exit_code == 1
    assert "applications[0].deployments[0].name: no deployment is called 'Rolout'; did you mean 'Rollout'?" in (
        result.output
    )


def test_check_refuses_parts_that_do_not_fit_together(tmp_path: Path) -> None:
    file = valid_file(tmp_path)
    document = yaml.safe_load(file.read_text())
    document["applications"][0]["args"]["policy"]["engine"] |= {"kv_blocks": 2, "page_size": 16}
    file.write_text(yaml.safe_dump(document))
    result = run("check", str(file))
    assert result.exit_code == 1 and "args.policy.engine: the cache holds" in result.output


def test_check_names_the_path_of_a_misspelt_key_of_ours_and_suggests_the_right_one(tmp_path: Path) -> None:
    result = run("check", str(valid_file(tmp_path, batch_size="batchsize")))
    assert result.exit_code == 1
    assert "applications[0].args.trainer.training.batchsize: unknown key; did you mean 'batch_size'?" in result.output


def test_check_refuses_a_key_that_serve_would_ignore_in_silence(tmp_path: Path) -> None:
    result = run("check", str(valid_file(tmp_path, request_timeout_s="request_timeout")))
    assert result.exit_code == 1
    assert "http_options.request_timeout: Ray Serve has no such key" in result.output
    assert "did you mean 'request_timeout_s'?" in result.output


def test_check_refuses_an_open_door(tmp_path: Path) -> None:
    missing = valid_file(tmp_path, **{"host:": "root_path:", "127.0.0.1": "/x"})
    assert "http_options.host: not set" in run("check", str(missing)).output
    result = run("check", str(valid_file(tmp_path, **{"127.0.0.1": "0.0.0.0"})))
    assert result.exit_code == 1 and "args.serving.api_key: not set while" in result.output


def test_check_refuses_to_serve_under_a_name_that_would_be_refused(tmp_path: Path) -> None:
    def checked(**replaced: str) -> Result:
        return run("check", str(valid_file(tmp_path, **{"127.0.0.1": "box.lan", **replaced})))

    found = checked()
    assert found.exit_code == 1 and "args.serving.allowed_hosts: lacks http_options.host" in found.output
    for allowed in ("allowed_hosts: [Box.LAN]", "allowed_hosts: ['box.lan:8000']", "api_key: secret"):
        other = checked(**{"served_name:": f"{allowed}\n        served_name:"})
        assert "allowed_hosts" not in other.output, other.output
    another_port = checked(**{"served_name:": "allowed_hosts: ['box.lan:9000']\n        served_name:"})
    assert another_port.exit_code == 1 and "lacks http_options.host" in another_port.output
    no_list = checked(**{"served_name:": "allowed_hosts: 5\n        served_name:"})
    assert no_list.exit_code == 1 and "allowed_hosts" in no_list.output and isinstance(no_list.exception, SystemExit)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1, 2", "line"),
        ("- 1", "top level"),
        ("applications: []", "none is ours"),
        ("{}", "applications: missing; add it"),
        ("applications: [{name: a, import_path: no-colon}]", "applications[0].import_path"),
    ],
)
def test_check_turns_every_kind_of_broken_file_into_a_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    result = run("check", str(file))
    assert result.exit_code == 1 and expected in result.output and "Traceback" not in result.output


def test_check_of_a_missing_file_says_so() -> None:
    result = run("check", "no/such/file.yaml")
    assert result.exit_code == 1 and "cannot be read" in result.output

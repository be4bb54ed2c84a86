"""`clawrl contract` on a user's code, `clawrl calibrate` on a deployment's judge, `clawrl feedback`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from clawrl import cli
from clawrl.messages import Turn
from tests.cli_kit import run
from tests.fake_server import FakeState, fake_server
from tests.live import tiny_deployment


@pytest.fixture(autouse=True)
def _wide_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.console, "_width", 160, raising=False)


def lets_all_pass(turn: Turn) -> str | None:
    return None


def says_too_much(turn: Turn) -> int:
    return len(turn.response_ids)


def test_contract_of_a_good_filter_is_kept() -> None:
    result = run("contract", "filter", f"{__name__}:lets_all_pass")
    assert result.exit_code == 0 and "kept" in result.output and "BROKEN" not in result.output


def test_contract_of_a_bad_filter_says_what_is_broken() -> None:
    result = run("contract", "filter", f"{__name__}:says_too_much")
    assert result.exit_code == 1 and "BROKEN" in result.output and "return the reason" in result.output


def test_contract_of_nothing_is_one_clear_line() -> None:
    result = run("contract", "filter", f"{__name__}:nothing_like_it")
    assert result.exit_code == 1 and "nothing_like_it" in result.output and "Traceback" not in result.output


def test_calibrate_reports_on_the_judge_of_a_deployment(tmp_path: Path, tiny_folder: Path) -> None:
    file, cases = tmp_path / "tiny.yaml", tmp_path / "cases.jsonl"
    document = tiny_deployment(tiny_folder, 8000)
    document["applications"][0]["args"]["serving"]["api_key"] = None
    file.write_text(yaml.safe_dump(document))
    case = {"request": "hello", "response": "hi", "evidence": "thanks, that is good", "label": 1}
    cases.write_text("".join(json.dumps({**case, "label": label}) + "\n" for label in (1, -1)))
    result = run("calibrate", str(cases), "--deployment", str(file), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    # One text with both labels: whatever the judge says is right for exactly one of them.
    assert (report["cases"], report["scored"], report["accuracy"]) == (2, 2, 0.5)


@pytest.mark.parametrize("text", ['{"request": "hello"}\n', ""])
def test_calibrate_names_what_is_wrong_with_the_cases(tmp_path: Path, text: str) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text(text)
    result = run("calibrate", str(cases))
    assert result.exit_code == 1 and "cases.jsonl" in result.output and "Traceback" not in result.output


def test_feedback_is_sent_as_it_was_meant() -> None:
    state = FakeState()
    with fake_server(state) as url:
        result = run("feedback", "--url", url, "--session", "mine", "--comment", "Shorter.", "--", "-0.5")
    assert result.exit_code == 0, result.output
    (sent,) = [body for method, path, _, body in state.requests if (method, path) == ("POST", "/v1/feedback")]
    assert sent == {"session_id": "mine", "score": -0.5, "comment": "Shorter."}
    assert "will be learned from" in result.output


def test_feedback_without_an_answer_to_speak_of_is_refused_before_anything_is_sent() -> None:
    result = run("feedback", "1")
    assert result.exit_code == 1 and "--turn or --session" in result.output

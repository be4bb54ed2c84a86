"""`clawrl status --watch` before a server that is real but for Ray and the model behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clawrl import cli
from tests.office import talk
from tests.operator_house import House, house

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(cli.console, "_width", 160, raising=False)
    with house(tmp_path / "state", monkeypatch) as made:
        yield made


@pytest.fixture
def pauses(home: House, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """In the first one something is said, in the second one the operator has seen enough."""
    seen: list[float] = []

    def sleep(seconds: float) -> None:
        seen.append(seconds)
        if len(seen) == 2:
            raise KeyboardInterrupt
        home.do(talk(home.coordinator, 3))

    monkeypatch.setattr("clawrl.cli.watching.time.sleep", sleep)
    return seen


def test_watching_shows_what_changes_until_it_is_interrupted(pauses: list[float]) -> None:
    result = CliRunner().invoke(cli.app, ["status", "--watch", "--every", "7"])
    assert result.exit_code == 0, result.output
    # A panel that is not on a terminal is shown as it is when the watching ends.
    assert pauses == [7.0, 7.0] and "awaiting_next" in result.output.replace(" ", "_")


def test_watching_as_json_is_a_line_for_each_refresh(pauses: list[float]) -> None:
    result = CliRunner().invoke(cli.app, ["status", "--watch", "--json", "--every", "0.1"])
    assert result.exit_code == 0, result.output
    before, after = map(json.loads, result.stdout.splitlines())
    assert (before["turns"]["recorded"], after["turns"]["recorded"]) == (0, 3)


def test_a_server_that_goes_while_it_is_watched_is_one_line_and_exit_code_1(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(seconds: float) -> None:
        monkeypatch.setattr("clawrl.client.ApiClient.status", refuses)

    def refuses(self: object) -> None:
        from clawrl.client import ApiProblem

        raise ApiProblem("no server answers there")

    monkeypatch.setattr("clawrl.cli.watching.time.sleep", gone)
    result = CliRunner().invoke(cli.app, ["status", "--watch", "--json"])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and "no server answers" in result.stderr

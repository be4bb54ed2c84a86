"""What the demo concludes from what it saw: every check can fail, every figure can be recomputed by hand."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clawrl.evaluation.demo_plot import write_plot
from clawrl.evaluation.demo_progress import plain_line, render, take_snapshot
from clawrl.evaluation.demo_report import (
    About,
    checks,
    checks_table,
    held_out_table,
    judge_agreement,
    summary,
    version_rows,
    write_files,
)
from clawrl.evaluation.demo_server import role_of
from clawrl.evaluation.demo_users import Answer, Record, version_of
from clawrl.evaluation.measures import Measures
from clawrl.evaluation.observations import Observations
from clawrl.evaluation.user_words import Objection


def answer(turn_id: str = "t", **changes: Any) -> Answer:
    facts: dict[str, Any] = {
        "kind": "talk", "user": 0, "session": "s", "turn_id": turn_id, "question": "q", "message": "q",
        "text": "Rain is water that falls.", "words": 5, "finish_reason": "stop", "version": 0, "objection": None,
        "seconds": 1.0, "first_token_s": 0.1,
    }  # fmt: skip
    return Answer(**(facts | changes))


def a_good_run() -> Observations:
    answers = [answer("a"), answer("b", version=1, words=60, objection=Objection.TOO_LONG), answer("c", version=1)]
    answers += [answer("g", kind="goodbye", version=1), answer("h", kind="held_out", version=1)]
    versions: dict[int, Any] = {v: {"version": v, "step": v, "stats": {"reward_mean": v / 10}} for v in range(1, 11)}
    turns: list[dict[str, Any]] = [
        {"turn_id": "a", "state": "trained", "verdict": 1, "score": 0.4, "drop_reason": None},
        {"turn_id": "b", "state": "trained", "verdict": 1, "score": 0.1, "drop_reason": None},
        {"turn_id": "c", "state": "dropped", "verdict": None, "score": None, "drop_reason": "judge_abstained"},
    ]
    status = {"version": 10, "turns": {"recorded": 5, "adds_up": True, "by_state": {"trained": 2, "dropped": 3}}}
    record = Record(answers=answers, requests=5, sessions_begun=2, sessions_ended=1)
    before, after = [answer("x", question="Why?")], [answer("y", question="Why?", version=10)]
    return Observations(record=record, before=before, after=after, versions=versions, status=status, turns=turns)


def failed(seen: Observations, about: About = About.LOOP) -> set[str]:
    return {check.name for check in checks(seen) if not check.passed and check.about is about}


def first(number: int, accepted: bool, **changes: Any) -> Answer:
    wrong = None if accepted else Objection.TOO_LONG
    return answer(
        f"f{number}", **({"session_number": number, "first": True, "words": 10, "objection": wrong} | changes)
    )


def measures(fluency: float = -1.5, lift: float | None = 0.4) -> Measures:
    return Measures(turns=16, tokens=12.0, fluency=fluency, lift=lift, kl=0.1)


def a_run_that_learned(**changes: Any) -> Observations:
    """Sixteen sessions of which a quarter is accepted, then sixteen of which three quarters are."""
    answers = [first(number, accepted=number % 4 == 0) for number in range(1, 17)]
    answers += [first(number, accepted=number % 4 != 0) for number in range(17, 33)]
    facts = {"record": Record(answers=answers), "start": measures(), "end": measures(), "seconds": {"total": 720.0}}
    return Observations(**(facts | changes))


def test_a_run_that_learned_passes_every_check_of_learning_at_the_very_bounds() -> None:
    seen = a_run_that_learned(end=measures(fluency=-1.79, lift=0.2))
    seen.record.answers[16:] = [replace(answer, words=8) for answer in seen.record.answers[16:]]
    assert failed(seen, About.LEARNING) == set()


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"end": measures(fluency=-1.81)}, "as fluent as before"),
        ({"end": None}, "as fluent as before"),
        ({"end": measures(lift=0.19)}, "still about the question"),
        ({"start": measures(lift=-0.5), "end": measures(lift=-0.1)}, "still about the question"),
        ({"end": measures(lift=None)}, "still about the question"),
        ({"seconds": {"total": 720.1}}, "in time"),
        ({"seconds": {}}, "in time"),
    ],
)
def test_each_check_of_learning_fails_beyond_its_bound(changes: dict[str, Any], check: str) -> None:
    assert check in failed(a_run_that_learned(**changes), About.LEARNING)


@pytest.mark.parametrize(
    ("number", "changes", "check"),
    [
        (1, {"objection": None}, "untaught at the start"),
        (17, {"objection": Objection.LIST}, "the preference holds at the end"),
        (5, {"text": " \n"}, "no empty answer"),
    ],
)
def test_one_answer_more_or_less_decides_a_check(number: int, changes: dict[str, Any], check: str) -> None:
    seen = a_run_that_learned()
    assert failed(seen, About.LEARNING) == set()
    seen.record.answers[number - 1] = replace(seen.record.answers[number - 1], **changes)
    assert failed(seen, About.LEARNING) == {check}


def test_answers_that_became_very_short_fail_though_they_are_accepted() -> None:
    seen = a_run_that_learned()
    seen.record.answers[16:] = [replace(answer, words=7) for answer in seen.record.answers[16:]]
    assert failed(seen, About.LEARNING) == {"answers still say something"}


def test_order_of_sessions_counts_and_not_order_of_arrival() -> None:
    seen = a_run_that_learned()
    seen.record.answers.reverse()
    assert failed(seen, About.LEARNING) == set()


def test_a_run_that_could_not_be_measured_says_why_however_long_it_was() -> None:
    seen = a_run_that_learned(start=None, end=None, not_measured="turn t7 has no tokens")
    assert failed(seen, About.LEARNING) == {"measured", "as fluent as before", "still about the question"}
    assert [check.detail for check in checks(seen) if check.name == "measured"] == ["turn t7 has no tokens"]
    del seen.record.answers[-1]
    assert failed(seen, About.LEARNING) == {"measured", "enough sessions"}


def test_too_few_sessions_say_nothing_about_learning() -> None:
    seen = a_run_that_learned()
    del seen.record.answers[-1]
    assert failed(seen, About.LEARNING) == {"enough sessions"}


def test_a_run_in_which_the_loop_closed_passes_every_check() -> None:
    assert failed(a_good_run()) == set()


def test_nine_versions_are_not_ten() -> None:
    seen = a_good_run()
    del seen.versions[4]
    assert failed(seen) == {"versions published"}


def test_one_failed_request_fails_the_demo_and_is_quoted() -> None:
    seen = a_good_run()
    seen.record.failures.append("demo-user-3-1: InternalServerError: boom")
    assert failed(seen) == {"no failed request"}
    assert any("InternalServerError: boom" in check.detail for check in checks(seen))


@pytest.mark.parametrize("adds_up", [False, None])
def test_a_ledger_that_does_not_add_up_or_does_not_say_so_fails_the_demo(adds_up: bool | None) -> None:
    seen = a_good_run()
    seen.status = {"turns": {"recorded": 5, "adds_up": adds_up}}
    assert failed(seen) == {"the ledger adds up"}


@pytest.mark.parametrize("recorded", [4, 6, None])
def test_a_ledger_with_another_number_of_turns_than_answers_received_fails_the_demo(recorded: int | None) -> None:
    seen = a_good_run()
    seen.status = {"turns": {"recorded": recorded, "adds_up": True}}
    assert failed(seen) == {"every answer is recorded"}


def test_a_process_left_behind_fails_the_demo() -> None:
    seen = a_good_run()
    seen.left_behind = ["raylet (process 7)"]
    assert failed(seen) == {"nothing left running"}


def test_a_run_that_never_got_anywhere_fails_and_does_not_crash() -> None:
    seen = Observations()
    assert failed(seen) >= {"versions published", "the ledger adds up", "every answer is recorded"}
    assert failed(seen, About.LEARNING) == {"enough sessions"}
    assert summary(seen, checks(seen))["accepted_share"] is None


def test_figures_per_version_are_over_conversations_only() -> None:
    seen = a_good_run()
    rows = {row.version: row for row in version_rows(seen.record.answers, seen.versions)}
    assert (rows[0].answers, rows[0].accepted_share, rows[0].mean_words, rows[0].reward) == (1, 1.0, 5.0, None)
    assert (rows[1].answers, rows[1].accepted_share, rows[1].mean_words, rows[1].reward) == (2, 0.5, 32.5, 0.1)
    assert rows[7].answers == 0 and rows[7].accepted_share is None and rows[7].reward == pytest.approx(0.7)


def test_agreement_compares_verdicts_with_the_users_rule_turn_by_turn() -> None:
    seen = a_good_run()
    agreement = judge_agreement(seen.record.answers, seen.turns)
    assert agreement == {
        "share": 0.5, "compared": 2, "without_verdict": 1,
        "good_and_accepted": 1, "good_but_rejected": 1, "bad_but_accepted": 0, "bad_and_rejected": 0,
    }  # fmt: skip


@pytest.mark.parametrize("verdict", [0, None])
def test_neutral_and_abstained_verdicts_agree_with_nobody(verdict: int | None) -> None:
    agreement = judge_agreement([answer("a")], [{"turn_id": "a", "verdict": verdict}])
    assert agreement["share"] is None and agreement["without_verdict"] == 1


def test_the_files_hold_every_answer_with_what_the_ledger_says_of_it(tmp_path: Path) -> None:
    seen = a_good_run()
    write_files(seen, checks(seen), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "turns.jsonl").read_text().splitlines()]
    assert [line["turn_id"] for line in lines] == ["a", "b", "c", "g", "h"]
    assert lines[1]["accepted"] is False and lines[1]["objection"] == "too_long"
    assert lines[2]["ledger"] == {"state": "dropped", "verdict": None, "score": None, "drop_reason": "judge_abstained"}
    figures = json.loads((tmp_path / "summary.json").read_text())
    assert figures["passed"] is False and figures["versions_published"] == 10
    assert figures["first_answers"] == {"blocks": [], "first": None, "last": None}
    assert figures["measures"] == {"version_0": None, "last": None}
    assert figures["held_out"]["after"] == {"versions": [10], "accepted": 1, "answered": 1, "mean_words": 5.0}


def test_the_held_out_table_shows_both_answers_and_survives_brackets_in_them() -> None:
    before = [answer(question="Why?", text="[bold]because[/bold] [/nothing]", objection=Objection.TOO_SHORT)]
    table = held_out_table(before, [replace(before[0], text="It rains a lot there.", version=12, objection=None)])
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table)
    shown = console.export_text()
    for piece in ("[bold]because[/bold] [/nothing]", "It rains a lot there.", "version 0", "version 12", "too_short"):
        assert piece in shown


def test_a_check_whose_detail_holds_brackets_is_shown_as_it_is() -> None:
    seen = a_good_run()
    seen.record.failures.append("x: [Errno 111] [/red]")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(checks_table(checks(seen)))
    assert "[Errno 111] [/red]" in console.export_text()


def test_the_picture_is_drawn_even_when_figures_are_missing(tmp_path: Path) -> None:
    seen = a_good_run()
    seen.record.answers.append(first(1, accepted=True))
    write_plot(seen, (5, None), tmp_path / "learning.png")
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
    write_plot(Observations(), (None, 60), tmp_path / "empty.png")


def test_progress_shows_version_reward_accepted_share_sessions_and_queue() -> None:
    seen = a_good_run()
    status = {**seen.status, "versions": list(reversed(seen.versions.values()))}
    status["turns"] = {"by_state": {"queued": 3, "trained": 40}}
    seen.status = status
    seen.record.answers += [first(1, accepted=True), first(2, accepted=False)]
    snapshot = take_snapshot(seen, 12.0, 160)
    line = plain_line(snapshot)
    for piece in ("session 2/160", "version 10 ", "reward 1.00", "accepted 0.50", "talking 1", "answers 7", "queued=3"):
        assert piece in line
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(snapshot))
    assert "2 of 160" in console.export_text()


@pytest.mark.parametrize(
    ("cmdline", "role"),
    [
        (["ray::ServeReplica:clawrl:Rollout"], "Rollout"),
        (["ray::ServeReplica:clawrl:Rollout.handle_request_streaming"], "Rollout"),
        (["ray::Coordinator.lease"], "Coordinator"),
        (["ray::IDLE"], "IDLE"),
        (["/x/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=s"], "raylet"),
        (["/x/ray/core/src/ray/gcs/gcs_server", "--log_dir=/tmp"], "gcs_server"),
        (["/x/bin/python", "-u", "/x/ray/dashboard/dashboard.py", "--host=127.0.0.1"], "dashboard"),
        (["/x/bin/python", "/x/bin/serve", "run", "--address", "local", "deployments/laptop.yaml"], "serve run"),
        (["ray-dashboard-MetricsHead-0 (/x/bin/python -B -c 'from multiprocessing.forkserver')"], "dashboard"),
        ([], "unknown"),
    ],
)
def test_processes_are_known_by_their_role(cmdline: list[str], role: str) -> None:
    assert role_of(cmdline) == role


def test_versions_are_read_from_the_fingerprint() -> None:
    assert [version_of(text) for text in ("v12", "v0", None, "", "fp_x")] == [12, 0, None, None, None]

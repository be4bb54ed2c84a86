"""Every command in the documentation, and for each kind of it who runs it.

`commands` takes the fenced shell blocks apart; `account` says what is done about one of them. To account for a new one,
add a line to `ACCOUNTS` (or to `MAKE` for a target of make): the first whose pattern fits the whole command counts.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)
SHELLS = {"bash", "sh", "shell", "console"}
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command as it stands on ``line`` of ``page``, without its comment, its lines joined."""

    page: str
    line: int
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


class Here(enum.StrEnum):
    """How `test_docs_commands` runs a command."""

    CLI = "for real, before a server that is a stand-in or on files of a temporary folder"
    CURL = "for real, against the ingress before fakes"
    PARSED = "only as far as its arguments are read; a test that is named runs it"
    MAKE = "by make -n; who runs the target for real stands in `MAKE`"
    RAY = "only as far as Ray reads its arguments; a test that is named starts such a cluster"
    SERVE = "the file that it names passes `clawrl check`; a test that is named runs `serve run`"
    EXPORT = "the variables are known to the source, to Ray, or to the client that they are for"
    NOT = "not at all here, for the reason given or by the test that is named"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """``tests`` are ``file.py::function`` below tests/ that run it for real; else ``why`` says why nobody does."""

    pattern: str
    here: Here
    tests: tuple[str, ...] = ()
    why: str = ""


_LIVE = ("test_live_1_serving.py::test_a_stream_comes_in_pieces_and_ends_properly",)
_TWO = ("test_nightly_two_graphs.py::test_each_graph_has_its_own_turns_and_one_ends_without_the_other",)
_FAKE = ("test_nightly_autoscaling.py::test_replicas_come_and_go_across_nodes_and_nobody_notices",)
_NODES = ("test_nightly_head_node.py::test_a_new_head_with_the_old_disk_goes_on_where_the_old_one_was",)
_HERE = "test_docs_commands.py::"
_ENV = r"(?:\w+=\S+ )*"
_CLAWRL = r"(?:\S*/)?clawrl"

ACCOUNTS = (
    Account(pattern=f"{_CLAWRL} (status|wait-ready|pause|resume|feedback|chat|check|contract)( .*)?", here=Here.CLI),
    Account(
        pattern=f"{_CLAWRL} calibrate .*",
        here=Here.PARSED,
        tests=("test_cli_own_code.py::test_calibrate_reports_on_the_judge_of_a_deployment",),
    ),
    Account(
        pattern=f"{_CLAWRL} export .*",
        here=Here.PARSED,
        tests=("test_export.py::test_the_version_that_serves_loads_in_transformers_with_exactly_its_weights",),
    ),
    Account(
        pattern=f"{_CLAWRL} backup .*",
        here=Here.PARSED,
        tests=("test_backup.py::test_a_deployment_that_writes_all_the_time_is_copied_at_one_moment_and_goes_on",),
    ),
    Account(
        pattern=f"{_CLAWRL} turns (list|show|why) .*",
        here=Here.PARSED,
        tests=("test_cli_operating.py::test_turns_are_listed_narrowed_shown_and_explained",),
    ),
    Account(
        pattern=f"{_CLAWRL} (sessions (list|show)|versions)( .*)?",
        here=Here.PARSED,
        tests=("test_cli_operating.py::test_sessions_and_versions_are_shown",),
    ),
    Account(
        pattern=f"{_CLAWRL} (rollback|publish)( .*)?",
        here=Here.PARSED,
        tests=("test_cli_operating.py::test_rollback_waits_until_every_replica_serves_and_publish_says_what_there_is",),
    ),
    Account(
        pattern=f"{_CLAWRL} export-turns (?!.*--sealed).*",
        here=Here.PARSED,
        tests=(
            "test_turn_files.py::test_an_export_of_a_server_is_loaded_by_datasets_from_both_forms",
            "test_turn_files.py::test_the_ledger_of_a_stopped_deployment_is_exported_and_that_of_a_running_one_is_not",
        ),
    ),
    Account(
        pattern=f"{_CLAWRL} (export-turns .* --sealed|open-turns .*)",
        here=Here.PARSED,
        tests=("test_sealed_export.py::test_a_sealed_export_of_a_server_opens_to_what_a_plain_one_says",),
    ),
    Account(
        pattern=f"{_CLAWRL} import-turns .*",
        here=Here.PARSED,
        tests=("test_turn_files.py::test_an_export_is_replayed_session_by_session",),
    ),
    Account(
        pattern=f"{_CLAWRL} forget .*",
        here=Here.PARSED,
        tests=(
            "test_privacy_coordinator.py::test_the_command_forgets_in_a_stopped_deployment",
            "test_nightly_privacy.py::test_text_and_ids_are_nowhere_on_disk_and_a_forgotten_user_is_gone_for_good",
        ),
    ),
    Account(
        pattern=r"prometheus --config\.file=deployments/observability/prometheus\.yml",
        here=Here.NOT,
        tests=(
            "test_nightly_prometheus.py"
            "::test_every_query_of_the_dashboard_is_answered_by_a_prometheus_that_scrapes_a_graph_that_learns",
        ),
    ),
    Account(pattern=r"curl .*", here=Here.CURL),
    Account(pattern=r"make .*", here=Here.MAKE),
    Account(pattern=_ENV + r"serve run deployments/cluster/autoscaled\.yaml", here=Here.SERVE, tests=_FAKE),
    Account(pattern=_ENV + r"serve run [ab]\.yaml", here=Here.SERVE, tests=_TWO),
    Account(pattern=_ENV + r"serve run \S+", here=Here.SERVE, tests=_LIVE),
    Account(pattern=r"ray start .*--autoscaling-config.*", here=Here.RAY, tests=_FAKE),
    Account(pattern=r"ray start .*", here=Here.RAY, tests=_NODES),
    Account(pattern=r"export (\w+=\S+ ?)+", here=Here.EXPORT),
    Account(
        pattern=r"mv \S+ \S+|cp -a \S+ \S+",
        here=Here.NOT,
        tests=(_HERE + "test_the_way_back_from_a_backup_is_as_the_page_says_it",),
    ),
    Account(
        pattern=r"sed .*deployments/kuberay/rayservice\.yaml \| kubectl apply -f -",
        here=Here.NOT,
        tests=(_HERE + "test_the_image_is_put_into_the_rayservice_as_the_page_says_it",),
    ),
    Account(pattern=r"kubectl create secret .*", here=Here.NOT, why="there is no Kubernetes here"),
    Account(
        pattern=r"grep -v '\^torch==' constraints\.txt > \S+",
        here=Here.NOT,
        tests=(_HERE + "test_the_constraints_without_torch_are_the_others_as_the_page_says_it",),
    ),
    Account(
        pattern=r"\S*pip install .*",
        here=Here.NOT,
        tests=(_HERE + "test_what_is_installed_by_hand_has_the_versions_and_extras_that_there_are",),
        why="gigabytes",
    ),
    Account(
        pattern=r"python3 -m venv \S+|\. \.venv/bin/activate|git pull", here=Here.NOT, why="not ours; `make` does it"
    ),
    Account(
        pattern=r"claude .*",
        here=Here.NOT,
        tests=(
            "test_nightly_agents.py::test_an_agent_runs_tools_for_several_turns_and_each_turn_gets_its_own_evidence",
        ),
    ),
    Account(
        pattern=r"python -m pytest tests/\w+\.py",
        here=Here.NOT,
        tests=("test_docs_commands.py::test_files_that_commands_name_are_there",),
    ),
    Account(
        pattern=r"python -m tests\.gpu\.one_gpu",
        here=Here.NOT,
        tests=("test_gpu_script.py::test_every_figure_is_measured_and_every_check_passes_on_a_cpu",),
    ),
    Account(
        pattern=r"\.venv/bin/python bench/engine_overhead\.py \w+",
        here=Here.NOT,
        tests=("test_nightly_docs.py::test_the_engine_is_compared_with_its_library_as_the_page_says_it",),
    ),
)

_BENCH = "test_nightly_bench.py::"
MAKE = {
    "help": _HERE + "test_make_lists_every_target_that_the_docs_name",
    "install": "CI: `make test` needs it",
    "test": "CI: .ci/run is it",
    "lint": "CI: `make test` needs it",
    "format": "not run: it rewrites files; `make lint` runs the same tools",
    "reference": "test_config_reference.py::test_only_what_stands_below_the_mark_of_a_page_is_written",
    "docs": "test_docs_site.py::test_the_site_is_built_without_a_warning",
    "docs-serve": "not run: mkdocs' own server over the site that `make docs` builds",
    "demo": "test_nightly_demo.py::test_the_demo_learns_with_the_embedded_model",
    "test-nightly": "not run by itself: it is the nightly tests",
    "test-agents": "not run by itself: it is tests of the nightly ones",
    "chaos": "test_live_8_chaos.py::test_after_two_hundred_kills_every_turn_is_trained_once_or_dropped",
    "sglang-cpu": "CI: `make test` needs it where the CPU has AVX-512",
    "bench-ingress": "not run: it fetches LiteLLM's proxy, and its figures want two quiet cores",
    "bench-publish": _BENCH + "test_the_quick_publish_bench_measures_every_way_beside_the_naive_one_and_leaves_nothing",
    "bench-metrics": "not run by itself: it starts two graphs for minutes; its counting is test_metrics_bench.py's",
    "bench-sessions": "test_sessions_bench.py::test_a_ledger_shows_its_turns_and_the_batches_that_were_trained",
    "bench-train": _BENCH + "test_the_quick_training_bench_shows_that_both_take_the_same_step_and_leaves_nothing",
    "bench-learning": _BENCH + "test_the_quick_bench_compares_learning_with_not_learning",
    "bench-collapse": _BENCH
    + "test_two_hundred_updates_past_holding_leave_the_policy_sound_which_takes_up_to_three_hours",
}
"""Who runs a target for real: a test, CI, or nobody and why."""


def commands(page: str, text: str) -> Iterator[Command]:
    """Those of the shell blocks in ``text``."""
    for block in _FENCE.finditer(text):
        if block[2] not in SHELLS:
            continue
        first = text.count("\n", 0, block.start(3)) + 1
        joined, began = "", 0
        for number, line in enumerate(block[3].splitlines(), first):
            joined, began = (joined, began) if joined else ("", number)
            joined += line.strip() if not joined else " " + line.strip()
            if joined.endswith("\\"):
                joined = joined[:-1].rstrip()
                continue
            if said := without_comment(joined):
                yield Command(page=page, line=began, text=said)
            joined = ""


def blocks(text: str) -> Iterator[str]:
    """The shell blocks as they stand."""
    return (block[3] for block in _FENCE.finditer(text) if block[2] in SHELLS)


def without_comment(line: str) -> str:
    """As a shell reads it: a # begins a comment at the beginning of a word, outside quotes."""
    quote = ""
    for i, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (i == 0 or line[i - 1].isspace()):
            return line[:i].strip()
    return line.strip()


def account(command: Command) -> Account | None:
    return next((one for one in ACCOUNTS if re.fullmatch(one.pattern, command.text)), None)


ALL = tuple(command for page in PAGES for command in commands(page, (ROOT / page).read_text()))


def of(here: Here) -> list[Command]:
    """The commands of all pages that are run this way, each text once."""
    found = {
        command.text: command for command in reversed(ALL) if (a := account(command)) is not None and a.here is here
    }
    return sorted(found.values(), key=lambda command: (command.page, command.line))

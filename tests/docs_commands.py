"""Every command in the documentation, and for each kind of it who runs it.

`commands` finds those in shell blocks and those in a line of text; `account` says what is done about one of them. To
account for a new one, add a line to `ACCOUNTS` (or to `MAKE` for a target of make): the first whose pattern fits the
whole command counts.
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
    *sorted(
        str(path.relative_to(ROOT))
        for path in (
            *(ROOT / "docs").rglob("*.md"),
            *(ROOT / "deployments").rglob("README.md"),
            *(ROOT / "integrations").glob("*/README.md"),
            ROOT / "tests" / "gpu" / "README.md",
        )
    ),
)
SHELLS = {"bash", "sh", "shell", "console"}
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
# A command within a line of text: code that begins with a program. "pip could not" is something that pip says.
_PROGRAMS = (
    "clawrl|curl|docker|git|grafana|kubectl|make|node|npm|npx|openclaw|pip(?= (?:install|download) )|prometheus"
    "|promtool|python3?|ray|serve|wandb"
)
_INLINE = re.compile(rf"(?<!`)`((?:\S*/)?(?:{_PROGRAMS}) [^`]+)`(?!`)")
_NAMED = re.compile(r"(clawrl|make|ray|serve|wandb)( [a-z][a-z-]*)+( --[a-z-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command as it stands on ``line`` of ``page``, without its comment, its lines joined.

    ``inline`` is one in a line of text.
    """

    page: str
    line: int
    text: str
    inline: bool = False

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


class Here(enum.StrEnum):
    """How `test_docs_commands` runs a command."""

    CLI = "for real, before a server that is a stand-in or on files of a temporary folder"
    HOUSE = "for real, against HTTP, ingress, coordinator and ledger: `test_docs_operating`"
    STOPPED = "for real, on the state folder, keys and weights of a deployment that has stopped: `test_docs_operating`"
    CURL = "for real, against the ingress before fakes"
    MODULE = "for real, where need be with smaller figures"
    NAMED = "not a command to type but the name of one: it and its flags are there"
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
    Account(pattern=f"{_CLAWRL} (calibrate|export|backup|open-turns) .*", here=Here.STOPPED),
    Account(
        pattern=f"{_CLAWRL} forget --lost-keys --deployment FILE",
        here=Here.NOT,
        tests=(
            "test_privacy_lost_keys.py::test_where_newer_keys_are_lost_for_good_a_command_deletes_what_they_opened",
        ),
    ),
    Account(pattern=f"{_CLAWRL} (export-turns|forget).*--deployment .*", here=Here.STOPPED),
    Account(pattern=f"{_CLAWRL} (turns|sessions|versions|rollback|publish)( .*)?", here=Here.HOUSE),
    Account(pattern=f"{_CLAWRL} (export-turns|import-turns|forget).*", here=Here.HOUSE),
    Account(pattern=r"python -m (bench\.(privacy|train_table)|clawrl\.config_reference)( .*)?", here=Here.MODULE),
    Account(
        pattern=r"prometheus --config\.file=deployments/observability/prometheus\.yml",
        here=Here.NOT,
        tests=(
            "test_nightly_prometheus.py"
            "::test_every_query_of_the_dashboard_is_answered_by_a_prometheus_that_scrapes_a_graph_that_learns",
        ),
    ),
    Account(
        pattern=r"promtool check config",
        here=Here.NOT,
        tests=("test_observability.py::test_promtool_finds_nothing_wrong_with_the_configuration",),
    ),
    Account(
        pattern=r"grafana server .*|export GF_\w+=.*", here=Here.NOT, why="Grafana is in no registry that is used here"
    ),
    Account(
        pattern=r"node --test",
        here=Here.NOT,
        tests=("test_openclaw_plugin.py::test_the_plugin_passes_its_own_tests",),
    ),
    Account(
        pattern=r"openclaw plugins inspect clawrl --runtime --json",
        here=Here.NOT,
        why="OpenClaw's own; that the hooks run is seen by test_nightly_agents.py in what arrives",
    ),
    Account(pattern=r"curl .*", here=Here.CURL),
    Account(pattern=r"make .*", here=Here.MAKE),
    Account(pattern=_ENV + r"serve run deployments/cluster/autoscaled\.yaml", here=Here.SERVE, tests=_FAKE),
    Account(pattern=_ENV + r"serve run [ab]\.yaml", here=Here.SERVE, tests=_TWO),
    Account(pattern=_ENV + r"serve run \S+", here=Here.SERVE, tests=_LIVE),
    Account(pattern=r"ray start .*--autoscaling-config.*", here=Here.RAY, tests=_FAKE),
    Account(pattern=r"ray start .*", here=Here.RAY, tests=_NODES),
    Account(pattern=r"(serve|ray) status --address .*", here=Here.RAY, tests=_TWO),
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
    Account(pattern=r"kubectl (create|get) secret .*", here=Here.NOT, why="there is no Kubernetes here"),
    Account(
        pattern=r"grep -v '\^torch==' constraints\.txt > \S+",
        here=Here.NOT,
        tests=(_HERE + "test_the_constraints_without_torch_are_the_others_as_the_page_says_it",),
    ),
    Account(
        pattern=r"pip download --no-deps -d wheels .*|python -m tests\.gpu\.one_gpu --wheels wheels",
        here=Here.NOT,
        tests=("test_gpu_script.py::test_wheels_are_imported_ahead_of_what_is_installed",),
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
        pattern=r"env --default-signal=INT serve run \S+ .*|kill -INT \$server|wait \$server|server=\$!",
        here=Here.NOT,
        tests=(
            "test_operations_service.py::test_a_script_starts_it_in_the_background_and_stops_it_as_the_page_says_it",
        ),
    ),
    Account(
        pattern=r"useradd .*|cp deployments/systemd/clawrl\.service \S+|systemctl .*|journalctl .*",
        here=Here.NOT,
        tests=("test_operations_service.py::test_systemd_finds_nothing_wrong_with_the_unit",),
        why="no systemd runs here",
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
        pattern=r"python -m tests\.gpu\.one_gpu( --json figures\.json)?",
        here=Here.NOT,
        tests=("test_gpu_script.py::test_every_figure_is_measured_and_every_check_passes_on_a_cpu",),
    ),
    Account(
        pattern=r"\.venv/bin/python bench/engine_overhead\.py \w+",
        here=Here.NOT,
        tests=("test_nightly_docs.py::test_the_engine_is_compared_with_its_library_as_the_page_says_it",),
    ),
)

BY_NAME = Account(pattern=_NAMED.pattern, here=Here.NAMED)

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
    """Those of the shell blocks in ``text``, then those in its lines."""
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
    lines = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    for code in _INLINE.finditer(lines):
        yield Command(
            page=page, line=lines.count("\n", 0, code.start()) + 1, text=" ".join(code[1].split()), inline=True
        )


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
    if command.inline and _NAMED.fullmatch(command.text):
        return BY_NAME
    return next((one for one in ACCOUNTS if re.fullmatch(one.pattern, command.text)), None)


ALL = tuple(command for page in PAGES for command in commands(page, (ROOT / page).read_text()))


def of(here: Here) -> list[Command]:
    """The commands of all pages that are run this way, each text once."""
    found = {
        command.text: command for command in reversed(ALL) if (a := account(command)) is not None and a.here is here
    }
    return sorted(found.values(), key=lambda command: (command.page, command.line))

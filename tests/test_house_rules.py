"""The house's own rules, read off the source: who imports whom, how long a file may be, what never occurs.

Each rule is a function from parsed modules to complaints, so that it is tested twice: on clawrl, which must
give none, and on a small counter-example, which must give one. A rule that cannot complain is no rule.
"""

from __future__ import annotations

import ast
import configparser
import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import clawrl

ROOT = Path(__file__).resolve().parent.parent
EDGES = {
    "backup", "calibrate", "check", "cli", "client", "config_reference", "export", "forget",
    "on_disk", "status_view", "turn_files",
}  # fmt: skip
ROOMS = {
    "serving", "engine", "judging", "methods", "loss", "training", "weights", "ledger", "environments", "evaluation",
    "console", "guards", "contracts", "sizing", "inspection", "metrics", "privacy",
}  # fmt: skip
MAY_IMPORT_RAY = re.compile(r"actors/.*|graph\.py")
RAY_SCHEMA_ONLY = {"check/file.py": {"ray.serve.schema"}}


@dataclass(frozen=True)
class Module:
    """``path`` is relative to the package, in forward slashes: ``ledger/store.py``."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def top(self) -> str:
        """The room, or the name of a module that stands alone: what the import rule speaks about."""
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def dotted(self) -> str:
        return ".".join(["clawrl", *self.path.removesuffix(".py").removesuffix("/__init__").split("/")])


def imports(module: Module) -> Iterator[str]:
    """Every module that is imported anywhere in the file, also inside functions, with relative names resolved."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.dotted.split(".")
                keep = len(package) - node.level + module.path.endswith("__init__.py")
                base = ".".join([*package[:keep], *filter(None, [node.module])])
            yield base
            # `from clawrl import ledger` names a module in the second half.
            yield from (f"{base}.{alias.name}" for alias in node.names if base == "clawrl")


def ours(module: Module) -> set[str]:
    """The rooms and modules of ours that a module imports, itself excluded."""
    tops = {name.split(".")[1] for name in imports(module) if name.startswith("clawrl.")}
    return tops - {module.top, "__version__"}


def loss_imports_torch_and_nothing_of_ours(modules: list[Module]) -> list[str]:
    allowed = {"torch", "clawrl"} | sys.stdlib_module_names
    wrong = []
    for module in modules:
        if module.top == "loss":
            others = {name.split(".")[0] for name in imports(module)} - allowed
            wrong += [f"{module.path} imports {name}" for name in sorted(others | ours(module))]
    return wrong


def only_actors_and_named_edges_import_ray(modules: list[Module]) -> list[str]:
    wrong = []
    for module in modules:
        if MAY_IMPORT_RAY.fullmatch(module.path):
            continue
        allowed = RAY_SCHEMA_ONLY.get(module.path, set())
        for name in imports(module):
            if name.split(".")[0] == "ray" and name not in allowed:
                wrong.append(f"{module.path} imports {name}")
    return wrong


def imports_point_downwards(modules: list[Module]) -> list[str]:
    """graph > actors > rooms > messages; the command line and its helpers stand beside, and nobody leans on them."""
    forbidden = {
        "actors": {"graph", *EDGES},
        "messages": {"*"},
        "strict": {"*"},
        "plugins": {"*"},
        "durable": {"*"},
        **{room: {"actors", "graph", "cli"} for room in ROOMS},
        # The demo is a client of a running server; no other room knows that there are clients.
        **{room: {"actors", "graph", *EDGES, "evaluation"} for room in ROOMS - {"evaluation", "console"}},
    }
    wrong = []
    for module in modules:
        rule = forbidden.get(module.top, set())
        found = ours(module) if "*" in rule else ours(module) & rule
        wrong += [f"{module.path} imports clawrl.{name}" for name in sorted(found)]
    return wrong


def only_the_command_line_checks_contracts(modules: list[Module]) -> list[str]:
    """Examples and checks are for people; nothing that serves or trains may lean on them."""
    return [f"{m.path} imports clawrl.contracts" for m in modules if m.top != "cli" and "contracts" in ours(m)]


def rooms_do_not_import_in_circles(modules: list[Module]) -> list[str]:
    edges: dict[str, set[str]] = {}
    for module in modules:
        edges.setdefault(module.top, set()).update(ours(module))
    wrong = []
    for start in sorted(edges):
        reached, frontier = set(), set(edges[start])
        while frontier:
            reached |= frontier
            frontier = set().union(*(edges.get(name, set()) for name in frontier)) - reached
        if start in reached:
            wrong.append(f"clawrl.{start} imports itself by way of others")
    return wrong


def files_are_short(modules: list[Module]) -> list[str]:
    wrong = []
    for module in modules:
        limit, length = (300 if module.top == "actors" else 400), module.text.count("\n")
        if length > limit:
            wrong.append(f"{module.path} has {length} lines, {limit} are allowed")
    return wrong


def nothing_prints(modules: list[Module]) -> list[str]:
    return [
        f"{module.path}:{node.lineno} calls print"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def every_file_states_its_contract(modules: list[Module]) -> list[str]:
    return [
        f"{module.path} has no docstring"
        for module in modules
        if module.tree.body and not ast.get_docstring(module.tree)
    ]


def the_graph_keeps_its_annotations(modules: list[Module]) -> list[str]:
    """Serve reads the builder's annotation at run time; as a string it would skip validating ``args`` in silence."""
    return [f"{m.path} defers its annotations" for m in modules if m.path == "graph.py" and "__future__" in imports(m)]


def every_process_redacts_its_logs(modules: list[Module]) -> list[str]:
    """Whatever is handed to Serve, Ray or Ray Train to be run in a process of its own says so first."""
    started, redact = set(), set()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) and node.args:
                called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                first = node.args[0]
                if called in ("deployment", "_detached", "TorchTrainer") and isinstance(first, ast.Name):
                    started.add(first.id)
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
                if names & {"redact_logs", "redact_logs_by"}:
                    redact.add(node.name)
    return [f"{name} does not call redact_logs" for name in sorted(started - redact)]


RULES: dict[Callable[[list[Module]], list[str]], Module] = {
    loss_imports_torch_and_nothing_of_ours: Module("loss/x.py", "from clawrl.messages import Turn\n"),
    only_actors_and_named_edges_import_ray: Module("training/x.py", "def f() -> None:\n    import ray.train\n"),
    imports_point_downwards: Module("ledger/x.py", "from clawrl.actors.coordinator import Coordinator\n"),
    only_the_command_line_checks_contracts: Module("graph.py", "from clawrl.contracts import run_contract\n"),
    rooms_do_not_import_in_circles: Module("messages.py", "from clawrl.ledger.store import Ledger\n"),
    files_are_short: Module("actors/x.py", "x = 1\n" * 301),
    nothing_prints: Module("ledger/x.py", "def f() -> None:\n    print('here')\n"),
    every_file_states_its_contract: Module("ledger/x.py", "x = 1\n"),
    every_process_redacts_its_logs: Module(
        "graph.py", "class Other:\n    pass\n\n\nserve.deployment(Other, name='x')\n"
    ),
    the_graph_keeps_its_annotations: Module("graph.py", "from __future__ import annotations\n"),
}


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    package = ROOT / "clawrl"
    return [Module(file.relative_to(package).as_posix(), file.read_text()) for file in sorted(package.rglob("*.py"))]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_its_rule(rule: Callable[[list[Module]], list[str]], modules: list[Module]) -> None:
    assert len(modules) > 10
    assert rule(modules) == []


@pytest.mark.parametrize(("rule", "culprit"), RULES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_every_rule_notices_a_module_that_breaks_it(rule: Callable[[list[Module]], list[str]], culprit: Module) -> None:
    others = [Module("ledger/store.py", '"""Doc."""\n\nfrom clawrl.messages import Turn\n')]
    assert rule(others) == []
    assert len(rule([*others, culprit])) >= 1


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("ledger/store.py", "from . import states", "clawrl.ledger"),
        ("ledger/store.py", "from ..actors import x", "clawrl.actors"),
        ("ledger/__init__.py", "from .store import Ledger", "clawrl.ledger.store"),
        ("cli.py", "from clawrl import actors", "clawrl.actors"),
        ("cli.py", "def f():\n    import ray.serve", "ray.serve"),
    ],
)
def test_no_way_of_writing_an_import_is_overlooked(path: str, text: str, expected: str) -> None:
    assert expected in set(imports(Module(path, text)))


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def requirements(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def plain_name(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def test_the_metadata_names_licence_python_and_version() -> None:
    config = setup_cfg()
    assert config["metadata"]["name"] == "clawrl"
    assert config["metadata"]["license"] == "Apache-2.0"
    assert config["metadata"]["version"] == "attr: clawrl.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+", clawrl.__version__)
    assert config["options"]["python_requires"] == ">=3.11"
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence and "Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


def test_the_console_script_leads_to_a_function() -> None:
    script = requirements(setup_cfg()["options.entry_points"]["console_scripts"])[0]
    name, target = (part.strip() for part in script.split("="))
    module, function = target.split(":")
    assert name == "clawrl" and callable(getattr(importlib.import_module(module), function))


def test_every_direct_requirement_has_a_lower_bound_and_a_tested_version() -> None:
    config = setup_cfg()
    direct = requirements(config["options"]["install_requires"])
    for extra in ("demo", "docs", "test"):
        direct += requirements(config["options.extras_require"][extra])
    pinned = requirements((ROOT / "constraints.txt").read_text())
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in pinned), "no ranges, no local builds"
    assert {plain_name(line) for line in direct} <= {plain_name(line) for line in pinned}
    for line in requirements(config["options"]["install_requires"]):
        assert ">=" in line, line


def test_everything_that_clawrl_imports_is_required(modules: list[Module]) -> None:
    names_differ = {"yaml": "pyyaml", "presidio_analyzer": "presidio-analyzer"}
    config = setup_cfg()
    known = {plain_name(line) for line in requirements(config["options"]["install_requires"])}
    # The picture is the demo's extra, fused kernels one for GPUs, Presidio (with what it brings) one for privacy;
    # SGLang brings an environment of its own.
    known |= {"matplotlib", "pyarrow", "sglang", "liger-kernel", "presidio-analyzer", "spacy", "tldextract"}
    # Training is logged to these where the operator wants it.
    known |= {"tensorboardx", "wandb"}
    imported = {name.split(".")[0] for module in modules for name in imports(module)}
    foreign = imported - sys.stdlib_module_names - {"clawrl"}
    assert {plain_name(names_differ.get(name, name)) for name in foreign} <= known


def test_the_rooms_of_exact_nouns_are_type_checked_strictly() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    strict = next(entry for entry in config["tool"]["mypy"]["overrides"] if entry.get("disallow_untyped_defs"))
    assert set(strict["module"]) == {"clawrl.messages.*", "clawrl.loss.*", "clawrl.methods.*", "clawrl.ledger.*"}

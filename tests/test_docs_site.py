"""The documentation as a site: it is built without a warning, fetches nothing from elsewhere, and says what is so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from mkdocs.commands.build import build
from mkdocs.config import load_config

from clawrl import cli
from clawrl.config import Deployment
from clawrl.config_reference import sections
from clawrl.ledger.schema import SCHEMA_VERSION, UPGRADES
from clawrl.messages import DropReason
from tests.docs_commands import ROOT

FORGE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))),
)
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    # Strict: any warning, such as a link that leads nowhere, is an error.
    build(config)
    return folder


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert {"index.html", "quickstart.html", "clients/codex.html", "contributing.html", "changelog.html"} <= pages


def test_nothing_is_fetched_from_elsewhere_to_show_a_page(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]* src=\"?([^\s\">]+)", text)
        fetched += re.findall(
            r"<link[^>]* rel=\"?(?:stylesheet|icon|preconnect|preload)\"?[^>]* href=\"?([^\s\">]+)", text
        )
        fetched += re.findall(r"<link[^>]* href=\"?([^\s\">]+)\"?[^>]* rel=\"?(?:stylesheet|icon|preconnect)", text)
        assert len(fetched) > 3 and [url for url in fetched if "//" in url] == [], page
        # Material would fetch its program for these.
        assert 'class="mermaid"' not in text and "language-mermaid" not in text


def test_the_reference_on_the_site_has_every_key(site: Path) -> None:
    page = (site / "configuration.html").read_text()
    for section in sections():
        for key in section.keys:
            assert f"<code>{key.path.removeprefix(section.path + '.')}</code>" in page, key.path


@pytest.mark.parametrize("page", FORGE)
def test_links_lead_somewhere_where_the_repository_is_read_too(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith(("#", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        there = ((ROOT / page).parent / file).resolve()
        assert there.exists(), f"{page} links to {target}"
        if anchor and there.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}, target


@pytest.mark.parametrize("name", ["graph", "turn"])
def test_a_drawing_is_well_formed_says_what_it_shows_and_can_be_read_in_the_dark(name: str) -> None:
    text = (ROOT / "docs" / "img" / f"{name}.svg").read_text()
    root = ElementTree.fromstring(text)
    assert root.find("{*}title") is not None and root.find("{*}desc") is not None
    assert "prefers-color-scheme: dark" in text and "href" not in text


# -- troubleshooting --------------------------------------------------------------------------------------------------


def words_of_the_source() -> Iterator[str]:
    """Every text in the source, with … for what is put in when it runs."""
    for path in sorted((ROOT / "clawrl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
    for path in sorted((ROOT / "clawrl" / "console" / "static" / "js").rglob("*.js")):
        for plain, template in re.findall(r'"([^"\n]+)"|`([^`]+)`', path.read_text()):
            yield plain or re.sub(r"\$\{[^}]*\}", "…", template)


SOURCE = tuple(words_of_the_source())


def is_said(quoted: str) -> bool:
    """What is between the gaps stands in one text of the source, in this order."""
    parts = [re.escape(part) for part in quoted.split("…") if part.strip()]
    pattern = re.compile(".*".join(parts), re.DOTALL)
    return bool(parts) and any(pattern.search(text) for text in SOURCE)


def quoted_messages(page: str) -> list[str]:
    rows = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row)]
    # A single word is a state or a key; a message has several, or a gap.
    return [span for span in spans if " " in span or "…" in span]


def test_every_message_that_is_quoted_is_one_of_ours() -> None:
    quoted = quoted_messages(TROUBLE) + re.findall(
        r"`(has ledger format [^`]+)`", (ROOT / "docs/operations-upgrade.md").read_text()
    )
    assert len(quoted) > 30
    strangers = [message for message in quoted if not is_said(message)]
    assert not strangers, f"the source does not say so (any more): {strangers}"


def test_a_message_that_nobody_says_is_found() -> None:
    assert not is_said("the moon is … today") and not is_said("…")
    assert quoted_messages("| `the moon is … today` | look up | wait |") == ["the moon is … today"]


def test_every_reason_to_drop_a_turn_is_explained() -> None:
    part = TROUBLE.partition("## My turns do not train")[2].partition("\n## ")[0]
    explained = re.findall(r"^\| `(\w+)` \| \S.* \| \S.* \|$", part, re.MULTILINE)
    assert explained == [reason.value for reason in DropReason], "one row each, in the order of DropReason"


# -- lists that are kept by hand --------------------------------------------------------------------------------------


def test_the_readme_names_every_route_of_the_operator_and_contributing_every_room() -> None:
    readme, contributing = (ROOT / "README.md").read_text(), (ROOT / "CONTRIBUTING.md").read_text()
    source = (ROOT / "clawrl" / "actors" / "operator_routes.py").read_text()
    routes = {path.replace(":path", "") for path in re.findall(r'@router\.\w+\(\s*"([^"]+)"', source)}
    # Beside another in one table's cell, or with its method.
    untold = [path for path in routes if not re.search(f"[` ]{re.escape(path)}`", readme)]
    assert len(routes) > 10 and sorted(untold) == []
    rows = re.findall(r"^\| (`clawrl/.*?) \|", contributing, re.MULTILINE)
    named = {name.removeprefix("clawrl/").strip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    rooms = {path.parent.name for path in (ROOT / "clawrl").glob("*/__init__.py")}
    assert len(rooms) > 15 and sorted(rooms - named) == []


# -- what changed -----------------------------------------------------------------------------------------------------


def test_every_command_and_every_block_of_a_deployment_is_named_in_what_changed() -> None:
    code = re.findall(r"`([^`]+)`", (ROOT / "CHANGELOG.md").read_text())
    words = {word for span in code for word in span.removeprefix("clawrl ").split()}
    group = typer.main.get_command(cli.app)
    commands = set(group.commands)  # type: ignore[attr-defined]
    assert len(commands) > 20 and sorted(commands - words) == []
    blocks = Deployment.model_fields.keys() - {"name", "state_dir"}
    assert {"serving", "privacy", "metrics"} <= blocks
    assert sorted(blocks - {word.split(".")[0] for word in words}) == []


# -- upgrading --------------------------------------------------------------------------------------------------------


def test_the_formats_that_the_upgrading_page_names_are_those_that_this_release_reads_and_brings_along() -> None:
    page = (ROOT / "docs" / "operations-upgrade.md").read_text()
    rows = dict(re.findall(r"^\| a ledger of format (\d+) \| (.*) \|$", page, re.MULTILINE))
    upgrades = {int(f): int(n) for f, row in rows.items() for n in re.findall(r"becomes format (\d+)", row)}
    assert rows.keys() == {str(SCHEMA_VERSION), *map(str, UPGRADES)}
    assert upgrades == dict.fromkeys(UPGRADES, SCHEMA_VERSION)
    for earlier in UPGRADES:
        assert f"**From format {earlier} to {SCHEMA_VERSION}.**" in page
        assert f"(format {earlier}) is brought to format {SCHEMA_VERSION}" in (ROOT / "docs/privacy.md").read_text()

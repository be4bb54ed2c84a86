"""The console's files: what is sent with them, what is in them, and that every way of installing brings them along."""

from __future__ import annotations

import asyncio
import configparser
import fnmatch
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import clawrl
from clawrl.console.files import POLICY, ConsoleFiles
from clawrl.messages import DropReason, TurnState
from clawrl.serving.errors import ApiError
from tests.console_fake import busy
from tests.console_true import TrueDocuments, true_documents

STATIC = Path(clawrl.__file__).parent / "console" / "static"
ROOT = STATIC.parent.parent.parent


def text_of(path: str) -> str:
    return (STATIC / path).read_text()


@pytest.fixture(scope="module")
def console() -> ConsoleFiles:
    return ConsoleFiles()


def ours(console: ConsoleFiles, end: str) -> Iterator[str]:
    """Files that are not vendored."""
    return (path for path in console.paths if path.endswith(end) and not path.startswith("vendor/"))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"), ("/index.html", "text/html; charset=utf-8"),
        ("/console.css", "text/css; charset=utf-8"), ("/js/app.js", "text/javascript; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"), ("/vendor/uplot/LICENSE", "text/plain; charset=utf-8"),
    ],
)  # fmt: skip
def test_a_file_comes_with_its_type_and_a_policy_that_lets_nothing_else_run(
    console: ConsoleFiles, path: str, kind: str
) -> None:
    answer = console.answer(path, {})
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY and "http" not in POLICY and "default-src 'none'" in POLICY


def test_a_browser_that_has_a_file_is_told_so_until_it_changes(console: ConsoleFiles) -> None:
    first = console.answer("/console.css", {})
    assert first.headers["cache-control"] == "no-cache"
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        again = console.answer("/console.css", {"if-none-match": known})
        assert (again.status_code, again.body) == (304, b"")
    assert console.answer("/console.css", {"if-none-match": '"other"'}).status_code == 200


def test_a_browser_that_takes_gzip_gets_the_same_bytes_in_fewer(console: ConsoleFiles) -> None:
    packed = console.answer("/vendor/uplot/uPlot.esm.js", {"accept-encoding": "gzip, br"})
    plain = console.answer("/vendor/uplot/uPlot.esm.js", {})
    assert packed.headers["content-encoding"] == "gzip" and packed.headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(bytes(packed.body)) == plain.body and len(packed.body) < len(plain.body) / 3
    assert packed.headers["etag"] != plain.headers["etag"]


def test_the_address_without_a_slash_leads_to_the_page_below_any_prefix(console: ConsoleFiles) -> None:
    answer = console.answer("", {})
    assert (answer.status_code, answer.headers["location"]) == (308, "console/")


@pytest.mark.parametrize("path", ["/nothing.js", "/js", "/../files.py", "/js/../../files.py", "x", "/vendor/uplot/"])
def test_there_is_nothing_else(console: ConsoleFiles, path: str) -> None:
    with pytest.raises(ApiError) as refused:
        console.answer(path, {})
    assert refused.value.status == 404


def test_a_console_that_is_switched_off_is_not_there() -> None:
    for path in ("", "/", "/console.css"):
        with pytest.raises(ApiError):
            ConsoleFiles(enabled=False).answer(path, {})


def test_the_ingress_serves_it_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray import serve

    from clawrl.actors import ingress as served
    from clawrl.config import read_deployment
    from tests.ingress_kit import Ingress

    laptop = read_deployment(ROOT / "deployments" / "laptop.yaml")
    serving = laptop.serving.model_copy(update={"api_key": "secret"})
    made = Ingress(laptop.model_copy(update={"serving": serving}), None, None)
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(servable_object=made))

    async def ask() -> tuple[httpx.Response, httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=served.api), base_url="http://test") as client:
            return await client.get("/console/"), await client.head("/console/")

    page, head = asyncio.run(ask())
    assert page.status_code == 200 and b"<title>clawrl console</title>" in page.content
    assert head.status_code == 200 and head.content == b""


def test_the_page_needs_nothing_from_elsewhere_and_has_no_code_in_its_markup(console: ConsoleFiles) -> None:
    page = text_of("index.html")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", page)
    named = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert len(named) >= 4 and set(named) <= set(console.paths)
    for path in (*ours(console, ".js"), *ours(console, ".css"), "index.html"):
        found = set(re.findall(r"https?://[^\s\"')]+", text_of(path)))
        assert found <= {"http://www.w3.org/2000/svg"}, path
    assert not re.search(r"@import|url\(", text_of("console.css"))


def test_every_module_that_is_named_is_there(console: ConsoleFiles) -> None:
    modules = list(ours(console, ".js"))
    assert len(modules) > 10
    for path in modules:
        for name in re.findall(r'from "(\.[^"]+)"', text_of(path)):
            target = (STATIC / path).parent.joinpath(name).resolve()
            assert target.is_relative_to(STATIC.resolve()) and target.is_file(), f"{path} imports {name}"


def test_no_module_reads_text_as_markup_or_puts_a_key_elsewhere(console: ConsoleFiles) -> None:
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc"
    banned = markup + r"|\beval\(|new Function"
    for path in ours(console, ".js"):
        assert not re.search(banned, text_of(path)), path
        if path != "js/api.js":
            assert "sessionStorage" not in text_of(path), f"{path} keeps something beside the key"
        assert text_of(path).startswith("//") and text_of(path).count("\n") <= 400, path


def test_the_filters_offer_every_state_and_every_reason() -> None:
    for name, kind in (("STATES", TurnState), ("REASONS", DropReason)):
        listed = re.search(rf"{name} = \[(.*?)\]", text_of("js/format.js"), re.DOTALL)
        assert listed is not None and re.findall(r'"(\w+)"', listed[1]) == [value.value for value in kind]


def test_every_class_has_a_rule_and_every_export_a_reader(console: ConsoleFiles) -> None:
    rules, texts = text_of("console.css"), {path: text_of(path) for path in ours(console, ".js")}
    for path, text in texts.items():
        for name in " ".join(re.findall(r'class: "([^"]+)"', text)).split():
            assert re.search(rf"\.{name}(?![\w-])", rules), f"{path}: nothing is said of the class {name}"
        for name in re.findall(r"^export (?:const|class|(?:async )?function) (\w+)", text, re.MULTILINE):
            others = "".join(other for at, other in texts.items() if at != path)
            assert re.search(rf"import \{{[^}}]*\b{name}\b", others), f"{path}: nobody imports {name}"


def test_the_figures_of_a_step_are_called_as_the_trainer_calls_them() -> None:
    source = "".join(
        file.read_text() for room in ("methods", "training") for file in (ROOT / "clawrl" / room).glob("*.py")
    )
    figures = re.search(r"STEP_FIGURES = \[(.*?)\n\];", text_of("js/views/turn.js"), re.DOTALL)
    assert figures is not None
    names = [*re.findall(r'\["(\w+)"', figures[1]), *re.findall(r'field: "(\w+)"', text_of("js/measures.js"))]
    assert len(names) > 8 and [name for name in names if f'"{name}"' not in source] == []


def test_the_chart_library_has_its_licence_beside_it(console: ConsoleFiles) -> None:
    assert "The MIT License (MIT)" in text_of("vendor/uplot/LICENSE")
    assert "uPlot" in (ROOT / "NOTICE").read_text()
    for path in console.paths:
        if path.startswith("vendor/"):
            assert (STATIC / path).parent.joinpath("LICENSE").is_file()


def test_a_wheel_would_hold_every_file(console: ConsoleFiles) -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = config["options.package_data"]["clawrl.console"].split()
    for path in console.paths:
        # Their star does not cross a folder.
        fits = [p for p in patterns if fnmatch.fnmatch(f"static/{path}", p) and p.count("/") == path.count("/") + 1]
        assert fits, f"{path} is in no pattern of options.package_data"
    on_disk = {p.relative_to(STATIC).as_posix() for p in STATIC.rglob("*") if p.is_file()}
    assert on_disk == set(console.paths)


# -- what the page's own tests look at ---------------------------------------------------------------


@pytest.fixture(scope="module")
def true() -> TrueDocuments:
    return true_documents()


def fields(document: Any, path: str = "") -> dict[str, set[str]]:
    """The names in every object of a document, by where it is. Stats are the trainer's own, in any number."""
    found: dict[str, set[str]] = {}
    if isinstance(document, dict):
        found[path] = set(document)
        for name, value in document.items():
            if name not in ("stats", "lag", "by_state", "template_arguments"):
                found |= {at: names | found.get(at, set()) for at, names in fields(value, f"{path}.{name}").items()}
    elif isinstance(document, list):
        for value in document:
            for at, names in fields(value, f"{path}[]").items():
                found[at] = names | found.get(at, set())
    return found


def test_the_made_up_documents_have_the_fields_of_the_true_ones(true: TrueDocuments) -> None:
    fake = busy()
    fake.publish(3, 1.0, {}, back_to=2)
    pairs = {
        "turns": (fake.turns, true.turns),
        "lives": (list(fake.lives.values()), true.lives),
        "sessions": (fake.session_documents(), true.sessions),
        "steps": (fake.steps, true.steps),
        "versions": (fake.versions, true.versions),
    }
    for name, (made_up, real) in pairs.items():
        assert real and fields(made_up) == fields(real), name


def test_the_made_up_status_has_the_fields_of_the_true_one(tmp_path: Path) -> None:
    from clawrl.actors.status import status_document
    from clawrl.config import read_deployment
    from tests.ledger_kit import open_ledger

    with open_ledger(tmp_path) as ledger:
        true = status_document(read_deployment(ROOT / "deployments" / "laptop.yaml"), ledger)
    made_up = busy().status()
    # What the coordinator adds of its own.
    added = {"floor", "replicas", "unrecorded", "journaled", "trainer", "guards", "coordinator"}
    assert set(made_up) - added == set(true)
    for name in ("turns", "staleness", "sessions", "holds_ms", "judge"):
        assert set(made_up[name]) == set(true[name]), name

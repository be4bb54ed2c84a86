"""A newcomer's path, from nothing, by what the quick start says.

Clone, `make install`, start the laptop deployment with an empty cache, open the console in Chromium, chat, say what was
bad about the answers, see that judged, trained and published, and see the answer change; stop, start again, and find it
trained. A quarter of an hour on two cores. What is not from nothing: pip's cache, and Debian's packages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.console_kit import chromium, needs_chromium, screenshot, sign_in
from tests.docs_commands import commands
from tests.live import REPOSITORY, Live, free_port

WISH = "Answer in one sentence."
THINGS = ("rain", "bread", "the sea", "an owl", "a bridge", "copper", "winter", "a violin")
MOST_STEPS = 3
PATIENCE_MS = 240_000
QUICK_START = tuple(c.text for c in commands("", (REPOSITORY / "docs" / "quickstart.md").read_text()) if not c.inline)
# Of these one installs and one serves, which is done here in another way; the others end by themselves.
FIRST = ("clawrl check", "clawrl wait-ready", "clawrl status")
LAST = ("clawrl chat", "clawrl feedback", "curl")
ELSEWHERE = ("make install", ". .venv/bin/activate", "serve run", "clawrl status --watch", "make demo")


def of_the_quick_start(*beginnings: str) -> list[str]:
    return [text for text in QUICK_START if text.startswith(beginnings) and not text.startswith(ELSEWHERE)]


def nobodys() -> dict[str, str]:
    """The environment of somebody who has nothing of clawrl's yet; what `make` was given for torch stays."""
    ours = {"PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
    return {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("CLAWRL_")}


def typed(text: str, clone: Path, env: dict[str, str] | None = None, keys: str = "") -> str:
    """What a shell in the clone says to ``text``, with its environment activated."""
    script = f". .venv/bin/activate\n{text}"
    result = subprocess.run(
        ["bash", "-euc", script],
        cwd=clone,
        env={**nobodys(), **(env or {})},
        input=keys,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, f"{text}: {result.stdout[-2000:]}{result.stderr[-2000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is committed here, cloned and installed with `make install`."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is no clone, so that it cannot be cloned")
    folder = tmp_path_factory.mktemp("newcomer") / "clawrl"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(folder)], check=True, timeout=120)
    made = subprocess.run(
        ["make", "install"], cwd=folder, env=nobodys(), capture_output=True, text=True, timeout=1800, check=False
    )
    assert made.returncode == 0, f"{made.stdout[-2000:]}{made.stderr[-4000:]}"
    yield folder
    # Gigabytes, and pytest keeps the folders of three runs.
    shutil.rmtree(folder)


def test_the_quick_start_has_no_command_that_its_newcomer_leaves_out() -> None:
    assert [text for text in QUICK_START if not text.startswith((*FIRST, *LAST, *ELSEWHERE))] == []


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_a_fresh_clone_installs_and_its_own_commands_answer(clone: Path, tmp_path: Path) -> None:
    where = typed("python -c 'import clawrl; print(clawrl.__file__)'", clone)
    assert Path(where.strip()).is_relative_to(clone)
    fresh = {"CLAWRL_CACHE": str(tmp_path / "cache"), "CLAWRL_HOME": str(tmp_path / "home")}
    (check,) = of_the_quick_start("clawrl check")
    assert "Rollout" in typed(check, clone, fresh)
    helped = typed("clawrl --help", clone, fresh)
    for command in ("status", "chat", "turns", "rollback", "backup", "forget", "export-turns"):
        assert command in helped
    assert not (tmp_path / "cache").exists() and not (tmp_path / "home").exists(), "to check a file starts nothing"


@contextmanager
def served(clone: Path, cache: Path) -> Iterator[Live]:
    """The clone's laptop deployment, as it is shipped but for a port of its own; its model is fetched first."""
    file: dict[str, Any] = yaml.safe_load((clone / "deployments" / "laptop.yaml").read_text())
    file["http_options"]["port"] = free_port()
    live = Live(file, checkout=clone, env={"CLAWRL_CACHE": str(cache), "PYTHONPATH": str(clone)})
    try:
        live.start(timeout_s=900.0)
        yield live
    finally:
        live.__exit__()


def ask(page: Any, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer-bar:visible", timeout=PATIENCE_MS)


def say_what_was_bad(page: Any) -> None:
    page.get_by_role("button", name="Bad answer").last.click()
    page.get_by_label("What should have been different?").fill(WISH)
    # The page thanks, and soon after says what became of the turn instead: so that it is the answer that is waited for.
    with page.expect_response(lambda answer: answer.url.endswith("/v1/feedback"), timeout=PATIENCE_MS) as heard:
        page.keyboard.press("Enter")
    assert heard.value.json()["outcome"] == "taken"
    page.get_by_role("button", name="Bad answer", pressed=True).last.wait_for(timeout=PATIENCE_MS)
    page.get_by_label("What should have been different?").wait_for(state="detached", timeout=PATIENCE_MS)


def ask_again(page: Any) -> str:
    """What the version that serves now answers without chance."""
    before = page.locator(".other[data-version]").count()
    page.get_by_role("button", name="Ask again").last.click()
    page.locator(".other[data-version]").nth(before).wait_for(timeout=PATIENCE_MS)
    return str(page.locator(".other[data-version] .text").nth(before).inner_text())


def others_rate(page: Any, things: tuple[str, ...]) -> None:
    """Enough turns for a batch: each in a conversation of its own."""
    for thing in things:
        page.get_by_role("button", name="New conversation").click()
        ask(page, f"Tell me about {thing}.")
        say_what_was_bad(page)


def state_of(live: Live, turn_id: str) -> str:
    """Where the ledger has it."""
    reply = httpx.get(f"{live.url}/clawrl/turns/{turn_id}", timeout=20.0)
    reply.raise_for_status()
    return str(reply.json()["state"])


def wait_until_trained(live: Live, turn_id: str, timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while (state := state_of(live, turn_id)) != "trained":
        assert time.monotonic() < deadline, f"still {state} after {timeout_s} s"
        time.sleep(1.0)


@pytest.mark.nightly
@needs_chromium
@pytest.mark.timeout(3600)
def test_a_newcomer_sees_the_answer_change_after_a_thumbs_down_with_a_comment(clone: Path, tmp_path: Path) -> None:
    with served(clone, tmp_path / "cache") as live, chromium() as browser:
        assert any((tmp_path / "cache" / "models").iterdir()), "the model was not there before"
        mine = {"CLAWRL_URL": live.url, "CLAWRL_CACHE": str(tmp_path / "cache")}
        for command in of_the_quick_start(*FIRST):
            assert typed(command, clone, mine)
        context = browser.new_context(viewport={"width": 1360, "height": 900})
        context.set_default_timeout(60_000)
        # Two tabs of one browser: in the first the newcomer's answer stays in sight.
        page, beside = context.new_page(), context.new_page()
        sign_in(page, live.url, None, "chat")
        sign_in(beside, live.url, None, "chat")
        ask(page, f"Tell me about {THINGS[0]}.")
        first = ask_again(page)
        say_what_was_bad(page)
        page.locator(".fate").get_by_text(f"Hint: {WISH}").wait_for(timeout=PATIENCE_MS)
        screenshot(page, "newcomer-judged")

        changed = first
        for step in range(1, MOST_STEPS + 1):
            others_rate(beside, THINGS[1:] if step == 1 else THINGS)
            page.get_by_text(re.compile(r"Learned in step \d+ and published as version \d+")).wait_for(
                timeout=PATIENCE_MS
            )
            live.wait_for(lambda status, step=step: status["version"] >= step, timeout_s=240.0, what="a version")
            changed = ask_again(page)
            if changed != first:
                break
        assert changed != first, f"{MOST_STEPS} steps changed nothing of: {first}"
        page.get_by_text(re.compile(r"Another answer than that of version 0\b")).wait_for()
        screenshot(page, "newcomer-changed")

        # And the turn's life says the same.
        rated = page.locator(".answer-bar a").first
        turn_id = str(rated.get_attribute("href")).rpartition("/")[2]
        rated.click()
        page.get_by_role("heading", name="Turn", exact=True).wait_for()
        page.get_by_role("region", name="Training").get_by_text("Step").first.wait_for()
        assert page.get_by_role("option").count() > 3
        said = page.locator("main").inner_text()
        assert WISH in said and "score \N{MINUS SIGN}1.0" in said
        screenshot(page, "newcomer-life", full_page=True)
        assert live.status()["turns"]["adds_up"]

        # A step is final with its checkpoint, which is also written when the deployment is stopped.
        assert state_of(live, turn_id) in ("applied", "trained")
        assert live.stop() == []
        live.start()
        wait_until_trained(live, turn_id)
        page.reload()
        page.locator("main .pill", has_text=re.compile("^trained$")).first.wait_for(timeout=PATIENCE_MS)
        for command in of_the_quick_start(*LAST):
            here = command.replace("http://127.0.0.1:8000", live.url)
            said = typed(here, clone, mine, keys="Tell me about rain.\nShorter, please.\n/quit\n")
            assert ('"choices"' if here.startswith("curl") else " ") in said, here
        assert live.status()["turns"]["adds_up"]

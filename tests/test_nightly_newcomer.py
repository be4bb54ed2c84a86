"""A newcomer's path, from nothing: start the laptop deployment, open the console in Chromium, chat, say what was bad
about the answers, see that judged, trained and published, and see the answer change. Minutes on two cores."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.console_kit import chromium, needs_chromium, screenshot, sign_in
from tests.live import REPOSITORY, Live, free_port

pytestmark = [pytest.mark.nightly, needs_chromium]
WISH = "Answer in one sentence."
THINGS = ("rain", "bread", "the sea", "an owl", "a bridge", "copper", "winter", "a violin")
MOST_STEPS = 3
PATIENCE_MS = 240_000


def laptop() -> dict[str, Any]:
    """As it is shipped, on a port of its own."""
    file: dict[str, Any] = yaml.safe_load((REPOSITORY / "deployments" / "laptop.yaml").read_text())
    file["http_options"]["port"] = free_port()
    return file


def ask(page: Any, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer-bar:visible", timeout=PATIENCE_MS)


def say_what_was_bad(page: Any) -> None:
    page.get_by_role("button", name="Bad answer").last.click()
    page.get_by_label("What should have been different?").fill(WISH)
    page.keyboard.press("Enter")
    page.get_by_text("Thank you.").or_(page.locator(".fate .pill")).first.wait_for(timeout=PATIENCE_MS)


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


@pytest.mark.timeout(1500)
def test_a_newcomer_sees_the_answer_change_after_a_thumbs_down_with_a_comment() -> None:
    with Live(laptop()) as live, chromium() as browser:
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
        page.locator(".answer-bar a").first.click()
        page.get_by_role("heading", name="Turn", exact=True).wait_for()
        page.get_by_role("region", name="Training").get_by_text("Step").first.wait_for()
        assert page.get_by_role("option").count() > 3
        said = page.locator("main").inner_text()
        assert WISH in said and "score \N{MINUS SIGN}1.0" in said
        screenshot(page, "newcomer-life", full_page=True)
        assert live.status()["turns"]["adds_up"]

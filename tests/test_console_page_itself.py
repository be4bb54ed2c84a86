"""The console's page whatever it shows, in a real Chromium: its key, its connection, themes, keys, small screens."""

from __future__ import annotations

import time

import pytest

from clawrl.serving.errors import not_permitted
from tests.console_fake import KEY, Fake
from tests.console_kit import AXE, needs_chromium, screenshot
from tests.console_page_kit import VIEWS, Open, go, row_texts, trained, wait_until

pytestmark = needs_chromium


def test_the_key_is_asked_for_once_kept_in_the_tab_and_sent_in_a_header_alone(fake: Fake, open_page: Open) -> None:
    page = open_page(enter=False)
    page.fill("#key", "another key")
    page.press("#key", "Enter")
    page.get_by_text("This key is not known here.").wait_for()
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    page.get_by_role("heading", name="Overview").wait_for()
    page.reload()
    page.get_by_role("heading", name="Overview").wait_for()
    assert fake.headers[-1]["authorization"] == f"Bearer {KEY}"
    assert KEY not in page.url and all(KEY not in asked["query"] + asked["path"] for asked in fake.headers)
    assert page.evaluate("Object.values(sessionStorage)") == [KEY]
    assert KEY not in page.evaluate(
        "JSON.stringify(localStorage) + document.cookie + document.documentElement.outerHTML"
    )
    page.get_by_role("button", name="Forget the key").click()
    page.get_by_label("Key").wait_for()
    assert page.evaluate("sessionStorage.length") == 0


def test_without_keys_the_console_opens_at_once(fake: Fake, open_page: Open) -> None:
    fake.key = None
    page = open_page(enter=False)
    page.get_by_role("heading", name="Overview").wait_for()
    assert not page.get_by_role("button", name="Forget the key").is_visible()


def test_a_key_that_may_only_talk_is_told_so(fake: Fake, open_page: Open) -> None:
    fake.refuse["/clawrl/status"] = not_permitted()
    page = open_page(enter=False)
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    page.get_by_text("the console takes the operator's key or its own").wait_for()


def test_a_server_that_goes_away_is_named_and_found_again(fake: Fake, open_page: Open) -> None:
    page = open_page("turns")
    wait_until(page, lambda: len(row_texts(page, "Turns")) == 50, "no turns")
    fake.down = True
    page.locator(".banner").get_by_text("Not connected").wait_for()
    assert page.get_by_text("not connected", exact=True).is_visible()
    assert len(row_texts(page, "Turns")) == 50, "what was known is gone"
    screenshot(page, "not-connected")
    fake.down, fake.up_since = False, time.time()
    page.get_by_text("The coordinator was restarted").wait_for()
    wait_until(page, lambda: not page.locator(".banner").count(), "still said to be away")
    # Also where nothing answers at all.
    page.context.set_offline(True)
    page.get_by_text("The server cannot be reached.").wait_for()
    page.context.set_offline(False)
    wait_until(page, lambda: not page.locator(".banner").count(), "not found again")


def test_a_hidden_page_asks_nothing_and_looks_again_when_it_is_seen(fake: Fake, open_page: Open) -> None:
    page = open_page("turns")
    hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
    hide += "document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    asked = fake.gets
    before = -1
    # What was asked before it was hidden may still be on its way.
    while before != fake.gets and fake.gets < asked + 20:
        before = fake.gets
        page.wait_for_timeout(1200)
    assert fake.gets == before
    page.evaluate(hide, False)
    wait_until(page, lambda: fake.gets > before, "a page that is seen again does not ask")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_passes_axe_in_both_themes(fake: Fake, open_page: Open, theme: str) -> None:
    life = f"turns/{trained(fake)['turn_id']}"
    fake.paused = "a look at the hints"
    # What depends on the theme alone is looked at in both, all the rest in one.
    run = AXE_RUN.replace("RULES", THEME_RULES if theme == "dark" else ALL_RULES)
    # Axe is put into the page, which its policy would rightly refuse.
    page = open_page(enter=False, color_scheme=theme, bypass_csp=True)
    page.wait_for_selector("#key")
    page.add_script_tag(content=AXE.read_text())
    found = {"gate": page.evaluate(run)}
    screenshot(page, f"{theme}-gate")
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    page.wait_for_selector(".chart canvas")
    for view in (*VIEWS, life, "sessions/shop-3"):
        go(page, view)
        wait_until(page, lambda: not page.locator("main .spinner").count(), f"{view} is not there")
        found[view] = page.evaluate(run)
        screenshot(page, f"{theme}-{view.split('/')[0]}{'-one' if '/' in view else ''}", full_page=view == life)
    go(page, life)
    page.get_by_role("radio", name="Advantage").click()
    found["advantages"] = page.evaluate(run)
    page.locator("h1").focus()
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    found["dialog"] = page.evaluate(run)
    assert {view: problems for view, problems in found.items() if problems} == {}


ALL_RULES = '["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]'
THEME_RULES = '{type: "rule", values: ["color-contrast", "link-in-text-block"]}'
AXE_RUN = """async () => (await axe.run(document, {resultTypes: ["violations"],
    runOnly: RULES})).violations.map(found =>
    `${found.id}: ${found.nodes.slice(0, 3).map(node => node.html + " " + node.failureSummary).join(" | ")}`)"""


def test_keys_lead_everywhere_and_can_be_switched_off(fake: Fake, open_page: Open) -> None:
    page = open_page(enter=False)
    page.wait_for_selector("#key")
    page.keyboard.type(KEY)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()
    # From the beginning, not from where the field of the key was.
    page.reload()
    page.get_by_role("heading", name="Overview").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    names = []
    for _ in range(7):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.textContent.trim()"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert names == ["clawrllaptop", *(view.capitalize() for view in VIEWS)]
    for key, view in zip("234561", (*VIEWS[1:], VIEWS[0]), strict=True):
        page.locator("h1").focus()
        page.keyboard.press(key)
        page.get_by_role("heading", name=view.capitalize(), level=1).wait_for()
    page.locator("h1").focus()
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("3")
    page.get_by_label("Session").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("2?t")
    assert page.get_by_label("Session").input_value() == "2?t", "keys act while somebody types"
    page.locator("h1").focus()
    page.keyboard.press("?")
    page.get_by_label("Single keys act").uncheck()
    page.keyboard.press("Escape")
    page.locator("h1").focus()
    page.keyboard.press("2")
    page.wait_for_timeout(50)
    assert page.get_by_role("heading", name="Turns", level=1).is_visible()
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()


def test_nothing_moves_for_who_wants_that_and_a_small_screen_scrolls_one_way(fake: Fake, open_page: Open) -> None:
    page = open_page("chat", wide=390, bypass_csp=True)
    page.add_script_tag(content=AXE.read_text())
    found = {}
    still = "() => getComputedStyle(Object.assign(document.body.appendChild(document.createElement('i')), "
    still += "{className: 'spinner'})).animationIterationCount"
    assert page.evaluate(still) == "1"
    for view in (*VIEWS, f"turns/{trained(fake)['turn_id']}"):
        go(page, view)
        page.wait_for_selector("main .panel:visible")
        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert over <= 0, f"{view} is {over} px too wide"
        wait_until(page, lambda: not page.locator("main .spinner").count(), f"{view} is not there")
        found[view] = page.evaluate(AXE_RUN.replace("RULES", ALL_RULES))
    assert {view: problems for view, problems in found.items() if problems} == {}
    screenshot(page, "small")

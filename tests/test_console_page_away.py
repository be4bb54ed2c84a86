"""The console's page where a server is silent, a key is refused, a browser keeps nothing, or the page is locked."""

from __future__ import annotations

import time
from typing import Any

from tests.console_fake import KEY, Fake
from tests.console_kit import needs_chromium
from tests.console_page_kit import Open, go, wait_until

pytestmark = needs_chromium
BLOCKED = """for (const name of ["localStorage", "sessionStorage"])
    Object.defineProperty(window, name, {get() { throw new DOMException("denied", "SecurityError"); }});"""
IMPATIENT = """() => {
    const real = AbortSignal.timeout;
    AbortSignal.timeout = ms => real.call(AbortSignal, ms / 12);
}"""
REFUSED = '{"error": {"message": "Incorrect API key provided."}}'


def test_a_server_that_takes_connections_and_never_answers_is_away(fake: Fake, open_page: Open) -> None:
    page = open_page("turns")
    page.get_by_text("50 turns, newest").wait_for()
    page.evaluate(IMPATIENT)
    page.route("**/clawrl/**", lambda _: None)
    page.locator(".banner").get_by_text("The server does not answer.").wait_for()
    assert page.get_by_text("not connected", exact=True).is_visible()
    assert page.get_by_role("table", name="Turns").is_visible(), "what was known is gone"
    page.unroute("**/clawrl/**")
    wait_until(page, lambda: not page.locator(".banner").count(), "not found again")
    assert page.get_by_text("learning", exact=True).is_visible()


def test_the_reason_of_a_refused_key_stays_when_a_second_request_is_refused(fake: Fake, open_page: Open) -> None:
    page = open_page()
    held: list[Any] = []
    page.route("**/clawrl/publish", lambda route: held.append(route))
    page.get_by_role("button", name="Publish").click()
    wait_until(page, lambda: bool(held), "no publish was asked for")
    page.evaluate("() => addEventListener('unhandledrejection', event => event.preventDefault())")
    fake.key = "another"
    page.get_by_text("This key is not known here.").wait_for()
    page.fill("#key", "half a k")
    held[0].fulfill(status=401, content_type="application/json", body=REFUSED)
    page.wait_for_timeout(300)
    assert page.get_by_text("This key is not known here.").is_visible()
    assert page.input_value("#key") == "half a k", "a late refusal took away what was typed"


def test_a_lock_ends_what_could_still_act(fake: Fake, open_page: Open) -> None:
    page = open_page("chat")
    ended: list[str] = []
    page.on("requestfailed", lambda asked: ended.append(asked.post_data or ""))
    page.get_by_label("Message", exact=True).fill("first")
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer-bar:visible")
    fake.answers += ["word " * 4000] * 2
    page.get_by_role("button", name="Ask again").click()
    page.get_by_label("Message", exact=True).fill("second")
    page.get_by_label("Message", exact=True).press("Enter")
    wait_until(page, lambda: len(fake.of("/v1/chat/completions")) == 3, "not both are asked")
    page.get_by_role("button", name="Forget the key").click()
    page.wait_for_selector("#key")
    wait_until(
        page,
        lambda: all(any(name in body for body in ended) for name in ("second", '"temperature":0')),
        "an answer runs on behind the gate",
    )
    page.evaluate("document.activeElement.blur()")
    for key in ("p", "?", "3"):
        page.keyboard.press(key)
    assert not page.get_by_role("dialog").count() and page.url.endswith("#/chat"), "keys act behind the gate"
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    page.get_by_role("heading", name="Say something").wait_for()
    # And a question that stood open.
    page.locator("h1").focus()
    page.keyboard.press("p")
    page.get_by_role("dialog").wait_for()
    fake.key = "another"
    page.get_by_text("This key is not known here.").wait_for()
    wait_until(page, lambda: not page.locator("dialog").count(), "a question stands before the gate")
    assert page.evaluate("document.activeElement.id") == "key"


def test_a_browser_that_keeps_nothing_has_a_page_all_the_same(fake: Fake, open_page: Open) -> None:
    page = open_page(enter=False)
    page.add_init_script(BLOCKED)
    page.reload()
    page.fill("#key", "schl\N{LATIN SMALL LETTER U WITH DIAERESIS}ssel")
    page.press("#key", "Enter")
    page.get_by_text("A key has only letters without accents").wait_for()
    assert not fake.headers or "authorization" not in fake.headers[-1], "a key that cannot be said was sent"
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    page.get_by_role("heading", name="Overview").wait_for()
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    go(page, "turns")
    page.get_by_text("50 turns, newest").wait_for()


def test_who_waits_for_a_server_that_starts_stays_on_the_button(fake: Fake, open_page: Open) -> None:
    fake.down = True
    page = open_page(enter=False)
    page.get_by_role("button", name="Try now").focus()
    before = fake.gets
    said = page.locator(".gate .count").inner_text()
    wait_until(page, lambda: page.locator(".gate .count").inner_text() != said, "it does not say when it tries again")
    assert page.evaluate("document.activeElement.textContent") == "Try now", "the next try took the focus"
    assert fake.gets == before
    fake.down, fake.key, fake.up_since = False, None, time.time()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()

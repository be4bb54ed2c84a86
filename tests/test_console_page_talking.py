"""Talking on the console's page when something is out of the ordinary: opted out, forgotten, failed, redeployed."""

from __future__ import annotations

from typing import Any

from clawrl.serving.errors import ApiError
from tests.console_fake import STEPS, Fake
from tests.console_kit import needs_chromium
from tests.console_page_kit import Open, wait_until

pytestmark = needs_chromium


def say(page: Any, text: str, answers: int) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")
    wait_until(page, lambda: page.locator(".answer-bar:visible").count() == answers, "no answer")


def own(fake: Fake) -> list[dict[str, Any]]:
    return [turn for turn in fake.turns if turn["session"].startswith("console-")]


def test_what_may_not_be_learned_from_may_not_when_it_is_asked_again_either(fake: Fake, open_page: Open) -> None:
    page = open_page("chat")
    say(page, "a secret", 1)
    box = page.get_by_label("May be learned from")

    def ask_again() -> str | None:
        before = page.locator(".other[data-version]").count()
        page.get_by_role("button", name="Ask again").click()
        wait_until(page, lambda: page.locator(".other[data-version]").count() > before, "no other answer")
        asked = [headers for headers in fake.headers if headers["path"] == "/v1/chat/completions"]
        assert asked[-1]["x-turn-type"] == "side"
        return asked[-1].get("x-clawrl-train")

    assert ask_again() is None
    box.uncheck()
    assert ask_again() == "no"
    box.check()
    assert ask_again() is None
    # What was said with the box off stays out of the ledger, also once more may be learned from.
    page.get_by_role("button", name="New conversation").click()
    box.uncheck()
    say(page, "a secret", 1)
    box.check()
    assert ask_again() == "no"


def test_a_turn_that_is_forgotten_is_told_and_stops_no_other(fake: Fake, open_page: Open) -> None:
    page = open_page("chat")
    for number in range(2):
        say(page, f"message {number}", number + 1)
    gone, other = own(fake)
    fake.turns.remove(gone)
    del fake.lives[gone["turn_id"]]
    page.locator(".fate").first.get_by_text("This turn is no longer in the ledger").wait_for()
    fake.move(other, "queued", verdict=-1, reward=-1.0, hints=1)
    page.locator(".fate").nth(1).get_by_text("Hint: Answer in one sentence.").wait_for()


def test_feedback_is_sent_once_and_one_that_comes_too_late_says_so_for_good(fake: Fake, open_page: Open) -> None:
    page = open_page("chat")
    say(page, "Hello?", 1)
    fake.move(own(fake)[0], "leased", step=STEPS)
    held: list[Any] = []
    page.route("**/v1/feedback", lambda route: held.append(route))
    page.get_by_role("button", name="Bad answer").click()
    page.keyboard.type("shorter")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    wait_until(page, lambda: bool(held), "no feedback was sent")
    page.wait_for_timeout(200)
    assert len(held) == 1
    held[0].fulfill(json={"turn_id": own(fake)[0]["turn_id"], "outcome": "too_late", "state": "leased"})
    page.get_by_text("came too late to be learned from").wait_for()
    fake.move(own(fake)[0], "applied", step=STEPS)
    page.locator(".fate .pill").get_by_text("applied").wait_for()
    assert page.get_by_text("came too late to be learned from").is_visible()


def test_a_system_message_that_is_changed_after_a_failure_is_the_one_that_is_sent(fake: Fake, open_page: Open) -> None:
    page = open_page("chat")
    page.get_by_label("System message").fill("Be long.")
    fake.refuse["/v1/chat/completions"] = ApiError(429, "Too many requests.")
    page.get_by_label("Message", exact=True).fill("Hello?")
    page.keyboard.press("Enter")
    page.get_by_text("Too many requests.").wait_for()
    fake.refuse.clear()
    page.get_by_label("System message").fill("Be brief.")
    say(page, "Hello?", 1)
    sent = [message["content"] for message in fake.of("/v1/chat/completions")[-1]["messages"]]
    assert sent == ["Be brief.", "Hello?"]
    # Another name after a redeploy, which nobody tells the page.
    fake.model = "another"
    say(page, "And now?", 2)
    assert [asked["model"] for asked in fake.of("/v1/chat/completions")[-2:]] == ["SmolLM2-135M-Instruct", "another"]


def test_on_a_small_screen_nothing_is_cut_off(fake: Fake, open_page: Open) -> None:
    page = open_page("chat", wide=390)
    say(page, "Hello?", 1)
    edges = page.evaluate(
        """() => {
            const box = one => one.getBoundingClientRect();
            const rights = [...document.querySelectorAll("nav[aria-label=Views] a")].map(link => box(link).right);
            const lefts = [".chat-log", ".answer-bar"].map(name => box(document.querySelector(name)).left);
            return [Math.max(...rights), ...lefts];
        }"""
    )
    assert edges[0] <= 390, "a view's link is out of sight"
    assert edges[1] <= edges[2], "an answer's bar is cut off"
    page.get_by_role("link", name="Overview").click()
    page.wait_for_selector(".chart canvas")
    heading = page.get_by_role("heading", name="KL", exact=True).bounding_box()
    assert heading["height"] < 30, "a heading breaks within a word"

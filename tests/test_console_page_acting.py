"""What one does on the console's page, in a real Chromium: talk, rate, pause, publish, roll back."""

from __future__ import annotations

import re
import time

from clawrl.serving.errors import ApiError
from tests.console_fake import STEPS, Fake
from tests.console_kit import needs_chromium, screenshot
from tests.console_page_kit import PAUSED_BY_GUARD, Open, go, wait_until

pytestmark = needs_chromium


def test_an_answer_is_rated_followed_until_it_is_learned_and_asked_for_again(fake: Fake, open_page: Open) -> None:
    page = open_page("chat")
    page.get_by_label("Message", exact=True).fill("How do I plane a board?")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Ask again").click()
    page.get_by_text(f"Version {STEPS - 1}, without chance").wait_for()
    page.get_by_role("button", name="Bad answer").click()
    page.get_by_label("What should have been different?").fill("Answer in one sentence.")
    page.keyboard.press("Enter")
    wait_until(page, lambda: bool(fake.of("/v1/feedback")), "no feedback was sent")
    turn = next(row for row in fake.turns if row["session"].startswith("console-"))
    assert fake.of("/v1/feedback") == [{"turn_id": turn["turn_id"], "score": -1, "comment": "Answer in one sentence."}]
    asked, again = fake.of("/v1/chat/completions")
    assert asked == {
        "model": "SmolLM2-135M-Instruct",
        "messages": [{"role": "user", "content": "How do I plane a board?"}],
        "stream": True,
    }
    assert again == {**asked, "temperature": 0}
    sent = [headers for headers in fake.headers if headers["path"] == "/v1/chat/completions"]
    assert sent[0]["x-session-id"] == turn["session"] and "x-turn-type" not in sent[0]
    assert sent[1]["x-turn-type"] == "side" and "x-session-id" not in sent[1]
    fate = page.locator(".fate")
    fake.move(turn, "queued", verdict=-1, reward=-1.0, hints=1)
    fate.get_by_text("Hint: Answer in one sentence.").wait_for()
    fake.move(turn, "applied", step=STEPS)
    fake.publish(STEPS, time.time(), {})
    fate.get_by_text(f"Learned in step {STEPS} and published as version {STEPS}.").wait_for()
    fake.answers.append("Plane with the grain.")
    page.get_by_role("button", name="Ask again").click()
    page.get_by_text(f"Another answer than that of version {STEPS - 1}.").wait_for()
    screenshot(page, "chat-learned")
    # The conversation stays while one looks elsewhere, and is closed when a new one is begun.
    go(page, "turns")
    go(page, "chat")
    assert "Plane with the grain." in page.locator(".chat-log").inner_text()
    page.get_by_role("button", name="New conversation").click()
    page.get_by_role("heading", name="Say something").wait_for()
    wait_until(page, lambda: fake.of("/clawrl/session/done") == [{}], "the session was not ended")


def test_an_answer_that_breaks_says_so_and_the_message_can_be_sent_again(fake: Fake, open_page: Open) -> None:
    page = open_page("chat")
    page.get_by_label("Most tokens").fill("1")
    page.get_by_label("Message", exact=True).fill("Hello?")
    page.keyboard.press("Enter")
    page.get_by_text("The engine gave up.").wait_for()
    assert page.get_by_label("Message", exact=True).input_value() == "Hello?"
    fake.refuse["/v1/chat/completions"] = ApiError(429, "Too many requests.", headers={"Retry-After": "7"})
    page.keyboard.press("Enter")
    page.get_by_text("Too many requests. Try again in 7 s.").wait_for()
    fake.refuse.clear()
    page.get_by_label("Most tokens").fill("")
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_label("Message", exact=True).press("Enter")
    page.wait_for_selector(".answer-bar:visible")
    sent = [message["content"] for message in fake.of("/v1/chat/completions")[-1]["messages"]]
    assert sent == ["Be brief.", "Hello?"], "what was not answered is asked twice"


def test_what_may_not_be_learned_from_is_said_with_each_message_until_it_may(fake: Fake, open_page: Open) -> None:
    page = open_page("chat")
    for number, box in enumerate(("check", "uncheck", "check")):
        getattr(page.get_by_label("May be learned from"), box)()
        page.get_by_label("Message", exact=True).fill(f"message {number}")
        page.get_by_label("Message", exact=True).press("Enter")
        wait_until(page, lambda n=number: page.locator(".answer-bar:visible").count() == n + 1, "no answer")
    asked = [headers for headers in fake.headers if headers["path"] == "/v1/chat/completions"]
    assert [headers.get("x-clawrl-train") for headers in asked] == [None, "no", "yes"]


def test_learning_is_paused_with_a_reason_resumed_and_published(fake: Fake, open_page: Open) -> None:
    page = open_page()
    page.keyboard.press("p")
    page.get_by_role("textbox", name="Reason").fill("a look at the hints")
    page.keyboard.press("Enter")
    page.get_by_text("a look at the hints. Answers are still served").wait_for()
    assert fake.of("/clawrl/pause") == [{"reason": "a look at the hints"}]
    screenshot(page, "paused")
    page.get_by_role("button", name="Resume").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    page.get_by_text("5 judged turns entered the queue").wait_for()
    wait_until(page, lambda: not page.locator(".banner").count(), "the banner of a pause that ended stays")
    page.get_by_role("button", name="Publish").click()
    page.get_by_text(f"asked to publish what it learned up to step {STEPS}").wait_for()
    fake.refuse["/clawrl/publish"] = ApiError(409, "nothing may be published now: it goes back.")
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("nothing may be published now").wait_for()


def test_a_guards_freeze_says_why_and_offers_the_last_good_version(fake: Fake, open_page: Open) -> None:
    fake.paused, fake.alarm = "the mean length is 9.1", PAUSED_BY_GUARD
    page = open_page("turns")
    page.get_by_text("Frozen by the guard: mean tokens").wait_for()
    assert page.get_by_text("frozen by the guard", exact=True).is_visible()
    screenshot(page, "frozen")
    page.get_by_role("button", name=f"Roll back to {STEPS - 3}").click()
    page.get_by_role("dialog").get_by_role("button", name=f"Roll back to {STEPS - 3}").click()
    wait_until(page, lambda: fake.of("/clawrl/rollback") == [{"version": STEPS - 3}], "no rollback")


def test_any_kept_version_is_rolled_back_to_after_a_question(fake: Fake, open_page: Open) -> None:
    page = open_page("versions")
    button = page.get_by_role("button", name=re.compile(r"Roll back to version \d+$"))
    button.first.wait_for()
    # Five that are kept beside the current one, and the start, which is on an older page.
    assert button.count() == 5
    button.nth(1).click()
    page.keyboard.press("Enter")
    assert fake.of("/clawrl/rollback") == [], "the question is answered with no by default"
    button.nth(1).click()
    page.get_by_role("dialog").get_by_role("button", name=f"Roll back to {STEPS - 3}").click()
    page.get_by_text(f"Version {STEPS} now serves the weights of version {STEPS - 3}.").wait_for()
    page.get_by_text(f"weights of {STEPS - 3}, by operator").wait_for()
    page.get_by_role("button", name="Older versions").click()
    page.get_by_role("button", name="Roll back to version 0").click()
    fake.refuse["/clawrl/rollback"] = ApiError(404, "Version 0 is not kept.")
    page.get_by_role("dialog").get_by_role("button", name="Roll back to 0").click()
    page.get_by_role("dialog").get_by_text("Version 0 is not kept.").wait_for()

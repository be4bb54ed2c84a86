"""What the console's page shows of what a server knows, in a real Chromium."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from clawrl.serving.errors import ApiError
from tests.console_fake import HOSTILE, STEPS, Fake
from tests.console_kit import needs_chromium
from tests.console_page_kit import MINUS, PAUSED_BY_GUARD, Open, go, row_texts, trained, wait_until

pytestmark = needs_chromium


def test_the_curves_go_on_and_keep_a_zoom(fake: Fake, open_page: Open) -> None:
    page = open_page()
    reward = page.get_by_role("img", name=re.compile("^Reward: "))
    page.wait_for_selector(".chart canvas")
    for title in ("Reward", "Accepted share", "KL", "Version"):
        assert page.get_by_role("img", name=re.compile(f"^{title}: {STEPS} points")).count() == 1

    def shows(chart: Any = reward) -> list[float]:
        return [float(value) for value in str(chart.get_attribute("data-shows")).split()]

    whole, box = shows(), reward.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=4)
    page.mouse.up()
    wait_until(page, lambda: shows() != whole, "a stretch that was dragged over is not zoomed to")
    zoomed = shows()
    assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
    assert shows(page.get_by_role("img", name=re.compile("^KL: "))) == zoomed
    fake.add_step()
    page.get_by_role("img", name=re.compile(f"^Reward: {STEPS + 1} points")).wait_for()
    assert shows() == zoomed, "new points took the zoom away"
    page.get_by_role("button", name="Whole range").click()
    wait_until(page, lambda: shows()[1] > whole[1], "the whole range does not have the new point")
    # By keys, too.
    reward.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("+")
    wait_until(page, lambda: shows()[0] > whole[0], "+ does not zoom")
    page.keyboard.press("0")
    wait_until(page, lambda: shows()[0] == whole[0], "0 does not show everything")


def test_turns_are_filtered_paged_and_opened_with_the_keyboard(fake: Fake, open_page: Open) -> None:
    page = open_page("turns")
    wait_until(page, lambda: len(row_texts(page, "Turns")) == 50, "no page of turns")
    page.get_by_role("button", name="Older").click()
    page.get_by_text("50 turns, page 2").wait_for()
    page.get_by_role("button", name="Newer").click()
    page.get_by_text("50 turns, newest").wait_for()
    page.get_by_label("Dropped because").select_option("stale")
    wait_until(page, lambda: len(row_texts(page, "Turns")) == 3, "not the three stale turns")
    assert all("dropped: stale" in row for row in row_texts(page, "Turns"))
    page.get_by_label("State").select_option("queued")
    wait_until(
        page, lambda: all("queued" in row for row in row_texts(page, "Turns")), "a reason outlived another state"
    )
    assert page.url.endswith("#/turns?state=queued")
    page.get_by_label("Session").fill("shop-18")
    page.keyboard.press("Enter")
    wait_until(page, lambda: len(row_texts(page, "Turns")) == 1, "two filters do not both hold")
    # The newest page is live.
    row = fake.add_turn("queued", session="shop-18")
    page.get_by_role("link", name=row["turn_id"][:11]).wait_for()
    page.get_by_role("heading", name="Turns").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Turn", exact=True).wait_for()
    assert page.url.endswith(f"#/turns/{row['turn_id']}")


def test_a_turns_life_is_in_one_view(fake: Fake, open_page: Open) -> None:
    row = trained(fake)
    page = open_page(f"turns/{row['turn_id']}")
    page.get_by_text("It is trained, as the made-up ledger says.").wait_for()
    said = page.locator("main").inner_text()
    for words in ("How do I cut a straight board?", "Measure twice", "Shorter, please.", "Answer in one sentence."):
        assert words in said
    for panel in ("Judgement", "Training", "Timeline", "Facts", "Tokens", "What came after it"):
        assert page.get_by_role("region", name=panel).count() >= 1, panel
    assert f"Step\n{row['step']} (trained)" in page.get_by_role("region", name="Training").inner_text()
    dropped = next(turn for turn in fake.turns if turn["drop_reason"] == "greedy")
    go(page, f"turns/{dropped['turn_id']}")
    page.get_by_text("dropped: greedy").first.wait_for()
    page.get_by_text("It is dropped, as the made-up ledger says.").wait_for()
    go(page, "turns/nobody")
    page.get_by_text("No turn 'nobody' is known here").wait_for()


def test_tokens_are_coloured_by_what_is_chosen_and_tell_their_values(fake: Fake, open_page: Open) -> None:
    row = trained(fake)
    page = open_page(f"turns/{row['turn_id']}")
    tokens = page.get_by_role("listbox", name="Tokens of the answer")
    first = tokens.get_by_role("option").first
    assert first.inner_text() == "Measure" and "lp-0" in first.get_attribute("class")
    assert page.get_by_label("The answer as text").inner_text() == fake.lives[row["turn_id"]]["response_text"]
    tokens.focus()
    page.keyboard.press("ArrowRight")
    tip = page.get_by_role("tooltip")
    assert f"{MINUS}2.7700 (6.3 %)" in tip.inner_text() and f"{MINUS}0.8889" in tip.inner_text()
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    first.hover()
    assert f"{MINUS}0.0200 (98.0 %)" in tip.inner_text()
    page.get_by_role("radio", name="Log-prob").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("radio", name="Advantage").get_attribute("aria-checked") == "true"
    assert "adv-4" in tokens.get_by_role("option").first.get_attribute("class")
    legend = page.get_by_role("list", name="Scale").get_by_role("listitem").all_inner_texts()
    shares = ("1.00", "0.75", "0.50", "0.25")
    assert legend == [*(f"{MINUS}{share}" for share in shares), "0", *(f"+{share}" for share in reversed(shares))]
    # Of a replica that could not name the pieces the ids are left; of a forgotten turn nothing is.
    life = fake.lives[row["turn_id"]]
    fake.lives[row["turn_id"]] = {**life, "tokens": [{**token, "piece": None} for token in life["tokens"]]}
    page.reload()
    tokens.get_by_role("option").filter(has_text="#300").wait_for()
    gone = {"text_gone": "they were forgotten", "request": None, "answer": None, "response_text": None, "tokens": []}
    fake.lives[row["turn_id"]] = {
        **life,
        **gone,
        "judgement": None,
        "evidence": None,
        "feedback": None,
        "sampling": None,
    }
    page.reload()
    page.get_by_text("they were forgotten").wait_for()
    judged = page.get_by_role("region", name="Judgement").inner_text()
    assert "What the judge wrote is gone, too." in judged and f"{MINUS}1.00" in judged and "Nobody" not in judged
    assert not tokens.is_visible()


def test_what_a_model_or_a_person_wrote_is_never_markup(fake: Fake, open_page: Open) -> None:
    row = fake.add_turn("trained", answer=HOSTILE, session=HOSTILE)
    life = fake.lives[row["turn_id"]]
    asked = [{"role": "user", "content": HOSTILE}]
    life.update(request={**life["request"], "messages": asked}, why={"sentence": HOSTILE, "remedy": HOSTILE})
    life.update(feedback={"score": -1.0, "comment": HOSTILE, "given_at": 1.0, "taken": True})
    life["judgement"] = {**fake.lives[trained(fake)["turn_id"]]["judgement"], "hints": [HOSTILE], "reasoning": HOSTILE}
    fake.paused, fake.alarm = HOSTILE, {**PAUSED_BY_GUARD, "name": HOSTILE, "reason": HOSTILE}
    page = open_page(f"turns/{row['turn_id']}")
    page.wait_for_selector(".tokens .token")
    assert page.locator("main").inner_text().count("<img src=x") >= 7
    for view in ("turns", "sessions", f"sessions/{HOSTILE}".replace("/script", "%2Fscript"), "overview"):
        go(page, view)
        page.wait_for_selector(".scroll:visible, .state-note:visible")
    fake.answers.append(HOSTILE)
    go(page, "chat")
    page.get_by_label("Message", exact=True).fill(HOSTILE)
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer-bar:visible")
    assert page.locator(".chat-log").inner_text().count(HOSTILE) == 2
    assert page.evaluate("window.hacked") is None and page.locator("main img, main script").count() == 0
    # And should a later change of the page try, the browser refuses.
    thrown = page.evaluate("() => { try { document.body.innerHTML = '<p>'; return ''; } catch (e) { return e.name; } }")
    assert thrown == "TypeError"


def test_sessions_and_replicas_are_shown(fake: Fake, open_page: Open) -> None:
    page = open_page("sessions")
    wait_until(page, lambda: len(row_texts(page, "Sessions")) == 19, "not every session")
    page.get_by_role("link", name="shop-3", exact=True).click()
    wait_until(page, lambda: len(row_texts(page, "Turns of session shop-3")) == 7, "not the turns of the session")
    go(page, "replicas")
    wait_until(page, lambda: len(row_texts(page, "Policy replicas")) == 2, "not both replicas")
    assert ["behind" in row for row in row_texts(page, "Policy replicas")] == [False, True]
    page.get_by_role("region", name="Trainer").get_by_text("for 2 more turns").wait_for()


def test_every_view_says_that_it_is_empty_and_that_it_could_not_be_loaded(fake: Fake, open_page: Open) -> None:
    nothing = Fake(key=None)
    nothing.publish(0, time.time(), {})
    fake.__dict__.update(nothing.__dict__)
    page = open_page()
    for view, words in {
        "overview": "Nothing measured yet",
        "turns": "No turns yet",
        "turns?state=queued": "No turn fits",
        "sessions": "No sessions yet",
        "replicas": "No replica has joined",
        "chat": "Say something",
    }.items():
        go(page, view)
        page.get_by_role("heading", name=words).wait_for()
    gone = ApiError(503, "The coordinator is restarting. Please try again.")
    fake.refuse.update({f"/clawrl/{name}": gone for name in ("turns", "sessions", "versions", "steps")})
    for view in ("turns", "sessions", "versions", "overview"):
        go(page, view)
        page.get_by_role("heading", name="This could not be loaded").wait_for()
    page.get_by_role("button", name="Try again").click()
    page.wait_for_timeout(900)
    assert page.evaluate("document.activeElement.textContent") == "Try again", (
        "an error that is told anew took the focus"
    )
    fake.refuse.clear()
    wait_until(page, lambda: not page.get_by_text("This could not be loaded").count(), "Try again does not")


def test_the_page_shows_documents_as_the_ledger_tells_them(fake: Fake, open_page: Open) -> None:
    from tests.console_true import true_documents

    true = true_documents()
    fake.turns, fake.steps, fake.versions = true.turns, true.steps, true.versions
    fake.lives = {life["turn_id"]: life for life in true.lives}
    page, coloured = open_page("turns"), 0
    wait_until(page, lambda: len(row_texts(page, "Turns")) == len(true.turns), "not every turn")
    for life in true.lives:
        go(page, f"turns/{life['turn_id']}")
        page.get_by_text(life["why"]["sentence"]).first.wait_for()
        said = page.locator("main").inner_text()
        if life["judgement"]:
            assert all(hint in said for hint in life["judgement"]["hints"])
        assert page.get_by_role("option").count() == len(life["tokens"])
        if any(token["advantage"] is not None for token in life["tokens"]):
            page.get_by_role("radio", name="Advantage").click()
            page.get_by_text(life["credit"]["advantage_of"]).first.wait_for()
            coloured += page.locator('.tokens .token[class*="adv-"]').count()
        if life["credit"]["advantage_note"] and life["tokens"]:
            assert life["credit"]["advantage_note"] in said
    assert coloured, "no token of the deployment as it is shipped is coloured by its advantage"
    for view in ("overview", "versions", "sessions"):
        go(page, view)
        wait_until(page, lambda: not page.locator("main .spinner").count(), f"{view} is not there")
    assert "NaN" not in json.dumps(true.steps) and "undefined" not in page.locator("body").inner_text()

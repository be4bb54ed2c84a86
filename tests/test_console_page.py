"""The console's page in a real Chromium, before a server that knows made-up documents and does what a test says."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clawrl.serving.errors import ApiError, not_permitted
from tests.console_fake import HOSTILE, KEY, STEPS, Fake, busy
from tests.console_kit import AXE, chromium, needs_chromium, screenshot, sign_in
from tests.console_server import serving

pytestmark = needs_chromium
MINUS = "\N{MINUS SIGN}"
VIEWS = ("overview", "chat", "turns", "sessions", "versions", "replicas")
Open = Callable[..., Any]
PAUSED_BY_GUARD = {"name": "mean_tokens", "reason": "the mean length in tokens is 9.1 over 24 turns", "version": 63}


# The page asks every few seconds, which is long for a test; what it says for a while (8 s) stays as long as it does.
QUICK = """(() => {
    const real = window.setTimeout;
    window.setTimeout = (act, ms, ...rest) => real(act, ms > 1000 && ms < 7500 ? ms / 5 : ms, ...rest);
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Fake, str]]:
    fake = Fake()
    with serving(fake) as url:
        yield fake, url


@pytest.fixture
def fake(served: tuple[Fake, str]) -> Fake:
    """The one server's knowledge, as after two hours of work."""
    served[0].__dict__.update(busy().__dict__)
    return served[0]


@pytest.fixture
def open_page(browser: Any, served: tuple[Fake, str], fake: Fake) -> Iterator[Open]:
    """Opens the console on a view. In the end nothing may have asked another server, broken, or complained."""
    contexts, wrong = [], []

    def open_it(view: str = "overview", *, enter: bool = True, wide: int = 1280, **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": wide, "height": 860}, reduced_motion="reduce", timezone_id="UTC", **options
        )
        contexts.append(context)
        context.set_default_timeout(60_000)
        context.add_init_script(QUICK)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error {error}"))
        page.on("console", lambda said: wrong.append(said.text) if refused(said.text) else None)
        page.on("request", lambda asked: None if asked.url.startswith(served[1]) else wrong.append(asked.url))
        if enter:
            sign_in(page, served[1], fake.key, view)
        else:
            page.goto(f"{served[1]}/console/#/{view}")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert wrong == []


def refused(said: str) -> bool:
    """Something that the page's own policy stopped; one test tries that on purpose."""
    return "Content Security" in said and "TrustedHTML" not in said


def go(page: Any, view: str) -> None:
    page.evaluate(
        """view => new Promise(done => {
            if (location.hash === `#/${view}`) return done();
            addEventListener("hashchange", () => setTimeout(done), {once: true});
            location.hash = `#/${view}`;
        })""",
        view,
    )


def row_texts(page: Any, name: str) -> list[str]:
    return list(page.get_by_role("table", name=name).locator("tbody tr").all_inner_texts())


def wait_until(page: Any, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        page.wait_for_timeout(40)


# -- the key -----------------------------------------------------------------------------------------


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


# -- looking -----------------------------------------------------------------------------------------


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


def trained(fake: Fake) -> dict[str, Any]:
    return next(turn for turn in fake.turns if turn["state"] == "trained" and turn["verdict"] == -1)


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
    # Of a replica that could not name the pieces the ids are left; of a redacted turn nothing is.
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
    assert ["behind" in row for row in row_texts(page, "Policy replicas")] == [False, True]
    assert "for 2 more turns" in page.get_by_role("region", name="Trainer").inner_text()


# -- talking -----------------------------------------------------------------------------------------


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
    wait_until(page, lambda: fake.of(f"/clawrl/sessions/{turn['session']}/done") == [{}], "the session was not ended")


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


# -- operating ---------------------------------------------------------------------------------------


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


# -- when things go wrong ----------------------------------------------------------------------------


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
    page.wait_for_timeout(200)
    before = fake.gets
    page.wait_for_timeout(1200)
    assert fake.gets == before
    page.evaluate(hide, False)
    wait_until(page, lambda: fake.gets > before, "a page that is seen again does not ask")


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


# -- for everybody -----------------------------------------------------------------------------------


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
    page = open_page("chat", wide=390)
    still = "() => getComputedStyle(Object.assign(document.body.appendChild(document.createElement('i')), "
    still += "{className: 'spinner'})).animationIterationCount"
    assert page.evaluate(still) == "1"
    for view in (*VIEWS, f"turns/{trained(fake)['turn_id']}"):
        go(page, view)
        page.wait_for_selector("main .panel")
        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert over <= 0, f"{view} is {over} px too wide"
    screenshot(page, "small")


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

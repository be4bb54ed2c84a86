"""What stays in its place on the console's page while it asks again and again, and what of it has no hole."""

from __future__ import annotations

import re
from typing import Any

import pytest

from clawrl.serving.errors import ApiError
from tests.console_fake import STEPS, Fake
from tests.console_kit import needs_chromium
from tests.console_page_kit import Open, go, row_texts, trained, wait_until

pytestmark = needs_chromium
HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
A_MINUTE_LATER = "() => { const now = Date.now; Date.now = () => now() + 60000; }"


def documents(fake: Fake, turn_id: str) -> int:
    """How often the whole document was asked for."""
    return sum(asked["path"] == f"/clawrl/turns/{turn_id}" for asked in fake.headers)


def looks(fake: Fake) -> int:
    """How often the list of turns was asked for."""
    return sum(asked["path"] == "/clawrl/turns" for asked in fake.headers)


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.textContent"))


def test_what_is_opened_focused_and_selected_in_a_turn_stays_while_it_waits(fake: Fake, open_page: Open) -> None:
    row = fake.add_turn("awaiting_next")
    life = fake.lives[row["turn_id"]]
    life["request"]["tools"] = [{"name": "saw"}]
    page = open_page(f"turns/{row['turn_id']}")
    summary = page.get_by_text("1 tools")
    summary.click()
    page.evaluate(
        """() => {
            const range = document.createRange();
            range.selectNodeContents(document.querySelector(".message .text"));
            getSelection().removeAllRanges();
            getSelection().addRange(range);
        }"""
    )
    selected = page.evaluate("getSelection().toString()")
    sentence = page.locator(".why")
    before = sentence.inner_text()

    def stays() -> bool:
        return bool(
            page.locator("details[open]", has_text="saw").count()
            and focused(page) == "1 tools"
            and page.evaluate("getSelection().toString()") == selected == "How do I cut a straight board?"
        )

    at = looks(fake)
    wait_until(page, lambda: looks(fake) > at + 3, "nobody asks whether anything happened")
    assert documents(fake, row["turn_id"]) == 1, "the whole document is fetched though nothing happened"
    page.evaluate(A_MINUTE_LATER)
    wait_until(page, lambda: sentence.inner_text() != before, "the sentence gets old")
    assert stays(), "a sentence that counts took it away"
    # Another part comes, and only that one.
    now = {"state": "judged", "state_at": row["state_at"] + 1}
    row.update(now)
    life.update(now, judgement=fake.lives[trained(fake)["turn_id"]]["judgement"])
    page.get_by_role("region", name="Judgement").get_by_text("The judge's reasoning").wait_for()
    assert stays(), "a judgement took away what is beside it"


def test_an_answer_in_the_chat_is_told_aloud_only_when_something_happens(fake: Fake, open_page: Open) -> None:
    page = open_page("chat")
    for number in range(2):
        page.get_by_label("Message", exact=True).fill(f"message {number}")
        page.keyboard.press("Enter")
        wait_until(page, lambda n=number: page.locator(".fate:visible").count() == n + 1, "no answer is followed")
    rows = [turn for turn in fake.turns if turn["session"].startswith("console-")]
    sentence = page.locator(".fate > .muted").first
    before = sentence.inner_text()
    page.evaluate(
        """() => {
            window.told = 0;
            const all = {childList: true, subtree: true, characterData: true};
            for (const told of document.querySelectorAll(".fate [role=status]"))
                new MutationObserver(() => window.told++).observe(told, all);
        }"""
    )
    asked, at = [documents(fake, row["turn_id"]) for row in rows], looks(fake)
    wait_until(page, lambda: looks(fake) > at + 3, "nobody asks what became of the answers")
    assert [documents(fake, row["turn_id"]) for row in rows] == asked, "documents are fetched though nothing happened"
    page.evaluate(A_MINUTE_LATER)
    wait_until(page, lambda: sentence.inner_text() != before, "the sentence gets old")
    assert page.evaluate("told") == 0 and sentence.get_attribute("aria-live") == "off"
    fake.move(rows[1], "queued", verdict=-1, reward=-1.0, hints=1)
    page.locator(".fate [role=status]").nth(1).get_by_text("Hint: Answer in one sentence.").wait_for()
    assert page.evaluate("told") == 1


def test_filters_are_chosen_with_the_arrow_keys(fake: Fake, open_page: Open) -> None:
    page = open_page("turns")
    wait_until(page, lambda: len(row_texts(page, "Turns")) == 50, "no turns")
    page.get_by_label("State").focus()
    for state in ("served", "awaiting_next", "judging"):
        page.keyboard.press("ArrowDown")
        wait_until(page, lambda state=state: page.url.endswith(f"state={state}"), f"{state} is not chosen")
        assert focused(page) == "f-state", "a choice took the focus away"
    wait_until(page, lambda: all("judging" in row for row in row_texts(page, "Turns")), "the choice does not count")
    page.go_back()
    wait_until(page, lambda: page.get_by_label("State").input_value() == "awaiting_next", "back does not lead back")
    wait_until(page, lambda: "judging" not in "".join(row_texts(page, "Turns")), "back shows the other turns")
    page.get_by_role("button", name="Clear").click()
    wait_until(page, lambda: len(row_texts(page, "Turns")) == 50, "the filters stay")
    assert page.get_by_label("State").input_value() == ""


def test_older_twice_in_a_row_is_one_page_and_a_page_that_fails_says_so(fake: Fake, open_page: Open) -> None:
    page = open_page("turns")
    wait_until(page, lambda: len(row_texts(page, "Turns")) == 50, "no turns")
    page.get_by_role("button", name="Older").evaluate("button => { button.click(); button.click(); }")
    page.get_by_text("50 turns, page 2").wait_for()
    assert fake.turns[-51]["turn_id"][:11] in row_texts(page, "Turns")[0]
    page.get_by_role("button", name="Newer").focus()
    page.keyboard.press("Enter")
    page.get_by_text("50 turns, newest").wait_for()
    assert focused(page) == "Older", "who came to the end by keys is nowhere"
    fake.refuse["/clawrl/turns"] = ApiError(400, "There is no such page.")
    page.keyboard.press("Enter")
    page.get_by_text("There is no such page.").wait_for()
    assert not page.get_by_text("Loading turns").count() and not page.get_by_role("table", name="Turns").is_visible()
    # Nor is there no way back.
    page.get_by_role("button", name="Newer").click()
    fake.refuse.clear()
    page.get_by_role("table", name="Turns").wait_for()
    assert fake.turns[-1]["turn_id"][:11] in row_texts(page, "Turns")[0]


def test_steps_that_came_while_nobody_looked_are_in_the_curves(fake: Fake, open_page: Open) -> None:
    page = open_page()
    page.wait_for_selector(".chart canvas")
    page.evaluate(HIDE, True)
    for _ in range(300):
        fake.add_step()
    page.evaluate(HIDE, False)
    for curve in ("Reward", "Version"):
        page.get_by_role("img", name=re.compile(f"^{curve}: {STEPS + 300} points")).wait_for()
    page.reload()
    page.get_by_role("img", name=re.compile("^Reward: 200 points")).wait_for()
    fake.refuse["/clawrl/steps"] = ApiError(503, "The coordinator is restarting.")
    page.get_by_role("button", name="Load older steps").click()
    page.locator(".notice").get_by_text("The coordinator is restarting.").wait_for()
    fake.refuse.clear()
    page.get_by_role("button", name="Load older steps").click()
    page.get_by_role("img", name=re.compile(f"^Reward: {STEPS + 300} points")).wait_for()
    assert not page.get_by_role("button", name="Load older steps").is_visible()


def test_versions_that_come_after_older_ones_were_loaded_leave_no_hole(fake: Fake, open_page: Open) -> None:
    page = open_page("versions")
    page.get_by_role("button", name="Older versions").click()
    wait_until(page, lambda: len(row_texts(page, "Versions")) == STEPS, "no older versions")
    for _ in range(10):
        fake.add_step()
    page.get_by_role("link", name=str(STEPS + 9), exact=True).first.wait_for()
    numbers = [int(row.split("\t")[0]) for row in row_texts(page, "Versions")]
    assert numbers == list(range(STEPS + 9, -1, -1))


def test_what_is_kept_of_a_history_is_bounded_and_has_no_hole(fake: Fake, open_page: Open) -> None:
    page = open_page(enter=False)
    seen = page.evaluate(
        """async () => {
            const { History } = await import(new URL("js/history.js", location.href));
            let newest = 20, asked = 0;
            const ask = async ({ before = newest + 1, limit }) => {
                asked += 1;
                return Array.from({ length: Math.min(limit, before - 1) }, (_, at) => ({ seq: before - 1 - at }));
            };
            let kept = new History(ask, row => row.seq, { page: 10, newest: 4, most: 25, missed: 40 });
            const seen = [];
            const look = async (act) => {
                asked = 0;
                await act();
                const all = kept.rows.map(row => row.seq);
                const whole = all.every((seq, at) => at === 0 || seq === all[at - 1] + 1);
                seen.push([all[0], all.at(-1), whole, kept.more, asked]);
            };
            await look(() => kept.refresh());
            await look(() => kept.older());
            await look(() => kept.older());
            await look(() => ((newest = 23), kept.refresh()));
            await look(() => ((newest = 43), kept.refresh()));
            kept = new History(ask, row => row.seq, { page: 10, newest: 4, missed: 20 });
            await look(() => kept.refresh());
            await look(() => ((newest = 143), kept.refresh()));
            return seen;
        }"""
    )
    assert seen == [
        [11, 20, True, True, 1],
        [1, 20, True, True, 1],
        [1, 20, True, False, 1],
        [1, 23, True, False, 1],
        # The oldest go, and are not asked for again.
        [19, 43, True, False, 3],
        # Too many were missed: what was known would stand beyond a hole.
        [34, 43, True, True, 1],
        [120, 143, True, True, 3],
    ]


def test_a_history_renews_what_was_undone_and_goes_back_to_what_came_to_an_empty_one(
    fake: Fake, open_page: Open
) -> None:
    page = open_page(enter=False)
    seen = page.evaluate(
        """async () => {
            const { History } = await import(new URL("js/history.js", location.href));
            let newest = 0, undone = 0;
            const ask = async ({ before = newest + 1, limit }) =>
                Array.from({ length: Math.min(limit, before - 1) }, (_, at) => before - 1 - at)
                    .map(seq => ({ seq, taken: seq <= newest - undone }));
            const kept = new History(ask, row => row.seq, { page: 10, newest: 4 });
            await kept.refresh();
            newest = 15;
            await kept.refresh();
            const more = kept.more;
            await kept.older();
            undone = 12;
            await kept.refresh();
            return [more, kept.rows.length, kept.rows.filter(row => row.taken).length];
        }"""
    )
    assert seen == [True, 15, 3]


@pytest.mark.parametrize(("measured", "name"), [("opd_gap", "Gap to the teacher"), ("kl", "KL to the start")])
def test_each_divergence_stands_under_its_own_name_where_the_method_measures_it(
    fake: Fake, open_page: Open, measured: str, name: str
) -> None:
    for row in (*fake.steps, *fake.versions):
        del row["stats"]["opd_kl"]
        row["stats"].update({"ppo_kl": 0.0, "train_rollout_kl": 1e-9, measured: 0.25})
    page = open_page("versions")
    page.get_by_role("columnheader", name=name).wait_for()
    headers = page.get_by_role("table", name="Versions").locator("th").all_inner_texts()
    assert [header for header in headers if "KL" in header or "teacher" in header] == [name]
    at = headers.index(name)
    assert {row.split("\t")[at] for row in row_texts(page, "Versions")} == {"0.2500"}
    go(page, "overview")
    page.get_by_role("table", name="Newest steps").get_by_role("columnheader", name=name).wait_for()
    chart = page.locator("figure", has=page.get_by_role("heading", name="KL", exact=True))
    assert [one.lower() for one in chart.locator(".legend li:visible").all_inner_texts()] == [
        name.lower().removeprefix("kl ")
    ]
    row = trained(fake)
    go(page, f"turns/{row['turn_id']}")
    training = page.get_by_role("region", name="Training")
    training.get_by_text(name).wait_for()
    assert "KL of the update" not in training.inner_text()


def test_the_mouse_over_a_token_moves_nothing(fake: Fake, open_page: Open) -> None:
    row = fake.add_turn("trained", answer="")
    token = fake.lives[trained(fake)["turn_id"]]["tokens"][0]
    tokens = [{**token, "piece": f" word{at}"} for at in range(1500)]
    fake.lives[row["turn_id"]].update(tokens=tokens, response_text="x")
    page = open_page(f"turns/{row['turn_id']}", color_scheme="dark")
    shown = page.get_by_role("listbox", name="Tokens of the answer")
    shown.get_by_role("option").first.wait_for()
    # One that is only half in sight.
    half = """list => {
        const edge = list.getBoundingClientRect().bottom;
        const token = [...list.children].find(one => one.getBoundingClientRect().bottom > edge);
        token.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
        return [list.scrollTop, scrollY];
    }"""
    at = page.evaluate("scrollY")
    assert shown.evaluate(half) == [0, at]
    assert page.get_by_role("tooltip").is_visible()
    shown.focus()
    page.keyboard.press("End")
    assert shown.evaluate("list => list.scrollTop") > 0, "keys do not lead to what is out of sight"
    # True in both themes.
    assert page.get_by_text("the stronger the colour, the less likely it was").is_visible()


def test_a_session_whose_name_no_address_can_hold_is_shown(fake: Fake, open_page: Open) -> None:
    row = fake.add_turn("trained", session="..")
    page = open_page("sessions")
    page.get_by_role("link", name="..", exact=True).click()
    wait_until(page, lambda: len(row_texts(page, "Turns of session ..")) == 1, "not its turn")
    assert row["turn_id"][:11] in row_texts(page, "Turns of session ..")[0]

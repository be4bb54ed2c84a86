"""The console's page in a real Chromium, before a server that knows made-up documents and does what a test says.

Its fixtures are in `tests.conftest`: a browser and a server for each file of tests, ``fake`` and ``open_page`` for each
test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.console_fake import Fake, busy
from tests.console_kit import chromium, sign_in
from tests.console_server import serving

MINUS = "\N{MINUS SIGN}"
VIEWS = ("overview", "chat", "turns", "sessions", "versions", "replicas")
Open = Callable[..., Any]
PAUSED_BY_GUARD = {"name": "mean_tokens", "reason": "the mean length in tokens is 9.1 over 24 turns", "version": 63}

# The page asks every few seconds, which is long for a test; what it says for a while (8 s) stays as long as it does.
QUICK = """(() => {
    const real = window.setTimeout;
    window.setTimeout = (act, ms, ...rest) => real(act, ms > 1000 && ms < 7500 ? ms / 5 : ms, ...rest);
})()"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all tests of a file share: the browser, and the server at ``url`` with what it knows."""

    browser: Any
    fake: Fake
    url: str

    def begin(self) -> Fake:
        """The server's knowledge, as after two hours of work."""
        self.fake.__dict__.update(busy().__dict__)
        return self.fake


@contextmanager
def console_stages() -> Iterator[Stage]:
    fake = Fake()
    with chromium() as browser, serving(fake) as url:
        yield Stage(browser=browser, fake=fake, url=url)


@contextmanager
def pages(stage: Stage) -> Iterator[Open]:
    """Opens the console on a view. In the end nothing may have asked another server, broken, or complained."""
    contexts, wrong = [], []

    def open_it(view: str = "overview", *, enter: bool = True, wide: int = 1280, **options: Any) -> Any:
        context = stage.browser.new_context(
            viewport={"width": wide, "height": 860}, reduced_motion="reduce", timezone_id="UTC", **options
        )
        contexts.append(context)
        context.set_default_timeout(60_000)
        context.add_init_script(QUICK)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error {error}"))
        page.on("console", lambda said: wrong.append(said.text) if refused(said.text) else None)
        page.on("request", lambda asked: None if asked.url.startswith(stage.url) else wrong.append(asked.url))
        if enter:
            sign_in(page, stage.url, stage.fake.key, view)
        else:
            page.goto(f"{stage.url}/console/#/{view}")
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


def trained(fake: Fake) -> dict[str, Any]:
    return next(turn for turn in fake.turns if turn["state"] == "trained" and turn["verdict"] == -1)

"""A real headless Chromium for the console's tests: found on this machine, never downloaded."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ARTEFACTS = REPOSITORY / "test-artefacts" / "console"
AXE = Path(__file__).resolve().parent / "vendor" / "axe-core" / "axe.min.js"
NAMES = ("chromium", "google-chrome")


def find_chromium() -> str | None:
    given = os.environ.get("CLAWRL_CHROMIUM")
    return given or next((path for name in NAMES if (path := shutil.which(name))), None)


def why_not() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed: pip install -e '.[test]'"
    if find_chromium() is None:
        return "no Chromium here: `make test` installs Debian's as root, else set CLAWRL_CHROMIUM to one"
    return None


needs_chromium = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright's. The loop of Playwright's own runs in this thread for as long."""
    from playwright.sync_api import sync_playwright

    # Its sandbox wants a user namespace, which root and many containers have not.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def screenshot(page: Any, name: str, **options: Any) -> None:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"{name}.png", **options)


def sign_in(page: Any, url: str, key: str | None, view: str = "overview") -> None:
    page.goto(f"{url}/console/#/{view}")
    if key is not None:
        page.fill("#key", key)
        page.press("#key", "Enter")
    page.wait_for_selector("#content > *")

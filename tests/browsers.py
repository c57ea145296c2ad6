"""A real Chromium for tests of pages, and what axe finds on a page.

Chromium is Debian's: ``make test`` installs it where it may. Elsewhere its tests are skipped.
"""

import importlib.resources
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_BROWSER: Final = shutil.which("chromium") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(
    _BROWSER is None, reason="no Chromium here: apt-get install chromium"
)


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Start Chromium; end it with the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


def serious_findings(page: Page, *, colours_only: bool = False) -> list[tuple[str, list[str]]]:
    """Return what axe finds that is serious: which rule, and up to three elements."""
    axe = importlib.resources.files("axe_playwright_python") / "axe.min.js"
    page.evaluate(axe.read_text(encoding="utf-8"))
    only = "runOnly: ['color-contrast']," if colours_only else ""
    found = page.evaluate(f"() => axe.run({{ {only} resultTypes: ['violations'] }})")
    assert found["passes"]
    return [
        (each["id"], [node["html"] for node in each["nodes"]][:3])
        for each in found["violations"]
        if each["impact"] in {"serious", "critical"}
    ]

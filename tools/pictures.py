"""Take the pictures of the documentation: the demo's page, as Chromium shows it.

    python tools/pictures.py

They are of `underclock demo`, which is simulated and comes out the same everywhere.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs/images"
_WIDE_PX, _HIGH_PX = 1100, 1040


def _zoomed(page: Page) -> None:
    """Zoom into a part of the step, and point at a launch."""
    stage = page.locator(".stage")
    stage.focus()
    for key in ("+", "+", "+", "+", *["ArrowRight"] * 12):
        page.keyboard.press(key)
    page.wait_for_timeout(200)


def take(report: Path, to: Path, executable: str | None) -> None:
    """Write the pictures of a page.

    Args:
        executable: Of a Chromium; ``None`` for Playwright's own.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDE_PX, "height": _HIGH_PX})
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        page.screenshot(path=to / "report.png")
        _zoomed(page)
        page.locator("#timeline").screenshot(path=to / "timeline.png")
        browser.close()


def main() -> None:
    """Run the demo and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=IMAGES, help="folder of the pictures")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "underclock", "demo", "--force", "-o", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        take(Path(folder) / "report.html", chosen.to, shutil.which("chromium"))


if __name__ == "__main__":
    main()

"""The documentation as a site: it builds without a warning and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[2]
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements for which a browser asks something as it shows a page, and where they say what."""
_LINKED_ONLY = {"canonical", "prev", "next"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as `make docs` builds it; a warning is an error there."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=_ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


class _Elements(HTMLParser):
    """Collects the elements of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


def _elements(page: Path) -> list[tuple[str, dict[str, str]]]:
    parser = _Elements()
    parser.feed(page.read_text())
    return parser.found


def _asked_for(page: Path) -> Iterator[str]:
    """Yield what a browser asks for as it shows a page."""
    for tag, attributes in _elements(page):
        if tag in _LOADED and attributes.get("rel") not in _LINKED_ONLY:
            yield attributes.get(_LOADED[tag], "")


def test_no_page_asks_another_machine_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert [each for each in _asked_for(page) if urlsplit(each).netloc] == [], page
    for sheet in site.rglob("*.css"):
        asked = re.findall(r"url\(\s*['\"]?([^)'\"]+)|@import\s+['\"]([^'\"]+)", sheet.read_text())
        assert [each for both in asked for each in both if urlsplit(each).netloc] == [], sheet

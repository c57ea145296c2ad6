"""The documentation as a site: it builds without a warning and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

import underclock
from underclock import testing
from underclock.app.main import cli
from underclock.records.common import SCHEMAS

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


class _Page(HTMLParser):
    """Collects what a browser asks for as it shows a page, and the page's headings."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.headings: set[str] = set()
        self._heading = False
        self._words = ""
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if tag in _LOADED and said.get("rel") not in _LINKED_ONLY:
            self.asked.append(said.get(_LOADED[tag]) or "")
        if tag in {"h1", "h2", "h3"}:
            self._heading, self._words = True, ""

    def handle_data(self, data: str) -> None:
        self._words += data if self._heading else ""

    def handle_endtag(self, tag: str) -> None:
        if tag in {"h1", "h2", "h3"}:
            self._heading = False
            self.headings.add(self._words.rstrip("\N{PILCROW SIGN}").strip())


def test_no_page_asks_another_machine_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert [each for each in _Page(page).asked if urlsplit(each).netloc] == [], page
    for sheet in site.rglob("*.css"):
        asked = re.findall(r"url\(\s*['\"]?([^)'\"]+)|@import\s+['\"]([^'\"]+)", sheet.read_text())
        assert [each for both in asked for each in both if urlsplit(each).netloc] == [], sheet


def test_the_references_name_every_command_and_every_public_name(site: Path) -> None:
    commands = _Page(site / "reference.html").headings
    names = {heading.split()[0] for heading in commands if heading}  # what it is may stand behind

    assert set(cli.list_commands(click.Context(cli))) <= commands
    assert {*underclock.__all__, *testing.__all__} <= names


def test_every_kind_of_file_is_explained() -> None:
    text = (_ROOT / "docs" / "reference.md").read_text()

    assert set(SCHEMAS) <= set(re.findall(r"`([^`]+)`", text))

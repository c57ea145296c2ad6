"""The documentation as a site: it builds without a warning and loads nothing from elsewhere."""

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

import underclock
from browsers import needs_browser, serious_findings, started_browser
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


class _Article(HTMLParser):
    """Collects what a page itself says: its headings, and where its links lead; no menus."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: set[str] = set()
        self.links: set[str] = set()
        self._inside = self._heading = False
        self._words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside |= tag == "article"
        link = urlsplit(dict(attrs).get("href") or "")
        if self._inside and tag == "a" and not link.netloc:
            self.links.add(link.path)
        if self._inside and tag in {"h1", "h2", "h3"}:
            self._heading, self._words = True, ""

    def handle_data(self, data: str) -> None:
        self._words += data if self._heading else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "article"
        if tag in {"h1", "h2", "h3"}:
            self._heading = False
            self.headings.add(self._words.rstrip("\N{PILCROW SIGN}").strip())


@functools.cache
def _article(page: Path) -> _Article:
    parser = _Article()
    parser.feed(page.read_text())
    return parser


def _reached(site: Path, clicks: int) -> set[Path]:
    """Return the pages that so many clicks on links lead to, from the first page on."""
    found = {site / "index.html"}
    for _ in range(clicks):
        for page in tuple(found):
            links = ((page.parent / link).resolve() for link in _article(page).links if link)
            found |= {link for link in links if link.suffix == ".html"}
    return found


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


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the site, for searching needs a server; it answers on this machine alone."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


_ONLY_FIRST = "document.querySelectorAll('article > :nth-child(n+60)').forEach(e => e.remove())"
"""Keeps the 59 first blocks of a page: the references are long, and their blocks alike."""


@needs_browser
def test_a_browser_finds_nothing_serious_and_asks_nobody_else(served: str) -> None:
    said: list[str] = []
    with started_browser() as browser:
        for name in ("index", "reference", "your_step", "serving"):
            page = browser.new_page(color_scheme="dark" if name == "your_step" else "light")
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", lambda r: None if r.url.startswith(served) else said.append(r.url))
            page.goto(f"{served}/{name}.html")
            page.evaluate(_ONLY_FIRST)

            assert serious_findings(page, colours_only=name == "your_step") == [], name
        page.get_by_role("textbox", name="Search").fill("steering")
        page.get_by_role("link", name="Reading a page").first.wait_for()
    assert said == []


def test_every_page_is_found_by_its_links_in_two_clicks(site: Path) -> None:
    pages = {page for page in site.rglob("*.html") if page.name != "404.html"}

    assert pages == _reached(site, 2)


def test_the_references_name_every_command_and_every_public_name(site: Path) -> None:
    commands = _article(site / "reference.html").headings
    # What a name is may stand behind it.
    names = {heading.split()[0] for heading in _article(site / "reference.html").headings}

    assert set(cli.list_commands(click.Context(cli))) <= commands
    assert {*underclock.__all__, *testing.__all__} <= names


def test_every_kind_of_file_is_explained() -> None:
    text = (_ROOT / "docs" / "files.md").read_text()

    assert set(SCHEMAS) <= set(re.findall(r"`([^`]+)`", text))

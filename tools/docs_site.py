"""The pages of the documentation that are made, as MkDocs asks for them while it builds the site.

README is the site's first page; what lies beside it are pages too. The list of commands is made
from click, and that of Python's names from the package; both stand between marks of their pages.
``mkdocs.yml`` names this file under ``hooks``.
"""

import importlib
import re
from collections import defaultdict
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import underclock
from underclock import testing
from underclock.app.main import cli

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs" / "evidence"

_BESIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages that lie beside the documentation, and what they are called in it."""
_ROOMS = {  # where a public name lives, from the most specific on; and what such names are
    "app.": "Functions",
    "tracing.held": "Functions",
    "runtime.": "Holding clocks",
    "integrations": "Holding clocks",
    "errors": "Errors",
    "records": "Records",
    "": "What functions take",
}
_RECORDS = [
    "common",
    "work",
    "samples",
    "choices",
    "planned",
    "outcomes",
    "latencies",
    "job",
    "serving",
    "runs",
]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie beside the documentation."""
    for name, page in _BESIDE.items():
        files.append(File.generated(config, page, content=_moved(name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_rest: object) -> str:
    """Fill in what is made, and lead links to what lies beside the documentation to its pages."""
    for mark, make in _MADE.get(page.file.src_uri, {}).items():
        before, _, after = markdown.partition(f"<!-- {mark} -->")
        markdown = f"{before}{make()}{after.partition(f'<!-- end {mark} -->')[2]}"
    for name, beside in _BESIDE.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(name)}", f"]({beside}", markdown)
    return markdown


def on_post_page(output: str, **_rest: object) -> str:
    """Name the dialog of the search, which the theme leaves without a name for a screen reader."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def _moved(name: str) -> str:
    """Return a page from beside the documentation, its links as they are from inside."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for other, page in _BESIDE.items():
        text = text.replace(f"]({other}", f"]({page}")
    return text.replace("](docs/", "](")


def _command_line() -> str:
    """Return every command with what ``--help`` says of it."""
    with click.Context(cli, info_name="underclock", terminal_width=90) as group:
        parts = [_help(cli, group)]
        for name in cli.list_commands(group):
            command = cli.get_command(group, name)
            if command is not None:  # all of those that are listed
                context = click.Context(command, parent=group, info_name=name, terminal_width=90)
                parts.append(f"## {name}\n\n{_help(command, context)}")
    return "\n\n".join(parts)


def _help(command: click.Command, context: click.Context) -> str:
    return f"```text\n{command.get_help(context)}\n```"


def _python_api() -> str:
    """Return every public name, by what it is."""
    names = defaultdict(list)
    for name in underclock.__all__:
        home = getattr(underclock, name).__module__.removeprefix("underclock.")
        names[next(kind for room, kind in _ROOMS.items() if home.startswith(room))].append(name)
    parts = []
    for kind in dict.fromkeys(_ROOMS.values()):
        parts.append(f"## {kind}")
        parts += [f"::: underclock.{name}" for name in sorted(names[kind])]
    parts.append("## Records and errors in full")
    for home in (*(f"underclock.records.{room}" for room in _RECORDS), "underclock.errors"):
        for name, each in vars(importlib.import_module(home)).items():
            own = isinstance(each, type) and each.__module__ == home and not name.startswith("_")
            if own and name not in underclock.__all__:
                parts.append(f"::: {home}.{name}")
    parts.append("## Simulated GPUs for tests of your own")
    parts += [f"::: underclock.testing.{name}" for name in testing.__all__]
    return "\n\n".join(parts)


def _further_evidence() -> str:
    """Return the pages of evidence that the list of them does not name yet, by their titles."""
    named = (EVIDENCE / "README.md").read_text(encoding="utf-8")
    lines = []
    for path in sorted(EVIDENCE.rglob("*.md")):
        place = path.relative_to(EVIDENCE).as_posix()
        if path.name != "README.md" and f"]({place})" not in named:
            title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
            lines.append(f"- [{title}]({place})")
    return "\n".join(("## Not sorted in yet\n", *lines)) if lines else ""


_MADE = {
    "reference.md": {"commands": _command_line, "names": _python_api},
    "evidence/README.md": {"made": _further_evidence},
}

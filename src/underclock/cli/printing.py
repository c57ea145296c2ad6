"""How commands print: results to stdout, warnings to stderr, and nothing a terminal would obey."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from underclock.cli.terminal import clean, say

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from underclock.records import Record

STDOUT = Path("-")


def print_json(body: object) -> None:
    """Print an object as JSON."""
    import msgspec

    say(msgspec.json.encode(body).decode())


def print_table(*parts: "RenderableType") -> None:
    """Print tables for a person."""
    from rich.console import Console

    console = Console()
    for part in parts:
        console.print(_Printable(part))


def warn(sentences: tuple[str, ...]) -> None:
    """Print what the reader must see beside the numbers."""
    for sentence in sentences:
        say(f"warning: {sentence}", err=True)


def check_place(output: Path | None, *, force: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Make sure that the output can be written, before any work is spent on it.

    Args:
        output: Where it goes, if anywhere.
        force: Whether an existing file may be replaced.
        inputs: Files that are read, which are never replaced.

    Raises:
        UsageError: It exists already, or its folder is missing or not writable.
    """
    from underclock.store import check_output

    if output is not None and output != STDOUT:
        check_output(output, force=force, inputs=inputs, begins="{")


def deliver(
    record: "Record",
    output: Path | None,
    show: Callable[[], None],
    *,
    as_json: bool,
    force: bool,
    warnings: tuple[str, ...] = (),
) -> None:
    """Hand a record over: to a file, to stdout, to a person.

    Args:
        record: What was made.
        output: Where it goes; ``-`` is stdout, and then nothing else goes there.
        show: Prints it for a person.
        as_json: Whether to print it for machines instead.
        force: Whether an existing file may be replaced.
        warnings: Sentences that belong to it.
    """
    from underclock.store import write_document

    if output is not None and output != STDOUT:
        write_document(output, record, force=force)
    warn(warnings)
    if as_json or output == STDOUT:
        print_json(record)
    else:
        show()


class _Printable:
    """A renderable whose text is escaped after it was laid out; styles of our own pass."""

    def __init__(self, part: "RenderableType") -> None:
        self._part = part

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield the segments of the part."""
        for segment in console.render(self._part, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))

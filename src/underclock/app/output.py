"""How commands print: results to stdout, all else to stderr, nothing that a terminal would obey.

Names come from files and drivers, and may carry escape sequences. Progress is a bar, with the time
left where it is known; where stderr is a pipe or a file, a plain line comes every 10 s.
"""

import codecs
import contextlib
import datetime as dt
import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.errors import UsageError
from underclock.hw.interrupts import raise_lost_interrupt
from underclock.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from underclock.campaign.progress import Tally
    from underclock.hw.base import Clock
    from underclock.records import Record, SampleSet

STDOUT = Path("-")
_KEPT = "\n\t"
_BIDIRECTIONAL = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # they turn text around
_ESCAPES = {
    code: f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *_BIDIRECTIONAL)
    if chr(code) not in _KEPT
}
_EVERY_S, _TELLING = 10.0, 1 / 3  # a line; the share done from which the time left can be known
_READ_WITHIN_S = 1.0  # the last line, by the reader of stderr, before the command goes on
_Show = Callable[..., None]
"""Takes what is to be shown, by name: description, completed, total, count, gpu_time, doing."""


def clean(text: str) -> str:
    """Return a text with control characters written out, as JSON writes them."""
    return text.translate(_ESCAPES)


_SPELLED = {  # where a terminal's encoding lacks it
    "±": "+/-",
    "≤": "<=",
    "≥": ">=",
    "\u00d7": "x",
    "µ": "u",
    "\u2013": "-",
    "…": "...",
    "─": "-",
    "→": "->",
    "²": "2",
}


def _spelled(exc: UnicodeError) -> tuple[str, int]:
    """Write what an encoding lacks in ASCII, as an error handler of `codecs`."""
    if not isinstance(exc, UnicodeEncodeError):
        raise exc
    lacking = exc.object[exc.start : exc.end]
    words = "".join(_SPELLED.get(each, f"\\u{ord(each):04x}") for each in lacking)
    return words, exc.end


def print_anywhere() -> None:
    """Let results and warnings be printed whatever the terminal's encoding is."""
    codecs.register_error("underclock", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="underclock")


def say(text: str, *, err: bool = False) -> None:
    """Print a line for a person, or JSON for a machine; a full or closed stderr is ignored."""
    with contextlib.suppress(*((OSError, ValueError) if err else ())):
        click.echo(clean(text), file=sys.stderr if err else sys.stdout)


def confirmed(line: str) -> bool:
    """Ask a person at a terminal whether a line is right; without a terminal it is not."""
    return sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(clean(line), err=True)


def warn(sentences: tuple[str, ...]) -> None:
    """Print warnings to stderr."""
    for sentence in sentences:
        say(f"warning: {sentence}", err=True)


def print_json(body: object) -> None:
    """Print an object as JSON."""
    import msgspec

    say(msgspec.json.encode(body).decode())


def print_table(*parts: "RenderableType") -> None:
    """Print tables for a person, and sentences between them as they are."""
    from rich.console import Console

    console = Console()
    for part in parts:
        if isinstance(part, str):
            say(part)
        else:
            console.print(_Printable(part))


class _Printable:
    """A renderable whose text is escaped after it was laid out; styles of our own pass."""

    def __init__(self, part: "RenderableType") -> None:
        self._part = part

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        for segment in console.render(self._part, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))


def make_folder(folder: Path) -> None:
    """Make a folder for several files, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"cannot make {folder}: {exc.strerror}") from exc


NOT_KEPT, INCONCLUSIVE = 7, 8  # exit codes, which `run` ends with too: it loads no more for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Where a command's answer goes: to a file, to a machine, to a person."""

    output: Path | None = None
    as_json: bool = False
    force: bool = False

    def check(self, *inputs: Path | None, begins: str = "{") -> None:
        """Refuse what cannot be written, or would replace an input, before any work is done."""
        from underclock.store import check_output

        if self.output is not None and self.output != STDOUT:
            check_output(self.output, force=self.force, inputs=inputs, begins=begins)

    def write(self, text: str) -> None:
        """Write a page, to where it was asked for, and say so."""
        from underclock.store import write_text

        if self.output == STDOUT:
            click.echo(text)
        elif self.output is not None:
            write_text(self.output, text, force=self.force)
            if not self.as_json:
                say(f"wrote {self.output}")

    def give(
        self,
        record: "Record",
        shown: "Callable[[], Iterable[RenderableType]]",
        *,
        warnings: tuple[str, ...] | None = None,
    ) -> None:
        """Hand a record over; where it goes to stdout, what is shown to a person does not."""
        from underclock.store import write_document

        if self.output is not None and self.output != STDOUT:
            write_document(self.output, record, force=self.force)
        warn(getattr(record, "warnings", ()) if warnings is None else warnings)
        if self.as_json or self.output == STDOUT:
            print_json(record)
            return
        print_table(*shown())


def told_of_boards(boards: "Sequence[SampleSet]", file: Path, *, as_json: bool) -> None:
    """Say what a file of several boards holds."""
    first = boards[0]
    if as_json:
        print_json(
            {
                "boards": {str(board.gpu.uuid): len(board.windows) for board in boards},
                "gpu": first.gpu.name,
                "evidence": first.evidence,
                "file": str(file),
            }
        )
        return
    windows = sum(len(board.windows) for board in boards)
    of = "one board" if len(boards) == 1 else f"{len(boards)} boards"
    header = f"{first.workload} on {first.gpu.name}, {first.evidence}"
    say(f"{header}: {windows} windows of {of} in {file}")


@contextmanager
def progress_bar(title: str, *, every_s: float = _EVERY_S) -> Iterator[Callable[["Tally"], None]]:
    """Show how far measuring is, and each phase's time left where that is known."""
    with _shown(title, every_s) as show:

        def tell(tally: "Tally") -> None:
            share = tally.share
            show(
                description=f"{title}: {tally.phase}" if tally.phase else title,
                completed=share or 0.0,
                total=None if share is None else 1.0,
                count=f"{tally.done}" if tally.total is None else f"{tally.done}/{tally.total}",
                gpu_time=f"{format_duration(tally.gpu_s)} of GPU time",
                doing=clean(tally.doing),
            )

        yield tell


@contextmanager
def share_bar(title: str, *, every_s: float = _EVERY_S) -> Iterator[Callable[[float], None]]:
    """Show which share of a computation is done; until it says so, only that it goes on."""
    with _shown(title, every_s=every_s) as show:
        yield lambda share: show(completed=share, total=1.0, count=f"{share:.0%}")


@contextmanager
def counted_bar(
    title: str, *, every_s: float = _EVERY_S
) -> Iterator[Callable[[int, int, str], None]]:
    """Show how many of several pieces of work are done, and which is next; call it as above."""
    with _shown(title, every_s=every_s) as show:

        def tell(done: int, total: int, doing: str) -> None:
            show(completed=done, total=total, count=f"{done}/{total}", doing=clean(doing))

        yield tell


@contextmanager
def phase_bar(title: str) -> Iterator[Callable[[str], None]]:
    """Show what goes on, where nothing says how long that takes."""
    with _shown(title) as show:
        yield lambda doing: show(doing=clean(doing))


@contextmanager
def _shown(title: str, every_s: float = _EVERY_S) -> Iterator[_Show]:
    """Show on a bar, or on lines."""
    raise_lost_interrupt()
    from rich.console import Console

    from underclock.hw.base import SystemClock

    console, lines = Console(stderr=True), PlainLines(title, SystemClock())
    if console.is_terminal:
        with _bar(lines, console) as show:
            yield show
        return
    ended = threading.Event()

    def print_lines() -> None:
        while not ended.wait(every_s):
            with suppress(OSError, ValueError):  # the reader of stderr has gone
                say(lines.line(), err=True)

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield lines.show
    finally:
        ended.set()
        thread.join(_READ_WITHIN_S)


class PlainLines:
    """What the next line says of something that takes long, and the times on its bar."""

    def __init__(self, title: str, clock: "Clock") -> None:
        self.title = title
        self._clock = clock
        self._begun_s = self._phase_s = clock.now_s()
        self._fields: dict[str, object] = {"description": title}
        self._share: float | None = None
        self._before = 0.0  # the share that was done as the phase began

    def show(self, *, completed: float = 0.0, total: float | None = None, **fields: object) -> None:
        """Take what is to be shown; a phase has a pace of its own."""
        self._share = completed / total if total else None
        if fields.get("description", self._fields["description"]) != self._fields["description"]:
            self._phase_s, self._before = self._clock.now_s(), self._share or 0.0
        self._fields |= fields

    def line(self) -> str:
        """Return it."""
        words = [self._fields.get(name) for name in ("count", "gpu_time", "doing")]
        said = ", ".join(str(word) for word in words if word)
        return f"{self._fields['description']}: {said + '; ' if said else ''}{self.times()}"

    def times(self) -> str:
        """Say how long it has taken, and how much longer its phase takes where that is known."""
        now_s, all_ = self._clock.now_s(), 1.0 - self._before  # of which this phase does the rest
        share = max(0.0, (self._share or 0.0) - self._before) / all_ if all_ > 0.0 else 0.0
        left_s = (now_s - self._phase_s) * (1.0 - share) / share if share else 0.0
        taken = dt.timedelta(seconds=int(now_s - self._begun_s))
        if left_s < 1.0 or share < _TELLING:
            return f"{taken}"
        return f"{taken}, {dt.timedelta(seconds=int(left_s))} left"


@contextmanager
def _bar(lines: PlainLines, console: "Console") -> Iterator[_Show]:
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Times(ProgressColumn):
        def render(self, _task: Task) -> Text:
            return Text(lines.times())

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[count]}", markup=False),
        Times(table_column=Column(no_wrap=True)),
        # The only column that may be cut short.
        TextColumn(
            "{task.fields[gpu_time]} {task.fields[doing]}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True),
        ),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        number = bar.add_task(lines.title, total=None, count="", gpu_time="", doing="")

        def show(**fields: object) -> None:
            lines.show(**fields)  # type: ignore[arg-type]
            bar.update(number, **fields)  # type: ignore[arg-type]

        yield show

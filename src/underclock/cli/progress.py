"""Progress on stderr, with the time left where it is known.

A terminal has a bar. Where stderr is a pipe or a file, a plain line comes every 10 s.
"""

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from underclock.cli.terminal import clean, say
from underclock.hw.base import Clock
from underclock.hw.clock import SystemClock
from underclock.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console

    from underclock.stages.measure import Tally

_EVERY_S = 10.0  # a line
_Show = Callable[..., None]
"""Takes what is to be shown, by name: description, completed, total, count, gpu_time, doing."""


@contextmanager
def progress_bar(
    title: str, *, per_second: float = 10, every_s: float = _EVERY_S
) -> Iterator[Callable[["Tally"], None]]:
    """Show how far measuring is, and each phase's time left where its end can be told."""
    with _shown(title, per_second, every_s) as show:

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
    """Show how many of several pieces of work are done, and which is next; until told, as above."""
    with _shown(title, every_s=every_s) as show:

        def tell(done: int, total: int, doing: str) -> None:
            show(completed=done, total=total, count=f"{done}/{total}", doing=clean(doing))

        yield tell


@contextmanager
def _shown(title: str, per_second: float = 10, every_s: float = _EVERY_S) -> Iterator[_Show]:
    """Show on a bar, or on lines."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with _bar(title, per_second, console) as show:
            yield show
        return
    lines, ended = PlainLines(title, SystemClock()), threading.Event()

    def print_lines() -> None:
        while not ended.wait(every_s):
            with suppress(OSError, ValueError):  # whoever read them has gone
                say(lines.line(), err=True)

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield lines.show
    finally:
        ended.set()
        thread.join()


class PlainLines:
    """What the next line says.

    Args:
        title: Of what takes long.
        clock: Tells how long it has.
    """

    def __init__(self, title: str, clock: Clock) -> None:
        self._clock = clock
        self._begun_s = self._phase_s = clock.now_s()
        self._fields: dict[str, object] = {"description": title}
        self._share: float | None = None

    def show(self, *, completed: float = 0.0, total: float | None = None, **fields: object) -> None:
        """Take what is to be shown; a phase has a pace of its own."""
        if fields.get("description", self._fields["description"]) != self._fields["description"]:
            self._phase_s = self._clock.now_s()
        self._share = completed / total if total else None
        self._fields |= fields

    def line(self) -> str:
        """Return it."""
        now_s = self._clock.now_s()
        share, phase_s = self._share, now_s - self._phase_s
        left_s = phase_s * (1 - share) / share if share else None
        words = [self._fields.get(name) for name in ("count", "gpu_time", "doing")]
        said = ", ".join(str(word) for word in words if word)
        times = times_text(now_s - self._begun_s, left_s)
        return f"{self._fields['description']}: {said + '; ' if said else ''}{times}"


@contextmanager
def _bar(title: str, per_second: float, console: "Console") -> Iterator[_Show]:
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Times(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(times_text(task.elapsed, task.time_remaining))

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[count]}", markup=False),
        Times(),
        TextColumn("{task.fields[gpu_time]}", markup=False),
        # The only column that may be cut short.
        TextColumn(
            "{task.fields[doing]}", markup=False, table_column=Column(ratio=1, no_wrap=True)
        ),
    )
    with Progress(
        *columns, console=console, refresh_per_second=per_second, transient=True, expand=True
    ) as bar:
        number = bar.add_task(title, total=None, count="", gpu_time="", doing="")

        def show(**fields: object) -> None:
            if fields.get("description", title) != bar.tasks[0].description:
                bar.reset(number)  # a phase has a pace of its own
            bar.update(number, **fields)  # type: ignore[arg-type]

        yield show


def times_text(elapsed_s: float | None, left_s: float | None) -> str:
    """Say how long it has taken, and how long it will."""
    taken = dt.timedelta(seconds=int(elapsed_s or 0.0))
    return f"{taken}" if left_s is None else f"{taken}, {dt.timedelta(seconds=int(left_s))} left"

"""Progress on stderr, with the time left where it is known; nothing where that is no terminal."""

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from underclock.cli.terminal import clean
from underclock.units import format_duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from underclock.stages.measure import Tally


@contextmanager
def progress_bar(title: str, *, per_second: float = 10) -> Iterator[Callable[["Tally"], None]]:
    """Show how far measuring is, and each phase's time left where its end can be told."""
    with _bar(title, per_second) as (bar, task):
        phase = ""

        def show(tally: "Tally") -> None:
            nonlocal phase
            share = tally.share
            if tally.phase != phase:  # its pace is its own
                phase = tally.phase
                bar.reset(task)
            bar.update(
                task,
                description=f"{title}: {phase}" if phase else title,
                completed=share or 0.0,
                total=None if share is None else 1.0,
                count=f"{tally.done}" if tally.total is None else f"{tally.done}/{tally.total}",
                gpu_time=f"{format_duration(tally.gpu_s)} of GPU time",
                doing=clean(tally.doing),
            )

        yield show


@contextmanager
def share_bar(title: str) -> Iterator[Callable[[float], None]]:
    """Show which share of a computation is done; until it says so, only that it goes on."""
    with _bar(title) as (bar, task):
        yield lambda share: bar.update(task, completed=share, total=1.0, count=f"{share:.0%}")


@contextmanager
def counted_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show how many of several pieces of work are done, and which is next; until told, as above."""
    with _bar(title) as (bar, task):

        def show(done: int, total: int, doing: str) -> None:
            bar.update(
                task,
                completed=done,
                total=total,
                count=f"{done}/{total}",
                doing=clean(doing),
            )

        yield show


@contextmanager
def _bar(title: str, per_second: float = 10) -> Iterator[tuple["Progress", "TaskID"]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Times(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(times_text(task.elapsed, task.time_remaining))

    console = Console(stderr=True)
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
        *columns,
        console=console,
        refresh_per_second=per_second,
        transient=True,
        expand=True,
        disable=not console.is_terminal,
    ) as bar:
        yield bar, bar.add_task(title, total=None, count="", gpu_time="", doing="")


def times_text(elapsed_s: float | None, left_s: float | None) -> str:
    """Say how long it has taken, and how long it will."""
    taken = dt.timedelta(seconds=int(elapsed_s or 0.0))
    return f"{taken}" if left_s is None else f"{taken}, {dt.timedelta(seconds=int(left_s))} left"

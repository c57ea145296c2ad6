"""Tables that fit a narrow terminal by leaving columns away, never by breaking a name.

Cells become `rich.text.Text`: rich would read ``[...]`` in a kernel name as markup.
"""

from collections.abc import Iterable
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_MIN_WIDTH = 64  # so that a narrow table does not break its title into many lines
_ENDLESS = 10_000
_NAME_WIDTH = 21  # of longer names, what stays together at least
_KEPT = 3  # columns, from the left, that stay however narrow the terminal is


class FittingTable(Table):
    """A table whose last columns go first where the terminal is too narrow for all."""

    def __init__(self, *columns: Column, title: str = "", caption: str = "") -> None:
        """Take columns, what the table shows, and how to read it."""
        super().__init__(
            *columns,
            title=Text(title, style="bold"),
            title_justify="left",
            caption=Text(caption) if caption else None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as many columns as fit, the first ones at least."""
        count = len(self.columns)
        while count > _KEPT and self._needed(console, options, count) > options.max_width:
            count -= 1
        table = self._first(count)
        if self._needed(console, options, count) > options.max_width:
            table.columns[0].min_width = None  # names may break between words then
        wrapped = [column for column in table.columns if not column.no_wrap]
        whole = Measurement.get(console, options.update(max_width=_ENDLESS), table).maximum
        if len(wrapped) > 1 and whole > options.max_width:
            # Else all are narrowed, the first below its least, and the last is cut off.
            wrapped[0].width = wrapped[0].min_width
        table.min_width = min(_MIN_WIDTH, options.max_width)
        yield table

    def _needed(self, console: Console, options: ConsoleOptions, count: int) -> int:
        """Return how wide so many columns are at least."""
        table = self._first(count)
        for column in table.columns:
            column.width = column.min_width
        return Measurement.get(console, options.update(max_width=_ENDLESS), table).minimum

    def _first(self, count: int) -> Table:
        """Return a plain table of the first columns."""
        table = Table(
            title=self.title,
            title_justify=self.title_justify,
            caption=self.caption,
            caption_justify=self.caption_justify,
            box=self.box,
            pad_edge=self.pad_edge,
            padding=(0, 1, 0, 0),
        )
        table.columns = [
            replace(column, min_width=_least_width(column, named=place == 0))
            for place, column in enumerate(self.columns[:count])
        ]
        table.rows = self.rows
        return table


def _least_width(column: Column, *, named: bool) -> int:
    """Return how wide a column must be so that numbers and names stay whole, and words do."""
    lines = [line for cell in column.cells for line in str(cell).split("\n")]
    if column.no_wrap:
        return _widest([*lines, *str(column.header).split("\n")])
    if named:
        return min(_widest(lines), _NAME_WIDTH)
    return min(_widest([word for line in lines for word in line.split()]), _NAME_WIDTH)


def _widest(texts: list[str]) -> int:
    return max((cell_len(text) for text in texts), default=0)


def words(*headers: str) -> list[Column]:
    """Return columns of words, which may wrap."""
    return [Column(header, overflow="fold") for header in headers]


def numbers(*headers: str) -> list[Column]:
    """Return columns of numbers, which may not."""
    return [Column(header, justify="right", no_wrap=True) for header in headers]


def filled(
    title: str,
    columns: Iterable[Column],
    rows: Iterable[Iterable[str | Text]],
    caption: str = "",
    *,
    bold: int | None = None,
) -> FittingTable:
    """Return a table of columns as `words` and `numbers` make them; ``bold`` is a row."""
    table = FittingTable(*columns, title=title, caption=caption)
    for place, row in enumerate(rows):
        cells = (Text(cell) if isinstance(cell, str) else cell for cell in row)
        table.add_row(*cells, style="bold" if place == bold else "")
    return table

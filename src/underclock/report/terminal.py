"""Tables that fit a narrow terminal by leaving columns out, said, never by breaking a name.

Cells become `rich.text.Text`: rich would read ``[...]`` in a kernel name as markup.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_MIN_WIDTH = 64  # so that a narrow table does not break its title into many lines
_ENDLESS = 10_000
_NAME_WIDTH = 21  # of longer names, what stays together at least
_KEPT = 3  # columns that stay however narrow the terminal is, the first among them
_LAST = ("time per step", "energy per step", "time", "energy")  # to go: they answer the question


class FittingTable(Table):
    """A table that names the columns it leaves out where the terminal is too narrow for all."""

    def __init__(self, *columns: Column, title: str = "", caption: str = "") -> None:
        """Take columns, what the table shows, and how to read it."""
        self._look: dict[str, Any] = {
            "title": Text(title, style="bold"),
            "title_justify": "left",
            "caption": Text(caption) if caption else None,
            "caption_justify": "left",
            "box": box.SIMPLE_HEAD,
            "pad_edge": False,
            "padding": (0, 1, 0, 0),
        }
        super().__init__(*columns, **self._look)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as many columns as fit; the last ones go first, and those of `_LAST` at the end."""
        titles = [" ".join(str(column.header).split()) for column in self.columns]
        named = [_LAST.index(each) if each in _LAST else -1 for each in titles]
        order = sorted(range(1, len(titles)), key=lambda place: (named[place], -place))
        kept = list(range(len(titles)))
        while len(kept) > _KEPT and self._needed(console, options, kept) > options.max_width:
            kept.remove(order.pop(0))
        table = self._of(kept)
        if out := [title for place, title in enumerate(titles) if place not in kept]:
            words = f"left out for the width: {', '.join(out)}"
            table.caption = Text("\n".join(filter(None, (str(self.caption or ""), words))))
        if self._needed(console, options, kept) > options.max_width:
            table.columns[0].min_width = None  # names may break between words then
        wrapped = [column for column in table.columns if not column.no_wrap]
        whole = Measurement.get(console, options.update(max_width=_ENDLESS), table).maximum
        if len(wrapped) > 1 and whole > options.max_width:
            # Else all are narrowed, the first below its least, and the last is cut off.
            wrapped[0].width = wrapped[0].min_width
        table.min_width = min(_MIN_WIDTH, options.max_width)
        yield table

    def _needed(self, console: Console, options: ConsoleOptions, kept: list[int]) -> int:
        table = self._of(kept)
        for column in table.columns:
            column.width = column.min_width
        return Measurement.get(console, options.update(max_width=_ENDLESS), table).minimum

    def _of(self, kept: list[int]) -> Table:
        table = Table(**self._look)
        least = [_least_width(self.columns[place], named=place == 0) for place in kept]
        table.columns = [
            replace(self.columns[place], min_width=width, _index=at)
            for at, (place, width) in enumerate(zip(kept, least, strict=True))
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

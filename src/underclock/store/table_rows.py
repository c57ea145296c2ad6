"""The rows of a table somebody measured: cells as they stand, and what they must be."""

import math
from array import array
from collections.abc import Iterator
from pathlib import Path

from underclock.errors import DataError
from underclock.records import GREATEST_MHZ, LEAST_MHZ
from underclock.store.columns import Columns

LEAST, GREATEST = 1e-12, 1e12  # of any column, in its unit
LEAST_W, GREATEST_W = 0.1, 20_000.0  # asleep, and more than a rack of GPUs may draw
_OFTEN_THE_SAME = {  # as in other rows
    "gpu",
    "kernel",
    "core_mhz",
    "mem_mhz",
    "count",
    "pass",
    "waited_for",
}


class TableRow:
    """One line of the file; every accessor names the line when it refuses."""

    __slots__ = ("_line", "_path", "_places", "cells")

    def __init__(
        self, path: Path, line: int, places: dict[str, int], cells: tuple[str, ...]
    ) -> None:
        self._path = path
        self._line = line
        self._places = places
        self.cells = cells

    @property
    def where(self) -> str:
        """The file and the line."""
        return f"{self._path}, line {self._line}"

    def cell(self, column: str) -> str:
        """Return a cell as it stands; empty where there is no such column."""
        place = self._places.get(column)
        return "" if place is None else self.cells[place]

    def names(self, column: str) -> bool:
        """Whether the table has a column."""
        return column in self._places

    def has(self, column: str) -> bool:
        """Whether a cell is there and not empty."""
        return bool(self.cell(column))

    def text(self, column: str) -> str:
        """Return a cell that must not be empty."""
        cell = self.cell(column)
        if not cell:
            raise DataError(f"{self.where}: {column} is empty")
        return cell

    def quantity(self, column: str) -> float:
        """Return a positive number that a quantity can have."""
        raw = self.text(column)
        try:
            value = float(raw)
        except ValueError:
            mended = raw.replace(",", ".")
            hint = f"write decimals with a point: {mended}" if _is_number(mended) else ""
            raise DataError(f"{self.where}: {column} is {raw!r}, not a number", hint=hint) from None
        if not LEAST <= value <= GREATEST:
            raise DataError(
                f"{self.where}: {column} is {raw}; it must be positive and finite, "
                f"from {LEAST:g} to {GREATEST:g}",
                hint="remove the row if the run failed",
            )
        return value

    def whole(self, column: str) -> int:
        """Return a positive whole number."""
        value = self.quantity(column)
        if value != int(value):
            raise DataError(f"{self.where}: {column} is {value}, not a whole number")
        return int(value)

    def share(self, column: str) -> float:
        """Return a share of something, from none of it to all."""
        raw = self.text(column)
        value = float(raw) if _is_number(raw) else math.nan
        if not 0.0 <= value <= 1.0:
            raise DataError(
                f"{self.where}: {column} is {raw!r}; it must be from 0 to 1",
                hint="it is a share, so write 25 % as 0.25",
            )
        return value

    def clock(self, column: str) -> int | None:
        """Return a clock; an empty cell is auto, and so is the word."""
        if self.cell(column).casefold() in {"", "auto"}:
            return None
        mhz = self.whole(column)
        if not LEAST_MHZ <= mhz <= GREATEST_MHZ:
            raise DataError(
                f"{self.where}: {column} is {mhz}; GPUs have clocks from {LEAST_MHZ} to "
                f"{GREATEST_MHZ} MHz, and no number is auto",
                hint="write clocks in MHz, neither in Hz nor in kHz nor in GHz",
            )
        return mhz

    def energy_j(self, time_s: float) -> float:
        """Return the energy of a run, or what its power makes it; a GPU must be able to draw it."""
        known = self.has("energy_j") or not self.has("power_w")
        energy_j = self.quantity("energy_j") if known else self.quantity("power_w") * time_s
        mean_w = energy_j / time_s
        if not LEAST_W <= mean_w <= GREATEST_W:
            raise DataError(
                f"{self.where}: energy_j {energy_j:g} over time_s {time_s:g} is {mean_w:.3g} W; "
                f"GPUs draw from {LEAST_W:g} W to {GREATEST_W / 1e3:g} kW",
                hint="check the units: energy_j is in joules, time_s in seconds",
            )
        return energy_j


class TableRows:
    """The lines of a table, in order.

    A table may have a million rows. Tuples of text are nothing to the garbage collector, so only
    these are kept, and each row is made of them when it is asked for.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        self.columns = columns
        self.places = columns.places
        self._path = path
        self._cells: list[tuple[str, ...]] = []
        self._lines = array("q")
        self._width = len(columns.names)
        self._shared = [place for name, place in self.places.items() if name in _OFTEN_THE_SAME]
        self._share = dict[str, str]().setdefault

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[TableRow]:
        for line, cells in zip(self._lines, self._cells, strict=True):
            yield TableRow(self._path, line, self.places, cells)

    def add(self, line: int, cells: list[str]) -> None:
        """Add a line of the file; of cells that are alike in many rows, one text is kept.

        Raises:
            DataError: It has not a cell for every column.
        """
        if len(cells) != self._width:
            where = TableRow(self._path, line, self.places, tuple(cells)).where
            raise DataError(f"{where}: the row has more or fewer cells than the header")
        for place in self._shared:
            cells[place] = self._share(cells[place], cells[place])
        self._lines.append(line)
        self._cells.append(tuple(cells))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

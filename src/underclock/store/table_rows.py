"""The header and the rows of a table somebody measured: what its cells are, and must be."""

import csv
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TextIO

import msgspec

from underclock.errors import DataError
from underclock.records import (
    GREATEST_MHZ,
    LEAST_MHZ,
    Clocks,
    ThrottleReason,
    Window,
    check_mhz,
)
from underclock.records.common import GREATEST_W, LEAST_W, can_draw
from underclock.units import name_hint

_CLOCKS = ("observed_core_mhz", "observed_mem_mhz")
_BITS = 2**63  # of the driver's reasons, and of a column of SQLite
READINGS = (*_CLOCKS, "temperature_c", "throttle_reasons")
"""Columns a table may have: the running clocks, heat, the driver's throttle reasons as a number. An
empty cell was not read."""
_UNREAD: Final = ("sm", "tensor", "fp32", "dram")  # of tables that earlier versions wrote

NEEDED: Final = ("gpu", "kernel", "core_mhz", "mem_mhz", "time_s")
EITHER: Final = ("energy_j", "power_w")  # with time, each gives the other
ABOUT: Final = ("workload", "evidence")
"""What our own tables say of all rows."""
PLANNED: Final = "planned on "
"""How the evidence of rows begins that a plan expects."""
_OPTIONAL: Final = ("count", "pass", "waited_for", *READINGS)
KNOWN: Final = (*NEEDED, *EITHER, *ABOUT, *_OPTIONAL, *_UNREAD)
_SEPARATORS: Final = {",": "commas", ";": "semicolons", "\t": "tabs"}


@contextmanager
def opened_table(path: Path, text: TextIO | None = None) -> Iterator[TextIO]:
    """Open a table to read it; what keeps it from being read is said in a sentence.

    Args:
        text: What it holds, where that is at hand.

    Raises:
        DataError: It cannot be read, or is no table.
    """
    try:
        with text or path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as exc:
        raise DataError(f"cannot read {path}: {exc.strerror}") from exc
    except (UnicodeDecodeError, csv.Error) as exc:
        raise DataError(f"{path} is not a CSV table: {exc}") from exc


def separator_of(header: str) -> str:
    """Return what separates columns: whatever yields most names that we know, or else a comma."""
    return max(
        _SEPARATORS,
        key=lambda mark: len({_plain(name) for name in header.split(mark)} & set(KNOWN)),
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns of a table are.

    Attributes:
        names: As in the file, in lower case with underscores.
        taken: What a reader must know of how they were read.
    """

    names: tuple[str, ...]
    taken: tuple[str, ...]

    @property
    def places(self) -> dict[str, int]:
        """Where in a row the cell of each column is."""
        return {name: place for place, name in enumerate(self.names)}

    @classmethod
    def of(cls, where: object, header: Sequence[str], separator: str) -> Self:
        """Read a header.

        Raises:
            DataError: A column that is needed is missing, or there twice.
        """
        names = tuple(_plain(name) for name in header)
        read = f"{where}, read with {_SEPARATORS[separator]} between columns,"
        missing = [name for name in NEEDED if name not in names]
        if not set(EITHER) & set(names):
            missing.append(" or ".join(EITHER))
        if missing:
            raise DataError(
                f"{read} lacks the column {', '.join(missing)}",
                hint=f"it needs {', '.join(NEEDED)}, and {' or '.join(EITHER)}; it has "
                f"{', '.join(names)}",
            )
        twice = [name for name, count in Counter(names).items() if count > 1 and name in KNOWN]
        if twice:
            raise DataError(f"{read} repeats a column: {', '.join(twice)}")
        return cls(names, tuple(_taken(names, separator)))


def _taken(names: Iterable[str], separator: str) -> Iterable[str]:
    """Say what is not as a plain table has it."""
    if separator != ",":
        yield f"the table was read with {_SEPARATORS[separator]} between its columns"
    extra = [name for name in names if name not in KNOWN]
    if extra:
        close = (name_hint(name, _OPTIONAL) for name in extra)
        meant = next((f"; {words}" for words in close if words.startswith("did you mean")), "")
        named = ", ".join(repr(name) if name else "one without a name" for name in extra)
        yield f"columns of the table that nothing here reads were left out: {named}{meant}"
    if "energy_j" not in names:
        yield "the table has no energy_j: it was taken as power_w times time_s"


def _plain(name: str) -> str:
    """Return a column's name as we write it: ``Core MHz`` and ``core_mhz`` are the same."""
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")


LEAST, GREATEST = 1e-12, 1e12  # of any column, in its unit
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
            known = not math.isnan(parsed(mended))
            hint = f"write decimals with a point: {mended}" if known else ""
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
        value = parsed(raw)
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
        if not can_draw(mean_w):
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


def with_readings(sample: Window, row: "TableRow") -> Window:
    """Return a sample with what else its row says.

    Raises:
        DataError: A cell is no number, or one that cannot be.
    """
    values = {name: _number(row, name) for name in READINGS if row.cell(name)}
    core, mem = (values.get(name) for name in _CLOCKS)
    reasons = values.get("throttle_reasons")
    if reasons is not None and not 0 <= reasons < _BITS:
        raise DataError(f"{row.where}: throttle_reasons are bits of a number, got {reasons:g}")
    try:
        observed = Clocks(core_mhz=_whole(core), mem_mhz=_whole(mem)) if core or mem else None
        if observed is not None:
            check_mhz(observed, *observed.__struct_fields__)
        return msgspec.structs.replace(
            sample,
            observed=observed,
            temperature_c=values.get("temperature_c"),
            throttle_reasons=None if reasons is None else ThrottleReason(round(reasons)),
        )
    except (ValueError, msgspec.ValidationError) as exc:
        raise DataError(f"{row.where}: {exc}") from exc


def _number(row: "TableRow", name: str) -> float:
    raw = row.cell(name)
    value = parsed(raw)
    if not math.isfinite(value):
        raise DataError(f"{row.where}: {name} is {raw!r}, not a number")
    return value


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def parsed(text: str) -> float:
    """Return a number as it is written; what is none is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan

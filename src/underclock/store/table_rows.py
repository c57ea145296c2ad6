"""The header and the rows of a measured table: what its cells are, and must be."""

import csv
import difflib
import io
import math
import re
import tomllib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, Self, TextIO

import msgspec

from underclock.errors import DataError
from underclock.records import GREATEST_MHZ, LEAST_MHZ, Clocks, ThrottleReason, Window
from underclock.records.common import GREATEST_W, LEAST_W, can_draw, check_mhz
from underclock.store.database import read_bytes
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
_WORDS: Final = tomllib.loads(
    (resources.files("underclock.store") / "columns.toml").read_text(encoding="utf-8")
)
_UNITS: Final = {
    unit: (quantity, float(scale))
    for quantity, units in _WORDS["units"].items()
    for unit, scale in units.items()
}
_RAN, _ASKED, _FOREIGN = (set(_WORDS["words"][which]) for which in ("ran", "asked", "foreign"))


@contextmanager
def opened_table(path: Path, text: TextIO | None = None) -> Iterator[TextIO]:
    """Open a table, or its text, to read it; `DataError`: it cannot be read, or is no table."""
    try:
        body = io.BytesIO(b"" if text else read_bytes(path))
        with text or io.TextIOWrapper(body, encoding="utf-8-sig", newline="") as file:
            yield file
    except (UnicodeDecodeError, csv.Error) as exc:
        raise DataError(f"{path} is not a CSV table: {exc}") from exc


def _separator(header: str) -> str:
    """Return what separates columns: whatever yields most names that we know, or else a comma."""
    return max(
        _SEPARATORS,
        key=lambda mark: len(
            {_meaning(name)[0] or _plain(name) for name in header.split(mark)} & set(KNOWN)
        ),
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns of a table are."""

    names: tuple[str, ...]  # ours where a column is one of ours, else as in the file, in lower case
    taken: tuple[str, ...]  # what a reader must know of how they were read
    # columns of another program: the place, how much of our unit its own is, and that
    scales: tuple[tuple[int, float, str], ...] = ()
    added: tuple[str, ...] = ()  # cells that every row lacks and is given
    reading: str = ""  # how another program's columns were read; empty where all are ours

    @property
    def places(self) -> dict[str, int]:
        """Where in a row the cell of each column is."""
        return {name: place for place, name in enumerate(self.names)}

    @classmethod
    def of(cls, path: Path, header: Sequence[str], separator: str) -> Self:
        """Read a header, in our names or in those of another program.

        Raises:
            DataError: A column that is needed is missing, there twice, or in an unknown unit.
        """
        names = [_plain(name) for name in header]
        where = f"{path}, read with {_SEPARATORS[separator]} between columns,"
        scales, added, read, unclear = [], [], [], []
        for place, column, scale, unit in _meanings(where, header, names):
            if scale is None:
                unclear.append(header[place])
                continue
            names[place] = column
            scales += [(place, scale, unit)] * (column not in {"gpu", "kernel"})
            times = "" if scale == 1.0 else f" times {scale:g}"
            read.append(f"{column} is {header[place]!r}{times}")
        stem = path.stem.encode(errors="replace").decode()  # a name need not be text on disk
        for name, cell in (("kernel", stem), ("mem_mhz", "")):
            if read and name not in names:
                names.append(name)
                added.append(cell)
                read.append(f"{name}, which no column is, is {cell or 'auto'}")
        missing = [name for name in NEEDED if name not in names]
        if not set(EITHER) & set(names):
            missing.append(" or ".join(EITHER))
        if missing:
            hint = _lacking(missing, header, names, unclear)
            raise DataError(f"{where} lacks the column {', '.join(missing)}", hint=hint)
        twice = [name for name, count in Counter(names).items() if count > 1 and name in KNOWN]
        if twice:
            raise DataError(f"{where} repeats a column: {', '.join(twice)}")
        reading = "; ".join(read)
        said = (f"the table was read so: {reading}",) if read else ()
        taken = (*said, *_taken(names, separator))
        return cls(tuple(names), taken, tuple(scales), tuple(added), reading)


def _meanings(
    where: str, header: Sequence[str], names: Sequence[str]
) -> list[tuple[int, str, float | None, str]]:
    """Return the place of each column of another program's, and its `_meaning`."""
    found: dict[str, list[tuple[int, str, float | None, str]]] = {}
    for place, name in enumerate(names):
        meaning = _meaning(header[place])
        if meaning[0] and meaning[0] not in names and (name not in KNOWN or name == "workload"):
            found.setdefault(meaning[0], []).append((place, *meaning))
    for column, every in found.items():
        # A unit is what makes a quantity; and a kernel's name says more than the step's.
        some = [each for each in every if each[2] and names[each[0]] != "workload"] or every
        if len(some) > 1 and column in {*NEEDED, *EITHER} and some[0][2]:
            both = " and ".join(repr(header[place]) for place, *_ in some[:2])
            hint = f"name the one that counts {column}, and leave the other out"
            raise DataError(f"{where} has {both}, and either may be {column}", hint=hint)
        found[column] = some[:1]
    return [each for some in found.values() for each in some]


def _lacking(
    missing: Sequence[str], header: Sequence[str], names: Sequence[str], unclear: Sequence[str]
) -> str:
    """Say what a table needs, and which of its columns may be that."""
    said, has = "", ", ".join(map(_plain, header))
    rates = [name for name in names if re.search("perf|flops|throughput", name)]
    if unclear:
        said = f"{unclear[0]!r} does not say its unit: write time_ms, energy_mj, power_w; "
    elif missing[0] == "core_mhz" and "observed_core_mhz" in names:
        ran = header[names.index("observed_core_mhz")]
        said = f"{ran!r} is the clock that ran: name the one asked for core_mhz; "
    elif close := difflib.get_close_matches(missing[0], {*names} - {*KNOWN}, n=1, cutoff=0.7):
        said = f"did you mean {close[0]!r} by {missing[0]}? "
    elif "time_s" in missing and rates:
        said = f"{rates[0]!r} is a rate: time_s is how long the same work takes, in s; "
    return f"{said}it needs {', '.join(NEEDED)}, and {' or '.join(EITHER)}; it has {has}"


def _meaning(header: str) -> tuple[str, float | None, str]:
    """Return which of our columns another program's is, how much of our unit its own is, and that.

    The name is empty where it is none of ours, the scale ``None`` where its unit is not said, or
    may be milli or mega.
    """
    parts = [part for part in re.split(r"[^0-9A-Za-z°]+", re.sub("[µμ]", "u", header)) if part]
    average = parts.pop() if len(parts) > 1 and parts[-1].casefold() in _RAN else ""
    if parts and parts[-1].casefold() not in _UNITS:
        parts[-1:] = re.sub(r"(?<=[a-z0-9])(?=[A-Z][A-Za-z]{0,2}$)", " ", parts[-1]).split()
    unit = parts.pop() if parts and parts[-1].casefold() in _UNITS else ""
    quantity, scale = _UNITS.get(unit.casefold(), ("", None))
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", "_".join(parts)).casefold().split("_")
    name = "_".join(word for word in words if word not in _RAN | _ASKED)
    for column, pattern in _WORDS["names"].items() if _FOREIGN.isdisjoint(words) else ():
        of = column.rpartition("_")[2]
        bare = not unit and of in _WORDS["units"] and re.fullmatch(_WORDS["bare"], name)
        if bare or (unit and of != quantity) or not re.fullmatch(pattern, name):
            continue
        if of not in {"s", "j", "w"}:
            scale = scale or 1.0
        ran = average or _RAN & set(words)
        observed = "observed_" if of == "mhz" and ran else ""
        return observed + column, None if re.match("M[JW]", unit) else scale, unit
    return "", None, ""


def _taken(names: Iterable[str], separator: str) -> Iterable[str]:
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
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")


LEAST, GREATEST = 1e-12, 1e12  # of any column, in its unit
_OFTEN_THE_SAME = {*NEEDED[:-1], "count", "pass", "waited_for"}  # as in other rows


@dataclass(slots=True)
class TableRow:
    """One line of the file; every accessor names the line when it refuses."""

    path: Path
    line: int
    places: dict[str, int]
    cells: tuple[str, ...]

    @property
    def where(self) -> str:
        """The file and the line."""
        return f"{self.path}, line {self.line}"

    def cell(self, column: str) -> str:
        """Return a cell as it stands; empty where there is no such column."""
        place = self.places.get(column)
        return "" if place is None else self.cells[place]

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
            hint = "it is a share, so write 25 % as 0.25"
            raise DataError(f"{self.where}: {column} is {raw!r}; it must be from 0 to 1", hint=hint)
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
        known = self.cell("energy_j") or not self.cell("power_w")
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
        """Add a line of the file; of cells that are alike in many rows, one text is kept."""
        cells += self.columns.added
        if len(cells) != self._width:
            where = TableRow(self._path, line, self.places, tuple(cells)).where
            raise DataError(f"{where}: the row has more or fewer cells than the header")
        for place, scale, unit in self.columns.scales:
            value = parsed(cells[place].removesuffix(unit)) * scale
            cells[place] = f"{value:.15g}" if math.isfinite(value) else cells[place]
        for place in self._shared:
            cells[place] = self._share(cells[place], cells[place])
        self._lines.append(line)
        self._cells.append(tuple(cells))


def read_rows(path: Path, text: TextIO | None) -> TableRows:
    """Read the lines of a table; `DataError`: it is none, is empty, or lacks a column."""
    with opened_table(path, text) as file:
        separator = _separator(next((line for line in file if line.strip()), ""))
        file.seek(0)
        lines = csv.reader(file, delimiter=separator, strict=True)
        header = next((cells for cells in lines if cells), None)
        if header is None:
            hint = f"it needs the columns {', '.join(NEEDED)}, and {' or '.join(EITHER)}"
            raise DataError(f"{path} is empty", hint=hint)
        rows = TableRows(path, Columns.of(path, header, separator))
        for cells in lines:
            if cells:
                rows.add(lines.line_num, list(map(str.strip, cells)))
    if not rows:
        raise DataError(f"{path} holds no rows")
    return rows


def with_readings(sample: Window, row: "TableRow") -> Window:
    """Return a sample with what else its row says."""
    values = {name: parsed(row.cell(name)) for name in READINGS if row.cell(name)}
    if wrong := [name for name, value in values.items() if not math.isfinite(value)]:
        raise DataError(f"{row.where}: {wrong[0]} is {row.cell(wrong[0])!r}, not a number")
    reasons = values.get("throttle_reasons")
    if reasons is not None and not 0 <= reasons < _BITS:
        raise DataError(f"{row.where}: throttle_reasons are bits of a number, got {reasons:g}")
    core, mem = (round(values[name]) if name in values else None for name in _CLOCKS)
    try:
        observed = Clocks(core_mhz=core, mem_mhz=mem) if core or mem else None
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


def parsed(text: str) -> float:
    """Return a number as it is written; what is none is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan

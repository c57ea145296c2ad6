"""A sweep somebody measured, as CSV: one row per run, an empty clock is auto."""

import csv
import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import TextIO

import msgspec

from underclock.errors import DataError
from underclock.records import (
    GREATEST_MHZ,
    LEAST_MHZ,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Pass,
    Provenance,
    Sample,
    SampleSet,
)
from underclock.store.columns import EITHER, NEEDED, Columns, separator_of
from underclock.store.readings import with_readings
from underclock.units import nearest

_LEAST, _GREATEST = 1e-12, 1e12  # of any column, in its unit
_LEAST_W, _GREATEST_W = 0.1, 20_000.0  # asleep, and more than a rack of GPUs may draw
_POWER_TOLERANCE = 0.05  # sweeps round power; a wrong unit is off by far more
_REPEATS_APART = 10.0  # runs of one thing differ by less, whatever the noise
_REPEATS_NOISY = 1.5


class _Row:
    """One line of the file; every accessor names the line when it refuses."""

    def __init__(self, where: str, cells: dict[str, str]) -> None:
        self.where = where
        self.cells = cells

    def has(self, column: str) -> bool:
        """Whether a cell is there and not empty."""
        return bool(self.cells.get(column, ""))

    def text(self, column: str) -> str:
        """Return a cell that must not be empty."""
        if not self.has(column):
            raise DataError(f"{self.where}: {column} is empty")
        return self.cells[column]

    def quantity(self, column: str) -> float:
        """Return a positive number that a quantity can have."""
        raw = self.text(column)
        try:
            value = float(raw)
        except ValueError:
            mended = raw.replace(",", ".")
            hint = f"write decimals with a point: {mended}" if _is_number(mended) else ""
            raise DataError(f"{self.where}: {column} is {raw!r}, not a number", hint=hint) from None
        if not _LEAST <= value <= _GREATEST:
            raise DataError(
                f"{self.where}: {column} is {raw}; it must be positive and finite, "
                f"from {_LEAST:g} to {_GREATEST:g}",
                hint="remove the row if the run failed",
            )
        return value

    def whole(self, column: str) -> int:
        """Return a positive whole number."""
        value = self.quantity(column)
        if value != int(value):
            raise DataError(f"{self.where}: {column} is {value}, not a whole number")
        return int(value)

    def clock(self, column: str) -> int | None:
        """Return a clock; an empty cell is auto, and so is the word."""
        if self.cells[column].casefold() in {"", "auto"}:
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
        if not _LEAST_W <= mean_w <= _GREATEST_W:
            raise DataError(
                f"{self.where}: energy_j {energy_j:g} over time_s {time_s:g} is {mean_w:.3g} W; "
                f"GPUs draw from {_LEAST_W:g} W to {_GREATEST_W / 1e3:g} kW",
                hint="check the units: energy_j is in joules, time_s in seconds",
            )
        return energy_j


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_table(path: Path) -> SampleSet:
    """Read a measured sweep of one GPU.

    Columns: gpu, kernel, core_mhz, mem_mhz, time_s, and energy_j or power_w; optionally ``count``
    (invocations per step, default 1) and ``pass`` (forward, backward, optimizer, communication,
    other). Commas, semicolons or tabs separate them; capitals and spaces in their names do not
    matter, and others are left out with a warning. What was read meanwhile may be there too: see
    `readings`. Without ``pass``, a kernel named ``…/forward``
    or ``…/backward`` belongs there. Repeated rows are repeats. Where energy and power are both
    given they are compared.

    Raises:
        DataError: The file cannot be read as such a table; the message names line and column.
    """
    rows, taken = _rows(path)
    gpus = sorted({row.text("gpu") for row in rows})
    if len(gpus) > 1:
        raise DataError(
            f"{path} mixes GPUs: {', '.join(gpus)}", hint="a plan is for one GPU: split the table"
        )
    kernels: dict[str, Kernel] = {}
    samples: list[Sample] = []
    repeats: Counter[tuple[str, Clocks]] = Counter()
    for row in rows:
        kernel, sample = _kernel(row), _sample(row, repeats)
        if kernels.setdefault(kernel.name, kernel) != kernel:
            raise DataError(f"{row.where}: count or pass of {kernel.name!r} differs from above")
        samples.append(sample)
    return SampleSet(
        evidence=Evidence.REPLAYED,
        gpu=GpuInfo(name=gpus[0]),
        # A name need not be text on disk, but it must be in the files made from this one.
        workload=os.fsencode(path.stem).decode(errors="replace"),
        kernels=tuple(kernels.values()),
        samples=tuple(samples),
        expected_samples=len(samples),
        provenance=Provenance(table=_hash(gpus[0], kernels, samples)),
        warnings=(*taken, *_power_warnings(rows, samples), *_repeat_warnings(rows, samples)),
    )


def _hash(gpu: str, kernels: dict[str, Kernel], samples: list[Sample]) -> str:
    """Identify what a table says, however it is written."""
    body = msgspec.json.encode((gpu, tuple(kernels.values()), samples))
    return hashlib.sha256(body).hexdigest()[:16]


def _rows(path: Path) -> tuple[list[_Row], tuple[str, ...]]:
    """Read the lines under a checked header, and what a reader must know of it."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            columns, rows = _read(path, file)
    except OSError as exc:
        raise DataError(f"cannot read {path}: {exc.strerror}") from exc
    except (UnicodeDecodeError, csv.Error) as exc:
        raise DataError(f"{path} is not a CSV table: {exc}") from exc
    if not rows:
        raise DataError(f"{path} holds no rows")
    return rows, columns.taken


def _read(path: Path, file: TextIO) -> tuple[Columns, list[_Row]]:
    first = next((line for line in file if line.strip()), "")
    separator = separator_of(first)
    file.seek(0)
    lines = csv.reader(file, delimiter=separator, strict=True)
    header = next((cells for cells in lines if cells), None)
    if header is None:
        raise DataError(
            f"{path} is empty",
            hint=f"it needs the columns {', '.join(NEEDED)}, and {' or '.join(EITHER)}",
        )
    columns = Columns.of(path, header, separator)
    rows = []
    for cells in lines:
        where = f"{path}, line {lines.line_num}"
        if cells and len(cells) != len(header):
            raise DataError(f"{where}: the row has more or fewer cells than the header")
        if cells:
            stripped = (cell.strip() for cell in cells)
            rows.append(_Row(where, dict(zip(columns.names, stripped, strict=True))))
    return columns, rows


def _kernel(row: _Row) -> Kernel:
    name = row.text("kernel")
    stated = row.cells.get("pass", "")
    last = name.rsplit("/", maxsplit=1)[-1]
    if stated and stated not in set(Pass):
        raise DataError(f"{row.where}: pass is {stated!r}", hint=nearest(stated, Pass))
    if stated:
        pass_ = Pass(stated)
    else:
        pass_ = Pass(last) if last in {Pass.FORWARD, Pass.BACKWARD} else Pass.OTHER
    return Kernel(name=name, pass_=pass_, count=row.whole("count") if "count" in row.cells else 1)


def _sample(row: _Row, repeats: Counter[tuple[str, Clocks]]) -> Sample:
    name, time_s = row.text("kernel"), row.quantity("time_s")
    asked = Clocks(core_mhz=row.clock("core_mhz"), mem_mhz=row.clock("mem_mhz"))
    repeat = repeats[name, asked]
    repeats[name, asked] += 1
    sample = Sample(
        kernel=name, asked=asked, repeat=repeat, time_s=time_s, energy_j=row.energy_j(time_s)
    )
    return with_readings(sample, row)


def _power_warnings(rows: list[_Row], samples: list[Sample]) -> tuple[str, ...]:
    """Say where power contradicts energy over time: one of the three has another unit."""
    worst, where = _POWER_TOLERANCE, None
    for row, sample in zip(rows, samples, strict=True):
        if not row.has("power_w"):
            continue
        mean_w = sample.energy_j / sample.time_s
        off = abs(row.quantity("power_w") / mean_w - 1.0)
        if off > worst:
            worst, where = off, row.where
    if where is None:
        return ()
    sentence = (
        f"{where}: power_w differs from energy_j / time_s by {100 * worst:.0f} %; "
        "power is ignored, energy and time are used: check their units"
    )
    return (sentence,)


def _repeat_warnings(rows: list[_Row], samples: list[Sample]) -> tuple[str, ...]:
    """Say where repeats are so far apart that their mean says little.

    Raises:
        DataError: They are so far apart that they cannot be repeats.
    """
    first: dict[tuple[str, Clocks], tuple[_Row, Sample]] = {}
    worst, words = _REPEATS_NOISY, ""
    for row, sample in zip(rows, samples, strict=True):
        other, before = first.setdefault((sample.kernel, sample.asked), (row, sample))
        for name in ("time_s", "energy_j"):
            low, high = sorted((getattr(before, name), getattr(sample, name)))
            if high < worst * low:
                continue
            worst = high / low
            there = other.where.rpartition(", ")[2]
            words = (
                f"{row.where}: {name} of {sample.kernel!r} at {sample.asked} is "
                f"{getattr(sample, name):g}, and {getattr(before, name):g} in {there}"
            )
            if worst >= _REPEATS_APART:
                raise DataError(
                    f"{words}: no repeats differ that much",
                    hint="remove the wrong row, or give what was measured differently another name",
                )
    return (f"{words}: their mean is used",) if words else ()

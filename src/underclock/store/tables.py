"""A sweep somebody measured, as CSV: one row per run, an empty clock is auto."""

import csv
import os
from collections import Counter
from pathlib import Path

from underclock.errors import DataError
from underclock.records import Clocks, Evidence, GpuInfo, Kernel, Pass, Sample, SampleSet
from underclock.store.readings import READINGS, with_readings
from underclock.units import nearest

_REQUIRED = ("gpu", "kernel", "core_mhz", "mem_mhz", "time_s", "energy_j", "power_w")
_OPTIONAL = ("count", "pass", *READINGS)
_LEAST, _GREATEST = 1e-12, 1e12  # of any column, in its unit
_POWER_TOLERANCE = 0.05  # sweeps round power; a wrong unit is off by far more


class _Row:
    """One line of the file; every accessor names the line when it refuses."""

    def __init__(self, where: str, cells: dict[str, str]) -> None:
        self.where = where
        self.cells = cells

    def text(self, column: str) -> str:
        """Return a cell that must not be empty."""
        value = self.cells[column].strip()
        if not value:
            raise DataError(f"{self.where}: {column} is empty")
        return value

    def quantity(self, column: str) -> float:
        """Return a positive number that a quantity can have."""
        raw = self.text(column)
        try:
            value = float(raw)
        except ValueError:
            raise DataError(f"{self.where}: {column} is {raw!r}, not a number") from None
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
        """Return a clock; an empty cell is auto."""
        return self.whole(column) if self.cells[column].strip() else None


def read_table(path: Path) -> SampleSet:
    """Read a measured sweep of one GPU.

    Columns: gpu, kernel, core_mhz, mem_mhz, time_s, energy_j, power_w; optionally ``count``
    (invocations per step, default 1) and ``pass`` (forward, backward, optimizer, communication,
    other). Without ``pass``, a kernel named ``…/forward`` or ``…/backward`` belongs there.
    What was read meanwhile may be there too: see `readings`. Repeated rows are repeats. Power may
    be empty; where given it is checked against energy/time.

    Raises:
        DataError: The file cannot be read as such a table; the message names line and column.
    """
    rows = _rows(path)
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
        warnings=_power_warnings(rows, samples),
    )


def _rows(path: Path) -> list[_Row]:
    """Read the lines under a checked header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            _check_header(path, list(reader.fieldnames or ()))
            rows = []
            for cells in reader:
                where = f"{path}, line {reader.line_num}"
                if None in cells or None in cells.values():
                    raise DataError(f"{where}: the row has more or fewer cells than the header")
                rows.append(_Row(where, cells))
    except OSError as exc:
        raise DataError(f"cannot read {path}: {exc.strerror}") from exc
    except (UnicodeDecodeError, csv.Error) as exc:
        raise DataError(f"{path} is not a CSV table: {exc}") from exc
    if not rows:
        raise DataError(f"{path} holds no rows")
    return rows


def _check_header(path: Path, found: list[str]) -> None:
    if not found:
        raise DataError(f"{path} is empty", hint=f"it needs the columns {', '.join(_REQUIRED)}")
    known = (*_REQUIRED, *_OPTIONAL)
    missing = [name for name in _REQUIRED if name not in found]
    if missing:
        raise DataError(
            f"{path} lacks the column {', '.join(missing)}",
            hint=f"it needs {', '.join(_REQUIRED)}; it has {', '.join(found)}",
        )
    extra = [name for name in found if name not in known]
    if extra:
        raise DataError(
            f"{path} has a column {extra[0]!r} that no stage reads",
            hint=f"remove or rename it; {nearest(extra[0], known)}",
        )
    if len(set(found)) < len(found):
        raise DataError(f"{path} repeats a column: {', '.join(found)}")


def _kernel(row: _Row) -> Kernel:
    name = row.text("kernel")
    stated = row.cells.get("pass", "").strip()
    last = name.rsplit("/", maxsplit=1)[-1]
    if stated and stated not in set(Pass):
        raise DataError(f"{row.where}: pass is {stated!r}", hint=nearest(stated, Pass))
    if stated:
        pass_ = Pass(stated)
    else:
        pass_ = Pass(last) if last in {Pass.FORWARD, Pass.BACKWARD} else Pass.OTHER
    return Kernel(name=name, pass_=pass_, count=row.whole("count") if "count" in row.cells else 1)


def _sample(row: _Row, repeats: Counter[tuple[str, Clocks]]) -> Sample:
    name = row.text("kernel")
    asked = Clocks(core_mhz=row.clock("core_mhz"), mem_mhz=row.clock("mem_mhz"))
    repeat = repeats[name, asked]
    repeats[name, asked] += 1
    sample = Sample(
        kernel=name,
        asked=asked,
        repeat=repeat,
        time_s=row.quantity("time_s"),
        energy_j=row.quantity("energy_j"),
    )
    return with_readings(sample, row)


def _power_warnings(rows: list[_Row], samples: list[Sample]) -> tuple[str, ...]:
    """Say where power contradicts energy over time: one of the three has another unit."""
    worst, where = _POWER_TOLERANCE, None
    for row, sample in zip(rows, samples, strict=True):
        if not row.cells["power_w"].strip():
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

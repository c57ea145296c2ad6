"""A sweep somebody measured, as CSV: one row per run, an empty clock is auto."""

import csv
import hashlib
import os
from operator import itemgetter
from pathlib import Path
from typing import TextIO

import msgspec

from underclock.errors import DataError
from underclock.records import (
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Pass,
    Provenance,
    SampleSet,
    Window,
)
from underclock.records.common import can_draw
from underclock.store.table_rows import (
    EITHER,
    GREATEST,
    LEAST,
    NEEDED,
    PLANNED,
    READINGS,
    Columns,
    TableRow,
    TableRows,
    opened_table,
    separator_of,
    with_readings,
)
from underclock.units import name_hint

_POWER_TOLERANCE = 0.05  # sweeps round power; a wrong unit is off by far more
_CLOCK_TOLERANCE = 0.02  # drivers round clocks to a bin, 15 MHz
_REPEATS_APART = 10.0  # runs of one thing differ by less, whatever the noise
_REPEATS_NOISY = 1.5
_HASHED_AT_ONCE = 10_000
_OF_KERNEL = ("pass", "count", "waited_for")


def read_table(path: Path, text: TextIO | None = None) -> SampleSet:
    """Read a measured sweep of one GPU.

    Columns: gpu, kernel, core_mhz, mem_mhz, time_s, and energy_j or power_w; optionally ``count``
    (invocations per step, default 1), ``pass`` (forward, backward, optimizer, communication, other)
    and ``waited_for`` (share of its time for which the step waits, default 1). Commas, semicolons
    or tabs separate them; capitals and spaces in their names do not matter, and others are left out
    with a warning. What was read meanwhile may be there too: see `readings`. Without ``pass``, a
    kernel named ``…/forward`` or ``…/backward`` belongs there. Repeated rows are repeats. Where
    energy and power are both given they are compared.

    Args:
        text: What it holds, where that is at hand.

    Raises:
        DataError: The file cannot be read as such a table; the message names line and column.
    """
    rows = _rows(path, text)
    said = _evidence_warnings(path, rows)
    places = rows.places
    gpus = sorted({row.cells[places["gpu"]] or row.text("gpu") for row in rows})
    if len(gpus) > 1:
        raise DataError(
            f"{path} mixes GPUs: {', '.join(gpus)}", hint="a plan is for one GPU: split the table"
        )
    kernels: dict[str, Kernel] = {}
    samples: list[Window] = []
    reader = _Reader(places)
    for row in rows:
        kernel = reader.kernel(row)
        sample = reader.sample(row, kernel.name)
        known = kernels.setdefault(kernel.name, kernel)
        if known is not kernel and known != kernel:
            raise DataError(
                f"{row.where}: count, pass or waited_for of {kernel.name!r} differs from above"
            )
        samples.append(sample)
    powers = _power_warnings(rows, samples) if "power_w" in places else ()
    return SampleSet(
        evidence=Evidence.REPLAYED,
        gpu=GpuInfo(name=gpus[0]),
        # A name need not be text on disk, but it must be in the files made from this one.
        workload=os.fsencode(path.stem).decode(errors="replace"),
        kernels=tuple(kernels.values()),
        windows=tuple(samples),
        expected_samples=len(samples),
        provenance=Provenance(table=_hash(gpus[0], kernels, samples)),
        warnings=(
            *rows.columns.taken,
            *said,
            *powers,
            *_clock_warnings(rows, samples),
            *_repeat_warnings(rows, samples),
        ),
    )


def _hash(gpu: str, kernels: dict[str, Kernel], samples: list[Window]) -> str:
    """Identify what a table says, however it is written."""
    body = hashlib.sha256(
        msgspec.json.encode((gpu, tuple(kernels.values()), ())).removesuffix(b"]]")
    )
    # The text of all samples at once would take more memory than the samples.
    for begin in range(0, len(samples), _HASHED_AT_ONCE):
        some = msgspec.json.encode(samples[begin : begin + _HASHED_AT_ONCE])
        body.update((b"," if begin else b"") + some[1:-1])
    body.update(b"]]")
    return body.hexdigest()[:16]


def _rows(path: Path, text: TextIO | None) -> TableRows:
    with opened_table(path, text) as file:
        rows = _read(path, file)
    if not rows:
        raise DataError(f"{path} holds no rows")
    return rows


def _read(path: Path, file: TextIO) -> TableRows:
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
    rows = TableRows(path, columns)
    for cells in lines:
        if cells:
            rows.add(lines.line_num, list(map(str.strip, cells)))
    return rows


def _kernel(row: TableRow) -> Kernel:
    name = row.text("kernel")
    stated = row.cell("pass")
    last = name.rsplit("/", maxsplit=1)[-1]
    if stated and stated not in set(Pass):
        raise DataError(f"{row.where}: pass is {stated!r}", hint=name_hint(stated, Pass))
    if stated:
        pass_ = Pass(stated)
    else:
        pass_ = Pass(last) if last in {Pass.FORWARD, Pass.BACKWARD} else Pass.OTHER
    return Kernel(
        name=name,
        pass_=pass_,
        count=row.whole("count") if row.names("count") else 1,
        waited_for=row.share("waited_for") if row.has("waited_for") else 1.0,
    )


class _Reader:
    """Makes kernels and samples of rows; what many rows say alike is made once."""

    def __init__(self, places: dict[str, int]) -> None:
        self._has_readings = not places.keys().isdisjoint(READINGS)
        self._kernel_cells = itemgetter(
            *[places[name] for name in ("kernel", *_OF_KERNEL) if name in places]
        )
        self._clock_cells = itemgetter(places["core_mhz"], places["mem_mhz"])
        self._cost_cells = itemgetter(places["time_s"], places.get("energy_j", places["time_s"]))
        self._has_energy = "energy_j" in places
        self._kernels: dict[object, Kernel] = {}
        self._clocks: dict[object, Clocks] = {}
        self._repeats: dict[str, dict[Clocks, int]] = {}

    def kernel(self, row: TableRow) -> Kernel:
        """Return the kernel that a row is of."""
        cells = self._kernel_cells(row.cells)
        if (kernel := self._kernels.get(cells)) is None:
            kernel = self._kernels[cells] = _kernel(row)
        return kernel

    def sample(self, row: TableRow, kernel: str) -> Window:
        """Return what a row measured of a kernel."""
        cells = self._clock_cells(row.cells)
        if (asked := self._clocks.get(cells)) is None:
            asked = Clocks(core_mhz=row.clock("core_mhz"), mem_mhz=row.clock("mem_mhz"))
            self._clocks[cells] = asked
        repeats = self._repeats.setdefault(kernel, {})
        repeat = repeats.get(asked, 0)
        repeats[asked] = repeat + 1
        time_s, energy_j = self._costs(row)
        sample = Window(kernel=kernel, asked=asked, repeat=repeat, time_s=time_s, energy_j=energy_j)
        return with_readings(sample, row) if self._has_readings else sample

    def _costs(self, row: TableRow) -> tuple[float, float]:
        """Return the time and energy of a row.

        Most rows hold two plain numbers, which are read at once; the row says what is wrong with
        others, or makes energy of power.
        """
        try:
            time_s, energy_j = map(float, self._cost_cells(row.cells))
        except ValueError:
            pass
        else:
            if (
                self._has_energy
                and LEAST <= time_s <= GREATEST
                and LEAST <= energy_j <= GREATEST
                and can_draw(energy_j / time_s)
            ):
                return time_s, energy_j
        time_s = row.quantity("time_s")
        return time_s, row.energy_j(time_s)


def _evidence_warnings(path: Path, rows: TableRows) -> tuple[str, ...]:
    """Say whose rows nobody measured; refuse what was planned.

    Raises:
        DataError: Rows are of a plan.
    """
    if "evidence" not in rows.places:
        return ()
    usual = {"", Evidence.MEASURED, Evidence.REPLAYED}
    kinds = sorted({row.cell("evidence") for row in rows} - usual)
    if any(kind.startswith(PLANNED) for kind in kinds):
        raise DataError(
            f"{path} is what a plan expects, and nobody measured it",
            hint="give the samples that it was planned on",
        )
    return tuple(f"rows of the table are {kind}, as its column evidence says" for kind in kinds)


def _power_warnings(rows: TableRows, samples: list[Window]) -> tuple[str, ...]:
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


def _clock_warnings(rows: TableRows, samples: list[Window]) -> tuple[str, ...]:
    """Say where clocks did not hold: what was read is not what was asked for."""
    worst, words, count = 0.0, "", 0
    for row, sample in zip(rows, samples, strict=True):
        if sample.observed is None:
            continue
        for name in ("core_mhz", "mem_mhz"):
            asked, read = getattr(sample.asked, name), getattr(sample.observed, name)
            if asked is None or read is None or abs(read - asked) <= _CLOCK_TOLERANCE * asked:
                continue
            count += 1
            if abs(read / asked - 1.0) > worst:
                worst = abs(read / asked - 1.0)
                words = f"{row.where}: {name} {asked} was asked for, and {read} was read"
    if not count:
        return ()
    sentence = (
        f"clocks did not hold in {count} of {len(samples)} rows, the worst of them {words}: what "
        "such a row costs is not what its clocks cost"
    )
    return (sentence,)


def _repeat_warnings(rows: TableRows, samples: list[Window]) -> tuple[str, ...]:
    """Say where repeats are so far apart that their mean says little."""
    repeated = {(sample.kernel, sample.asked) for sample in samples if sample.repeat}
    if not repeated:
        return ()
    first: dict[tuple[str, Clocks], tuple[TableRow, Window]] = {}
    worst, words = _REPEATS_NOISY, ""
    for row, sample in zip(rows, samples, strict=True):
        if (sample.kernel, sample.asked) not in repeated:
            continue
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
    return (words,) if words else ()

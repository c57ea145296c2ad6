"""Tables as CSV: a measured sweep, and what instructions of a pipeline cost (in Zeus' form).

A sweep has a row per run; an empty clock is auto. A pipeline's columns are ``stage, instruction,
frequency, time, energy``: the virtual stage, what it does (forward, backward, weights, recompute,
optimizer), the core clock in MHz (empty or ``auto`` for auto), seconds and joules on one GPU. Where
a stage names no auto, its highest clock is auto. Repeated rows are repeats. It is what Zeus'
pipeline frontier optimizer takes (Perseus, SOSP'24).
"""

import csv
import hashlib
import math
import os
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Final, TextIO

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
    Step,
    Window,
)
from underclock.records.common import GREATEST_MHZ, GREATEST_W, LEAST_MHZ, LEAST_W, can_draw
from underclock.records.job import InstructionKind, Profile, ProfileRow
from underclock.records.samples import renumbered
from underclock.store.table_rows import (
    GREATEST,
    LEAST,
    PLANNED,
    READINGS,
    TableRow,
    TableRows,
    opened_table,
    parsed,
    read_rows,
    with_readings,
)
from underclock.units import name_hint

_POWER_TOLERANCE = 0.05  # sweeps round power; a wrong unit is off by far more
_CLOCK_TOLERANCE = 0.02  # drivers round clocks to a bin, 15 MHz
_REPEATS_APART = 10.0  # runs of one thing differ by less, whatever the noise
_REPEATS_NOISY = 1.5
_HASHED_AT_ONCE = 10_000


def read_table(
    path: Path, text: TextIO | None = None, *, confirm: Callable[[str], bool] | None = None
) -> SampleSet:
    """Read a measured sweep of one GPU.

    Columns: gpu, kernel, core_mhz, mem_mhz, time_s, and energy_j or power_w; optionally ``count``
    (invocations per step, default 1), ``pass`` (forward, backward, optimizer, communication, other)
    and ``waited_for`` (share of its time for which the step waits, default 1). Commas, semicolons
    or tabs separate them; capitals and spaces in their names do not matter, and further columns
    are left out with a warning. What was read meanwhile may be there too: see `readings`. Without
    ``pass``, a kernel named ``…/forward`` or ``…/backward`` belongs there. Repeated rows are
    repeats. Where energy and power are both given they are compared.

    Args:
        text: What it holds, where that is at hand.
        confirm: Asked whether columns that another program names are what a line says they are.

    Raises:
        DataError: The file cannot be read as such a table; the message names line and column.
    """
    rows = read_rows(path, text)
    reading = rows.columns.reading
    if reading and not (confirm and confirm(f"{path} is read so: {reading}")):
        raise DataError(
            f"{path} names its columns otherwise, and would be read so: {reading}",
            hint="`underclock plan --yes` and `load(..., yes=True)` take it so; or rename them",
        )
    evidence, said = _evidence(path, rows)
    gpus = sorted({row.cells[rows.places["gpu"]] or row.text("gpu") for row in rows})
    if len(gpus) > 1:
        raise DataError(
            f"{path} mixes GPUs: {', '.join(gpus)}", hint="a plan is for one GPU: split the table"
        )
    kernels: dict[str, Kernel] = {}
    samples: list[Window] = []
    reader = _Reader(rows.places)
    for row in rows:
        kernel = reader.kernel(row)
        sample = reader.sample(row, kernel.name)
        known = kernels.setdefault(kernel.name, kernel)
        if known is not kernel and known != kernel:
            raise DataError(
                f"{row.where}: count, pass or waited_for of {kernel.name!r} differs from above"
            )
        samples.append(sample)
    windows, slipped = _held(rows, samples)
    powers = _power_warnings(rows, samples) if "power_w" in rows.places else ()
    body = hashlib.sha256(
        msgspec.json.encode((gpus[0], tuple(kernels.values()), ())).removesuffix(b"]]")
    )
    # The text of all samples at once would take more memory than the samples.
    for begin in range(0, len(samples), _HASHED_AT_ONCE):
        some = msgspec.json.encode(samples[begin : begin + _HASHED_AT_ONCE])
        body.update((b"," if begin else b"") + some[1:-1])
    body.update(b"]]")
    return SampleSet(
        evidence=evidence,
        gpu=GpuInfo(name=gpus[0]),
        # A name need not be text on disk, but it must be in the files made from this one.
        step=Step(
            name=os.fsencode(path.stem).decode(errors="replace"), kernels=tuple(kernels.values())
        ),
        windows=windows,
        expected_samples=len(windows),
        provenance=Provenance(table=body.hexdigest()[:16]),
        warnings=(*rows.columns.taken, *said, *powers, *slipped, *_repeat_warnings(rows, samples)),
    )


class _Reader:
    """Makes kernels and samples of rows; what many rows say alike is made once."""

    def __init__(self, places: dict[str, int]) -> None:
        self._has_readings = not places.keys().isdisjoint(READINGS)
        self._kernel_cells = itemgetter(
            *[places[name] for name in ("kernel", "pass", "count", "waited_for") if name in places]
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
        if cells not in self._kernels:
            name, stated = row.text("kernel"), row.cell("pass")
            last = name.rsplit("/", maxsplit=1)[-1]
            if stated and stated not in set(Pass):
                raise DataError(f"{row.where}: pass is {stated!r}", hint=name_hint(stated, Pass))
            named = last if last in {Pass.FORWARD, Pass.BACKWARD} else Pass.OTHER
            self._kernels[cells] = Kernel(
                name=name,
                pass_=Pass(stated or named),
                count=row.whole("count") if "count" in row.places else 1,
                waited_for=row.share("waited_for") if row.cell("waited_for") else 1.0,
            )
        return self._kernels[cells]

    def sample(self, row: TableRow, kernel: str) -> Window:
        """Return what a row measured of a kernel."""
        cells = self._clock_cells(row.cells)
        if (asked := self._clocks.get(cells)) is None:
            asked = Clocks(core_mhz=row.clock("core_mhz"), mem_mhz=row.clock("mem_mhz"))
            self._clocks[cells] = asked
        repeats = self._repeats.setdefault(kernel, {})
        repeat = repeats.get(asked, 0)
        repeats[asked] = repeat + 1
        # Most rows hold two plain numbers; the row says what is wrong with a cell that is none.
        time_s, energy_j = map(parsed, self._cost_cells(row.cells))
        plain = LEAST <= time_s <= GREATEST and LEAST <= energy_j <= GREATEST and self._has_energy
        if not (plain and can_draw(energy_j / time_s)):
            time_s = row.quantity("time_s")
            energy_j = row.energy_j(time_s)
        sample = Window(kernel=kernel, asked=asked, repeat=repeat, time_s=time_s, energy_j=energy_j)
        return with_readings(sample, row) if self._has_readings else sample


def _evidence(path: Path, rows: TableRows) -> tuple[Evidence, tuple[str, ...]]:
    """Return what rows are, and say where they were not measured; what was planned is refused."""
    kinds = {row.cell("evidence") for row in rows} if "evidence" in rows.places else set()
    if any(kind.startswith(PLANNED) for kind in kinds):
        hint = "give the samples that it was planned on"
        raise DataError(f"{path} is what a plan expects, and was not measured", hint=hint)
    odd = sorted(kinds - {"", Evidence.MEASURED, Evidence.REPLAYED})
    said = tuple(f"rows of the table are {kind}, as its column evidence says" for kind in odd)
    return Evidence.SIMULATED if Evidence.SIMULATED in kinds else Evidence.REPLAYED, said


def _power_warnings(rows: TableRows, samples: list[Window]) -> tuple[str, ...]:
    """Say where power contradicts energy over time: one of the three has another unit."""
    worst, where = _POWER_TOLERANCE, None
    for row, sample in zip(rows, samples, strict=True):
        if not row.cell("power_w"):
            continue
        mean_w = sample.energy_j / sample.time_s
        off = abs(row.quantity("power_w") / mean_w - 1.0)
        if off > worst:
            worst, where = off, row.where
    sentence = (
        f"{where}: power_w differs from energy_j / time_s by {100 * worst:.0f} %; "
        "power is ignored, energy and time are used: check their units"
    )
    return () if where is None else (sentence,)


def _held(rows: TableRows, samples: list[Window]) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    """Return samples whose clocks ran as they were asked for, and say which did not."""
    held, worst, words = [], 0.0, ""
    if all(sample.observed is None for sample in samples):
        return tuple(samples), ()
    for row, sample in zip(rows, samples, strict=True):
        off = 0.0
        for name in ("core_mhz", "mem_mhz"):
            asked, read = getattr(sample.asked, name), getattr(sample.observed, name, None)
            off = max(off, abs(read / asked - 1.0) if asked and read else 0.0)
            if off > max(worst, _CLOCK_TOLERANCE):
                worst = off
                words = f"{row.where}: {name} {asked} was asked for, and {read} was read"
        if off <= _CLOCK_TOLERANCE:
            held.append(sample)
    if not words:
        return tuple(samples), ()
    lost = {sample.kernel for sample in samples} - {sample.kernel for sample in held}
    if lost:
        raise DataError(f"no clock of {min(lost)!r} ran as it was asked for: {words}")
    sentence = (
        f"clocks did not hold in {len(samples) - len(held)} of {len(samples)} rows, which are left "
        f"out, the worst of them {words}"
    )
    return renumbered(held), (sentence,)


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
                hint = "remove the wrong row, or give what was measured differently another name"
                raise DataError(f"{words}: no repeats differ that much", hint=hint)
    return (words,) if words else ()


_COLUMNS: Final = ("stage", "instruction", "frequency", "time", "energy")
_SHORT: Final = {
    "f": InstructionKind.FORWARD,
    "b": InstructionKind.BACKWARD,
    "w": InstructionKind.WEIGHTS,
    "wgrad": InstructionKind.WEIGHTS,
}
_GREATEST = 1e9  # of a time in s and an energy in J
_Runs = dict[int | None, list[tuple[float, float]]]
"""Time in s and energy in J of each run at a core clock in MHz."""


def read_profiles(path: Path) -> dict[str, Profile]:
    """Read what instructions of each stage cost, by names such as ``stage 0 forward``.

    Raises:
        DataError: The file is not such a table, or an instruction has no row at the clock that is
            auto for its stage; the message names line or instruction.
    """
    runs = _runs(path)
    stages = sorted({stage for stage, _ in runs})
    if stages != list(range(len(stages))):
        hint = "stages are counted from 0, without gaps"
        raise DataError(f"{path} has stages {', '.join(map(str, stages))}", hint=hint)
    found = {}
    for (stage, kind), of_clocks in sorted(runs.items()):
        every = {mhz for (of, _), clocks in runs.items() if of == stage for mhz in clocks}
        auto = None if None in every else max(mhz for mhz in every if mhz is not None)
        if auto not in of_clocks:
            called = "auto" if auto is None else f"{auto} MHz, which is auto for that stage"
            raise DataError(
                f"{path}: stage {stage} {kind} has no row at {called}",
                hint="everything is compared with auto: measure it there, or leave that clock out "
                "of the stage's other instructions",
            )
        clocks = sorted(of_clocks, key=lambda mhz: math.inf if mhz is None else mhz)
        rows = []
        for mhz in clocks:
            (time_s, error_s), (energy_j, error_j) = map(_mean, zip(*of_clocks[mhz], strict=True))
            row = ProfileRow(
                core_mhz=mhz,
                time_s=time_s,
                energy_j=energy_j,
                time_error_s=error_s,
                energy_error_j=error_j,
            )
            rows.append(row)
        found[f"stage {stage} {kind}"] = Profile(rows=tuple(rows), auto=clocks.index(auto))
    return found


def _mean(values: tuple[float, ...]) -> tuple[float, float]:
    """Return a mean and its standard error, without NumPy, which a controller never loads."""
    count = len(values)
    mean = math.fsum(values) / count
    squares = math.fsum((each - mean) ** 2 for each in values)
    return mean, math.sqrt(squares / (count * (count - 1))) if count > 1 else 0.0


def _runs(path: Path) -> dict[tuple[int, InstructionKind], _Runs]:
    runs: dict[tuple[int, InstructionKind], _Runs] = {}
    with opened_table(path) as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        header = [name.strip().lower() for name in reader.fieldnames or ()]
        missing = [name for name in _COLUMNS if name not in header]
        if missing:
            hint = f"a profile of instructions has {', '.join(_COLUMNS)}"
            raise DataError(f"{path} lacks the column {', '.join(missing)}", hint=hint)
        reader.fieldnames = header
        for cells in reader:
            where = f"{path}, line {reader.line_num}"
            said = {name: (cells.get(name) or "").strip() for name in _COLUMNS}
            name = said["instruction"].lower()
            kind = _SHORT.get(name, name)
            if kind not in set(InstructionKind):
                hint = name_hint(name, InstructionKind)
                raise DataError(f"{where}: instruction is {said['instruction']!r}", hint=hint)
            stage = _number(where, "stage", said["stage"], 0, _GREATEST)
            clock, mhz = said["frequency"].lower(), None
            if clock not in {"", "auto"}:
                mhz = round(_number(where, "frequency", clock, LEAST_MHZ, GREATEST_MHZ))
            time_s = _number(where, "time", said["time"], 1e-9, _GREATEST)
            energy_j = _number(where, "energy", said["energy"], 1e-9, _GREATEST)
            power_w = energy_j / time_s
            if not can_draw(power_w):
                slow = "times in ms, or the energies in kJ"
                unit = "energies in mJ" if power_w > GREATEST_W else slow
                raise DataError(
                    f"{where}: {energy_j:g} J in {time_s:g} s is {power_w:.3g} W, and GPUs draw "
                    f"from {LEAST_W:g} W to {GREATEST_W / 1e3:g} kW",
                    hint=f"are the {unit}? a profile has seconds and joules",
                )
            of_clocks = runs.setdefault((round(stage), InstructionKind(kind)), {})
            of_clocks.setdefault(mhz, []).append((time_s, energy_j))
    if not runs:
        raise DataError(f"{path} holds no rows")
    return runs


def _number(where: str, name: str, text: str, least: float, most: float) -> float:
    value = parsed(text)
    if not least <= value <= most:
        raise DataError(f"{where}: {name} is {text!r}, and must be from {least:g} to {most:g}")
    return value

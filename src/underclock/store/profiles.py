"""What each instruction of a pipeline costs at each clock, as CSV in the form that Zeus writes.

Columns: ``stage, instruction, frequency, time, energy``: the virtual stage, what it does (forward,
backward, weights, recompute, optimizer), the core clock in MHz (empty or ``auto`` for auto),
seconds and joules on one GPU. Where a stage names no auto, its highest clock is auto. Repeated rows
are repeats. It is what Zeus' pipeline frontier optimizer takes (Perseus, SOSP'24).
"""

import csv
import math
from pathlib import Path
from typing import Final

import numpy as np

from underclock.errors import DataError
from underclock.records.common import GREATEST_MHZ, GREATEST_W, LEAST_MHZ, LEAST_W, can_draw
from underclock.records.job import InstructionKind, Profile, ProfileRow
from underclock.store.table_rows import opened_table, parsed
from underclock.units import name_hint

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
        raise DataError(
            f"{path} has stages {', '.join(map(str, stages))}",
            hint="stages are counted from 0, without gaps",
        )
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
        rows = tuple(_row(mhz, of_clocks[mhz]) for mhz in clocks)
        found[f"stage {stage} {kind}"] = Profile(rows=rows, auto=clocks.index(auto))
    return found


def _row(core_mhz: int | None, runs: list[tuple[float, float]]) -> ProfileRow:
    count, costs = len(runs), np.array(runs)
    time_s, energy_j = costs.mean(axis=0).tolist()
    errors = (costs.std(axis=0, ddof=1) / math.sqrt(count)).tolist() if count > 1 else (0.0, 0.0)
    return ProfileRow(
        core_mhz=core_mhz,
        time_s=time_s,
        energy_j=energy_j,
        time_error_s=errors[0],
        energy_error_j=errors[1],
    )


def _runs(path: Path) -> dict[tuple[int, InstructionKind], _Runs]:
    runs: dict[tuple[int, InstructionKind], _Runs] = {}
    with opened_table(path) as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        header = [name.strip().lower() for name in reader.fieldnames or ()]
        missing = [name for name in _COLUMNS if name not in header]
        if missing:
            raise DataError(
                f"{path} lacks the column {', '.join(missing)}",
                hint=f"a profile of instructions has {', '.join(_COLUMNS)}",
            )
        reader.fieldnames = header
        for cells in reader:
            what, core_mhz, costs = _run(f"{path}, line {reader.line_num}", cells)
            runs.setdefault(what, {}).setdefault(core_mhz, []).append(costs)
    if not runs:
        raise DataError(f"{path} holds no rows")
    return runs


def _run(
    where: str, cells: dict[str, str | None]
) -> tuple[tuple[int, InstructionKind], int | None, tuple[float, float]]:
    said = {name: (cells.get(name) or "").strip() for name in _COLUMNS}
    name = said["instruction"].lower()
    kind = _SHORT.get(name, name)
    if kind not in set(InstructionKind):
        raise DataError(
            f"{where}: instruction is {said['instruction']!r}",
            hint=name_hint(name, InstructionKind),
        )
    stage = _number(where, "stage", said["stage"], 0, _GREATEST)
    clock = said["frequency"].lower()
    mhz = None
    if clock not in {"", "auto"}:
        mhz = round(_number(where, "frequency", clock, LEAST_MHZ, GREATEST_MHZ))
    time_s = _number(where, "time", said["time"], 1e-9, _GREATEST)
    energy_j = _number(where, "energy", said["energy"], 1e-9, _GREATEST)
    power_w = energy_j / time_s
    if not can_draw(power_w):
        unit = "energies in mJ" if power_w > GREATEST_W else "times in ms, or the energies in kJ"
        raise DataError(
            f"{where}: {energy_j:g} J in {time_s:g} s is {power_w:.3g} W, and GPUs draw from "
            f"{LEAST_W:g} W to {GREATEST_W / 1e3:g} kW",
            hint=f"are the {unit}? a profile has seconds and joules",
        )
    return (round(stage), InstructionKind(kind)), mhz, (time_s, energy_j)


def _number(where: str, name: str, text: str, least: float, most: float) -> float:
    value = parsed(text)
    if not least <= value <= most:
        raise DataError(f"{where}: {name} is {text!r}, and must be from {least:g} to {most:g}")
    return value

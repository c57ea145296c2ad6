"""Samples and plans as one long table, typed by column: a row a kernel and clock pair.

A column has one type in all rows, an empty cell is a missing value, and units are in names, so that
pandas, Polars or DuckDB read it as it is and write it as Parquet. A table of samples is one that
every command reads; rows of a plan say so, and are refused as measurements.
"""

import csv
import io
import itertools
import statistics
from collections.abc import Iterator
from typing import Any

from underclock.errors import DataError
from underclock.records import Clocks, Kernel, Plan, SampleSet, Window
from underclock.records.choices import Strategy
from underclock.store.table_rows import PLANNED

_OF_STEP = ("gpu", "workload", "evidence")
_OF_KERNEL = ("kernel", "pass", "count", "waited_for", "core_mhz", "mem_mhz", "time_s", "energy_j")
_READ = ("observed_core_mhz", "observed_mem_mhz", "temperature_c", "throttle_reasons")


def runs_alone(sample_set: SampleSet) -> list[tuple[Kernel, list[Window]]]:
    """Return windows of kernels by themselves, those of one kernel and clock pair together.

    Raises:
        DataError: There are none.
    """
    kernels = {kernel.name: kernel for kernel in sample_set.kernels}
    found: dict[tuple[str, Clocks], list[Window]] = {}
    for window in sample_set.samples:
        found.setdefault((window.kernel, window.asked), []).append(window)
    if not found:
        raise DataError(
            f"no kernel of {sample_set.workload} ran by itself, so there is no row of any",
            hint="windows of the whole step, or of kernels in company, are no such rows",
        )
    return [(kernels[name], windows) for (name, _), windows in found.items()]


def samples_csv(sample_set: SampleSet) -> str:
    """Return samples of kernels by themselves, a row a window; rows of one pair are repeats.

    Raises:
        DataError: There are none.
    """
    return _csv(
        (*_OF_STEP, *_OF_KERNEL, *_READ),
        (
            (
                *(sample_set.gpu.name, sample_set.workload, sample_set.evidence.value),
                *_of_kernel(kernel, kernel.count, window.asked),
                *(window.time_s, window.energy_j, *_pair(window.observed)),
                *(window.temperature_c, _number(window.throttle_reasons)),
            )
            for kernel, windows in runs_alone(sample_set)
            for window in windows
        ),
    )


def plan_csv(plan: Plan) -> str:
    """Return what a plan holds and expects, a row a kernel and clock pair, auto beside it.

    Where a schedule changes clocks inside the step, ``count`` is how many of a kernel's launches
    run at a pair. Times and energies are of one launch; where the plan does not say what launches
    at a pair draw, ``energy_j`` is empty.
    """
    about = (plan.gpu.name, plan.workload, f"{PLANNED}{plan.evidence} samples")
    runs = {kernel.name: kernel for kernel in plan.runs}
    return _csv(
        (*_OF_STEP, "arm", *_OF_KERNEL),
        (
            (*about, arm, *_of_kernel(runs.get(name, Kernel(name=name)), count, clocks), *cost)
            for arm, name, count, clocks, *cost in _planned(plan)
        ),
    )


def _planned(plan: Plan) -> Iterator[tuple[str, str, int, Clocks, float, float | None]]:
    counts = {kernel.name: kernel.count for kernel in plan.runs}
    for name, choice in plan.kernels.items():
        n = counts.get(name, 1)  # a table's plan is of its kernels, once each
        yield "auto", name, n, plan.baseline, *choice.auto_launch(n)
    if plan.schedule is None:
        for name, choice in plan.kernels.items():
            n = counts.get(name, 1)
            yield plan.chosen, name, n, choice.clocks, *choice.launch(n)
        return
    held = plan.schedule
    launches: dict[tuple[str, Clocks], list[int]] = {}
    for at, (kernel, clocks) in enumerate(zip(plan.order, held.clocks, strict=True)):
        launches.setdefault((plan.runs[kernel].name, clocks), []).append(at)
    for (name, clocks), places in launches.items():
        time_s = statistics.fmean(held.launch_s[at] for at in places)
        drawn_j = [held.launch_j[at] for at in places] if held.launch_j else []
        energy_j = statistics.fmean(drawn_j) if drawn_j else None
        yield Strategy.ACHIEVABLE, name, len(places), clocks, time_s, energy_j


def _of_kernel(kernel: Kernel, count: int, clocks: Clocks) -> tuple[Any, ...]:
    return kernel.name, kernel.pass_.value, count, kernel.waited_for, *_pair(clocks)


def _pair(clocks: Clocks | None) -> tuple[int | None, int | None]:
    return (None, None) if clocks is None else (clocks.core_mhz, clocks.mem_mhz)


def _number(reasons: int | None) -> int | None:
    return None if reasons is None else int(reasons)


def _csv(columns: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(itertools.chain((columns,), rows))
    return text.getvalue()

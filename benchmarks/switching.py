"""The exact scheduler with switches.

    python benchmarks/switching.py

Instances are like a GPU's: kernel sizes over three decades, time the p-norm of a core and a memory
part, a voltage floor, measurement noise; a grid of core and memory clocks. `distinct` has as many
kernels as invocations, which is the hard case; `layers` repeats 60 kernels in one order, as the
layers of a step do. The budget is the time at the highest clocks and some slack. Every row is a
fresh process; its peak memory includes interpreter, numpy and input.
"""

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np

from underclock.core.solvers import SequenceProblem, Solution
from underclock.core.solvers.cyclic import solve_cyclic
from underclock.records import Status

SWITCH_W = 100.0  # while nothing runs
MEBIBYTES = 1 / 1024  # per kibibyte, in which Linux counts
MEM = (0.04, 0.09, 0.53, 0.97, 1.0)
LAYERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of instance."""

    name: str
    invocations: int
    kernels: int
    core_clocks: int = 12
    mem_clocks: tuple[float, ...] = MEM
    slack: float = 1.02
    core_s: float = 25e-6
    mem_s: float = 150e-6
    dwell: float = 0.0  # in switch times
    max_switches: int | None = None
    gap: float = 1e-9
    seeds: int = 5
    repeats: int = 3


FULL = {"core_clocks": 127, "mem_clocks": (0.04, 0.09, 0.53, 0.80, 0.97, 1.0)}
ROWS = [
    Row(name="distinct", invocations=12, kernels=12),
    Row(name="distinct", invocations=50, kernels=50),
    Row(name="distinct", invocations=1_000, kernels=1_000),
    Row(name="distinct, slack 10 %", invocations=1_000, kernels=1_000, slack=1.1),
    Row(name="distinct, 1 and 10 ms", invocations=1_000, kernels=1_000, core_s=1e-3, mem_s=1e-2),
    Row(name="distinct, dwell", invocations=1_000, kernels=1_000, dwell=100.0),
    Row(name="distinct, 60 switches", invocations=1_000, kernels=1_000, max_switches=60),
    Row(name="layers", invocations=1_300, kernels=LAYERS),
    Row(name="layers, full grid", invocations=1_300, kernels=LAYERS, seeds=3, repeats=1, **FULL),  # type: ignore[arg-type]
    Row(
        name="distinct, gap 1e-4", invocations=20_000, kernels=20_000, gap=1e-4, seeds=3, repeats=1
    ),
    Row(name="distinct", invocations=20_000, kernels=20_000, seeds=3, repeats=1),
    Row(
        name="distinct, gap 1e-3",
        invocations=100_000,
        kernels=100_000,
        gap=1e-3,
        seeds=1,
        repeats=1,
    ),
]


def instance(row: Row, seed: int) -> SequenceProblem:
    """Return an instance of a row."""
    random = np.random.default_rng(seed)
    core, mem = (
        grid.ravel()
        for grid in np.meshgrid(np.linspace(0.1, 1.0, row.core_clocks), np.array(row.mem_clocks))
    )
    size_s = 10.0 ** random.uniform(-5.0, -2.0, row.kernels)
    share = random.uniform(0.02, 0.98, row.kernels)
    core_s = (size_s * share)[:, None] / core
    mem_s = (size_s * (1.0 - share))[:, None] / mem
    time_s = (core_s**3.4 + mem_s**3.4) ** (1 / 3.4) + 2e-6
    volts = np.maximum(0.81, 0.81 + 1.2 * (core - 0.75))
    activity = random.uniform(0.5, 1.0, (row.kernels, 1)) * (0.25 + 0.75 * core_s / time_s)
    power_w = 45.0 + 12.0 * mem + 40.0 * mem * mem_s / time_s + 40.0 * volts
    power_w = power_w + 250.0 * activity * core * volts**2
    energy_j = power_w * time_s * random.normal(1.0, 0.01, time_s.shape)
    time_s = time_s * random.normal(1.0, 0.002, time_s.shape)
    order = np.resize(np.arange(row.kernels), row.invocations)
    switch_s = row.core_s * (core[:, None] != core) + row.mem_s * (mem[:, None] != mem)
    return SequenceProblem(
        time_s=time_s,
        energy_j=energy_j,
        order=order,
        switch_time_s=switch_s,
        switch_energy_j=SWITCH_W * switch_s,
        dwell_s=row.dwell * switch_s,
        jitter_s=np.zeros_like(switch_s),
        miss_time_s=np.zeros_like(switch_s),
        miss_energy_j=np.zeros_like(switch_s),
        blocked=np.zeros(len(order), dtype=np.bool_),
        max_switches=row.max_switches,
        budget_s=row.slack * float(time_s[order, -1].sum()),
    )


def timed(gap: float, problem: SequenceProblem, repeats: int) -> tuple[float, Solution]:
    """Solve, and take the median time of so many solves."""
    times_s = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        schedule = solve_cyclic(problem, gap=gap)
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s), schedule


def print_row(row: Row) -> None:
    """Run one row and print it."""
    problems = [instance(row, seed) for seed in range(row.seeds)]
    ours = [timed(row.gap, problem, row.repeats) for problem in problems]
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MEBIBYTES
    cells = [
        f"{row.name:21}",
        f"{row.invocations:7}",
        f"{problems[0].time_s.shape[1]:8}",
        f"{min(seconds for seconds, _ in ours):6.2f}",
        f"{statistics.median(seconds for seconds, _ in ours):6.2f}",
        f"{max(seconds for seconds, _ in ours):6.2f}",
        f"{sum(schedule.status is Status.OPTIMAL for _, schedule in ours)} of {row.seeds}",
        f"{max(schedule.gap or 0.0 for _, schedule in ours):7.1e}",
        f"{statistics.median(schedule.switches for _, schedule in ours):8.0f}",
        f"{peak_mib:6.0f}",
    ]
    print(" | ".join(cells), flush=True)


def compare() -> None:
    """Print the machine and the table."""
    print(f"machine: {platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    print(f"versions: Python {platform.python_version()}, numpy {np.__version__}")
    print(f"command: python {' '.join(sys.argv)}")
    print("spread: least, median, worst over seeds; each the median of 3 solves (1 where n > 1300")
    print("or the grid is full)\n")
    print(
        "instances             |       n | settings | least s | median | worst | proven | gap     "
        "| switches |    MiB"
    )
    for number in range(len(ROWS)):
        subprocess.run([sys.executable, __file__, str(number)], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print_row(ROWS[int(sys.argv[1])])
    else:
        compare()

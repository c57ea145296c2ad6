"""The exact planner against HiGHS on the same instances, in the same run.

    PYTHONPATH=tests python benchmarks/planning.py [HIGHS_LIMIT_S]

Two families of instances with 60 settings: tables like a GPU's (kernel sizes over three decades,
time the p-norm of a core and a memory part, a voltage floor, measurement noise; the budget is the
time at the highest clocks) and uniform random ones. HiGHS gets a relative gap of 1e-9, its least
tolerances (1e-10) and a time limit, 60 s unless given. Peak memory is that of a fresh process that
builds one instance and solves it: interpreter, numpy and input included.
"""

import importlib.metadata
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from judges.milp import KnapsackMilp
from underclock.core.solvers import Problem, Solution
from underclock.core.solvers.knapsack import solve_knapsack
from underclock.records import Status

SEEDS = 7
REPEATS = 3  # solves per instance; the median counts
HIGHS_SEEDS = {50: SEEDS, 1_000: 3, 20_000: 1}
HIGHS_GAP = 1e-9
MILLISECONDS, MEBIBYTES = 1e3, 1 / 1024  # per second; per the kibibyte that Linux counts in


def like_a_gpu(kernels: int, seed: int) -> Problem:
    """Return costs of kernels between 10 µs and 10 ms at 12 core x 5 memory clocks."""
    random = np.random.default_rng(seed)
    core, mem = (
        grid.ravel()
        for grid in np.meshgrid(np.linspace(0.1, 1.0, 12), np.array([0.04, 0.09, 0.53, 0.97, 1.0]))
    )
    size_s = 10.0 ** random.uniform(-5.0, -2.0, kernels)
    share = random.uniform(0.02, 0.98, kernels)
    core_s = (size_s * share)[:, None] / core
    mem_s = (size_s * (1.0 - share))[:, None] / mem
    time_s = (core_s**3.4 + mem_s**3.4) ** (1 / 3.4) + 2e-6
    volts = np.maximum(0.81, 0.81 + 1.2 * (core - 0.75))
    activity = random.uniform(0.5, 1.0, (kernels, 1)) * (0.25 + 0.75 * core_s / time_s)
    power_w = 45.0 + 12.0 * mem + 40.0 * mem * mem_s / time_s + 40.0 * volts
    power_w = power_w + 250.0 * activity * core * volts**2
    energy_j = power_w * time_s * random.normal(1.0, 0.01, time_s.shape)
    time_s = time_s * random.normal(1.0, 0.002, time_s.shape)
    count = random.choice([1, 24], (kernels, 1))
    return Problem(
        time_s=time_s * count,
        energy_j=energy_j * count,
        budget_s=float((time_s * count)[:, -1].sum()),
    )


def uniform(kernels: int, seed: int) -> Problem:
    """Return costs without any structure, and a budget half-way to the cheapest choice."""
    random = np.random.default_rng(seed)
    time_s = random.uniform(0.1, 1.0, (kernels, 60))
    energy_j = random.uniform(0.1, 1.0, (kernels, 60))
    cheapest_s = time_s[np.arange(kernels), energy_j.argmin(axis=1)]
    return Problem(
        time_s=time_s,
        energy_j=energy_j,
        budget_s=float(0.5 * (time_s.min(axis=1) + cheapest_s).sum()),
    )


FAMILIES: dict[str, Callable[[int, int], Problem]] = {"like a GPU": like_a_gpu, "uniform": uniform}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One solver on one instance."""

    time_s: float
    solution: Solution


def timed(solver: Callable[[Problem], Solution], problem: Problem, repeats: int = 1) -> Run:
    """Solve, and take the median time of so many solves."""
    times_s = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        solution = solver(problem)
        times_s.append(time.perf_counter() - start_s)
    return Run(time_s=statistics.median(times_s), solution=solution)


def line(family: str, kernels: int, highs: KnapsackMilp) -> str:
    """Run one family at one size and return its row of the table."""
    problems = [FAMILIES[family](kernels, seed) for seed in range(SEEDS)]
    ours = [timed(solve_knapsack, problem, REPEATS) for problem in problems]
    theirs = [timed(highs.solve, problem) for problem in problems[: HIGHS_SEEDS[kernels]]]
    proven = sum(run.solution.status is Status.OPTIMAL for run in ours)
    differences = [
        our.solution.energy_j / their.solution.energy_j - 1.0
        for our, their in zip(ours, theirs, strict=False)
    ]
    ratio = statistics.median(
        their.time_s / our.time_s for our, their in zip(ours, theirs, strict=False)
    )
    return " | ".join(
        [
            f"{family:10}",
            f"{kernels:7}",
            f"{statistics.median(run.time_s for run in ours) * MILLISECONDS:10.1f}",
            f"{max(run.time_s for run in ours) * MILLISECONDS:8.1f}",
            f"{proven:3} of {SEEDS}",
            f"{len(theirs):5}",
            f"{statistics.median(run.time_s for run in theirs):9.2f}",
            f"{max(run.solution.gap or 0.0 for run in theirs):8.1e}",
            f"{ratio:7.0f}",
            f"{max(differences, key=abs):+10.1e}",
        ]
    )


def peak_of(family: str, kernels: int, seed: int) -> float:
    """Return the peak memory, in MiB, of a process that builds one instance and solves it.

    Call it while this process is small: a child starts with its parent's peak.
    """
    answer = subprocess.run(
        [sys.executable, __file__, "peak", family, str(kernels), str(seed)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(answer.stdout)


def print_peak(family: str, kernels: int, seed: int) -> None:
    """Be that process."""
    solve_knapsack(FAMILIES[family](kernels, seed))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MEBIBYTES)


def compare(limit_s: float) -> None:
    """Print the machine, the peak memory and the table."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "highspy")
    )
    print(f"machine: {platform.platform()}, {os.cpu_count()} CPUs")
    print(f"versions: Python {platform.python_version()}, {versions}")
    print(f"command: python {' '.join(sys.argv)}")
    print(f"instances: {SEEDS} seeds a row; exact: median of {REPEATS} solves each")
    print(f"HiGHS: relative gap {HIGHS_GAP:g}, at most {limit_s:g} s, one solve each, first seeds")
    print()
    for family in FAMILIES:
        peaks_mib = [peak_of(family, max(HIGHS_SEEDS), seed) for seed in range(SEEDS)]
        print(
            f"peak memory of exact, {family}, {max(HIGHS_SEEDS)} kernels, with interpreter, numpy "
            f"and input: median {statistics.median(peaks_mib):.0f} MiB, worst {max(peaks_mib):.0f}"
        )
    print()
    print(
        "family     | kernels | exact ms   | worst ms | proven | HiGHS | median s  | its gap  | "
        "times   | energy difference"
    )
    timed(solve_knapsack, uniform(50, 0), REPEATS)  # nobody pays for the first call
    for family in FAMILIES:
        for kernels in HIGHS_SEEDS:
            highs = KnapsackMilp(gap=HIGHS_GAP, time_limit_s=limit_s)
            print(line(family, kernels, highs), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:
        print_peak(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        compare(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)

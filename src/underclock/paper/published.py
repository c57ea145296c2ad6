"""What arXiv 2601.08539 reports, as data: the test. It is read to be compared with, never fitted.

Percentages are changes against auto clocks on the paper's RTX 3080 Ti, time before energy. Only
numbers are carried over. Tables 1 and 2 are complete; of the figures only what the text gives in
numbers is here.
"""

import csv
from dataclasses import dataclass
from importlib import resources

from underclock.paper.records import PercentChange
from underclock.records import Aggregate, Clocks, Granularity, Objective
from underclock.units import parse_mhz

SOURCE = (
    "J. Spaan, K.-H. Chen, A.-L. Varbanescu: Reducing Compute Waste in LLMs through Kernel-Level "
    "DVFS. arXiv 2601.08539, Computing Frontiers 2026"
)


def _change(time_pct: float, energy_pct: float) -> PercentChange:
    return PercentChange(time_pct=time_pct, energy_pct=energy_pct)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedKernel:
    """One row of Table 1: the kernel-level, global, strict choice."""

    section: str
    kernel: str
    invocations: int
    clocks: Clocks
    change: PercentChange


TABLE2 = {
    (Granularity.PASS, Objective.EDP, Aggregate.LOCAL): _change(10.21, -25.42),
    (Granularity.PASS, Objective.EDP, Aggregate.GLOBAL): _change(10.21, -25.42),
    (Granularity.PASS, Objective.WASTE, Aggregate.LOCAL): _change(-0.20, -1.98),
    (Granularity.PASS, Objective.WASTE, Aggregate.GLOBAL): _change(-0.10, -2.07),
    (Granularity.KERNEL, Objective.EDP, Aggregate.LOCAL): _change(10.03, -27.34),
    (Granularity.KERNEL, Objective.EDP, Aggregate.GLOBAL): _change(10.28, -27.52),
    (Granularity.KERNEL, Objective.WASTE, Aggregate.LOCAL): _change(-1.78, -11.54),
    (Granularity.KERNEL, Objective.WASTE, Aggregate.GLOBAL): _change(0.00, -15.64),
}

# Choices measured again.
REPEATS = 10
VALIDATED = _change(0.6, -14.6)
PAIRS_REACHING_DISCOVERED = 0
CLOCK_CHANGES_PER_LAYER = 34  # counted in Table 1

# The batch-40 clocks elsewhere. For the smallest batches only the extremes are given.
BATCH = {8: _change(0.5, -14.2)}
SMALLEST_BATCHES = _change(3.0, -15.3)
TENSOR_PARALLEL = {4: _change(2.1, -16.6), 8: _change(2.7, -17.3), 16: _change(6.5, -16.2)}
A4000 = _change(0.0, -9.56)

# What Table 1 amounts to, as quoted: (least, greatest).
MEMORY_LOWERED_GEMM_TIME_PCT = (-3.0, -2.0)
MEMORY_LOWERED_GEMM_ENERGY_PCT = (-16.0, -12.0)
SACRIFICED_GEMMS = 3
SACRIFICED_GEMM_TIME_PCT = (9.0, 10.0)
SACRIFICED_GEMM_ENERGY_PCT = (-31.0, -29.0)
CORE_LOWERED_MHZ = (630.0, 1260.0)
CORE_LOWERED_MOST_TIME_PCT = 2.0
CORE_LOWERED_ENERGY_PCT = (-33.0, -27.0)

# How it was measured.
PARAMETERS_1E9 = 1.3
LAYERS, HIDDEN, HEADS, SEQUENCE, BATCH_SIZE = 24, 2048, 16, 1024, 40
CORE_CLOCKS, CORE_SPACING_MHZ = 127, 15
GRID_CORE_MHZ, GRID_STEP_MHZ = (210, 2100), 210
MEM_MHZ = (405, 810, 5001, 9251, 9501)
GREATEST_CORE_AT_LEAST_MEM_MHZ = 420
WARM_S, STEADY_C, KERNEL_WARM_S, WINDOW_S = 100.0, 77.0, 25.0, 5.0
GPU_DAYS = 3.0
SWITCH_S = 0.1  # at least; the results assume none


def _table1() -> tuple[PublishedKernel, ...]:
    """Read Table 1, in launch order; changes are in percent of the kernel's own."""
    text = (resources.files("underclock.paper") / "table1.csv").read_text(encoding="utf-8")
    return tuple(
        PublishedKernel(
            section=row["section"],
            kernel=row["kernel"],
            invocations=int(row["invocations"]),
            clocks=Clocks(core_mhz=parse_mhz(row["core_mhz"]), mem_mhz=parse_mhz(row["mem_mhz"])),
            change=_change(float(row["time_pct"]), float(row["energy_pct"])),
        )
        for row in csv.DictReader(text.splitlines())
    )


TABLE1 = _table1()

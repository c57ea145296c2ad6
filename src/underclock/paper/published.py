"""What arXiv 2601.08539 reports, as data: the test. It is read to be compared with, never fitted.

Percentages are changes against auto clocks on the paper's RTX 3080 Ti, time before energy. Only
numbers are carried over. Tables 1 and 2 are complete; of the figures only what the text gives in
numbers is here.
"""

import csv
from dataclasses import dataclass

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

# Table 1, in launch order: section, kernel, invocations per step, memory MHz, core MHz, time and
# energy in percent of the kernel's own.
_TABLE1 = """\
embedding_forward,WTE & WPE,1,auto,630,0.32,-33.01
embedding_forward,Layernorm,1,auto,1050,0.77,-29.2
layer_forward,GEMM,24,5001,auto,-2.36,-15.41
layer_forward,Permute,24,9501,1680,1.52,-10.83
layer_forward,GEMM,24,9501,auto,-1.78,-2.74
layer_forward,Softmax,24,9501,1050,-0.03,-11.97
layer_forward,GEMM,24,9251,auto,-1.27,-4.55
layer_forward,Permute,24,9251,auto,-1.42,-5.68
layer_forward,GEMM,24,5001,auto,-2.08,-14.54
layer_forward,Residual,24,auto,840,0.59,-30.97
layer_forward,GEMM,24,5001,auto,-2.67,-15.21
layer_forward,GELU,24,9501,630,0.03,-33.21
layer_forward,GEMM,24,5001,auto,-3.02,-13.77
layer_forward,Residual,24,9501,1050,0.43,-32.49
loss,GEMM,1,5001,auto,-2.6,-15.72
loss,Softmax,1,9501,1680,1.98,-26.65
loss,GEMM,1,9251,auto,-0.96,-7.75
loss,GEMM,1,5001,1680,8.98,-29.31
loss,Layernorm,1,auto,1260,1.92,-29.05
layer_backward,GELU,24,9501,630,0.03,-33.14
layer_backward,Bias,24,auto,1260,0.88,-31.87
layer_backward,Bias reduce,24,auto,auto,0.0,0.0
layer_backward,GEMM,24,5001,auto,-2.73,-15.36
layer_backward,GELU,24,9501,840,-0.04,-26.88
layer_backward,GEMM,24,5001,1680,10.13,-30.8
layer_backward,Bias,24,auto,1050,0.42,-31.34
layer_backward,GEMM,24,5001,auto,-2.68,-13.3
layer_backward,GEMM,24,9251,auto,-1.65,-6.77
layer_backward,Layernorm,24,auto,1260,1.89,-29.42
layer_backward,Bias,24,9501,1260,0.88,-32.68
layer_backward,Bias reduce,24,auto,auto,0.0,0.0
layer_backward,GEMM,24,5001,auto,-2.46,-14.19
layer_backward,GEMM,24,5001,auto,-2.08,-12.42
layer_backward,Permute,24,9501,auto,-0.31,-5.99
layer_backward,GEMM,24,9501,auto,-1.85,-2.7
layer_backward,GEMM,24,9251,auto,-0.67,-6.11
layer_backward,Softmax,24,9501,auto,-0.17,-5.23
layer_backward,GEMM,24,9251,auto,-1.52,-3.51
layer_backward,GEMM,24,9501,auto,-0.53,-5.55
layer_backward,Permute,24,9501,1470,2.62,-18.35
layer_backward,Bias,24,auto,1260,0.6,-30.72
layer_backward,GEMM,24,5001,1680,9.03,-29.34
layer_backward,GEMM,24,9501,auto,-1.72,-6.77
layer_backward,Layernorm,24,9501,1260,1.86,-30.49
embedding_backward,WPE,1,9501,1260,2.37,-31.35
embedding_backward,WTE,1,auto,1680,7.25,-28.37
"""


def _table1() -> tuple[PublishedKernel, ...]:
    return tuple(
        PublishedKernel(
            section=section,
            kernel=kernel,
            invocations=int(invocations),
            clocks=Clocks(core_mhz=parse_mhz(core), mem_mhz=parse_mhz(mem)),
            change=_change(float(time_pct), float(energy_pct)),
        )
        for section, kernel, invocations, mem, core, time_pct, energy_pct in csv.reader(
            _TABLE1.splitlines()
        )
    )


TABLE1 = _table1()

"""What describes a GPU, and what describes one kernel on it.

Cycles are counted in millions, so that Mcycles / MHz = s.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from underclock.arrays import Bools, Floats

Values = TypeVar("Values", float, Floats)
"""One number, or one for each of many clocks."""
Constant_co = TypeVar("Constant_co", float, Floats, covariant=True)
"""A constant of one kernel, or of each of many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConstants:
    """Shared by every kernel on one GPU model."""

    exponent: float  # sharpness of the p-norm that joins the parts of a kernel's time
    xbar_floor_mhz: float  # the crossbar runs no slower than this
    xbar_lag_mhz: float  # above its floor the crossbar follows the core this far below
    floor_v: float  # core voltage at and below the knee
    knee_mhz: float  # core clock above which voltage rises
    slope_v_per_mhz: float  # rise of voltage just above the knee
    bend_v_per_mhz2: float  # how the rise steepens
    board_w: float  # fans, converters and what else no clock changes
    # memory clocks at which the next two are known; between them they are interpolated
    mem_points_mhz: tuple[float, ...]
    mem_points_w: tuple[float, ...]  # power of the memory without traffic
    # bytes per cycle against the fastest clock: slow modes may do less, or more, per cycle
    mem_points_efficiency: tuple[float, ...]
    leak_w_per_v3: float  # leakage at 25 °C and 1 V; it goes with the cube of voltage
    leak_per_c: float  # relative rise of leakage per °C
    clock_w_per_ghz_v2: float  # clock tree of a busy GPU, whatever runs
    ambient_c: float
    c_per_w: float  # steady rise of temperature per watt
    thermal_tau_s: float
    boost_mhz: float  # core clock of a cool GPU left to itself
    boost_knee_c: float  # temperature from which boost is lost
    boost_loss_mhz: float  # lost at each step of temperature
    boost_step_c: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConstants:
    """One kernel on one GPU model, per launch."""

    core_mcycles: float = 0.0  # core cycles it would take were nothing else in the way
    dram_mcycles: float = 0.0  # memory cycles it would take were nothing else in the way
    xbar_mcycles: float = 0.0  # crossbar and L2 cycles it would take were nothing else in the way
    fixed_s: float = 0.0  # time no clock changes
    # energy its switching takes at 1 V; it goes with the square of voltage
    work_j_per_v2: float = 0.0
    dram_j: float = 0.0  # energy of its memory traffic
    serial: bool = False  # too few warps to overlap core and memory: their times add

    def exponent(self, gpu: GpuConstants) -> float:
        """Return the exponent that joins the parts of its time."""
        return 1.0 if self.serial else gpu.exponent


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArrays:
    """Constants of many kernels, or of the same ones at many clocks. Each of shape (R,).

    The attributes are those of `KernelConstants`.
    """

    core_mcycles: Floats
    dram_mcycles: Floats
    xbar_mcycles: Floats
    fixed_s: Floats
    work_j_per_v2: Floats
    dram_j: Floats
    serial: Bools

    def exponent(self, gpu: GpuConstants) -> Floats:
        """Return the exponent that joins the parts of each kernel's time. Shape (R,)."""
        return np.where(self.serial, 1.0, gpu.exponent)


class KernelLike(Protocol[Constant_co]):
    """What the formulas ask of `KernelConstants` and of `KernelArrays`."""

    @property
    def core_mcycles(self) -> Constant_co: ...  # noqa: D102 - as in `KernelConstants`
    @property
    def dram_mcycles(self) -> Constant_co: ...  # noqa: D102
    @property
    def xbar_mcycles(self) -> Constant_co: ...  # noqa: D102
    @property
    def fixed_s(self) -> Constant_co: ...  # noqa: D102
    @property
    def work_j_per_v2(self) -> Constant_co: ...  # noqa: D102
    @property
    def dram_j(self) -> Constant_co: ...  # noqa: D102

    def exponent(self, gpu: GpuConstants) -> Constant_co: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What one GPU does per clock cycle, and what that takes."""

    tensor_flop: float  # FLOPs of matrix products per core cycle, as reached in practice
    vector_flop: float  # other FLOPs per core cycle
    sm_byte: float  # bytes the SMs can take in per core cycle
    xbar_byte: float  # bytes L2 can deliver per crossbar cycle
    dram_byte: float  # DRAM bytes per memory cycle, as reached in practice
    launch_s: float  # fixed cost of a launch
    tensor_j_per_v2: float  # switching energy of one FLOP of a matrix product at 1 V
    vector_j_per_v2: float  # switching energy of another FLOP at 1 V
    sm_byte_j_per_v2: float  # switching energy of moving a byte through the SMs at 1 V
    dram_byte_j: float  # energy of a byte of DRAM traffic

    def kernel(self, *, flops: float, bytes_moved: float, tensor: bool) -> KernelConstants:
        """Derive a kernel's constants."""
        core = flops / (self.tensor_flop if tensor else self.vector_flop)
        core = max(core, bytes_moved / self.sm_byte)
        per_flop_j = self.tensor_j_per_v2 if tensor else self.vector_j_per_v2
        return KernelConstants(
            core_mcycles=core / 1e6,
            dram_mcycles=bytes_moved / self.dram_byte / 1e6,
            xbar_mcycles=bytes_moved / self.xbar_byte / 1e6,
            fixed_s=self.launch_s,
            work_j_per_v2=flops * per_flop_j + bytes_moved * self.sm_byte_j_per_v2,
            dram_j=bytes_moved * self.dram_byte_j,
        )

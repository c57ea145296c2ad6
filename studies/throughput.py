"""Fit what a GPU does per cycle to published changes of time and energy.

For a GPU on which somebody published, kernel by kernel, what chosen clocks did against auto, but
not the times and energies themselves. Only ratios are fitted, so only what decides ratios can be
learned: where a kernel's bounds cross, and how its power splits. Beside the ratios, matrix products
are held to the power cap at auto clocks, for the study says that they are there; without that, the
ratios alone are as well explained by products that draw half of it. The boost clock is fitted too:
it is a trait of the board, and another board's sweep does not tell it.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from underclock.arrays import Floats
from underclock.physics.cap import capped_core_mhz
from underclock.physics.constants import GpuConstants, KernelConstants, Throughput
from underclock.physics.costs import boost_mhz, busy_w, duration_s
from underclock.records import Clocks, Kernel, Kind

# How far each may move, as a logarithm. Peak rates are known and practice reaches a known share of
# them; energies are not.
_REACH = {
    "tensor_flop": 0.15,
    "vector_flop": 0.5,
    "sm_byte": 1.5,
    "xbar_byte": 1.5,
    "dram_byte": 0.1,
    "tensor_j_per_v2": 1.5,
    "vector_j_per_v2": 1.5,
    "sm_byte_j_per_v2": 1.5,
    "dram_byte_j": 1.5,
}
_PULL = 0.02
_ROBUST = 0.03  # residuals beyond a few per cent pull less: a soft L1 loss
_BOOST_REACH = 0.1
_BOOST_STARTS = (0.0, -0.02, -0.04)  # the fit has a corner wherever a kernel leaves the cap
_MOST_EVALUATIONS = 40
_STEP = 1e-3  # of finite differences: across the corners that the power cap makes
_HEAT_ROUNDS = 3  # power and temperature settle on one another


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedChange:
    """What clocks did to a kernel, as published.

    Attributes:
        kernel: With FLOPs and bytes.
        clocks: Chosen.
        time_change: Fraction of its auto time.
        energy_change: Fraction of its auto energy.
    """

    kernel: Kernel
    clocks: Clocks
    time_change: float
    energy_change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGpu:
    """The GPU the changes were measured on.

    Attributes:
        constants: Shared physics.
        core_mhz: Clock table, ascending. Shape (C,).
        limit_w: Power at which its loop settles.
    """

    constants: GpuConstants
    core_mhz: Floats
    limit_w: float


def fit_throughput(
    board: PublishedGpu, start: Throughput, changes: Sequence[PublishedChange]
) -> tuple[Throughput, float]:
    """Return the rates and energies that explain published changes best, and the boost clock.

    Args:
        board: Its boost clock is where the fit begins.
        start: Where rates and energies begin.
        changes: What was published.

    Returns:
        Rates and energies, and the boost clock in MHz.
    """

    def moved(vector: Floats) -> tuple[Throughput, PublishedGpu]:
        *steps, boost = vector.tolist()
        fitted = {
            name: getattr(start, name) * math.exp(step)
            for name, step in zip(_REACH, steps, strict=True)
        }
        gpu = board.constants
        gpu = dataclasses.replace(gpu, boost_mhz=gpu.boost_mhz * math.exp(boost))
        return dataclasses.replace(start, **fitted), dataclasses.replace(board, constants=gpu)

    def residuals(vector: Floats) -> Floats:
        throughput, moved_board = moved(vector)
        off = residuals_of(moved_board, throughput, changes).ravel()
        short = shortfall(moved_board, throughput, changes)
        return np.concatenate([off, short, _PULL * vector])

    reach = np.array([*_REACH.values(), _BOOST_REACH])
    fits = [
        least_squares(
            residuals,
            np.append(np.zeros(len(_REACH)), boost),
            diff_step=_STEP,
            bounds=(-reach, reach),
            loss="soft_l1",
            f_scale=_ROBUST,
            max_nfev=_MOST_EVALUATIONS,
        )
        for boost in _BOOST_STARTS
    ]
    throughput, fitted_board = moved(np.asarray(min(fits, key=lambda fit: float(fit.cost)).x))
    return throughput, fitted_board.constants.boost_mhz


def residuals_of(
    board: PublishedGpu, throughput: Throughput, changes: Sequence[PublishedChange]
) -> Floats:
    """Return log ratios of predicted to published time and energy. Shape (changes, 2)."""
    ratios = []
    for change in changes:
        kernel = _constants(throughput, change.kernel)
        auto_s, auto_j = _steady(board, kernel, Clocks())
        time_s, energy_j = _steady(board, kernel, change.clocks)
        ratios.append(
            (
                math.log(time_s / auto_s / (1.0 + change.time_change)),
                math.log(energy_j / auto_j / (1.0 + change.energy_change)),
            )
        )
    return np.array(ratios)


def shortfall(
    board: PublishedGpu, throughput: Throughput, changes: Sequence[PublishedChange]
) -> Floats:
    """Return how far matrix products at auto stay below the cap, as log ratios of power."""
    ratios = []
    for change in changes:
        if change.kernel.kind is Kind.GEMM:
            time_s, energy_j = _steady(board, _constants(throughput, change.kernel), Clocks())
            ratios.append(math.log(energy_j / time_s / board.limit_w))
    return np.array(ratios)


def _constants(throughput: Throughput, kernel: Kernel) -> KernelConstants:
    return throughput.kernel(
        flops=kernel.flops or 0.0,
        bytes_moved=kernel.bytes_moved or 1.0,
        tensor=kernel.kind is Kind.GEMM,
    )


def _steady(board: PublishedGpu, kernel: KernelConstants, clocks: Clocks) -> tuple[float, float]:
    """Return time in s and energy in J of one launch, hot and under the cap."""
    gpu = board.constants
    mem = float(clocks.mem_mhz or gpu.mem_points_mhz[-1])
    warm_c = gpu.ambient_c + gpu.c_per_w * board.limit_w
    core, power_w = board.core_mhz[0], board.limit_w
    for _ in range(_HEAT_ROUNDS):
        top = min(boost_mhz(gpu, warm_c), float(clocks.core_mhz or math.inf))
        bins = board.core_mhz[board.core_mhz <= top]
        core = capped_core_mhz(gpu, kernel, bins, mem, warm_c, board.limit_w)
        power_w = float(busy_w(gpu, kernel, core, mem, warm_c))
        warm_c = gpu.ambient_c + gpu.c_per_w * power_w
    time_s = float(duration_s(gpu, kernel, core, mem))
    return time_s, power_w * time_s

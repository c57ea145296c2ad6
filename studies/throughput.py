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
from underclock.gpus.models import MemoryLockEffect
from underclock.paper.study import TABLE1
from underclock.physics.cap import settled_mhz
from underclock.physics.constants import GpuConstants, KernelArrays, Throughput
from underclock.physics.costs import boost_mhz, duration_s, idle_w, launch_w
from underclock.records import Clocks, Kernel, Kind
from underclock.workloads import workload

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
        auto_mem_mhz: Memory clock where none is locked.
        memory_lock: What holding it alone does by itself.
    """

    constants: GpuConstants
    core_mhz: Floats
    limit_w: float
    auto_mem_mhz: float
    memory_lock: MemoryLockEffect = dataclasses.field(default_factory=MemoryLockEffect)


def table1() -> list[PublishedChange]:
    """Return arXiv 2601.08539's Table 1."""
    return [
        PublishedChange(
            kernel=kernel,
            clocks=row.clocks,
            time_change=row.change.time_pct / 100.0,
            energy_change=row.change.energy_pct / 100.0,
        )
        for kernel, row in zip(workload("gpt3-xl").kernels, TABLE1, strict=False)
    ]


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
    ratio = predicted(board, throughput, changes)
    told = np.array([(change.time_change, change.energy_change) for change in changes])
    off: Floats = np.log(ratio) - np.log1p(told)
    return off


def predicted(
    board: PublishedGpu, throughput: Throughput, changes: Sequence[PublishedChange]
) -> Floats:
    """Return time and energy at the chosen clocks over those at auto. Shape (changes, 2)."""
    kernels = [change.kernel for change in changes]
    auto_s, auto_w = _steady(board, throughput, kernels, [Clocks()] * len(kernels))
    time_s, power_w = _steady(board, throughput, kernels, [change.clocks for change in changes])
    return np.column_stack([time_s / auto_s, time_s * power_w / (auto_s * auto_w)])


def shortfall(
    board: PublishedGpu, throughput: Throughput, changes: Sequence[PublishedChange]
) -> Floats:
    """Return how far matrix products at auto stay below the cap, as log ratios of power."""
    products = [change.kernel for change in changes if change.kernel.kind is Kind.GEMM]
    _, power_w = _steady(board, throughput, products, [Clocks()] * len(products))
    short: Floats = np.log(power_w / board.limit_w)
    return short


def _steady(
    board: PublishedGpu, throughput: Throughput, kernels: Sequence[Kernel], clocks: Sequence[Clocks]
) -> tuple[Floats, Floats]:
    """Return the time in s and the power in W of each kernel at its clocks, hot, under the cap."""
    gpu, bins_mhz = board.constants, board.core_mhz[None, :]
    each = _constants(throughput, kernels)
    mem_mhz = np.array([[c.mem_mhz or board.auto_mem_mhz] for c in clocks], dtype=np.float64)
    held = np.array([c.core_mhz is None is not c.mem_mhz for c in clocks])
    asked_mhz = np.array([c.core_mhz or math.inf for c in clocks])
    own_w = launch_w(gpu, each, bins_mhz, duration_s(gpu, each, bins_mhz, mem_mhz))
    warm_c = np.full(len(kernels), gpu.ambient_c + gpu.c_per_w * board.limit_w)
    time_s = power_w = warm_c
    for _ in range(_HEAT_ROUNDS):
        top_mhz = np.minimum([boost_mhz(gpu, c) for c in warm_c.tolist()], asked_mhz)
        drawn_w = idle_w(gpu, bins_mhz, mem_mhz, warm_c[:, None]) + own_w
        counts = np.searchsorted(board.core_mhz, top_mhz, side="right")
        core_mhz = np.array(
            [
                settled_mhz(board.core_mhz[:count], row[:count], board.limit_w)
                for row, count in zip(drawn_w, counts, strict=True)
            ]
        )[:, None]
        took_s = duration_s(gpu, each, core_mhz, mem_mhz)
        busy = idle_w(gpu, core_mhz, mem_mhz, warm_c[:, None]) + launch_w(
            gpu, each, core_mhz, took_s
        )
        time_s = took_s[:, 0] * np.where(held, board.memory_lock.time, 1.0)
        power_w = busy[:, 0] * np.where(held, board.memory_lock.power, 1.0)
        warm_c = gpu.ambient_c + gpu.c_per_w * power_w
    return time_s, power_w


def _constants(throughput: Throughput, kernels: Sequence[Kernel]) -> KernelArrays:
    """Return the constants of kernels, each of shape (K, 1)."""
    made = [
        throughput.kernel(
            flops=kernel.flops or 0.0,
            bytes_moved=kernel.bytes_moved or 1.0,
            tensor=kernel.kind is Kind.GEMM,
        )
        for kernel in kernels
    ]
    return KernelArrays(
        **{
            field.name: np.array([[getattr(one, field.name)] for one in made])
            for field in dataclasses.fields(KernelArrays)
        }
    )

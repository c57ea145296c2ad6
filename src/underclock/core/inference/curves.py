"""How time and power of a kernel may follow the clocks, before any is measured.

Curves are drawn from the physics, with constants of GPUs and of kernels from their whole ranges,
and only their mean and their covariances are kept: nothing is fitted by physics afterwards, and a
kernel that no draw is like is still told by its rows.

Shape letters: C settings, T draws of a GPU's constants, U draws of a kernel's.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.records import Clocks

# Ranges that GPUs and kernels lie in. Of a GPU: how bandwidth follows the memory clock, where the
# voltage's floor ends and how high it is. Of a kernel: how sharply its parts join, core against
# memory time (logarithm of the ratio), and which share of time no clock moves.
_BANDWIDTH = (0.7, 1.0, 1.3)
_FLOORS, _KNEES = (0.6, 0.75, 0.9), (0.5, 0.7, 0.85)
_JOINS, _BALANCES, _FIXED = (
    (1.0, 2.0, 4.0, 10.0),
    np.linspace(-2.5, 2.5, 11),
    (0.005, 0.15, 0.35, 0.65),
)
_SHARES, _PARTS = 5, 4  # of power, in quarters
_LEAST_SHARE = 0.1  # of a quarter: no part is nothing
_ALSO_COMMON = 0.25  # of how kernels differ: those of one table may all lie on one side


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockGrid:
    """Settings, as fractions of the greatest clocks.

    Attributes:
        core: Shape (C,).
        mem: Shape (C,).
        free: Where the driver chooses the core clock: those stand at the greatest. Shape (C,).
    """

    core: Floats
    mem: Floats
    free: Bools

    @classmethod
    def of(cls, settings: Sequence[Clocks]) -> "ClockGrid":
        """Return settings as a grid; a clock left to the driver is the greatest."""
        core, mem = (
            np.array([float(each or 0) for each in clocks])
            for clocks in zip(*((s.core_mhz, s.mem_mhz) for s in settings), strict=True)
        )
        free = core == 0.0
        parts = (np.where(each > 0.0, each / max(each.max(), 1.0), 1.0) for each in (core, mem))
        return cls(**dict(zip(("core", "mem"), parts, strict=True)), free=free)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """What is known of curves before rows, each about its own mean over settings.

    Attributes:
        mean: Shape (C,).
        shared: Covariance of what all kernels of a GPU have in common. Shape (C, C).
        own: Of what each kernel has of its own. Shape (C, C).
    """

    mean: Floats
    shared: Floats
    own: Floats

    @classmethod
    def of(cls, draws: Floats) -> "Curves":
        """Return the moments of drawn logarithms. Shape (T, U, C)."""
        draws = draws - draws.mean(axis=2, keepdims=True)
        of_gpu, of_kernel = draws.mean(axis=1), draws.mean(axis=0)
        mean = of_kernel.mean(axis=0)
        own = draws - of_gpu[:, None]
        gpus, kernels = draws.shape[:2]
        common = of_kernel - mean
        shared = (of_gpu - mean).T @ (of_gpu - mean) / (gpus - 1)
        return cls(
            mean=mean,
            shared=shared + _ALSO_COMMON * common.T @ common / kernels,
            own=np.einsum("tuc,tud->cd", own, own, optimize=True) / (gpus * kernels),
        )


def time_curves(grid: ClockGrid) -> Curves:
    """Return curves of log time: core and memory parts join, some time is fixed."""
    draws = []
    for bandwidth in _BANDWIDTH:
        of_gpu = []
        for join, balance, fixed in itertools.product(_JOINS, _BALANCES, _FIXED):
            parts = np.exp(0.5 * balance) / grid.core, np.exp(-0.5 * balance) * grid.mem**-bandwidth
            top = (np.exp(0.5 * balance) ** join + np.exp(-0.5 * balance) ** join) ** (1.0 / join)
            clocked = (parts[0] ** join + parts[1] ** join) ** (1.0 / join) / top
            of_gpu.append(np.log((1.0 - fixed) * clocked + fixed))
        draws.append(of_gpu)
    return Curves.of(np.array(draws))


def power_curves(grid: ClockGrid, log_s: Floats) -> Curves:
    """Return curves of log power: of the board, of clocks, of work per second, of the memory.

    Args:
        log_s: How time usually follows them, about its mean: work per second is one over it. (C,)
    """
    quarters = [s for s in itertools.product(range(_SHARES), repeat=_SHARES) if sum(s) == _PARTS]
    share = (np.array(quarters) + _LEAST_SHARE) / (_PARTS + _SHARES * _LEAST_SHARE)
    board, clocked, switched, moved, memory = share.T[:, :, None]
    pace = np.exp(-log_s)
    draws = []
    for floor, knee in itertools.product(_FLOORS, _KNEES):
        rise = np.clip((grid.core - knee) / (1.0 - knee), 0.0, None)
        volt2 = (floor + (1.0 - floor) * rise) ** 2
        watts = board + clocked * volt2 * grid.core + (switched * volt2 + moved) * pace
        draws.append(np.log(watts + memory * grid.mem))
    return Curves.of(np.array(draws))


def matern(grid: ClockGrid, length: float) -> Floats:
    """Return how alike deviations at two settings are: Matérn 3/2 in log clocks. Shape (C, C).

    Args:
        length: In the logarithm of the core clock; half of it in the memory's.
    """

    def along(clock: Floats, reach: float) -> Floats:
        apart = np.sqrt(3.0) / reach * np.abs(np.subtract.outer(np.log(clock), np.log(clock)))
        near: Floats = (1.0 + apart) * np.exp(-apart)
        return near

    return along(grid.core, length) * along(grid.mem, 0.5 * length)

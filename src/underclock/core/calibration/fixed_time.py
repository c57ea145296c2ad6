"""How much of their time is fixed in kernels that are known: a prior for those that are not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import duration_s

_LEAST_SHARE = 1e-12


@dataclass(frozen=True, slots=True)
class FixedTimePrior:
    """What share of a kernel's time is fixed, at the fastest clocks: normal in logarithms.

    Attributes:
        gpu: Shared constants.
        mean: Logarithm of the share.
        deviation: Of that logarithm.
    """

    gpu: GpuConstants
    mean: float
    deviation: float

    @classmethod
    def of(cls, gpu: GpuConstants, kernels: Sequence[KernelConstants]) -> "FixedTimePrior":
        """Learn from known kernels; medians, so that an odd one does not count much."""
        shares = np.array([_log_share(gpu, kernel) for kernel in kernels])
        mean = float(np.median(shares))
        return cls(gpu, mean, 1.5 * float(np.median(np.abs(shares - mean))) + 0.1)

    def surprise(self, kernel: KernelConstants) -> float:
        """Return how many deviations a kernel is from the usual."""
        return (_log_share(self.gpu, kernel) - self.mean) / self.deviation

    def by_kernel(self, by_log: Floats, fixed: int) -> Floats:
        """Return derivatives of the surprise by the logarithms of a kernel's constants.

        Args:
            by_log: Derivatives of the logarithm of its time at the fastest clocks. Shape (P,).
            fixed: Which of the constants is the fixed time.
        """
        share = -by_log
        share[fixed] += 1.0
        return share / self.deviation


def _log_share(gpu: GpuConstants, kernel: KernelConstants) -> float:
    time_s = duration_s(gpu, kernel, gpu.boost_mhz, gpu.mem_points_mhz[-1])
    return math.log(max(kernel.fixed_s / time_s, _LEAST_SHARE))

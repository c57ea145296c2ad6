"""How busy the parts of a virtual GPU were: what NVML's GPM counters show of the truth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.hw.simulated.costs import LaunchCost
from underclock.physics.constants import KernelConstants

BUSIEST_DRAM = 0.93  # of DRAM's peak rate: what a plain copy reaches on an H200
BUSIEST_PIPES = 0.9  # of the pipes' peak rate; assumed
_NOISE = 0.005  # relative, of each answer; assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Seconds since the beginning, or in a window.

    Attributes:
        elapsed_s: All of them.
        sm_s: In which multiprocessors had work.
        tensor_s: As if the tensor pipes had worked at their peak. So the next two.
        fp32_s: The FP32 pipes.
        dram_s: DRAM.
    """

    elapsed_s: float = 0.0
    sm_s: float = 0.0
    tensor_s: float = 0.0
    fp32_s: float = 0.0
    dram_s: float = 0.0


class Counters:
    """The counters of one GPU, fed with the truth as it happens.

    Args:
        random: Noise of what they show.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._tensor: dict[int, KernelConstants] = {}
        self._elapsed_s = self._sm_s = self._tensor_s = self._fp32_s = self._dram_s = 0.0

    def begin(self, tensor: Sequence[KernelConstants]) -> None:
        """Learn which kernels keep tensor pipes busy."""
        self._tensor = {id(kernel): kernel for kernel in tensor}

    def note(self, cost: LaunchCost, stride_s: float) -> None:
        """Count a stretch of time in which one kernel ran, or none."""
        self._elapsed_s += stride_s
        if cost.kernel is None:
            return
        self._sm_s += stride_s
        self._dram_s += BUSIEST_DRAM * cost.dram_share * stride_s
        pipes_s = BUSIEST_PIPES * cost.core_share * stride_s
        if id(cost.kernel) in self._tensor:
            self._tensor_s += pipes_s
        else:
            self._fp32_s += pipes_s

    def now(self) -> Busy:
        """Return the counters."""
        return Busy(
            elapsed_s=self._elapsed_s,
            sm_s=self._sm_s,
            tensor_s=self._tensor_s,
            fp32_s=self._fp32_s,
            dram_s=self._dram_s,
        )

    def share(self, part_s: float, elapsed_s: float) -> float:
        """Return a part of a window as counters show it, 0 to 1."""
        shown = part_s / elapsed_s * (1.0 + _NOISE * float(self._random.standard_normal()))
        return min(1.0, max(0.0, shown))

"""How busy the parts of a virtual GPU were: what NVML's GPM counters show of the truth."""

from collections import defaultdict
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
        self._busy = Busy()
        self.spent_s = defaultdict[LaunchCost, float](float)
        """Time that passed since they were last looked at, by what ran."""

    def begin(self, tensor: Sequence[KernelConstants], *, more: bool = False) -> None:
        """Learn which kernels keep tensor pipes busy; with ``more``, which others do too."""
        self.now()  # by what was known of tensor pipes so far
        self._tensor = (self._tensor if more else {}) | {id(kernel): kernel for kernel in tensor}

    def now(self) -> Busy:
        """Return the counters."""
        before = self._busy
        sm_s, tensor_s, fp32_s, dram_s = before.sm_s, before.tensor_s, before.fp32_s, before.dram_s
        for cost, spent_s in self.spent_s.items():
            if cost.kernel is None:
                continue
            sm_s += spent_s
            dram_s += BUSIEST_DRAM * cost.dram_share * spent_s
            pipes_s = BUSIEST_PIPES * cost.core_share * spent_s
            if id(cost.kernel) in self._tensor:
                tensor_s += pipes_s
            else:
                fp32_s += pipes_s
        elapsed_s = before.elapsed_s + sum(self.spent_s.values())
        self.spent_s.clear()
        self._busy = Busy(
            elapsed_s=elapsed_s, sm_s=sm_s, tensor_s=tensor_s, fp32_s=fp32_s, dram_s=dram_s
        )
        return self._busy

    def share(self, part_s: float, elapsed_s: float) -> float:
        """Return a part of a window as counters show it, 0 to 1."""
        shown = part_s / elapsed_s * (1.0 + _NOISE * float(self._random.standard_normal()))
        return min(1.0, max(0.0, shown))

"""A measured sweep as arrays.

Shape letters: R rows, K kernels.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.step.cap import CapMargin, draws_limit
from underclock.errors import DataError
from underclock.records import SampleSet

_LEAST_CORE_CLOCKS = 4  # as many as a kernel has constants
_FASTEST_MHZ = 20_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep as arrays.

    Attributes:
        kernels: Names. Length K.
        kernel: Index of each row's kernel. Shape (R,).
        core_mhz: As asked; ``nan`` is auto. Shape (R,).
        mem_mhz: As asked, the fastest where auto. Shape (R,).
        time_s: Shape (R,).
        power_w: Shape (R,).
        limit_w: Power at which rows are capped.
    """

    kernels: tuple[str, ...]
    kernel: Ints
    core_mhz: Floats
    mem_mhz: Floats
    time_s: Floats
    power_w: Floats
    limit_w: float

    @property
    def free(self) -> Bools:
        """Rows at a locked core clock and away from the cap. Shape (R,)."""
        return np.isfinite(self.core_mhz) & ~self.capped

    @property
    def capped(self) -> Bools:
        """Rows at the power cap, or next to it. Shape (R,)."""
        return draws_limit(self.power_w, self.limit_w, CapMargin.UNREAD)

    def only(self, rows: Ints) -> "Sweep":
        """Return some rows, all kernels kept."""
        return dataclasses.replace(
            self,
            kernel=self.kernel[rows],
            core_mhz=self.core_mhz[rows],
            mem_mhz=self.mem_mhz[rows],
            time_s=self.time_s[rows],
            power_w=self.power_w[rows],
        )

    def one(self, rows: Ints) -> "Sweep":
        """Return some rows as if they were of one kernel."""
        kernel = np.zeros(len(rows), dtype=np.int64)
        return dataclasses.replace(self.only(rows), kernels=("one",), kernel=kernel)


def sweep_of(sample_set: SampleSet, *, auto_mem_mhz: float, limit_w: float | None = None) -> Sweep:
    """Turn samples into arrays.

    Args:
        sample_set: A measured sweep.
        auto_mem_mhz: Memory clock that auto stands for.
        limit_w: Power limit; by default the greatest power in the sweep.

    Raises:
        DataError: Too few rows to say anything of a GPU.
    """
    names = tuple(kernel.name for kernel in sample_set.kernels)
    index = {name: k for k, name in enumerate(names)}
    samples = sample_set.samples
    power_w = np.array([s.energy_j / s.time_s for s in samples])
    sweep = Sweep(
        kernels=names,
        kernel=np.array([index[s.kernel] for s in samples], dtype=np.int64),
        core_mhz=np.array([float(s.asked.core_mhz or math.nan) for s in samples]),
        mem_mhz=np.array([float(s.asked.mem_mhz or auto_mem_mhz) for s in samples]),
        time_s=np.array([s.time_s for s in samples]),
        power_w=power_w,
        limit_w=limit_w if limit_w is not None else float(power_w.max(initial=0.0)),
    )
    for what, mhz in (("core", sweep.core_mhz), ("memory", sweep.mem_mhz)):
        if np.nanmax(mhz, initial=0.0) > _FASTEST_MHZ:
            raise DataError(
                f"the sweep has a {what} clock of {np.nanmax(mhz):.0f} MHz, which no GPU has",
                hint="are clocks in MHz?",
            )
    free = np.bincount(sweep.kernel[sweep.free], minlength=len(names))
    poor = [name for name, rows in zip(names, free.tolist(), strict=True) if rows < 2]  # noqa: PLR2004
    if poor:
        raise DataError(
            f"{poor[0]!r} has fewer than two rows at locked clocks away from the power cap",
            hint="measure each kernel at several core clocks, some of them low",
        )
    if len(np.unique(sweep.core_mhz[sweep.free])) < _LEAST_CORE_CLOCKS:
        raise DataError(
            "the sweep has fewer than four core clocks", hint="measure at more core clocks"
        )
    return sweep

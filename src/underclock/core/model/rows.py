"""Rows: what a fit rests on, as arrays.

Shape letters: R rows, K kernels, M memory clocks, H errors in common.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.step.whole_step import Idling, StepDraw

PER_KERNEL = 4
"""Parameters of a kernel, which as many rows determine."""
COLLECTIVE = 3
"""Kernels of this kind wait for a link, and what they take of the GPU adds to that."""
OF_ROWS = ("kernel", "core_mhz", "mem_mhz", "log_s", "log_w", "temperature_c", "windows")
"""Attributes of `Rows` whose last axis is R."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Samples at known clocks, sorted by kernel.

    Attributes:
        names: Of the kernels; where clocks were steered the heater is one more, the last,
            which tells how power goes with the clock. Length K.
        kinds: What each mostly does, as a small number. Shape (K,).
        kernel: Index of each row's kernel, ascending. Shape (R,).
        core_mhz: As asked, and as read back where it was. Shape (R,).
        mem_mhz: As read back where it was, else as asked. Shape (R,).
        log_s: Logarithm of the time of a launch in s. Shape (R,).
        log_w: Logarithm of the mean power in W; where its weight is 0 that of the kernel's row at
            the nearest clock. Shape (R,).
        temperature_c: Shape (R,).
        windows: How many windows of the usual length a row counts for, in time and in power; 0
            where it tells nothing of that. Shape (2, R).
        mem_points_mhz: Memory clocks of the GPU, ascending. Shape (M,).
        limit_w: Power that capped rows settle at; ``inf`` where none was capped.
        ceiling_mhz: Least core clock that the GPU was seen to boost to by itself; ``inf`` where
            it was not seen. Locks above it do not hold.
        auto_mem_mhz: Memory clock that runs where none is locked, as read; else the fastest.
        peak_w: Power that no kernel exceeds, whatever its clock; ``inf`` where none was seen there.
        boost_log_s: Log time in s of a launch of kernels at boost, whatever held it there; ``nan``
            where it was not timed. Shape (K,); ``None`` where none was.
        idle: Idling, where it was measured.
        step: What the whole step drew, where it ran with co-load.
        apart: Standard deviation of log clock that rows of a kernel in the whole step have in
            common. Shape (R,); ``None`` where none has any.
        common: How log time and power of each row move with each error that several rows have in
            common, by its standard deviation: of co-load.
            Shape (2, R, H); ``None`` where none has any.
        shares: Shares of each kernel's time and power, as `hierarchical_prior.usual_shares`
            expects them of its kind. Shape (2, K, P); ``None`` where kinds are not known.
    """

    names: tuple[str, ...]
    kinds: Ints
    kernel: Ints
    core_mhz: Floats
    mem_mhz: Floats
    log_s: Floats
    log_w: Floats
    temperature_c: Floats
    windows: Floats
    mem_points_mhz: Floats
    limit_w: float
    ceiling_mhz: float
    auto_mem_mhz: float
    peak_w: float = math.inf
    boost_log_s: Floats | None = None
    idle: tuple[Idling, ...] = ()
    step: tuple[StepDraw, ...] = ()
    apart: Floats | None = None
    common: Floats | None = None
    shares: Floats | None = None

    def some(self, chosen: Ints) -> "Rows":
        """Return some rows of the same kernels."""
        some = {name: getattr(self, name)[..., chosen] for name in OF_ROWS}
        apart = None if self.apart is None else self.apart[chosen]
        return dataclasses.replace(self, **some, apart=apart, common=self.by_common[:, chosen])

    def of(self, kernels: Ints) -> "Rows":
        """Return the rows of some kernels, ascending, which become all there are."""
        mine = self.some(np.flatnonzero(np.isin(self.kernel, kernels)))
        return dataclasses.replace(
            mine,
            names=tuple(self.names[k] for k in kernels.tolist()),
            kinds=self.kinds[kernels],
            kernel=np.searchsorted(kernels, mine.kernel).astype(np.int64),
            boost_log_s=None if self.boost_log_s is None else self.boost_log_s[kernels],
            shares=None if self.shares is None else self.shares[:, kernels],
        )

    @property
    def by_common(self) -> Floats:
        """How logarithms move with errors in common. Shape (2, R, H), H = 0 without any."""
        return np.zeros((2, len(self.kernel), 0)) if self.common is None else self.common

    @property
    def bounds(self) -> Ints:
        """Where each kernel's rows begin, and the end. Shape (K + 1,)."""
        return np.searchsorted(self.kernel, np.arange(len(self.names) + 1)).astype(np.int64)

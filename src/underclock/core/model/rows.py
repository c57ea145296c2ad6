"""Rows: what a fit rests on, as arrays.

Shape letters: R rows, K kernels, M memory clocks, H errors in common.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.step.fit_row import Idling, StepDraw

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

    def of_first(self, kernels: int) -> "Rows":
        """Return the rows of the first kernels only."""
        if len(self.names) <= kernels:
            return self
        some = slice(int(self.bounds[kernels]))
        of_rows = {name: getattr(self, name)[..., some] for name in OF_ROWS}
        return dataclasses.replace(
            self,
            names=self.names[:kernels],
            kinds=self.kinds[:kernels],
            boost_log_s=None if self.boost_log_s is None else self.boost_log_s[:kernels],
            apart=None if self.apart is None else self.apart[some],
            common=self.by_common[:, some],
            **of_rows,
        )

    @property
    def by_common(self) -> Floats:
        """How logarithms move with errors in common. Shape (2, R, H), H = 0 without any."""
        return np.zeros((2, len(self.kernel), 0)) if self.common is None else self.common

    @property
    def bounds(self) -> Ints:
        """Where each kernel's rows begin, and the end. Shape (K + 1,)."""
        return np.searchsorted(self.kernel, np.arange(len(self.names) + 1)).astype(np.int64)

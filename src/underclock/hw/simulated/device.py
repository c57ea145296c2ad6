"""One virtual GPU: what its clocks, power, heat and energy do as virtual time passes.

Sensors are kept apart from truth: `counter_mj` is the staircase a driver would show, `energy_j`
the hidden true energy, for scoring.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.hw.simulated.models import GpuModel
from underclock.physics.cap import capped_core_mhz
from underclock.physics.constants import KernelConstants
from underclock.physics.power import busy_w, idle_w
from underclock.physics.thermal import boost_mhz, temperature_after
from underclock.physics.timing import duration_s

_ROUNDING_S = 1e-9
COUNTER_TICK_S = 0.1  # Ampere and newer
CAP_TICK_S = 0.02  # how often the driver's power loop acts
_CAP_MEMORY_S = 0.1  # over what it averages
_CAP_MARGIN_W = 2.0  # it settles this far under the limit
_LONGEST_STRIDE_S = 2.5  # heat moves little meanwhile
_REMEMBERED = 50_000  # points; about 10 MB
_STEADY_C = 0.5  # recompute a capped clock when the temperature moved this far
REASON_IDLE, REASON_POWER_CAP = 0x1, 0x4


@dataclass(slots=True)
class _Activity:
    """Kernels launched over and over.

    Attributes:
        kernels: The sequence.
        time_noise: Relative noise of durations, drawn once per loop.
        power_noise: Relative noise of power, likewise.
        position: Which kernel runs.
        share: How much of it is done, 0 to 1.
        launches: Whole sequences completed.
        elapsed_s: Since the loop began.
        completed_s: Of which until the last completion.
    """

    kernels: tuple[KernelConstants, ...]
    time_noise: float
    power_noise: float
    position: int = 0
    share: float = 0.0
    launches: int = 0
    elapsed_s: float = 0.0
    completed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Cost:
    """A kernel at given clocks; power is linear in temperature, through leakage.

    Attributes:
        kernel: Kept alive, so that its identity can serve as a key.
        duration_s: Of one launch, without noise.
        cold_w: Power at 0 °C.
        w_per_c: Rise of power with temperature.
    """

    kernel: KernelConstants
    duration_s: float
    cold_w: float
    w_per_c: float

    def power_w(self, temperature_c: float) -> float:
        """Return the board power in W."""
        return self.cold_w + self.w_per_c * temperature_c


class VirtualGpu:
    """A GPU in virtual time. Locks live here, not in the process that set them."""

    def __init__(self, model: GpuModel, *, seed: int) -> None:
        self.model = model
        self.constants = model.constants
        self.limit_w = model.limit_w[0]
        self.now_s = 0.0
        self.energy_j = 0.0
        self.counter_mj = 0
        self.temperature_c = model.constants.ambient_c + 8.0
        self.core_lock: tuple[int, int] | None = None
        self.mem_lock: tuple[int, int] | None = None
        self.activity: _Activity | None = None
        self.power_w = 0.0
        self.core_mhz = 0.0
        self.capped = False
        self._bins_mhz = np.array(model.core_mhz, dtype=np.float64)
        self._ceiling_mhz = math.inf  # the power loop's own limit while kernels alternate
        self._average_w = 0.0
        self._steady: tuple[object, float, float] | None = None
        self._cost: _Cost | None = None
        self._costs: dict[tuple[int, float, float], _Cost] = {}
        self._random = np.random.default_rng(seed)
        self._settle_clocks()

    @property
    def mem_mhz(self) -> int:
        """Memory clock now."""
        table = self.model.mem_mhz
        if self.mem_lock is not None:
            mhz = _snap(self.mem_lock[1], table)
        else:
            mhz = table[-1] if self.activity else table[0]
        low_core = self.model.low_mem_core_mhz
        if low_core is not None and mhz == table[0] and self._wanted_mhz() > low_core:
            return table[1]
        return mhz

    def begin(self, kernels: Sequence[KernelConstants]) -> None:
        """Start launching a sequence over and over."""
        self.activity = _Activity(
            kernels=tuple(kernels),
            time_noise=1.0 + 3e-4 * float(self._random.standard_normal()),
            power_noise=1.0 + 3e-3 * float(self._random.standard_normal()),
        )
        self._ceiling_mhz = math.inf
        self._average_w = 0.0
        self._settle_clocks()

    def end(self) -> None:
        """Stop launching."""
        self.activity = None
        self._settle_clocks()

    def lock_core(self, pair: tuple[int, int] | None) -> None:
        """Hold the core clock between two bounds in MHz, or let it go."""
        self.core_lock = pair
        self._settle_clocks()

    def lock_mem(self, pair: tuple[int, int] | None) -> None:
        """Hold the memory clock between two bounds in MHz, or let it go."""
        self.mem_lock = pair
        self._settle_clocks()

    def advance(self, duration: float) -> None:
        """Let virtual time pass, in s."""
        end_s = self.now_s + duration
        while self.now_s < end_s - 1e-12:
            self._settle_clocks()
            stride_s = min(self._stride_s(), end_s - self.now_s)
            self._account(stride_s)
            self._progress(stride_s)

    def _wanted_mhz(self) -> float:
        """Return the core clock before any power limit."""
        boost = boost_mhz(self.constants, self.temperature_c)
        if self.core_lock is not None:
            return float(_snap(min(self.core_lock[1], boost), self.model.core_mhz))
        if self.activity is None:
            return float(self.model.core_mhz[0])
        return float(_snap(boost, self.model.core_mhz))

    def _settle_clocks(self) -> None:
        """Decide clocks and power for the moment."""
        wanted = self._wanted_mhz()
        mem = float(self.mem_mhz)
        activity = self.activity
        if activity is None:
            self.core_mhz, self.capped = wanted, False
            self.power_w = float(idle_w(self.constants, wanted, mem, self.temperature_c))
            return
        kernel = activity.kernels[activity.position]
        if len(activity.kernels) == 1:
            self.core_mhz = self._steady_mhz(kernel, wanted, mem)
        else:
            self.core_mhz = min(wanted, self._ceiling_mhz)
        self.capped = self.core_mhz < wanted
        self._cost = self._cost_of(kernel, self.core_mhz, mem)
        # At the cap the loop takes the noise out again.
        noise = 1.0 if self.capped and len(activity.kernels) == 1 else activity.power_noise
        self.power_w = self._cost.power_w(self.temperature_c) * noise

    def _cost_of(self, kernel: KernelConstants, core_mhz: float, mem_mhz: float) -> "_Cost":
        """Return duration and power, remembered: a step visits the same few points all the time."""
        key = (id(kernel), core_mhz, mem_mhz)
        cost = self._costs.get(key)
        if cost is None:
            if len(self._costs) >= _REMEMBERED:
                self._costs.clear()
            cold, warm = (
                float(busy_w(self.constants, kernel, core_mhz, mem_mhz, at_c))
                for at_c in (0.0, 100.0)
            )
            cost = _Cost(
                kernel=kernel,
                duration_s=float(duration_s(self.constants, kernel, core_mhz, mem_mhz)),
                cold_w=cold,
                w_per_c=(warm - cold) / 100.0,
            )
            self._costs[key] = cost
        return cost

    def _steady_mhz(self, kernel: KernelConstants, wanted: float, mem: float) -> float:
        """Return the mean clock the power loop settles at when one kernel repeats."""
        key = (id(kernel), wanted, mem, self.limit_w)
        if (
            self._steady is None
            or self._steady[0] != key
            or (abs(self.temperature_c - self._steady[1]) > _STEADY_C)
        ):
            mhz = capped_core_mhz(
                self.constants,
                kernel,
                self._bins_mhz[self._bins_mhz <= wanted],
                mem,
                self.temperature_c,
                self.limit_w - _CAP_MARGIN_W,
            )
            self._steady = (key, self.temperature_c, mhz)
        return self._steady[2]

    def _stride_s(self) -> float:
        """Return how long the moment's clocks and power may be taken as constant."""
        activity = self.activity
        if activity is None or len(activity.kernels) == 1:
            return _LONGEST_STRIDE_S
        to_tick = CAP_TICK_S - self.now_s % CAP_TICK_S
        return min(to_tick if to_tick > _ROUNDING_S else CAP_TICK_S, self._left_s())

    def _kernel_s(self) -> float:
        activity = self.activity
        if activity is None or self._cost is None:
            raise AssertionError("nothing runs")
        return self._cost.duration_s * activity.time_noise

    def _left_s(self) -> float:
        return self._kernel_s() * (1.0 - (self.activity.share if self.activity else 0.0)) + 1e-12

    def _account(self, stride_s: float) -> None:
        """Add energy and heat, climb the counter's staircase, let the power loop act."""
        before_s, before_j = self.now_s, self.energy_j
        self.now_s += stride_s
        self.energy_j += self.power_w * stride_s
        tick_s = math.floor(self.now_s / COUNTER_TICK_S + 1e-9) * COUNTER_TICK_S
        if tick_s > before_s:
            self.counter_mj = int((before_j + self.power_w * (tick_s - before_s)) * 1e3)
        self.temperature_c = temperature_after(
            self.constants, self.temperature_c, self.power_w, stride_s
        )
        if self.activity is not None and len(self.activity.kernels) > 1:
            self._cap(before_s, stride_s)

    def _cap(self, before_s: float, stride_s: float) -> None:
        """Average power and move the ceiling by bins, once per tick."""
        fade = math.exp(-stride_s / _CAP_MEMORY_S)
        self._average_w = self._average_w * fade + self.power_w * (1.0 - fade)
        if math.floor(self.now_s / CAP_TICK_S + 1e-9) == math.floor(before_s / CAP_TICK_S + 1e-9):
            return
        room_w = self.limit_w - _CAP_MARGIN_W - self._average_w
        if room_w < 0:
            bins = min(4, 1 + int(-room_w / 10.0))
            self._ceiling_mhz = max(
                float(self.model.core_mhz[0]), self.core_mhz - bins * self.constants.boost_loss_mhz
            )
        elif self.capped and room_w > _CAP_MARGIN_W:
            self._ceiling_mhz += self.constants.boost_loss_mhz

    def _progress(self, stride_s: float) -> None:
        """Count what the stride completed."""
        activity = self.activity
        if activity is None:
            return
        started_s = activity.elapsed_s
        activity.elapsed_s += stride_s
        kernel_s = self._kernel_s()
        if len(activity.kernels) == 1:
            done = activity.share + stride_s / kernel_s
            whole = math.floor(done + 1e-9)
            if whole:
                activity.launches += whole
                activity.completed_s = started_s + (whole - activity.share) * kernel_s
            activity.share = max(0.0, done - whole)
            return
        activity.share += stride_s / kernel_s
        if activity.share >= 1.0 - 1e-9:
            activity.share = 0.0
            activity.position = (activity.position + 1) % len(activity.kernels)
            if activity.position == 0:
                activity.launches += 1
                activity.completed_s = activity.elapsed_s


def _snap(mhz: float, table: tuple[int, ...]) -> int:
    """Return the greatest table clock not above the asked one, or the least."""
    return table[max(0, bisect.bisect_right(table, mhz) - 1)]

"""Power of what a mix adds to kernels: idling, and the heater kernel.

Shape letters: N windows, H errors that windows with co-load have in common, P coefficients.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from underclock.arrays import Floats
from underclock.core.step.whole_step import temperature_c_of
from underclock.physics.constants import GpuConstants
from underclock.physics.costs import idle_w
from underclock.records import Window

WINDOW_NOISE = 0.004
"""Of the mean power of a window, as a fraction: eight windows of one kernel on an H200, aligned to
counter ticks, differed by 0.26 to 0.41 % (docs/evidence/h200)."""
_ASSUMED = 1.0 / 3.0  # of what idle power is assumed to change by, away from where it was measured
_OF_IDLE = 2  # errors of idling: how it follows the clock, and its level
_DEGREE = 2  # of the heater's log power in its log pace, at most
_BIN = 0.01  # paces that differ by less count as one


@dataclass(frozen=True, slots=True)
class Power:
    """A power and its errors, in W."""

    mean_w: float
    spread_w: float  # standard deviation of what no other power shares
    # standard deviations by each error in common: how idling is assumed to follow the clock, its
    # level, and the coefficients of the heater's curves, (H,)
    shared_w: Floats

    @property
    def total_w(self) -> float:
        """Standard deviation, all errors together."""
        return math.hypot(self.spread_w, *self.shared_w.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeaterCurve:
    """Log power by log pace: launches a second, which show its own clock. By least squares."""

    first: int  # index of its first coefficient's error among the errors in common
    log_pace: Floats  # of what was measured, relative to `middle`, their mean logarithm, (N,)
    middle: float
    coefficients: Floats  # highest power first, (P,)
    errors: Floats  # how these move with each error of their own, (P, P)
    misfit: float  # scatter that measurements do not explain, as a fraction
    of_idle: Floats  # how coefficients move with the errors of idling, (P, 2)


def _heater_curve(measured: Sequence[Sequence[float]], first: int) -> _HeaterCurve:
    """Fit measurements: a launch's time, power, its relative spread and errors of idling."""
    launch_s, power_w, spread, *of_idle = np.array(measured).T
    middle, log_w = float(-np.log(launch_s).mean()), np.log(power_w)
    log_pace = -np.log(launch_s) - middle
    degree = min(_DEGREE, len(np.unique(np.round(log_pace / _BIN))) - 1)
    columns = np.vander(log_pace, degree + 1)
    normal = columns.T @ (columns / spread[:, None] ** 2)
    covariance: Floats = np.asarray(np.linalg.inv(normal), dtype=np.float64)
    coefficients = covariance @ (columns.T @ (log_w / spread**2))
    residuals = (log_w - columns @ coefficients) / spread
    # More scatter than the spreads explain is the curve's: one more for its own shape.
    freedom = len(log_w) - degree - 1
    excess = float(residuals @ residuals) / freedom - 1.0 if freedom else 0.0
    return _HeaterCurve(
        first=first,
        log_pace=log_pace,
        middle=middle,
        coefficients=coefficients,
        errors=np.asarray(np.linalg.cholesky(covariance), dtype=np.float64),
        misfit=math.sqrt(max(excess, 0.0)) * float(spread.mean()),
        of_idle=covariance @ (columns.T @ (np.array(of_idle).T / spread[:, None] ** 2)),
    )


def pace_in(window: Window, once_s: float) -> float:
    """Return by how much launches took longer in the window of the clock than when timed.

    They are timed a second later (the kernel of a mix, or one step, for ``once_s``), and a clock
    that hunts is another then. What is more than the clock moved by is time between launches.
    """
    parts_s = window.mix.launches * once_s, window.mix.hot * (window.hot_s or 0.0)
    longer = window.time_s / math.fsum((*parts_s, window.idle_s or 0.0))
    moved = window.spread_mhz / window.at_mhz
    return longer if abs(longer - 1.0) <= moved else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoLoad:
    """What idling and the heater draw, from windows in which nothing else ran."""

    shape: GpuConstants  # how idle power is assumed to follow clock and temperature
    own_mem_mhz: float  # memory clock of a GPU left to itself
    idle: tuple[Window, ...] = ()  # windows of nothing but idling
    # its power by its pace, for each memory clock
    heater: dict[float, _HeaterCurve] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        mixed: Sequence[Window],
        shape: GpuConstants,
        own_mem_mhz: float,
        below_w: float = math.inf,
    ) -> "CoLoad":
        """Learn from the windows in which nothing ran but co-load.

        Args:
            shape: How idle power is assumed to follow clock and temperature.
            below_w: What the heater draws where it runs at the clock that is read.
        """
        idle = tuple(window for window in mixed if not window.mix.launches and not window.mix.hot)
        coload = cls(shape=shape, own_mem_mhz=own_mem_mhz, idle=idle)
        measured: defaultdict[float, list[tuple[float, ...]]] = defaultdict(list)
        for window in mixed:
            power = coload.of_heater(window)
            if power is not None and power.total_w < power.mean_w < below_w:
                errors = np.array([power.spread_w, *power.shared_w]) / power.mean_w
                row = (window.hot_s or 0.0) * pace_in(window, 0.0), power.mean_w, *errors
                measured[coload.mem_mhz(window)].append(row)
        for mem_mhz, rows in measured.items():
            coload.heater[mem_mhz] = _heater_curve(rows, coload.errors)
        return coload

    @property
    def errors(self) -> int:
        """How many errors windows with co-load have in common: H."""
        return _OF_IDLE + sum(len(curve.coefficients) for curve in self.heater.values())

    def mem_mhz(self, window: Window) -> float:
        """Return the memory clock of a window."""
        return float(window.asked.mem_mhz or self.own_mem_mhz)

    def idle_w(self, core_mhz: float, mem_mhz: float, temperature_c: float) -> Power | None:
        """Return what idling draws; ``None`` where it was never measured.

        Below the boost clock it cannot be measured while clocks are the driver's: it is scaled
        from the nearest clock at which it was, and a part of that change is its error.
        """
        if not self.idle:
            return None
        near = min(self.idle, key=lambda w: (self.mem_mhz(w) != mem_mhz, abs(w.at_mhz - core_mhz)))
        here_w, there_w = (
            float(idle_w(self.shape, *at))
            for at in (
                (core_mhz, mem_mhz, temperature_c),
                (near.at_mhz, self.mem_mhz(near), temperature_c_of(near)),
            )
        )
        mean_w = near.power_w * here_w / there_w
        errors_w = np.zeros(self.errors)
        errors_w[:_OF_IDLE] = _ASSUMED * (mean_w - near.power_w), WINDOW_NOISE * mean_w
        return Power(mean_w, 0.0, errors_w)

    def heater_w(self, launch_s: float, mem_mhz: float) -> Power | None:
        """Return what the heater draws while a launch of it takes so long; ``None`` if unknown."""
        curve = self.heater.get(mem_mhz)
        if curve is None:
            return None
        x = -math.log(launch_s) - curve.middle
        column = np.vander([x], len(curve.coefficients))[0]
        # Outside what was measured a slope of one is all that is expected.
        beyond = max(float(curve.log_pace.min()) - x, x - float(curve.log_pace.max()), 0.0)
        mean_w = math.exp(float(column @ curve.coefficients))
        errors = np.zeros(self.errors)
        errors[:_OF_IDLE] = column @ curve.of_idle
        errors[curve.first : curve.first + len(column)] = column @ curve.errors
        return Power(mean_w, mean_w * math.hypot(curve.misfit, beyond), mean_w * errors)

    def of_heater(self, window: Window) -> Power | None:
        """Return the heater's power in a window of co-load by itself; ``None`` if it has none."""
        if window.mix.launches or window.hot_s is None:
            return None
        return self.subtract(window, 0.0)

    def subtract(self, window: Window, once_s: float) -> Power | None:
        """Return the mean power of one part of a round, without that of its co-load.

        Args:
            once_s: How long the kernel, or one step, took when it was timed. Where it is 0 the
                heater is the part that is left.

        Returns:
            The power; ``None`` where that of the co-load is not known.
        """
        mem_mhz, longer = self.mem_mhz(window), pace_in(window, once_s)
        kernel_s = longer * window.mix.launches * once_s
        heater_s = longer * window.mix.hot * (window.hot_s or 0.0)
        idle_s = max(window.time_s - kernel_s - heater_s, 0.0)
        parts: list[tuple[float, Power | None]] = []
        round_j = window.energy_j
        if window.mix.idle_s:
            parts.append((idle_s, self.idle_w(window.at_mhz, mem_mhz, temperature_c_of(window))))
        else:
            # The gaps between launches are short, and draw what launches do.
            round_j *= 1.0 - idle_s / window.time_s
        if kernel_s and heater_s:
            parts.append((heater_s, self.heater_w(heater_s / window.mix.hot, mem_mhz)))
        coload_j, spread_j = 0.0, [WINDOW_NOISE * window.energy_j]
        shared_j = np.zeros(self.errors)
        for for_s, power in parts:
            if power is None:
                return None
            coload_j += for_s * power.mean_w
            spread_j.append(for_s * power.spread_w)
            shared_j -= for_s * power.shared_w
        own_s = kernel_s or heater_s
        return Power((round_j - coload_j) / own_s, math.hypot(*spread_j) / own_s, shared_j / own_s)

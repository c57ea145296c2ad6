"""What the company of a mix draws by itself: idling, and the hot companion.

Shape letters: N measurements of the companion, C clocks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from underclock.arrays import Floats
from underclock.physics.constants import GpuConstants
from underclock.physics.costs import idle_w
from underclock.records import Window

WINDOW_NOISE = 0.004
"""Of the mean power of a window, as a fraction: eight windows of one kernel on an H200, aligned to
counter ticks, differed by 0.26 to 0.41 % (docs/evidence/h200)."""
_ASSUMED = 1.0 / 3.0  # of what idle power is assumed to change by, away from where it was measured
_OF_IDLE = 2  # errors of idling: how it follows the clock, and its level
_BENDS = 2  # degree of the companion's log power in log clock
USUAL_C = 55.0  # where no temperature was read


@dataclass(frozen=True, slots=True)
class Draw:
    """A power and its errors, in W.

    Attributes:
        spread_w: Standard deviation of what no other power shares.
        shared_w: Standard deviations by each error that company has in common: how idling is
            assumed to follow the clock, its level, and what makes up the companion's curves.
            Shape (H,).
    """

    mean_w: float
    spread_w: float
    shared_w: Floats

    @property
    def total_w(self) -> float:
        """Standard deviation, all errors together."""
        return math.hypot(self.spread_w, *self.shared_w.tolist())


@dataclass(frozen=True, slots=True)
class _Idle:
    """Idling as measured."""

    core_mhz: float
    mem_mhz: float
    temperature_c: float
    power_w: float


@dataclass(frozen=True, slots=True)
class _Curve:
    """A polynomial of log power in log clock, by weighed least squares.

    Attributes:
        lowest: Logarithm of the lowest clock measured.
        highest: Of the highest.
        middle: Logarithm of the clock that the others are relative to.
        coefficients: Highest power first. Shape (P,).
        errors: How these move with each error of their own. Shape (P, P).
        misfit: What the curve leaves over, as a fraction.
        of_idle: How these move with the errors of idling. Shape (P, I).
    """

    lowest: float
    highest: float
    middle: float
    coefficients: Floats
    errors: Floats
    misfit: float
    of_idle: Floats

    @classmethod
    def of(cls, core_mhz: Floats, power_w: Floats, spread: Floats, of_idle: Floats) -> "_Curve":
        """Fit measurements."""
        log_mhz, log_w = np.log(core_mhz), np.log(power_w)
        apart = len(np.unique(np.round(core_mhz / 15.0)))  # a clock bin: closer ones are the same
        degree = min(_BENDS, apart - 1)
        middle = float(log_mhz.mean())
        columns = np.vander(log_mhz - middle, degree + 1)
        normal = columns.T @ (columns / spread[:, None] ** 2)
        covariance: Floats = np.asarray(np.linalg.inv(normal), dtype=np.float64)
        coefficients = covariance @ (columns.T @ (log_w / spread**2))
        left = (log_w - columns @ coefficients) / spread
        # More scatter than the spreads explain is the curve's: one more for its own shape.
        freedom = len(log_w) - degree - 1
        excess = float(left @ left) / freedom - 1.0 if freedom else 0.0
        return cls(
            lowest=float(log_mhz.min() - middle),
            highest=float(log_mhz.max() - middle),
            middle=middle,
            coefficients=coefficients,
            errors=np.asarray(np.linalg.cholesky(covariance), dtype=np.float64),
            misfit=math.sqrt(max(excess, 0.0)) * float(spread.mean()),
            of_idle=covariance @ (columns.T @ (of_idle / spread[:, None] ** 2)),
        )

    def at(self, core_mhz: float) -> tuple[float, float, Floats, Floats]:
        """Return the power in W, and its standard deviations as fractions.

        Those are its own, then by the errors of idling, (I,), and by the curve's, (P,).
        """
        x = math.log(core_mhz) - self.middle
        column = np.vander([x], len(self.coefficients))[0]
        # Outside what was measured nobody saw the curve: a slope of one is all that is expected.
        beyond = max(self.lowest - x, x - self.highest, 0.0)
        mean_w = math.exp(float(column @ self.coefficients))
        own = math.hypot(self.misfit, beyond)
        return mean_w, own, column @ self.of_idle, column @ self.errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """What idling and the hot companion draw, from where they ran by themselves.

    Attributes:
        shape: How idle power is assumed to follow clock and temperature.
        fastest_mem_mhz: Memory clock of a GPU left to itself.
        hot: Power of the companion by core clock, for each memory clock.
    """

    shape: GpuConstants
    fastest_mem_mhz: float
    idle: tuple[_Idle, ...] = ()
    hot: dict[float, _Curve] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        mixed: Sequence[Window],
        shape: GpuConstants,
        fastest_mem_mhz: float,
        below_w: float = math.inf,
    ) -> "Company":
        """Learn from the measurements in which nothing ran but company.

        Args:
            shape: How idle power is assumed to follow clock and temperature.
            below_w: What the companion draws where it runs at the clock that is read.
        """
        alone = [sample for sample in mixed if not sample.mix.launches]
        idle = tuple(
            _Idle(
                sample.at_mhz,
                float(sample.asked.mem_mhz or fastest_mem_mhz),
                _warm_c(sample),
                sample.energy_j / sample.time_s,
            )
            for sample in alone
            if not sample.mix.hot
        )
        company = cls(shape=shape, fastest_mem_mhz=fastest_mem_mhz, idle=idle)
        hot: dict[float, list[tuple[float, ...]]] = {}
        for sample in alone:
            if not sample.mix.hot or sample.hot_s is None:
                continue
            mem_mhz = float(sample.asked.mem_mhz or fastest_mem_mhz)
            left = company.left(sample, sample.mix.hot * sample.hot_s, 0.0)
            if left is not None and left.total_w < left.mean_w < below_w:
                relative = np.array([left.spread_w, *left.shared_w]) / left.mean_w
                hot.setdefault(mem_mhz, []).append((sample.at_mhz, left.mean_w, *relative))
        for mem_mhz, rows in hot.items():
            core_mhz, power_w, spread, *of_idle = np.array(rows).T
            company.hot[mem_mhz] = _Curve.of(core_mhz, power_w, spread, np.array(of_idle).T)
        return company

    @property
    def errors(self) -> int:
        """How many errors company has in common."""
        return _OF_IDLE + sum(len(curve.coefficients) for curve in self.hot.values())

    def idle_w(self, core_mhz: float, mem_mhz: float, temperature_c: float) -> Draw | None:
        """Return what idling draws; ``None`` where it was never measured.

        Below the boost clock nobody can measure it while clocks are the driver's: it is scaled
        from the nearest clock at which it was, and a part of that change is its error.
        """
        if not self.idle:
            return None
        near = min(
            self.idle, key=lambda one: (one.mem_mhz != mem_mhz, abs(one.core_mhz - core_mhz))
        )
        here_w, there_w = (
            float(idle_w(self.shape, mhz, memory, warm_c))
            for mhz, memory, warm_c in (
                (core_mhz, mem_mhz, temperature_c),
                (near.core_mhz, near.mem_mhz, near.temperature_c),
            )
        )
        mean_w = near.power_w * here_w / there_w
        errors_w = np.zeros(self.errors)
        errors_w[:_OF_IDLE] = _ASSUMED * (mean_w - near.power_w), WINDOW_NOISE * mean_w
        return Draw(mean_w, 0.0, errors_w)

    def hot_w(self, core_mhz: float, mem_mhz: float) -> Draw | None:
        """Return what the companion draws; ``None`` where it was never measured."""
        curve = self.hot.get(mem_mhz)
        if curve is None:
            return None
        mean_w, own, of_idle, of_curve = curve.at(core_mhz)
        errors = np.zeros(self.errors)
        errors[:_OF_IDLE] = of_idle
        begin = _OF_IDLE
        for other_mhz, other in self.hot.items():
            if other_mhz == mem_mhz:
                errors[begin : begin + len(of_curve)] = of_curve
            begin += len(other.coefficients)
        return Draw(mean_w, mean_w * own, mean_w * errors)

    def left(self, sample: Window, hot_s: float, kernel_s: float) -> Draw | None:
        """Return the mean power of one part of a mix, the others taken off.

        Args:
            kernel_s: How long the kernel did. Where it is 0 the companion is what is left.

        Returns:
            The power; ``None`` where that of the company is not known.
        """
        mem_mhz = float(sample.asked.mem_mhz or self.fastest_mem_mhz)
        idle_s = max(sample.time_s - kernel_s - hot_s, 0.0)
        taken: list[tuple[float, Draw | None]] = []
        if sample.mix.idle_s:
            taken.append((idle_s, self.idle_w(sample.at_mhz, mem_mhz, _warm_c(sample))))
            round_j = sample.energy_j
        else:
            # The gaps between launches are short, and draw what launches do.
            round_j = sample.energy_j * (1.0 - idle_s / sample.time_s)
        if kernel_s and hot_s:
            taken.append((hot_s, self.hot_w(sample.at_mhz, mem_mhz)))
        taken_j, spread_j = 0.0, [WINDOW_NOISE * sample.energy_j]
        shared_j = np.zeros(self.errors)
        for for_s, draw in taken:
            if draw is None:
                return None
            taken_j += for_s * draw.mean_w
            spread_j.append(for_s * draw.spread_w)
            shared_j -= for_s * draw.shared_w
        own_s = kernel_s or hot_s
        return Draw((round_j - taken_j) / own_s, math.hypot(*spread_j) / own_s, shared_j / own_s)


def _warm_c(sample: Window) -> float:
    return USUAL_C if sample.temperature_c is None else sample.temperature_c

"""Mean power over a window that slides round a step, and the multipliers that keep it low.

A power loop holds the mean of the last moments below its limit: an exponential window, the past
counting the less the older it is. Where the windows of a choice exceed the limit, what its launches
draw beyond it is multiplied and added to their energy, launch by launch. The multipliers are those
at which the least of all choices met so far is greatest (Kelley's cutting planes); the first
constraint is the mean over the whole round, the others are windows that a choice exceeded.

How much a launch counts in a window depends on how long the launches after it take, so on the
choice. Only the round counts all of them alike: what bounds it bounds every choice within the
limit, for where no window exceeds it, their mean over the round does not. So bounds come from
multipliers of the round, and those of windows only make better choices.

Shape letters: n launches, C constraints, P choices met.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog

from underclock.arrays import Floats, Ints

_SLACK = 1e-9  # a sum of floats that meets the limit exactly must not exceed it
_HIGHEST = 100.0  # multiplier of a constraint, in joules per joule drawn beyond the limit
_ENOUGH = 1e-5  # of the energy, by which better multipliers may still raise the promise
_HARDER = (1.02, 1.1, 1.3, 2.0, 5.0, 25.0)  # times the multipliers, where no choice is within


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerWindows:
    """What the mean power over a window must not exceed.

    Attributes:
        limit_w: Most mean power.
        window_s: Time in which the past's weight falls to 1/e.
    """

    limit_w: float
    window_s: float = 0.1

    def __post_init__(self) -> None:
        """Reject windows that mean nothing."""
        if not 0.0 < self.limit_w < math.inf or not 0.0 < self.window_s < math.inf:
            raise ValueError(
                f"limit_w and window_s must be positive, got {self.limit_w} and {self.window_s}"
            )

    def mean_w(self, time_s: Floats, energy_j: Floats) -> Floats:
        """Return the mean power at every launch's end, the step repeating for ever. Shape (n,).

        It rises or falls steadily during a launch, so no moment exceeds what two ends do.

        Args:
            time_s: Of every launch, what comes before it included. Shape (n,).
            energy_j: Likewise. Shape (n,).

        Raises:
            ValueError: A round takes no time.
        """
        if not time_s.sum() > 0.0:
            raise ValueError("a round that takes no time has no mean power")
        left = np.exp(-time_s / self.window_s)
        gained = energy_j / self.window_s * _early(time_s / self.window_s)
        means_w, mean_w = np.empty(len(time_s)), 0.0
        for launch, (share, gain) in enumerate(zip(left.tolist(), gained.tolist(), strict=True)):
            mean_w = mean_w * share + gain
            means_w[launch] = mean_w
        # The rounds before: what was left at the end of the last is there at the start of this.
        before_w = mean_w / -math.expm1(-float(time_s.sum()) / self.window_s)
        return means_w + before_w * np.cumprod(left)

    def worst(self, time_s: Floats, energy_j: Floats) -> tuple[float, int]:
        """Return the highest mean power in W, and after which launch it is reached."""
        means_w = self.mean_w(time_s, energy_j)
        return float(means_w.max()), int(means_w.argmax())

    def keeps(self, time_s: Floats, energy_j: Floats) -> bool:
        """Whether no window exceeds the limit."""
        return self.worst(time_s, energy_j)[0] <= self.limit_w * (1.0 + _SLACK)

    def weights(self, time_s: Floats, last: int) -> Floats:
        """Return how much each launch's energy counts in the window that ends with one. Shape (n,).

        Relative to the most that any could. The window is within the limit where these, times what
        each launch draws beyond the limit, come to no more than zero.
        """
        ago_s = np.roll(time_s, -last - 1)
        ago_s = np.roll(np.cumsum(ago_s[::-1])[::-1] - ago_s, last + 1)
        return np.exp(-ago_s / self.window_s) * _early(time_s / self.window_s)


def _early(x: Floats) -> Floats:
    """Return what is left, on average over x, of what decays by the end of it. Shape of x."""
    return np.where(x > 0.0, -np.expm1(-x) / np.where(x > 0.0, x, 1.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A choice that some multipliers led to.

    Attributes:
        choice: Setting of each part. Any shape.
        time_s: Of every launch. Shape (n,).
        energy_j: Of every launch. Shape (n,).
        bound_j: Least of any choice's energy and what it draws beyond the limit, multiplied.
    """

    choice: Ints
    time_s: Floats
    energy_j: Floats
    bound_j: float


Solve = Callable[[Floats], Met | float]
"""Find the best choice at a multiplier for every launch; where none is found, return the bound."""


@dataclass(slots=True, kw_only=True)
class WindowSearch:
    """A search for the cheapest choice within the limit.

    Attributes:
        windows: What to keep.
        solve: Finds the best choice at given multipliers.
        launches: How many there are.
        rounds: Most choices to look for.
        latest_s: Most time; below the limit it takes no more energy than the limit times this.
        met: All that were met.
        best: The cheapest within the limit; ``None`` if none was met.
        bound_j: No choice within the limit costs less.
    """

    windows: PowerWindows
    solve: Solve
    launches: int
    rounds: int
    latest_s: float
    met: list[Met] = field(default_factory=list)
    best: Met | None = None
    bound_j: float = -math.inf
    _counts: list[Floats] = field(init=False)

    def __post_init__(self) -> None:
        self._counts = [np.ones(self.launches)]

    def run(self) -> None:
        """Look until nothing better is promised, or the rounds are over."""
        multipliers, reached_j = np.zeros(1), -math.inf
        for _ in range(self.rounds):
            here_j = self._visit(multipliers)
            if here_j is None:
                return
            reached_j = max(reached_j, here_j)
            promise_j, multipliers = self._promised()
            if promise_j - reached_j > _ENOUGH * abs(promise_j):
                continue
            if self.best is not None and self._energy(self.best) <= promise_j * (1.0 + _ENOUGH):
                return
            exceeding = [met for met in self.met if not self._keeps(met)]
            if self._keeps(self.met[-1]) or not exceeding:
                break
            met = self.met[-1]
            last = self.windows.worst(met.time_s, met.energy_j)[1]
            self._counts.append(self.windows.weights(met.time_s, last))
            promise_j, multipliers = self._promised()
        for harder in _HARDER:
            if self.best is not None:
                return
            self._visit(multipliers * harder)

    def offer(self, met: Met) -> None:
        """Take a choice if it is within the limit and cheaper than the best."""
        better = self.best is None or self._energy(met) < self._energy(self.best)
        if better and self._keeps(met):
            self.best = met

    def _visit(self, multipliers: Floats) -> float | None:
        """Look for the best choice at some multipliers; return its multiplied energy."""
        each = multipliers @ np.array(self._counts)
        met = self.solve(each)
        if isinstance(met, float):
            self.bound_j = max(self.bound_j, met)
            return None
        self.met.append(met)
        self.offer(met)
        if len(self._counts) == 1:
            self.bound_j = max(self.bound_j, met.bound_j)
            if self.bound_j > self.windows.limit_w * self.latest_s * (1.0 + 2.0 * _SLACK):
                self.bound_j = math.inf
                return None
        return self._energy(met) + float(each @ self._beyond(met))

    def _promised(self) -> tuple[float, Floats]:
        """Return the greatest height below every choice met, and the multipliers there."""
        beyond = np.array([self._beyond(met) for met in self.met]) @ np.array(self._counts).T
        energy = np.array([self._energy(met) for met in self.met])
        unit = float(energy.max()) or 1.0
        answer = linprog(
            [-1.0, *np.zeros(len(self._counts))],
            A_ub=np.column_stack([np.ones(len(energy)), -beyond / unit]),
            b_ub=energy / unit,
            bounds=[(None, None), *[(0.0, _HIGHEST)] * len(self._counts)],
        )
        return float(answer.x[0]) * unit, answer.x[1:]

    def _beyond(self, met: Met) -> Floats:
        """Return what each launch draws beyond the limit, in J. Shape (n,)."""
        return met.energy_j - self.windows.limit_w * met.time_s

    def _energy(self, met: Met) -> float:
        return math.fsum(met.energy_j)

    def _keeps(self, met: Met) -> bool:
        return self.windows.keeps(met.time_s, met.energy_j)


def multiplied(
    time: Floats, energy: Floats, multipliers: Floats, limit_w: float
) -> tuple[Floats, float]:
    """Add to energies what is drawn beyond a limit, multiplied, and what makes none negative.

    Args:
        time: ``inf`` where a setting is not available. One row for each multiplier.
        energy: ``inf`` in the same places.
        multipliers: One for each row.
        limit_w: The limit.

    Returns:
        The energies, and what was added to those of any choice so that none is negative.
    """
    known = np.isfinite(time)
    beyond = np.where(known, energy, 0.0) - limit_w * np.where(known, time, 0.0)
    more = np.where(known, energy + multipliers[:, None] * beyond, np.inf)
    added = np.maximum(0.0, -more.min(axis=1))
    return np.where(known, np.maximum(more + added[:, None], 0.0), np.inf), math.fsum(added)

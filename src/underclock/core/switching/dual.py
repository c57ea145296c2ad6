"""The best prices: of time, and of a switch where their number is limited.

At any prices the cheapest lap, less what the limits are worth, is a lower bound. Each lap is a
plane above the bound as a function of the prices; the next prices are those at which the least of
all planes known so far is greatest: the secant method with one price, Kelley's cutting planes with
two.

Shape letters: m items, S settings, P planes.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import linprog

from underclock.arrays import Ints
from underclock.core.switching.cycle import Lap
from underclock.core.switching.viterbi import cheapest, forward, priced

_MOST_LAPS = 60
_STEP, _STEPS = 1.02, 6  # first step away from a guess, as a factor; most steps
_HIGHEST = 1e4  # of either price, in what would make the limit worth the energy


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A lap, which may end at another setting than it began with.

    Attributes:
        energy: Of the lap.
        over: Time beyond the most allowed.
        extra: Switches beyond the most allowed; zero where there is no limit.
        choice: Setting per item, and of item 0 once more. Shape (m + 1,).
    """

    energy: float
    over: float
    extra: float
    choice: Ints


@dataclass(slots=True, kw_only=True)
class Search:
    """A search for the best prices of one lap.

    Attributes:
        lap: The lap.
        latest: Most time; finite.
        most: Most switches; ``None`` for no limit.
        enough: Fraction of the bound by which it may still rise when the search ends.
        walks: The laps met, in order.
        time: Best price of time so far.
        switch: Likewise of a switch.
        bound: No lap within the limits costs less.
    """

    lap: Lap
    latest: float
    most: int | None
    enough: float = 1e-7
    walks: list[Walk] = field(default_factory=list)
    time: float = 0.0
    switch: float = 0.0
    bound: float = -math.inf

    def run(self, guess: float | None = None) -> bool:
        """Find the best prices, from a guess at the price of time.

        Returns:
            Whether there are any; if not, no lap is fast enough.
        """
        fast = self._fastest()
        if fast is None:
            return False
        slow: Walk | None = None
        low, high, time, step = 0.0, math.inf, guess or 0.0, _STEP
        for _ in range(_STEPS if guess else 0):
            # About the guess, until the price is between two that were tried.
            here = self.visit(time)
            if here.over <= 0:
                fast, high, time = here, time, time / step
            else:
                slow, low, time = here, time, time * step
            if slow is not None and high < math.inf:
                break
            step **= _STEPS / 2
        self._narrow(fast, slow or self.visit(0.0), low, high)
        if self.most is not None and self._crowded():
            self._cut_planes()
        return True

    def _narrow(self, fast: Walk, slow: Walk, low: float, high: float) -> None:
        """Find the best price of time between two."""
        below, above = slow.over, fast.over
        for turn in range(_MOST_LAPS):
            if slow.over <= 0:
                break
            time = max(0.0, (fast.energy - slow.energy) / (slow.over - fast.over))
            promise = slow.energy + time * slow.over
            if promise - self.bound <= self.enough * abs(promise):
                break
            if turn % 3 and high < math.inf:
                # Cutting planes come in from one side. Time as a function of its price is smoother:
                # regula falsi, an end that stays counting half (the Illinois method).
                time = low + (high - low) * below / (below - above)
            here = self.visit(time)
            if here.over <= 0:
                fast, high, above, below = here, time, here.over, 0.5 * below
            else:
                slow, low, below, above = here, time, here.over, 0.5 * above

    def visit(self, time: float, switch: float = 0.0) -> Walk:
        """Walk at some prices, and keep them if they are the best."""
        prices = priced(self.lap, time, switch)
        ahead = forward(self.lap, prices, np.zeros(self.lap.time.shape[1]))
        least, choice = cheapest(self.lap, prices, ahead, prices.half)
        self.walks.append(self._walk(choice))
        worth = time * self.latest + switch * (self.most or 0)
        bound = least - worth - prices.error - 1e-15 * worth
        if bound > self.bound:
            self.time, self.switch, self.bound = time, switch, bound
        return self.walks[-1]

    def _fastest(self) -> Walk | None:
        """Return a lap within the time, if there is one, switches not counted."""
        hurry = replace(
            self.lap,
            energy=np.zeros_like(self.lap.energy),
            switch_energy=np.zeros_like(self.lap.switch_energy),
        )
        prices = priced(hurry, 1.0)
        ahead = forward(hurry, prices, np.zeros(self.lap.time.shape[1]))
        least, choice = cheapest(hurry, prices, ahead, prices.half)
        if least > self.latest + prices.error:
            return None
        self.walks.append(self._walk(choice))
        return self.walks[-1]

    def _walk(self, choice: Ints) -> Walk:
        lap, items = self.lap, np.arange(len(choice)) % len(self.lap.time)
        weight = np.ones(len(choice))
        weight[[0, -1]] = 0.5
        changes = choice[:-1], choice[1:]
        time = weight @ lap.time[items, choice] + lap.switch_time[changes].sum()
        energy = weight @ lap.energy[items, choice] + lap.switch_energy[changes].sum()
        extra = 0 if self.most is None else int((changes[0] != changes[1]).sum()) - self.most
        return Walk(
            energy=float(energy), over=float(time) - self.latest, extra=float(extra), choice=choice
        )

    def _crowded(self) -> bool:
        """Whether the cheapest laps so far switch too often."""
        return any(walk.extra > 0 for walk in self.walks)

    def _cut_planes(self) -> None:
        """Find the best pair of prices."""
        items, settings = self.lap.time.shape
        for s in range(settings):
            if self.lap.shut is None or not self.lap.shut[:, s].any():
                self.walks.append(self._walk(np.full(items + 1, s)))
        energy, over, extra = np.array([(w.energy, w.over, w.extra) for w in self.walks]).T
        units = energy.max() or 1.0, max(self.latest, abs(over).max()) or 1.0, abs(extra).max() or 1
        for _ in range(_MOST_LAPS):
            planes = np.array([(w.energy, w.over, w.extra) for w in self.walks]) / units
            # The greatest height below every plane: height <= energy + prices @ (over, extra).
            answer = linprog(
                [-1.0, 0.0, 0.0],
                A_ub=np.column_stack([np.ones(len(planes)), -planes[:, 1:]]),
                b_ub=planes[:, 0],
                bounds=[(None, None), (0.0, _HIGHEST), (0.0, _HIGHEST)],
            )
            height, time, switch = answer.x
            promise = height * units[0]
            if promise - self.bound <= self.enough * abs(promise):
                return
            self.visit(time * units[0] / units[1], switch * units[0] / units[2])

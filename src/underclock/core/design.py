"""Which samples to take next: the expected improvement of E + price · T.

A price is what a second is worth, in J: with it, least E + price · T of each kernel is the choice
of all kernels together. A sample of a GPU has noise: what many looks at an entry did not settle,
one more will not settle either. A sample of a table without repeats is exact, and only entries that
were looked at can be planned: such an entry is worth what the plan is expected to gain by it, at
whatever price the time may be had.

Shape letters: K kernels, S settings, auto the last.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.costs import Costs
from underclock.core.model.estimate import Estimate
from underclock.core.step.cost_table import CostTable
from underclock.records import ALONE, AUTO, Clocks, Mix


@dataclass(frozen=True, slots=True)
class Wanted:
    """A window to take."""

    kernel: str = ""  # of which launches run; empty for the whole step, or for co-load by itself
    mix: Mix = ALONE
    asked: Clocks = AUTO
    # whether launches are timed inside, and the core clock is read all through; the step by itself
    # is where it can be
    timed: bool = True
    warm: bool = False  # whether the GPU is brought to the step's own heat before

    @property
    def is_step(self) -> bool:
        """Whether the whole step runs, by itself or with co-load."""
        return not self.kernel and self.mix.launches > 0


_ROOT_2PI = math.sqrt(2.0 * math.pi)
_LEAST_CORE = (
    0.4  # of the fastest: far below the knee voltage falls no more, and no plan goes there
)
_NEAR = 0.015  # of log core clock: a look there says something of both
_FOR_PROMISE = 0.5  # J off a promise's error are worth this many J saved
# Of auto's mean power: what a second may be worth at most and at least, if not nothing.
_PRICES = (0.0, *np.geomspace(1e-2, 1e3, 51).tolist())
_STEEPEST, _HALVINGS = 100.0, 40  # of the greatest power: no price of a second is higher


def spread_out(core_mhz: Floats, mem_mhz: Floats, points: int) -> Ints:
    """Choose settings far from one another, the fastest first. Shape (points,) or fewer.

    Args:
        core_mhz: Of every setting. Shape (S,).
        mem_mhz: Of every setting. Shape (S,).
    """
    fast = np.flatnonzero(core_mhz >= _LEAST_CORE * core_mhz.max())
    places = np.stack([np.log(core_mhz[fast]), np.log(mem_mhz[fast])])
    places = places / np.maximum(np.ptp(places, axis=1, keepdims=True), 1e-9)
    chosen = [int(np.lexsort((core_mhz[fast], mem_mhz[fast]))[-1])]
    apart = np.full(len(fast), np.inf)
    while len(chosen) < min(points, len(fast)):
        away = np.square(places - places[:, [chosen[-1]]]).sum(axis=0)
        apart = np.minimum(apart, away)
        chosen.append(int(apart.argmax()))
    return fast[chosen]


def expected_gain(behind: Floats, spread: Floats) -> Floats:
    """Return the expected gain of learning whether something behind is in fact ahead."""
    ahead_by = -behind
    z = ahead_by / np.maximum(spread, 1e-300)
    density = np.exp(-0.5 * np.clip(z, -30.0, 30.0) ** 2) / _ROOT_2PI
    gain: Floats = np.where(spread > 0, ahead_by * ndtr(z) + spread * density, 0.0)
    return np.maximum(gain, 0.0)


def price_within(time_s: Floats, energy_j: Floats, limit_s: float) -> float:
    """Return the least price of time, in W, at which the choice takes no more than a time.

    Args:
        time_s: Of each setting; ``inf`` where it cannot be chosen. Shape (K, S).
        energy_j: Energy in J of the same. Shape (K, S).
    """
    known = np.isfinite(time_s)
    low, high = 0.0, _STEEPEST * float((energy_j[known] / time_s[known]).max())
    kernels = np.arange(len(time_s))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        at = kernels, np.argmin(energy_j + middle * time_s, axis=1)
        late = float(time_s[at].sum()) > limit_s
        low, high = (middle, high) if late else (low, middle)
    return high


def looked_near(table: CostTable, taken: Mapping[tuple[str, Clocks], int]) -> Floats:
    """Return how often each kernel was looked at near each setting. Shape (K, S).

    Args:
        taken: How often each was, by name and clocks.
    """
    place = {kernel.name: k for k, kernel in enumerate(table.kernels)}
    core = np.log([float(clocks.core_mhz or np.inf) for clocks in table.settings])
    mem = np.array([clocks.mem_mhz or 0 for clocks in table.settings])
    looked = np.zeros(table.time_s.shape)
    for (name, clocks), times in taken.items():
        if name in place and clocks.core_mhz is not None:
            away = (core - math.log(clocks.core_mhz)) / _NEAR
            near = np.exp(-0.5 * np.minimum(away, 1e3) ** 2) * (mem == (clocks.mem_mhz or 0))
            looked[place[name]] += times * near
    return looked


def improvement(
    costs: Costs, looked: Floats, noise: Floats, price_w: float, planned: Ints
) -> Floats:
    """Return what one more look with noise at each entry is worth, in J per step. Shape (K, S).

    Args:
        looked: How often each entry was looked at, or its neighbours. Shape (K, S).
        noise: Standard deviation of one look's log time and log energy. Shape (2, K).
        price_w: Of a second, in J.
        planned: Setting of each kernel in the plan as it is now. Shape (K,).
    """
    table, kernels = costs.table, np.arange(len(planned))
    finite = np.isfinite(table.time_s)
    time_s, energy_j = (np.where(finite, of, 0.0) for of in (table.time_s, table.energy_j))
    energy_j = energy_j - table.fixed_j[:, None]
    cost = np.where(finite, energy_j + price_w * time_s, np.inf)
    best = cost.argmin(axis=1)
    # How each entry moves, and how its difference to the best of its kernel does.
    apart, alone = np.empty(cost.shape), np.empty(cost.shape)
    for k, at in enumerate(best.tolist()):
        time, energy = costs.moves[:, k]
        moved = price_w * time_s[k, :, None] * time + energy_j[k, :, None] * energy
        alone[k] = np.square(moved).sum(axis=-1)
        apart[k] = np.square(moved - moved[at]).sum(axis=-1)
    noise_j = energy_j * noise[1][:, None]
    noise2 = (price_w * time_s * noise[0][:, None]) ** 2 + noise_j**2
    settled = noise2 / np.maximum(looked, 1e-9)
    behind = np.where(finite, cost - cost[kernels, best][:, None], np.inf)
    open_ = np.minimum(apart, settled)
    learned = open_ / np.sqrt(np.maximum(open_ + noise2, 1e-300))
    gain = np.where(finite, expected_gain(np.where(finite, behind, 0.0), learned), 0.0)
    gain[kernels, best] = 0.0
    # Of two settings that are close, the one that is less sure is looked at.
    rival = gain.argmax(axis=1)
    unsure = alone[kernels, best] > alone[kernels, rival]
    gain[kernels, best] = np.where(unsure, gain[kernels, rival], 0.0)
    # The promise of energy, and that of time at its price.
    for q, worth_j, off in (
        (1, energy_j, noise_j),
        (0, price_w * time_s, price_w * time_s * noise[0][:, None]),
    ):
        promised = worth_j[kernels, planned] * (planned != table.baseline)
        gain[kernels, planned] += _surer(
            costs, q, promised, off[kernels, planned], looked[kernels, planned], planned
        )
    return gain


def _surer(
    costs: Costs, q: int, promised_j: Floats, noise_j: Floats, looked: Floats, planned: Ints
) -> Floats:
    """Return what one more look at each planned entry takes off a promise's error. Shape (K,).

    Args:
        q: 0 for the promise of time, 1 for that of energy.
        promised_j: What is promised of each kernel, in J. Shape (K,).
        noise_j: Standard deviation of a look. Shape (K,).
        looked: How often each was looked at. Shape (K,).
    """
    own = promised_j[:, None] * costs.moves[q, np.arange(len(planned)), planned, costs.shared :]
    known, noise2 = np.square(own).sum(axis=-1), noise_j**2
    # Of what each kernel adds to the variance, what many looks did not settle one more will not.
    open_ = np.minimum(known, noise2 / np.maximum(looked, 1e-9))
    less = open_**2 / np.maximum(open_ + noise2, 1e-300)
    total = math.sqrt(float(known.sum()))
    surer: Floats = _FOR_PROMISE * (total - np.sqrt(np.maximum(total**2 - less, 0.0)))
    return surer


def improvement_of_table(
    costs: Costs, known: CostTable, seen: Bools, measurable: Bools, budget: float
) -> Floats:
    """Return by how much each exact entry of a table is expected to better the plan in a budget.

    At a price λ no plan of known entries takes less than D(λ) = Σ min (E + λT) - λ·limit, and the
    best plan takes the greatest D (the gap of the knapsack apart). An entry that beats its kernel's
    best by g(λ) takes that from D, so it betters the plan by the least of max D - D(λ) + g(λ) over
    all λ; as expected, by no more than that with the mean of g. In J per step, shape (K, S).

    Args:
        known: Costs where entries are known; ``inf`` elsewhere. Settings are those of ``costs``.
        seen: Where they are. Shape (K, S).
        measurable: Which may be looked at. Shape (K, S).
    """
    table = costs.table
    open_ = measurable & ~seen & np.isfinite(table.time_s)
    time_s, energy_j = (np.where(open_, of, 0.0) for of in (table.time_s, table.energy_j))
    time2, energy2 = costs.variance(1.0, 0.0), costs.variance(0.0, 1.0)
    both = 0.5 * (costs.variance(1.0, 1.0) - time2 - energy2)
    seen_s, seen_j = (np.where(seen, of, 0.0) for of in (known.time_s, known.energy_j))
    limit_s = known.auto_time_s * (1.0 + budget)
    prices = [price_within(known.time_s, known.energy_j, limit_s)]
    prices += [share * known.auto_w for share in _PRICES]
    gains, bounds_j = [], []
    for price in prices:
        least = np.where(seen, seen_j + price * seen_s, np.inf).min(axis=1)
        cost = energy_j + price * time_s
        variance = (price * time_s) ** 2 * time2 + energy_j**2 * energy2
        variance += 2.0 * price * time_s * energy_j * both
        spread = np.sqrt(np.maximum(variance, 0.0))
        gains.append(expected_gain(cost - least[:, None], spread))
        bounds_j.append(float(least.sum()) - price * limit_s)
    short = max(bounds_j) - np.array(bounds_j)
    best: Floats = (np.array(gains) + short[:, None, None]).min(axis=0)
    return np.where(open_, best, 0.0)


def worth_of_rows(fit: Estimate, known: CostTable, budgets: Sequence[float]) -> Floats:
    """Say what further rows of a table without repeats are worth to plans, in J. Shape (K, S).

    Args:
        known: Costs of the rows that were looked at.
    """
    table = fit.costs.table
    columns = [table.settings.index(clocks) for clocks in known.settings]
    time_s, energy_j = np.full((2, *table.time_s.shape), np.inf)
    time_s[:, columns], energy_j[:, columns] = known.time_s, known.energy_j
    looked_at = dataclasses.replace(table, time_s=time_s, energy_j=energy_j)
    seen = np.isfinite(time_s)
    gains = np.zeros(time_s.shape)
    for budget in budgets:
        gains += improvement_of_table(fit.costs, looked_at, seen, fit.measurable, budget)
    return gains


def best_one_clock(table: CostTable, limit_s: float) -> Ints:
    """Return the one setting of all kernels that takes least energy within a time. Shape (K,)."""
    within = table.time_s.sum(axis=0) <= limit_s
    best = int(np.where(within, table.energy_j.sum(axis=0), np.inf).argmin())
    return np.full(len(table.kernels), best if within.any() else table.baseline)


# By which part of its energy a kernel is off at a setting where nothing ran: an A100's 2 to 6 %.
_UNVISITED = 0.03


def worth_of_visits(table: CostTable, planned: Ints, visited: Bools) -> tuple[Floats, float]:
    """Say what looks at planned entries are worth where hardly anything ran.

    The largest kernels of a setting say what all that are planned there take.

    Args:
        planned: Setting of each kernel. Shape (K,).
        visited: Where enough ran to plan a kernel. Shape (K, S).

    Returns:
        In J, (K, S); and how unsure the step's energy is without them, as a fraction.
    """
    at = np.arange(len(planned)), planned
    unknown = ~visited[at] & (planned != table.baseline)
    at_setting_j = (planned == planned[:, None]) * table.energy_j[at]
    gains = np.zeros(table.time_s.shape)
    part = _UNVISITED * table.energy_j[at] / at_setting_j.max(axis=1)
    gains[at] = np.where(unknown, part * at_setting_j.sum(axis=1), 0.0)
    return gains, _UNVISITED * float(table.energy_j[at][unknown].sum()) / table.auto_energy_j

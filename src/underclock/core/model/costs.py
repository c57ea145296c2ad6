"""What a choice of clocks costs, and how surely: expected costs, and joint errors of all entries.

Whatever is planned asks here: a choice, a schedule, an instruction of a job. Errors are the columns
of a factor (`posterior`): those that all kernels share add up over kernels before they are squared,
the rest after.

The clocks are chosen on expected costs and judged on the same errors. That is no winner's curse as
long as they are honest: expected costs shrink every measurement towards what all the rest say.

A step that draws more is held lower at auto, while a lock below the cap stays where it is: so how
much slower a plan is differs from draw to draw, even where all kernels take the same at one clock,
and to one side more than to the other. `DrawnCosts` works out what the cap makes of each draw.

Shape letters: K kernels, S settings with the baseline last, E columns of errors, n launches, D
draws; a leading 2 is time and energy.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from scipy.special import ndtri

from underclock.arrays import Floats, Ints
from underclock.core.step.cost_table import CostTable, share_of_sum
from underclock.core.step.power_cap import LaunchCosts, settled_sums
from underclock.core.step.power_capped_step import cap_of, step_cost_and_heat


@dataclass(frozen=True, slots=True)
class DrawnCosts:
    """Draws of the costs of a step's launches, from the joint errors of the costs."""

    launches: tuple[LaunchCosts, ...]  # what launches cost in each draw. Length D
    auto: Floats  # what the step takes there at auto: time in s, energy in J, (D, 2)
    expected: Floats  # the same as expected, not drawn, (2,)

    @classmethod
    def of(cls, table: CostTable, off: Floats) -> Self:
        """Draw them.

        Args:
            table: Expected costs; auto is its last setting.
            off: By how much logarithms of time and power of kernels at locked settings are off
                those expected. Shape (D, 2, K, S - 1).
        """
        known, each = table.launches, []
        for time, power in off:
            time_s, energy_j = known.time_s.copy(), known.energy_j.copy()
            time_s[:, :-1] *= np.exp(time)
            energy_j[:, :-1] *= np.exp(time + power)
            each.append(dataclasses.replace(known, time_s=time_s, energy_j=energy_j))
        cap = cap_of(table)
        boosted = np.full(len(cap.order), cap.boost)
        (expected,) = settled_sums(cap, [known], boosted)
        return cls(tuple(each), settled_sums(cap, each, boosted), expected)

    def changes(self, table: CostTable, choice: Ints) -> Floats:
        """Return what a schedule changes in each draw: time and energy. Shape (D, 2).

        Args:
            choice: Setting of each launch; the baseline asks for boost. Shape (n,).
        """
        return _changes(table, choice, self.launches, self.auto)

    def away(self, table: CostTable, choice: Ints) -> Floats:
        """Return how far what a schedule changes is from what it is expected to. Shape (D, 2).

        Args:
            choice: Setting of each launch. Shape (n,).
        """
        return self.changes(table, choice) - _changes(
            table, choice, [table.launches], self.expected
        )


def _changes(table: CostTable, choice: Ints, boards: Sequence[LaunchCosts], auto: Floats) -> Floats:
    """Return what a schedule changes on boards, against what auto takes there. Shape (B, 2)."""
    cap = cap_of(table)
    asked = np.where(choice == table.baseline, cap.boost, choice)
    changes: Floats = settled_sums(cap, boards, asked) / auto - 1.0
    return changes


ONE_SIDED = 1.645  # 95 % of a normal distribution lies below this many deviations
TWO_SIDED = 1.960  # and within this many
WITHIN = (0.025, 0.975)
STANDARD = ndtri((np.arange(64) + 0.5) / 64)  # a normal distribution in equal parts
OF_HEAT = 0.2  # relative error of what heat adds: 8 °C of ambient, against 40 above it
_SURE = 0.95

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedChange:
    """Expected changes against auto, as fractions, and their standard deviations."""

    time_change: float
    energy_change: float
    time_spread: float
    energy_spread: float
    # the 95 % intervals about the changes of time and energy, where draws differ more to one side;
    # then deviations are those of a normal distribution with as much beyond 95 %
    uneven: tuple[Interval, Interval] | None = None

    @property
    def intervals(self) -> tuple[Interval, Interval]:
        """The 95 % intervals about the changes of time and energy."""
        if self.uneven is not None:
            return self.uneven
        time, energy = TWO_SIDED * self.time_spread, TWO_SIDED * self.energy_spread
        return (-time, time), (-energy, energy)

    def among(self, away: Floats) -> "PredictedChange":
        """Combine these deviations with draws of the costs.

        Args:
            away: How far changes of time and energy in draws are from those expected. Shape (D, 2).
        """
        known = np.array([self.time_spread, self.energy_spread])
        each = (away + known * STANDARD[:, None, None]).reshape(-1, 2)
        low, high = np.quantile(each, WITHIN, axis=0)
        intervals = tuple(zip(low.tolist(), high.tolist(), strict=True))
        return dataclasses.replace(
            self,
            time_spread=max(0.0, float(np.quantile(each[:, 0], _SURE))) / ONE_SIDED,
            energy_spread=float(np.abs([low, high])[:, 1].max()) / TWO_SIDED,
            uneven=(intervals[0], intervals[1]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeVariance:
    """The variance of a choice's change of time, as a sum over its kernels.

    Exact of the choice that it was made around, and of no other greater than it is there, but for
    what hardly moves: how much of auto the choice leaves as it is. What kernels share makes the
    variance a square of a sum; a tangent stands for it.
    """

    rest: float
    # what each kernel at each setting adds; negative where an error makes up for another's, (K, S)
    of_entries: Floats


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a step with the errors of all entries together."""

    table: CostTable  # expected costs; the baseline is its last setting
    moves: Floats  # columns of errors of log time and log energy, (2, K, S, E)
    shared: int  # how many of the columns all kernels share
    # how sure the step at auto is as a whole, where that was measured: deviations of time and
    # energy, as fractions. Then what one kernel has more of it another has less. ``None`` where
    # auto is the sum of its kernels
    auto_spread: tuple[float, float] | None = None
    # by how much more than errors of kernels the model misses the step at auto, as fractions: time,
    # energy
    step_error: tuple[float, float] = (0.0, 0.0)
    # the same of schedules that the cap lets be, where the step ran at a lock
    locked_error: tuple[float, float] | None = None
    # what the step takes in draws, each held by the cap, where auto is expected too
    boards: DrawnCosts | None = None
    # deviations of log time and log energy that all kernels at one locked setting have in common,
    # besides; 0 at the baseline, (2, S); ``None`` where there are none
    of_setting: Floats | None = None

    def variance(self, of_time: float, of_energy: float) -> Floats:
        """Return the variance of a weighed sum of each entry's logarithms. Shape (K, S).

        What settings have in common (`of_setting`) is not in it.
        """
        moved = of_time * self.moves[0] + of_energy * self.moves[1]
        variance: Floats = np.einsum("kse,kse->ks", moved, moved)
        return variance

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice is expected to change.

        Args:
            setting: Index into the table's settings, of each kernel. Shape (K,).
        """
        if self.table.power_cap is not None:
            return self.predicted_schedule(setting[self.table.power_cap.order])
        chosen = _Chosen(np.arange(len(setting)), setting, np.ones(len(setting)))
        (time, time_spread), (energy, energy_spread) = (self._change(q, chosen) for q in (0, 1))
        return PredictedChange(
            time_change=time,
            energy_change=energy,
            time_spread=time_spread,
            energy_spread=energy_spread,
        )

    def predicted_schedule(self, choice: Ints) -> PredictedChange:
        """Say what a schedule is expected to change, changes of clocks apart.

        Args:
            choice: Index into the table's settings, of each launch. Shape (n,).
        """
        cost, added, is_held = step_cost_and_heat(self.table, choice)
        at_auto = bool((choice == self.table.baseline).all())
        time, energy = (0.0, 0.0) if at_auto else self.step_error
        if self.locked_error is not None and not is_held:
            time, energy = self.locked_error
        spreads = [0.0, 0.0]
        if self.boards is None:
            each = np.zeros(self.table.time_s.shape)
            np.add.at(each, (cap_of(self.table).order, choice), 1.0)
            each /= np.array([kernel.count for kernel in self.table.kernels])[:, None]
            kernels, settings = np.nonzero(each)
            chosen = _Chosen(kernels, settings, each[kernels, settings])
            spreads = [self._change(q, chosen)[1] for q in (0, 1)]
        change = PredictedChange(
            time_change=cost.time_change,
            energy_change=cost.energy_change,
            time_spread=math.hypot(spreads[0], (1.0 + cost.time_change) * time),
            # What heat adds is as unsure as the ambient temperature is against the step's own.
            energy_spread=math.hypot(
                spreads[1], (1.0 + cost.energy_change) * energy, OF_HEAT * added
            ),
        )
        if self.boards is None or at_auto:
            return change
        return change.among(self.boards.away(self.table, choice))

    def change_spread(self, chosen: Floats, auto: Floats) -> tuple[float, float]:
        """Return how sure a ratio of sums is: deviations of its logarithm, of time and of energy.

        Errors that both sums have, of a kernel's level say, are not in it.

        Args:
            chosen: Launches of each kernel at each of the table's settings. Shape (K, S).
            auto: The same of what is compared with. Shape (K, S).
        """
        each, spreads = self.table.launches, []
        for q, costs in enumerate((each.time_s, each.energy_j)):
            of = share_of_sum(chosen, costs) - share_of_sum(auto, costs)
            kernels, settings = np.nonzero(of)
            variance = self._squares(self._sums(q, kernels, settings, of[kernels, settings]))
            if self.of_setting is not None:
                variance += float(((self.of_setting[q] * of.sum(axis=0)) ** 2).sum())
            spreads.append(math.sqrt(variance))
        return spreads[0], spreads[1]

    def time_variance(self, setting: Ints) -> TimeVariance | None:
        """Share the variance of a choice's change of time out among kernels.

        ``None`` where auto is expected too: what a kernel adds then depends on all the rest.
        """
        if self.boards is not None:
            return None
        table, every = self.table, np.arange(len(setting))
        here, factor = self._moved(0, _Chosen(every, setting, np.ones(len(setting))))
        parts = np.where(np.isfinite(table.time_s), table.time_s, 0.0) / table.auto_time_s
        auto = factor * parts[:, [table.baseline]]
        # Kernel by kernel: a setting's own error less that of auto, which it is compared with.
        own, to_auto = self._own_times
        of_auto = auto**2 * own[:, [table.baseline]]
        moves = parts * (self.moves[0, ..., : self.shared] @ here[:, : self.shared].sum(axis=0))
        if self.auto_spread is None:
            of_entries = parts**2 * own - 2.0 * parts * auto * to_auto + of_auto
            of_entries += 2.0 * (moves - factor * moves[:, [table.baseline]])
        else:
            locked = np.arange(len(table.settings)) != table.baseline
            kept = parts[:, [table.baseline]] ** 2 * own[:, [table.baseline]]
            of_locked = parts**2 * own + of_auto + 2.0 * moves
            of_entries = np.where(locked, of_locked, (1.0 - factor) ** 2 * kept)
        if self.of_setting is not None:
            alike = np.bincount(setting, parts[every, setting], parts.shape[1])
            of_entries = of_entries + self.of_setting[0] ** 2 * parts * (2.0 * alike + parts)
        change = self.predicted_change(setting)
        return TimeVariance(
            rest=change.time_spread**2 - math.fsum(of_entries[every, setting]),
            of_entries=of_entries,
        )

    @functools.cached_property
    def _own_times(self) -> tuple[Floats, Floats]:
        """Variance of what log times are off by themselves, and covariance with auto's. (K, S)."""
        own = self.moves[0, ..., self.shared :]
        auto = own[:, self.table.baseline]
        return np.einsum("kse,kse->ks", own, own), np.einsum("kse,ke->ks", own, auto)

    def hangs_on(self, setting: Ints) -> Floats:
        """Return the variance of energy saved that errors of each kernel alone make. Shape (K,)."""
        chosen = _Chosen(np.arange(len(setting)), setting, np.ones(len(setting)))
        variance: Floats = (self._moved(1, chosen)[0] ** 2).sum(axis=1)
        return variance

    def _change(self, q: int, chosen: "_Chosen") -> tuple[float, float]:
        """Return an expected change, cap apart, and its standard deviation."""
        costs = (self.table.time_s, self.table.energy_j)[q]
        total = math.fsum(costs[:, self.table.baseline])
        change = chosen.sum_of(costs) / total - 1.0
        variance = self._squares(self._moved(q, chosen)[0])
        if self.of_setting is not None:
            shares = np.bincount(chosen.settings, self._own(q, chosen), costs.shape[1])
            variance += float(((self.of_setting[q] * shares) ** 2).sum())
        if self.auto_spread is not None:
            # What a choice keeps of auto is that part of it, however long the step takes.
            locked = change + 1.0 - self._kept(q, chosen)
            variance += (locked * self.auto_spread[q]) ** 2
        return change, math.sqrt(variance)

    def _own(self, q: int, chosen: "_Chosen") -> Floats:
        """Return what each chosen entry is of auto's sum, but for what no clock changes."""
        costs = (self.table.time_s, self.table.energy_j)[q]
        own = costs[chosen.kernels, chosen.settings]
        if q:
            own = own - self.table.fixed_j[chosen.kernels]
        each: Floats = chosen.weights * (own / math.fsum(costs[:, self.table.baseline]))
        return each

    def _kept(self, q: int, chosen: "_Chosen") -> float:
        """Return which part of auto a choice keeps: what stays at auto, and what none changes."""
        table = self.table
        costs = (table.time_s, table.energy_j)[q][:, table.baseline]
        is_auto = chosen.settings == table.baseline
        stays = np.zeros(len(costs))
        stays[chosen.kernels[is_auto]] = chosen.weights[is_auto]
        fixed = (1.0 - stays) * table.fixed_j if q else np.zeros_like(costs)
        return (math.fsum(stays * costs) + math.fsum(fixed)) / math.fsum(costs)

    def _moved(self, q: int, chosen: "_Chosen") -> tuple[Floats, float]:
        """Return how a change moves with each kernel's errors, (K, E), and auto's factor in it."""
        table = self.table
        costs = (table.time_s, table.energy_j)[q]
        auto = costs[:, table.baseline]
        moved = self._sums(q, chosen.kernels, chosen.settings, self._own(q, chosen))
        if self.auto_spread is None:
            factor = chosen.sum_of(costs) / math.fsum(auto)
        else:
            # The parts add up to the whole step: an error of one is an opposite one of the rest.
            factor = self._kept(q, chosen)
        share = (auto - (table.fixed_j if q else 0.0)) / math.fsum(auto)
        return moved - factor * share[:, None] * self.moves[q, :, table.baseline], factor

    def _sums(self, q: int, kernels: Ints, settings: Ints, weights: Floats) -> Floats:
        """Return sums of each kernel's columns, weighed by entry. Shape (K, E)."""
        sums = np.zeros(self.moves.shape[1::2])
        np.add.at(sums, kernels, weights[:, None] * self.moves[q, kernels, settings])
        return sums

    def _squares(self, moved: Floats) -> float:
        """Return the variance of a sum over kernels that moves so. Shape (K, E)."""
        shared = moved[:, : self.shared].sum(axis=0)
        return float(shared @ shared + (moved[:, self.shared :] ** 2).sum())


class _Chosen(NamedTuple):
    """Which entries of a table are chosen, and which part of a kernel's launches runs at each."""

    kernels: Ints  # (N,)
    settings: Ints  # (N,)
    weights: Floats  # (N,)

    def sum_of(self, costs: Floats) -> float:
        """Return what they cost together."""
        return math.fsum(self.weights * costs[self.kernels, self.settings])

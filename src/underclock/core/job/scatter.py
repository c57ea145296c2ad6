"""Boards that differ and times that are not known exactly: what a choice comes to in many draws.

A board is slower or faster than its model by one factor, whatever it runs; a row's time and energy
are off by one error each, for all equal instructions. Auto and a plan are looked at in the same
draws. The longest path of a draw is that draw's, so the mean iteration is longer than the iteration
of means. A slower board is taken to need the energy that it needs anyway, and others wait for it.

The budget holds where a draw's iteration is as fast as auto's in that draw, or slower by no more
than the budget; it has to in the stated share of draws, and in two deviations more of what as many
other draws may differ by.

Shape letters: n instructions, P pairs of rank and profile, R rows, D draws.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.job.tables import Choice, JobTable, Taken, taken, total
from underclock.records.choices import Arm, Cost, Status, Strategy

_SEED = 28
_DRAWS, _FEWEST = 400, 200
_CELLS = 4_000_000  # instructions times draws
_ROUNDING = 1e-9  # of a time
_DEVIATIONS = 2.0
_LEAST = 0.1  # of a time: no draw is faster than so
_QUANTILES = 0.025, 0.975


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Draws of a job.

    Attributes:
        table: Of all ranks; of one of each kind where nothing scatters.
        stands: The planned instruction that stands for each of the table. Shape (n,).
        auto: What runs where nothing is set.
        board_spread: Standard deviation of boards' speed, as a fraction.
        latency_s: How late changes of clocks come.
    """

    table: JobTable
    stands: Ints
    auto: Choice
    board_spread: float
    latency_s: float
    _known: dict[Choice, tuple[Floats, Floats]] = field(default_factory=dict)

    @cached_property
    def certain(self) -> bool:
        """Whether nothing scatters."""
        return not scatters(self.table, self.board_spread)

    @cached_property
    def _draws(self) -> tuple[Floats, Floats, Floats]:
        """Factor of each rank, (D, ranks); deviations of each row, (D, profiles, R)."""
        table, rng = self.table, np.random.default_rng(_SEED)
        count = max(_FEWEST, min(_DRAWS, _CELLS // len(table.pair)))
        normal = rng.standard_normal((count, len(table.rank_weight)))
        shape = 2, count, int(self._profile.max()) + 1, table.time_s.shape[1]
        time, energy = rng.standard_normal(shape)
        return 1.0 + self.board_spread * normal, time, energy

    @cached_property
    def _profile(self) -> Ints:
        """Number of each pair's profile: ranks with one profile share its errors. Shape (P,)."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(name, len(numbers)) for _, name in self.table.pairs])

    def drawn(self, choice: Choice) -> tuple[Floats, Floats]:
        """Return time in s and energy in J of an iteration in each draw. Shapes (D,)."""
        if choice not in self._known:
            self._known[choice] = self._drawn(choice.spread(self.stands))
        return self._known[choice]

    def _drawn(self, choice: Choice) -> tuple[Floats, Floats]:
        table, each = self.table, taken(self.table, choice, self.latency_s)
        if self.certain:
            time_s, energy_j = total(table, each)
            return time_s[None], energy_j[None]
        board, time, energy = self._draws
        at = table.planned
        pair, profile = table.pair[at], self._profile[table.pair[at]]
        time_s = np.repeat(each.time_s[None], len(board), axis=0)
        energy_j = np.repeat(each.energy_j[None], len(board), axis=0)
        share = choice.share[at]
        for row, part in ((choice.row[at], share), (choice.then[at], 1.0 - share)):
            time_s[:, at] += part * table.time_error_s[pair, row] * time[:, profile, row]
            energy_j[:, at] += part * table.energy_error_j[pair, row] * energy[:, profile, row]
        time_s[:, at] *= board[:, table.network.rank[at]]
        time_s = np.maximum(time_s, _LEAST * each.time_s)
        return total(table, Taken(time_s=time_s, energy_j=energy_j, wait_w=each.wait_w))

    def keeps(self, choice: Choice, max_slowdown: float, confidence: float) -> bool:
        """Whether a choice keeps a budget in enough draws."""
        slower = self.drawn(choice)[0] / self.drawn(self.auto)[0] - 1.0
        kept = float((slower <= max_slowdown + _ROUNDING).mean())
        aside = _DEVIATIONS * math.sqrt(confidence * (1.0 - confidence) / len(slower))
        return kept >= min(confidence + aside, 1.0)

    def cost(self, choice: Choice) -> Cost:
        """Return what a choice costs in the mean of draws, against auto's mean."""
        time_s, energy_j = (float(each.mean()) for each in self.drawn(choice))
        auto_s, auto_j = (float(each.mean()) for each in self.drawn(self.auto))
        return Cost(
            time_s=time_s,
            energy_j=energy_j,
            time_change=time_s / auto_s - 1.0,
            energy_change=energy_j / auto_j - 1.0,
        )

    def arm(self, name: Strategy, choice: Choice, status: Status, gap: float | None) -> Arm:
        """Return an arm with what it promises, and the intervals of draws."""
        cost = self.cost(choice)
        arm = Arm.of(name, cost, status, gap)
        if self.certain or status is Status.BASELINE:
            return arm
        means = cost.time_change, cost.energy_change
        intervals = []
        for mean, ours, auto in zip(means, self.drawn(choice), self.drawn(self.auto), strict=True):
            low, high = np.quantile(ours / auto - 1.0, _QUANTILES).tolist()
            intervals.append((min(low, mean), max(high, mean)))
        return msgspec.structs.replace(
            arm, time_interval=intervals[0], energy_interval=intervals[1]
        )


def scatters(table: JobTable, board_spread: float) -> bool:
    """Whether boards differ, or a row has an error."""
    errors = np.where(np.isfinite(table.time_s), table.time_error_s + table.energy_error_j, 0.0)
    return board_spread > 0.0 or bool(errors.any())


def criticality(table: JobTable, auto: Choice) -> Floats:
    """Return how much of auto's longest path each rank is, the most of them 1. Shape (ranks,)."""
    network, time_s = table.network, taken(table, auto).time_s
    path = np.zeros(len(network.waits), dtype=bool)
    path[network.longest_path(time_s)] = True
    on_s = np.bincount(network.rank, np.where(path[network.activity], time_s, 0.0))
    share: Floats = on_s / on_s.max()
    return share


def deviations(table: JobTable, auto: Choice, board_spread: float) -> Floats:
    """Return by what part rows may be slower than auto is, for one deviation. Shape (P, R).

    What both share does not count: auto itself, and the boards of ranks that are critical at auto.
    """
    rank = np.array([of for of, _ in table.pairs])
    apart = board_spread * math.sqrt(2.0) * (1.0 - criticality(table, auto))[rank]
    with np.errstate(invalid="ignore"):
        error = table.time_error_s / table.time_s
    own = np.take_along_axis(error, table.auto[:, None], axis=1)
    deviation = np.sqrt(apart[:, None] ** 2 + error**2 + own**2)
    np.put_along_axis(deviation, table.auto[:, None], 0.0, axis=1)
    return np.where(np.isfinite(table.time_s), deviation, 0.0)

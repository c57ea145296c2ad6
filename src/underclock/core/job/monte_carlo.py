"""Boards that differ and times that are not known exactly: what a choice comes to in many draws.

A board is slower or faster than its model by one factor, whatever it runs; a row's time and energy
are off by one error each, for all equal instructions. Auto and a plan are looked at in the same
draws. The longest path of a draw is that draw's, so the mean iteration is longer than the iteration
of means. A slower board is assumed to need the same energy, and the other boards wait for it.

The budget holds where a draw's iteration is as fast as auto's in that draw, or slower by no more
than the budget; it has to in the stated share of draws, and in two deviations more of what as many
other draws may differ by.

Shape letters: n instructions, P pairs of rank and profile, R rows, D draws.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.job.tables import JobTable, RowChoice, taken, total
from underclock.records.choices import Arm, Cost, Status, Strategy

_DRAWS, _FEWEST = 400, 200
_CELLS = 4_000_000  # instructions times draws
_ROUNDING = 1e-9  # of a time
_DEVIATIONS = 2.0
_LEAST = 0.1  # of a time: no draw is faster than so
_SHARES = 4  # rounds in which reserve is given out, so that the first do not take it all
_QUANTILES = 0.025, 0.975


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Draws of a job."""

    table: JobTable  # of all ranks; of one of each kind where nothing scatters
    stands: Ints  # the planned instruction that stands for each of the table, (n,)
    auto: RowChoice  # what runs where nothing is set
    board_spread: float  # standard deviation of boards' speed, as a fraction
    latency_s: float  # how late changes of clocks come
    seed: int = 28  # of the draws
    _known: dict[RowChoice, tuple[Floats, Floats]] = field(default_factory=dict)

    @cached_property
    def certain(self) -> bool:
        """Whether nothing scatters."""
        return not scatters(self.table, self.board_spread)

    @cached_property
    def _draws(self) -> tuple[Floats, Floats, Floats]:
        """Factor of each rank, (D, ranks); deviations of each row, (D, profiles, R)."""
        table, rng = self.table, np.random.default_rng(self.seed)
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

    def drawn(self, choice: RowChoice) -> tuple[Floats, Floats]:
        """Return time in s and energy in J of an iteration in each draw. Shapes (D,)."""
        if choice in self._known:
            return self._known[choice]
        known, choice = choice, choice.spread(self.stands)
        table, each = self.table, taken(self.table, choice, self.latency_s)
        if self.certain:
            time_s, energy_j = total(table, each)
            self._known[known] = time_s[None], energy_j[None]
            return self._known[known]
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
        self._known[known] = total(table, each._replace(time_s=time_s, energy_j=energy_j))
        return self._known[known]

    def over(self, choice: RowChoice, max_slowdown: float, confidence: float) -> float:
        """Return by how much of auto's time a choice overruns a budget; 0 or less if it keeps it.

        Of as many draws as have to keep it, in the worst.
        """
        slower = np.sort(self.drawn(choice)[0] / self.drawn(self.auto)[0]) - 1.0
        aside = _DEVIATIONS * math.sqrt(confidence * (1.0 - confidence) / len(slower))
        kept = min(math.ceil((confidence + aside) * len(slower)), len(slower))
        over = float(slower[kept - 1]) - max_slowdown
        return 0.0 if abs(over) <= _ROUNDING else over

    def cost(self, choice: RowChoice) -> Cost:
        """Return what a choice costs in the mean of draws, against auto's mean."""
        time_s, energy_j = (float(each.mean()) for each in self.drawn(choice))
        auto_s, auto_j = (float(each.mean()) for each in self.drawn(self.auto))
        return Cost(
            time_s=time_s,
            energy_j=energy_j,
            time_change=time_s / auto_s - 1.0,
            energy_change=energy_j / auto_j - 1.0,
        )

    def arm(self, name: Strategy, choice: RowChoice, status: Status, gap: float | None) -> Arm:
        """Return an arm with what it promises, and the intervals of draws."""
        cost = self.cost(choice)
        arm = Arm(name, cost, status, gap)
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


def reserved(table: JobTable, auto: RowChoice, part: float, scale: float) -> JobTable:
    """Return a job where planned instructions are followed by room to be longer.

    A part of what each takes at auto, or as much less as keeps auto's time: what is critical at
    auto has none, for where it is late auto is as late.

    Args:
        auto: What runs where nothing is set.
        part: Of auto's time of planned instructions.
        scale: By which all room is multiplied in the end.
    """
    network, auto_s = table.network, taken(table, auto).time_s
    planned = np.zeros(len(network.waits), dtype=bool)
    planned[network.activity[table.planned]] = True
    taken_s, budget_s = network.taken_s(auto_s), float(network.iteration_s(auto_s))
    wanted_s, longer_s = np.where(planned, part * taken_s / _SHARES, 0.0), taken_s.copy()
    for _ in range(_SHARES):
        due_s, ends_s = network.due_s(longer_s, budget_s), np.zeros(len(taken_s))
        for at in network.order:
            begin_s = max((ends_s[on] + lag_s for on, lag_s in network.waits[at]), default=0.0)
            room_s = max(due_s[at] - begin_s - longer_s[at], 0.0)
            longer_s[at] += min(wanted_s[at], room_s)
            ends_s[at] = begin_s + longer_s[at]
    room_s = scale * (longer_s - taken_s)
    waits = tuple(
        tuple((on, lag_s + float(room_s[on])) for on, lag_s in each) for each in network.waits
    )
    return replace(table, network=replace(network, waits=waits))

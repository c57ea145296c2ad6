"""The order in which a search decides groups, and the moves that each may make.

Shape letters: G groups, S settings, J stages, I moves of one group, M multipliers.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.knapsack.labels import Origins
from underclock.core.knapsack.problem import Quanta


@dataclass(frozen=True, slots=True)
class Stages:
    """The groups that may move, by how much time they can move, and their moves, end to end.

    Attributes:
        group: Shape (J,).
        first: Where a stage's moves begin; one more than there are stages. Shape (J + 1,).
        setting: Shape (sum of I,).
        time: Relative to the base. Shape (sum of I,).
        energy: Relative to the base. Shape (sum of I,).
    """

    group: Ints
    first: Ints
    setting: Ints
    time: Ints
    energy: Ints

    @classmethod
    def of(cls, quanta: Quanta, base: Ints, live: Bools) -> "Stages":
        """Lay out the moves of every group that has more than to stay."""
        group = np.flatnonzero(live.sum(axis=1) > 1)
        stay = base[group]
        time = quanta.time[group] - quanta.time[group, stay][:, None]
        energy = quanta.energy[group] - quanta.energy[group, stay][:, None]
        allowed = live[group]
        order = np.argsort(-np.where(allowed, np.abs(time), 0).max(axis=1), kind="stable")
        allowed = allowed[order]
        row, setting = np.nonzero(allowed)
        return cls(
            group[order],
            np.concatenate(([0], np.cumsum(allowed.sum(axis=1)))),
            setting,
            time[order[row], setting],
            energy[order[row], setting],
        )

    def moves(self, j: int) -> tuple[Ints, Ints]:
        """Return time and energy of a stage's moves. Shapes (I,)."""
        part = slice(self.first[j], self.first[j + 1])
        return self.time[part], self.energy[part]

    def ahead(self, rates: Floats) -> tuple[Floats, Ints]:
        """Return what the stages from each on can at best contribute.

        Returns:
            Least Lagrangian cost at each multiplier, and least time. Shapes (J + 1, M), (J + 1,).
        """
        cost_ahead = np.zeros((len(self.first), len(rates)))
        time = np.zeros(len(self.first), dtype=np.int64)
        if len(self.group):
            cost = self.energy[:, None] + self.time[:, None] * rates
            cost_ahead[:-1] = np.minimum.reduceat(cost, self.first[:-1])
            time[:-1] = np.minimum.reduceat(self.time, self.first[:-1])
        return cost_ahead[::-1].cumsum(axis=0)[::-1], time[::-1].cumsum()[::-1]

    def retrace(self, trail: list[Origins], last: int, which: int) -> dict[int, int]:
        """Follow a label back to the root, collecting its moves as setting by group."""
        moves: dict[int, int] = {}
        for j in range(last, -1, -1):
            move, which = divmod(int(trail[j][which]), len(trail[j - 1]) if j else 1)
            moves[int(self.group[j])] = int(self.setting[self.first[j] + move])
        return moves

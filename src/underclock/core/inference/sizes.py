"""How large the parts of a field are: as rows and repeats find likeliest."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Ints
from underclock.core.inference.curves import ClockGrid, Curves
from underclock.core.inference.field import Field, FieldRows, Sizes

# Usual sizes are those of `Sizes`; their logarithms lie so far around them (standard deviations).
_SPREADS = {
    "own": 0.5,
    "smooth": 1.0,
    "length": 0.4,
    "shared": 1.0,
    "row": 1.0,
    "run": 1.2,
    "free": 1.0,
}
_STEPS, _TURNS = (3.0, 1.7), 2  # factors tried of every size, and how often all of them
_GAIN = 0.01  # of the logarithm of the evidence, that is worth a move
_KERNELS, _ROWS = 64, 24  # of each, that sizes are learned from
_REPEATS = 3.0  # degrees of freedom, from which on repeats tell noise of runs from a row's own
_OF_ROW = 0.5  # where they do not: noise of a run, as a multiple of a row's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """How runs scatter within their rows.

    Attributes:
        squares: Sum of squares about the rows' means.
    """

    squares: float
    freedom: float

    def evidence(self, run: float) -> float:
        """Return the logarithm of how likely that scatter is."""
        return -self.freedom * math.log(run) - self.squares / (2.0 * run**2)


def likeliest(
    curves: Curves, grid: ClockGrid, rows: FieldRows, within: Within, start: Sizes | None = None
) -> Sizes:
    """Return the sizes that rows and repeats find likeliest.

    Args:
        start: Where to begin; by default where sizes usually are.
    """
    some = _some(rows)
    told = within.freedom > _REPEATS
    left_out = {*(() if grid.free.any() else ("free",)), *(() if told else ("run",))}
    names = [name for name in _SPREADS if name not in left_out]
    sizes = start or Sizes()
    if start is None and told:
        scatter = math.sqrt(within.squares / within.freedom)
        sizes = dataclasses.replace(sizes, run=max(scatter, 1e-6))

    def worth(at: Sizes) -> float:
        usual = Sizes()
        prior = sum(
            (math.log(getattr(at, name) / getattr(usual, name)) / spread) ** 2
            for name, spread in _SPREADS.items()
        )
        share = len(some.setting) / len(rows.setting)
        evidence = Field(curves, grid, some, at).evidence
        return evidence + share * within.evidence(at.run) - 0.5 * prior

    return _climbed(sizes, names, worth, tied=not told)


def _climbed(
    sizes: Sizes, names: list[str], worth: Callable[[Sizes], float], *, tied: bool
) -> Sizes:
    """Return sizes that no step of one of them makes likelier."""
    best = worth(sizes)
    moves = [(name, step) for step in _STEPS for _ in range(_TURNS) for name in names]
    for name, step in moves:
        for factor in (step, 1.0 / step):
            while True:
                moved = dataclasses.replace(sizes, **{name: factor * getattr(sizes, name)})
                if tied:
                    moved = dataclasses.replace(moved, run=_OF_ROW * moved.row)
                value = worth(moved)
                if value <= best + _GAIN:
                    break
                sizes, best = moved, value
    return sizes


def _some(rows: FieldRows) -> FieldRows:
    """Return some rows of some kernels, taken evenly from small to large in whatever order."""
    level = np.where(rows.real, rows.log, 0.0).sum(axis=1) / np.maximum(rows.real.sum(axis=1), 1)
    kernels = np.sort(np.argsort(level, kind="stable")[_evenly(len(level), _KERNELS)])
    columns = _evenly(rows.setting.shape[1], _ROWS)
    some = rows.of(kernels)
    some = FieldRows(
        setting=some.setting[:, columns], log=some.log[:, columns], runs=some.runs[:, columns]
    )
    told = np.flatnonzero(some.real.sum(axis=1) > 1)
    return some.of(told) if len(told) else rows


def _evenly(count: int, most: int) -> Ints:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))

"""Clocks learned in a running job, against the best there are. Fills docs/evidence/learning.md.

    OMP_NUM_THREADS=1 python studies/learning.py [--jobs 2] [--seeds 6]

The learner chooses, and a board's physics says what a block then takes and draws under its power
cap: simulated, by the same functions as the simulated GPUs, with noise. Pieces are the modules of
layers, as marks cut them; clocks change at once, and segments are as long as if that took 6 ms. A
block is two seconds of steps. Noise: 0.4 % of a block's energy, 0.3 % of a piece's time, heat that
drifts, 3 MHz of the clock read, and one block in a hundred up to 5 % longer. The learner sees
readings and nothing else.
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean
from typing import NamedTuple

import numpy as np

from pages import fill, markdown, percent
from underclock.arrays import Floats, Ints
from underclock.core.solvers import Effort, Problem, solve
from underclock.core.step.power_cap import LaunchCosts, PowerCap, SettledStep, settle, under_ceiling
from underclock.gpus.models import gpu_model
from underclock.learning.learner import Learner, LearningStage
from underclock.learning.pieces import merged_kinds
from underclock.learning.response import BlockReading
from underclock.physics.cap import SIMULATED
from underclock.physics.costs import boost_mhz, busy_w, duration_s
from underclock.records import Clocks, Kernel
from underclock.workloads import workload

GPUS = ("rtx3080ti", "a100", "a40", "h200")
MODELS = ("gpt3-125m", "gpt3-xl")
BUDGETS = (0.01, 0.03)
_LEAST_S, _MOST_SEGMENTS = 2.0 * 6e-3, 12
_BLOCK_S, _MOST_BLOCKS = 2.0, 700
_BIN_MHZ = 8.0  # that a clock read may be lower than asked for, where the cap does not hold it
_TEMPERATURE_C = 65.0
_SETTLES_S = 0.5  # with the block's own time
_ODD, _NEAR = 0.01, 0.001  # of blocks; of energy: clocks are as good as others
_MODULES = {
    "attn": ("permute", "bgemm", "softmax"),
    **{name: (name,) for name in ("qkv", "attproj", "fcproj", "gelu", "fc")},
}
"""Modules of a layer, by words in their kernels' names; the rest is of none."""


class Board:
    """A step on a board, by its physics.

    Attributes:
        core_mhz: That the board lists up to its boost; the last is what auto asks for.
        kinds: Of each piece, its pass and module.
    """

    def __init__(self, gpu: str, model: str) -> None:
        board, step = gpu_model(gpu), workload(model)
        boost = boost_mhz(board.constants, _TEMPERATURE_C)
        self.core_mhz = [m for m in board.core_mhz if 0.5 * boost <= m <= boost + 1]
        core = np.array(self.core_mhz, dtype=float)
        mem = np.full(len(core), float(board.mem_mhz[-1]))
        costs = [(board.constants, board.kernel(kernel), core, mem) for kernel in step.kernels]
        times = np.array([duration_s(*each) for each in costs])
        powers = np.array([busy_w(*each, _TEMPERATURE_C) for each in costs])
        order = np.array(step.order)
        settings = tuple(Clocks(core_mhz=mhz) for mhz in self.core_mhz)
        self._launches = LaunchCosts(settings=settings, time_s=times, energy_j=times * powers)
        self._cap = PowerCap(
            limit_w=board.limit_w[0], order=order, boost=len(core) - 1, fading=SIMULATED
        )
        cut = itertools.groupby((step.kernels[at].pass_, _module(step.kernels[at])) for at in order)
        self.kinds, lengths = zip(*((kind, len([*some])) for kind, some in cut), strict=True)
        self.piece = np.repeat(np.arange(len(lengths)), lengths)
        self.auto = self.run(np.full(len(lengths), len(core) - 1))

    def run(self, pieces: Ints) -> SettledStep:
        """Return how a step runs with a clock for each piece, as an index of `core_mhz`."""
        return settle(self._cap, self._launches, pieces[self.piece])

    def change(self, pieces: Ints) -> tuple[float, float]:
        """Return time and energy against auto, as fractions."""
        now, auto = self.run(pieces), self.auto
        time, energy = (
            now.time_s.sum() / auto.time_s.sum(),
            now.energy_j.sum() / auto.energy_j.sum(),
        )
        return float(time - 1.0), float(energy - 1.0)

    def best_clock(self, budget: float) -> float:
        """Return the change of energy of the best clock for the step within a budget of time."""
        changes = (self.change(np.full(len(self.kinds), at)) for at in range(len(self.core_mhz)))
        return min(energy for time, energy in changes if time <= budget)

    def best_segments(self, budget: float) -> tuple[int, float]:
        """Return how many segments there are, and the change of energy of their best clocks.

        The knapsack knows no cap; where its clocks take longer under it, it gets a smaller budget.
        """
        lasts_s = np.bincount(self.piece, weights=self.auto.time_s)
        segment = np.array(merged_kinds(self.kinds, lasts_s.tolist(), _LEAST_S, _MOST_SEGMENTS))
        sums = np.zeros((2, segment.max() + 1, len(self.core_mhz)))
        for table, each in zip(sums, (self._launches.time_s, self._launches.energy_j), strict=True):
            np.add.at(table, segment[self.piece], each[self._cap.order])
        best, over, less = 0.0, math.inf, 0.0
        while over > 0.0:
            budget_s = self.auto.time_s.sum() * (1.0 + budget - less)
            problem = Problem(time_s=sums[0], energy_j=sums[1], budget_s=budget_s)
            time, best = self.change(solve(problem, Effort.QUICK).choice[segment])
            over = time - budget
            less += over
        return int(segment.max()) + 1, best


def _module(kernel: Kernel) -> str:
    return next((key for key, of in _MODULES.items() if any(w in kernel.name for w in of)), "")


class Learned(NamedTuple):
    """What came of one job; changes are true ones against auto, without noise."""

    energy: float
    time: float
    found_s: float  # until one clock within 0.1 points of the best one was held
    trial: tuple[float, float]  # interval of the change of energy
    took_s: float
    lost: float  # mean of time over auto while learning, as a fraction
    worst: float  # the same of the worst minute


def learned(gpu: str, model: str, budget: float, seed: int, *, same: bool = False) -> Learned:
    """Run a job until clocks are held; the ``same`` is all that any clock takes and draws."""
    board, random = Board(gpu, model), np.random.default_rng(seed)
    best_clock = board.best_clock(budget)
    learner = Learner(board.core_mhz, kinds=board.kinds, budget=budget, seed=seed)
    learner.least_s = _LEAST_S
    drift, now_s, blocks = 0.0, 0.0, list[tuple[float, float, float, bool]]()
    while learner.stage is not LearningStage.HELD and len(blocks) < _MOST_BLOCKS:
        is_auto, pieces = bool(learner.choice[0] < 0), _pieces(board, learner)
        runs = board.auto if same else board.run(pieces)
        drift = 0.98 * drift + random.normal(0.0, 0.002)
        odd = 1.0 + (0.05 * random.random() if random.random() < _ODD else 0.0)
        step_s = runs.time_s.sum()
        steps = math.ceil(_BLOCK_S / step_s)
        now_s += steps * step_s + _SETTLES_S
        blocks.append((now_s, *board.change(pieces), len({*pieces.tolist()}) == 1))
        seen_j = runs.energy_j.sum() * (1.0 + drift) * math.exp(random.normal(0.0, 0.004)) * odd
        times_s: Floats = np.bincount(board.piece, weights=runs.time_s).astype(np.float64)
        read_mhz = float(runs.core_mhz @ runs.time_s / step_s) + random.normal(0.0, 3.0)
        asked_mhz = np.array(board.core_mhz, dtype=float)[pieces]  # at auto the highest
        ran_mhz = under_ceiling(asked_mhz, times_s, read_mhz + (0.0 if is_auto else _BIN_MHZ))
        times_s *= np.exp(random.normal(0.0, 0.003, len(times_s))) * odd
        of = {"times_s": times_s, "energy_j": float(seen_j), "steps": steps}
        learner.ended(BlockReading(at_auto=is_auto, core_mhz=ran_mhz, **of))
    time, energy = board.change(_pieces(board, learner))
    near = (s for s, _, tried, one in blocks if one and tried <= best_clock + _NEAR)
    minutes = itertools.groupby(blocks, lambda block: int(block[0] // 60.0))
    saving = learner.saving
    return Learned(
        energy=energy,
        time=time,
        found_s=next(near, now_s),
        trial=(saving[0].interval if saving else None) or (-math.inf, math.inf),
        took_s=now_s,
        lost=fmean(lost for _, lost, *_ in blocks),
        worst=max(fmean(each[1] for each in some) for _, some in minutes),
    )


def _pieces(board: Board, learner: Learner) -> Ints:
    """Return the clock of each piece as an index of the board's."""
    choice = learner.choice[np.array(learner.segments)]
    mhz = [board.core_mhz[-1] if at < 0 else learner.core_mhz[at] for at in choice.tolist()]
    return np.searchsorted(board.core_mhz, mhz)


def rows(found: dict[tuple[str, str, float], list[Learned]]) -> Iterator[tuple[str, ...]]:
    """Yield the page's table: a line for each board, model and budget."""
    head = "GPU, model, budget|one clock|segments|best|learned|worst|time|one found in|ended in|"
    yield tuple(f"{head}time lost|inside".split("|"))
    for (gpu, model, budget), some in found.items():
        board, energies = Board(gpu, model), [each.energy for each in some]
        inside = sum(each.trial[0] <= each.energy <= each.trial[1] for each in some)
        count, best = board.best_segments(budget)
        yield (
            f"`sim:{gpu}`, {model}, {budget:.0%}",
            percent(board.best_clock(budget)),
            str(count),
            percent(best),
            percent(fmean(energies)),
            percent(max(energies)),
            percent(max(each.time for each in some)),
            f"{fmean(each.found_s for each in some):.0f} s",
            f"{fmean(each.took_s for each in some):.0f} s",
            f"{percent(fmean(e.lost for e in some))}, {percent(max(e.worst for e in some))}",
            f"{inside} of {len(some)}",
        )


def main() -> None:
    """Learn everywhere, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=6)
    given = parser.parse_args()
    cells = list(itertools.product(GPUS, MODELS, BUDGETS))
    with ProcessPoolExecutor(max_workers=given.jobs) as pool:
        jobs = {
            cell: [pool.submit(learned, *cell, seed) for seed in range(at, at + given.seeds)]
            for at, cell in zip(itertools.count(step=given.seeds), cells, strict=False)
        }
        same = [
            pool.submit(learned, "a100", "gpt3-125m", 0.01, seed, same=True) for seed in range(100)
        ]
        found = {cell: [job.result() for job in some] for cell, some in jobs.items()}
        claims = sum(job.result().trial[1] < 0.0 for job in same)
    ran = [each for some in found.values() for each in some]
    kept = sum(each.trial[0] <= each.energy <= each.trial[1] for each in ran if each.energy)
    held = sum(bool(each.energy) for each in ran)
    sums = (
        f"Of {held} trials of clocks that were held, {kept} hold the true saving in their 95 % "
        f"interval. Of 100 jobs in which no clock changes anything, {claims} seem to save."
    )
    repeats = f"{given.seeds} jobs a line."
    fill("learning", {"one": f"{markdown(rows(found))}\n\n{sums}"}, repeats=repeats)


if __name__ == "__main__":
    main()

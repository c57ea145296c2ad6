"""Clocks learned in a running job, against the best there are. Fills docs/evidence/learning.md.

    OMP_NUM_THREADS=1 python studies/learning.py [--seeds 6]

The learner chooses, and a board's physics says what a block then takes and draws under its power
cap: simulated, by the same functions as the simulated GPUs, with noise. Each job runs on boards of
its own, with levels of power over clock and speed lost at the cap. The page says what noise there
is. The learner sees readings and nothing else.
"""

import argparse
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from pages import fill, markdown, percent
from underclock.arrays import Floats, Ints
from underclock.core.solvers import Effort, Problem, solve
from underclock.core.step.power_cap import LaunchCosts, PowerCap, SettledStep, settle
from underclock.gpus.models import gpu_model
from underclock.hw.simulated.boards import Unit
from underclock.learning.learner import Learner, LearningStage
from underclock.learning.pieces import merged_kinds
from underclock.learning.response import BlockReading
from underclock.physics.cap import SIMULATED
from underclock.physics.costs import boost_mhz, busy_w, duration_s, idle_w
from underclock.records import Clocks, Kernel
from underclock.workloads import workload

GPUS = ("rtx3080ti", "a100", "a40", "h200")
MODELS = ("gpt3-125m", "gpt3-350m", "gpt3-xl")
BUDGETS = (0.01, 0.03)
LATENCIES_S = (0.006, 0.02, 0.1)
_MOST_SEGMENTS = 12
_BLOCK_S, _SETTLES_S, _MOST_BLOCKS = 2.0, 0.5, 700
_BIN_MHZ = 8.0  # that a clock read may be lower than asked for, where the cap does not hold it
_TEMPERATURE_C = 65.0
_ODD, _NEAR = 0.01, 0.001  # of blocks; of energy: clocks are as good as others
_EXACT, _TRIES = 1e-4, 12  # of time, about the budget; budgets that the knapsack gets
_TRIALS, _WANTED = 100, 0.9  # jobs a cell; of what the best clocks save
_SLOW = 1.04  # times as long as its neighbours the slow board of a job computes; assumed
_MODULES = {
    "attn": ("permute", "bgemm", "softmax"),
    **{name: (name,) for name in ("qkv", "attproj", "fcproj", "gelu", "fc")},
}
"""Modules of a layer, by words in their kernels' names; the rest is of none."""


@dataclass(frozen=True)
class Cell:
    """What is learned, and where."""

    gpu: str
    model: str
    budget: float = 0.01
    latency_s: float = 0.006
    busy: float = 1.0  # share of auto's step in which the GPU works; else it waits for the host
    gpus: int = 1  # of several one is slow, and the rest wait for it in their last piece
    scatter: float = 0.0  # of a step's time from step to step, as a fraction
    same: bool = False  # whether all clocks take and draw alike


class Board:
    """One board with its step: what each launch takes and draws at each clock, cap apart."""

    def __init__(self, cell: Cell, unit: int, slow: float) -> None:
        board, step = gpu_model(cell.gpu), workload(cell.model)
        made = Unit.of(board, unit)
        gpu, boost = made.constants(board.constants), boost_mhz(board.constants, _TEMPERATURE_C)
        self.core_mhz = [m for m in board.core_mhz if 0.5 * boost <= m <= boost + 1]
        core = np.array(self.core_mhz, dtype=float)
        mem = np.full(len(core), float(board.mem_mhz[-1]))
        at = np.searchsorted(board.core_mhz, self.core_mhz)
        costs = [(gpu, board.kernel(kernel), core, mem) for kernel in step.kernels]
        times = np.array([duration_s(*each) for each in costs]) * made.time[at] * slow
        powers = np.array([busy_w(*each, _TEMPERATURE_C) for each in costs]) * made.power[at]
        self.wait_w = idle_w(gpu, core, mem, _TEMPERATURE_C) * made.power[at]
        waits = np.maximum(times[:, -1:] / cell.busy - times, 0.0)
        settings = tuple(Clocks(core_mhz=mhz) for mhz in self.core_mhz)
        self.launches = LaunchCosts(
            settings=settings, time_s=times + waits, energy_j=times * powers + waits * self.wait_w
        )
        self.order, self._lost = np.array(step.order), made.lost
        self._cap = PowerCap(
            limit_w=board.limit_w[0], order=self.order, boost=len(core) - 1, fading=SIMULATED
        )

    def run(self, launches: Ints) -> SettledStep:
        """Return how a step runs, the clock of each launch given as an index of `core_mhz`."""
        step = settle(self._cap, self.launches, launches)
        asked_mhz = np.array(self.core_mhz)[launches]
        longer = 1.0 + self._lost * np.maximum(asked_mhz / step.core_mhz - 1.0, 0.0)
        return replace(step, time_s=step.time_s * longer, energy_j=step.energy_j * longer)


class Iteration(NamedTuple):
    """One step of all boards."""

    time_s: float  # until the slowest has ended
    pieces_s: Floats  # of that one
    energy_j: float
    read_mhz: float


class Job:
    """The boards of a job, which take the same clocks in the same steps."""

    def __init__(self, cell: Cell, seed: int) -> None:
        slow = [_SLOW if cell.gpus > 1 else 1.0, *[1.0] * (cell.gpus - 1)]
        units = range(1 + seed * cell.gpus, 1 + (seed + 1) * cell.gpus)
        self.boards = [Board(cell, *each) for each in zip(units, slow, strict=True)]
        self.core_mhz, order = self.boards[0].core_mhz, self.boards[0].order
        kernels = workload(cell.model).kernels
        cut = itertools.groupby((kernels[at].pass_, _module(kernels[at])) for at in order)
        self.kinds, lengths = zip(*((kind, len([*some])) for kind, some in cut), strict=True)
        self._piece, self._cell = np.repeat(np.arange(len(lengths)), lengths), cell
        self._known = dict[bytes, Iteration]()
        self.auto = self.run(np.full(len(lengths), len(self.core_mhz) - 1))

    def run(self, pieces: Ints) -> Iteration:
        """Return one step with a clock for each piece, as an index of `core_mhz`."""
        if self._cell.same and self._known:
            return self.auto
        if (known := self._known.get(pieces.tobytes())) is None:
            steps = [board.run(pieces[self._piece]) for board in self.boards]
            lasts_s = [float(step.time_s.sum()) for step in steps]
            slowest = steps[int(np.argmax(lasts_s))]
            energy_j = sum(
                float(step.energy_j.sum())
                + float(board.wait_w[pieces[-1]]) * (max(lasts_s) - own_s)
                for board, step, own_s in zip(self.boards, steps, lasts_s, strict=True)
            )
            read = [each.core_mhz @ each.time_s / each.time_s.sum() for each in steps]
            pieces_s = np.bincount(self._piece, weights=slowest.time_s).astype(np.float64)
            known = Iteration(max(lasts_s), pieces_s, energy_j, float(np.mean(read)))
            self._known[pieces.tobytes()] = known
        return known

    def change(self, pieces: Ints) -> tuple[float, float]:
        """Return time and energy against auto, as fractions."""
        now = self.run(pieces)
        return now.time_s / self.auto.time_s - 1.0, now.energy_j / self.auto.energy_j - 1.0

    def best_clock(self) -> float:
        """Return the change of energy of the best clock for the step within the budget of time."""
        changes = [self.change(np.full(len(self.kinds), at)) for at in range(len(self.core_mhz))]
        return min((energy for time, energy in changes if time <= self._cell.budget), default=0.0)

    def best_segments(self) -> float:
        """Return the change of energy of the best clocks of segments within the budget of time.

        The knapsack knows no cap; where its clocks take longer under it, it gets a smaller budget,
        and a greater one where a cap that is not reached gives time back.
        """
        lasts_s, cell = self.auto.pieces_s.tolist(), self._cell
        segment = np.array(merged_kinds(self.kinds, lasts_s, 2.0 * cell.latency_s, _MOST_SEGMENTS))
        sums = np.zeros((len(self.boards), 2, segment.max() + 1, len(self.core_mhz)))
        for table, board in zip(sums, self.boards, strict=True):
            for each, of in zip(
                table, (board.launches.time_s, board.launches.energy_j), strict=True
            ):
                np.add.at(each, segment[self._piece], of[board.order])
        time_s = sums[int(np.argmax(sums[:, 0, :, -1].sum(axis=1))), 0]
        energy_j = sums[:, 1].sum(axis=0)
        for table, board in zip(sums, self.boards, strict=True):
            energy_j += (time_s - table[0]) * board.wait_w
        best, less = self.best_clock(), 0.0
        for _ in range(_TRIES):
            budget_s = self.auto.time_s * (1.0 + cell.budget - less)
            choice = solve(
                Problem(time_s=time_s, energy_j=energy_j, budget_s=budget_s), Effort.QUICK
            ).choice
            time, energy = self.change(choice[segment]) if len(choice) else (0.0, 0.0)
            if time <= cell.budget:
                best = min(best, energy)
            if abs(time - cell.budget) < _EXACT:
                break
            less += 0.7 * (time - cell.budget)
        return best

    def chosen(self, learner: Learner) -> Ints:
        """Return the clock of each piece as an index of `core_mhz`."""
        choice = learner.choice[np.array(learner.segments)]
        mhz = [self.core_mhz[-1] if at < 0 else learner.core_mhz[at] for at in choice.tolist()]
        return np.searchsorted(self.core_mhz, mhz)


def _module(kernel: Kernel) -> str:
    return next((key for key, of in _MODULES.items() if any(w in kernel.name for w in of)), "")


@dataclass(frozen=True)
class Learned:
    """What came of one job; changes are true ones against auto, without noise."""

    energy: float
    time: float
    best_clock: float
    best: float
    found_s: float  # until one clock within 0.1 points of the best one was held
    trial: tuple[float, float]  # interval of the change of energy
    took_s: float
    lost: float  # mean of time over auto while learning, as a fraction
    worst: float  # the same of the worst minute


def learned(cell: Cell, seed: int) -> Learned:
    """Run a job until clocks are held."""
    job, random = Job(cell, seed), np.random.default_rng(seed)
    best_clock, best = job.best_clock(), job.best_segments()
    learner = Learner(job.core_mhz, kinds=job.kinds, budget=cell.budget, seed=seed)
    learner.least_s = 2.0 * cell.latency_s
    drift, now_s, blocks = 0.0, 0.0, list[tuple[float, float, float, bool]]()
    while learner.stage is not LearningStage.HELD and len(blocks) < _MOST_BLOCKS:
        is_auto, pieces = bool(learner.choice[0] < 0), job.chosen(learner)
        runs = job.run(pieces)
        drift = 0.98 * drift + random.normal(0.0, 0.002)
        steps = math.ceil(_BLOCK_S / runs.time_s)
        odd = 1.0 + (0.05 * random.random() if random.random() < _ODD else 0.0)
        odd *= math.exp(random.normal(0.0, cell.scatter / math.sqrt(steps)))
        now_s += steps * runs.time_s + _SETTLES_S
        blocks.append((now_s, *job.change(pieces), len({*pieces.tolist()}) == 1))
        energy_j = runs.energy_j * (1.0 + drift) * math.exp(random.normal(0.0, 0.004)) * odd
        read_mhz = runs.read_mhz + random.normal(0.0, 3.0) + (0.0 if is_auto else _BIN_MHZ)
        asked_mhz = np.array(job.core_mhz, dtype=float)[pieces]  # at auto the highest
        mean_mhz = float(asked_mhz @ runs.pieces_s) / runs.time_s
        times_s = runs.pieces_s * np.exp(random.normal(0.0, 0.003, len(pieces))) * odd
        learner.ended(
            BlockReading(
                at_auto=is_auto,
                core_mhz=np.full(len(pieces), read_mhz) if is_auto else asked_mhz,
                times_s=times_s,
                energy_j=energy_j,
                steps=steps,
                is_capped=not is_auto and read_mhz < mean_mhz,
            )
        )
    time, energy = job.change(job.chosen(learner))
    near = (s for s, _, tried, one in blocks if one and tried <= best_clock + _NEAR)
    minutes = itertools.groupby(blocks, lambda block: int(block[0] // 60.0))
    saving = learner.saving
    return Learned(
        energy=energy,
        time=time,
        best_clock=best_clock,
        best=min(best, energy if time <= cell.budget else best),  # the knapsack knows no cap
        found_s=next(near, now_s),
        trial=(saving[0].interval if saving else None) or (-math.inf, math.inf),
        took_s=now_s,
        lost=fmean(lost for _, lost, *_ in blocks),
        worst=max(fmean(each[1] for each in some) for _, some in minutes),
    )


HEAD = "|one clock|best|learned|of best|cells ≥ 90 %|worse|time|found in|ended in|time lost|inside"


def row(name: str, found: dict[Cell, list[Learned]]) -> tuple[str, ...]:
    """Return one line of a table: the mean of some cells."""
    jobs = [each for some in found.values() for each in some]
    shares = [_mean(some, "energy") / _mean(some, "best") for some in found.values()]
    worse = max(_mean(some, "energy") - _mean(some, "best_clock") for some in found.values())
    held = [each for each in jobs if each.energy]
    return (
        name,
        percent(_mean(jobs, "best_clock")),
        percent(_mean(jobs, "best")),
        percent(_mean(jobs, "energy")),
        f"{_mean(jobs, 'energy') / _mean(jobs, 'best'):.0%}",
        f"{sum(share >= _WANTED for share in shares)} of {len(shares)}",
        f"{100 * max(worse, 0.0):.2f}",
        percent(max(each.time - cell.budget for cell, some in found.items() for each in some)),
        f"{_mean(jobs, 'found_s'):.0f} s",
        f"{_mean(jobs, 'took_s'):.0f} s",
        f"{percent(_mean(jobs, 'lost'))}, {percent(max(each.worst for each in jobs))}",
        f"{_inside(held)} of {len(held)}",
    )


def _mean(jobs: Sequence[Learned], name: str) -> float:
    return fmean(getattr(each, name) for each in jobs)


def _inside(jobs: Sequence[Learned]) -> int:
    return sum(each.trial[0] <= each.energy <= each.trial[1] for each in jobs)


def cells() -> Iterator[tuple[str, str, Cell]]:
    """Yield the part of the page, the line of its table, and what is learned there."""
    for gpu, latency_s, model, budget in itertools.product(GPUS, LATENCIES_S, MODELS, BUDGETS):
        name = f"`sim:{gpu}`, {budget:.0%}, {1e3 * latency_s:.0f} ms"
        yield "steps", name, Cell(gpu, model, budget, latency_s)
    for gpu, model, budget in itertools.product(GPUS, MODELS[:2], BUDGETS):
        for busy in (0.25, 0.6):
            yield "jobs", f"GPU busy {busy:.0%}", Cell(gpu, model, budget, busy=busy)
        yield "jobs", "four boards, one slow", Cell(gpu, model, budget, gpus=4)
    for gpu in GPUS:
        yield "trials", "scatter", Cell(gpu, MODELS[0], 0.03, 0.02, scatter=0.02)
    yield "trials", "same", Cell("a100", MODELS[0], same=True)


def main() -> None:
    """Learn everywhere, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    given = parser.parse_args()
    found = defaultdict[str, dict[str, dict[Cell, list[Learned]]]](lambda: defaultdict(dict))
    with ProcessPoolExecutor(max_workers=2) as pool:
        first, begun = 0, []
        for part, name, cell in cells():
            seeds = range(first, first := first + (_TRIALS if part == "trials" else given.seeds))
            jobs = [pool.submit(learned, cell, seed) for seed in seeds]
            begun.append((part, name, cell, jobs))
        for part, name, cell, jobs in begun:
            found[part][name][cell] = [job.result() for job in jobs]
    trials = {k: [*itertools.chain(*some.values())] for k, some in found.pop("trials").items()}
    held = [each for each in trials["scatter"] if each.energy]
    claims = sum(each.trial[1] < 0.0 for each in trials["same"])
    text = {
        part: markdown([HEAD.split("|"), *(row(name, found) for name, found in some.items())])
        for part, some in found.items()
    }
    text["trials"] = (
        f"Of {len(held)} trials of clocks that were held, with steps that scatter by 2 %, "
        f"{_inside(held)} hold the true saving in their 95 % interval. Of {_TRIALS} jobs in which "
        f"no clock changes anything, {claims} seem to save."
    )
    fill("learning", text, repeats=f"{given.seeds} jobs a cell.")


if __name__ == "__main__":
    main()

"""Clocks learned in a running job, against the best there are. Fills docs/evidence/learning.md.

    OMP_NUM_THREADS=1 python studies/learning.py [--jobs 2] [--seeds 6]

The learner chooses, and a board's physics says what a block then takes and draws under its power
cap: simulated, by the same functions as the simulated GPUs, with noise. A block is two seconds of
steps. Noise: 0.4 % of a block's energy, 0.3 % of its time, heat that drifts, 3 MHz of the clock
read, and one block in a hundred up to 5 % longer. The learner sees readings and nothing else.
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from pages import fill, markdown, percent
from underclock.arrays import Floats, Ints
from underclock.core.step.power_cap import LaunchCosts, PowerCap, settle
from underclock.gpus.models import gpu_model
from underclock.learning.learner import Learner, LearningStage
from underclock.learning.response import BlockReading
from underclock.physics.cap import SIMULATED
from underclock.physics.costs import boost_mhz, busy_w, duration_s
from underclock.records import Clocks
from underclock.workloads import workload

GPUS = ("rtx3080ti", "a100", "a40", "h200")
MODELS = ("gpt3-125m", "gpt3-xl")
BUDGETS = (0.01, 0.03)
_BLOCK_S, _MOST_BLOCKS = 2.0, 700
_TEMPERATURE_C = 65.0
_SETTLES_S = 0.5  # with the block's own time
_ODD, _NEAR = 0.01, 0.001  # of blocks; of energy: a clock is as good as another


class Board:
    """A step on a board, by its physics, at one clock.

    Attributes:
        core_mhz: That the board lists up to its boost; the last is what auto asks for.
        costs: Time in s and energy in J of a step at each. Shapes (C,).
    """

    def __init__(self, gpu: str, model: str) -> None:
        board, step = gpu_model(gpu), workload(model)
        boost = boost_mhz(board.constants, _TEMPERATURE_C)
        self.core_mhz = [m for m in board.core_mhz if 0.5 * boost <= m <= boost + 1]
        core = np.array(self.core_mhz, dtype=float)
        mem = np.full(len(core), float(board.mem_mhz[-1]))
        times, powers = [], []
        for kernel in step.kernels:
            own = board.kernel(kernel)
            times.append(duration_s(board.constants, own, core, mem))
            powers.append(busy_w(board.constants, own, core, mem, _TEMPERATURE_C))
        order = np.array(step.order)
        launches = LaunchCosts(
            settings=tuple(Clocks(core_mhz=mhz) for mhz in self.core_mhz),
            time_s=np.array(times),
            energy_j=np.array(times) * np.array(powers),
        )
        cap = PowerCap(limit_w=board.limit_w[0], order=order, boost=len(core) - 1, fading=SIMULATED)
        settled = [settle(cap, launches, np.full(len(order), at)) for at in range(len(core))]
        self.time_s = np.array([each.time_s.sum() for each in settled])
        self.energy_j = np.array([each.energy_j.sum() for each in settled])

    def change(self, at: int) -> tuple[float, float]:
        """Return time and energy at a clock against auto, as fractions."""
        time, energy = self.time_s[at] / self.time_s[-1], self.energy_j[at] / self.energy_j[-1]
        return float(time - 1.0), float(energy - 1.0)

    def best(self, budget: float) -> float:
        """Return the change of energy of the best clock within a budget of time."""
        changes = map(self.change, range(len(self.core_mhz)))
        return min(energy for time, energy in changes if time <= budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What came of one job; changes are true ones against auto, without noise."""

    energy: float
    time: float
    best: float  # change of energy of the best clock
    found_s: float  # until a clock within 0.1 points of the last was held
    trial: tuple[float, float]  # interval of the change of energy
    took_s: float
    lost: float  # mean of time over auto while learning, as a fraction
    worst: float  # the same of the worst minute


def learned(gpu: str, model: str, budget: float, seed: int, *, same: bool = False) -> Learned:
    """Run a job until clocks are held.

    Args:
        same: Whether every clock takes and draws as auto: nothing can be saved.
    """
    board, random = Board(gpu, model), np.random.default_rng(seed)
    if same:
        board.time_s[:], board.energy_j[:] = board.time_s[-1], board.energy_j[-1]
    learner = Learner(board.core_mhz, budget=budget, seed=seed)
    drift, now_s, blocks = 0.0, 0.0, list[tuple[float, float, int]]()
    while learner.stage is not LearningStage.HELD and len(blocks) < _MOST_BLOCKS:
        at = _at(board, learner, learner.choice)
        drift = 0.98 * drift + random.normal(0.0, 0.002)
        odd = 1.0 + (0.05 * random.random() if random.random() < _ODD else 0.0)
        steps = math.ceil(_BLOCK_S / board.time_s[at])
        lasts_s = steps * board.time_s[at] + _SETTLES_S
        now_s += lasts_s
        blocks.append((now_s, board.change(at)[0], at))
        seen_j = board.energy_j[at] * (1.0 + drift) * math.exp(random.normal(0.0, 0.004)) * odd
        learner.ended(
            BlockReading(
                at_auto=bool(learner.choice[0] < 0),
                core_mhz=np.array([board.core_mhz[at] + random.normal(0.0, 3.0)]),
                times_s=board.time_s[at : at + 1] * math.exp(random.normal(0.0, 0.003)) * odd,
                energy_j=float(seen_j),
                steps=steps,
            )
        )
    at = _at(board, learner, learner.choice)
    time, energy = board.change(at)
    near = (s for s, _, tried in blocks if abs(board.change(tried)[1] - energy) <= _NEAR)
    minutes = [[lost for _, lost, _ in each] for _, each in itertools.groupby(blocks, _minute)]
    saving = learner.saving
    return Learned(
        energy=energy,
        time=time,
        best=board.best(budget),
        found_s=next(near, now_s),
        trial=(saving[0].interval if saving else None) or (-math.inf, math.inf),
        took_s=now_s,
        lost=fmean(lost for _, lost, _ in blocks),
        worst=max(map(fmean, minutes)),
    )


def _minute(block: tuple[float, float, int]) -> int:
    return int(block[0] // 60.0)


def _at(board: Board, learner: Learner, choice: Ints) -> int:
    if choice[0] < 0:
        return len(board.core_mhz) - 1
    return board.core_mhz.index(learner.core_mhz[int(choice[0])])


def rows(found: dict[tuple[str, str, float], list[Learned]]) -> Iterator[tuple[str, ...]]:
    """Yield the page's table: a line for each board, model and budget."""
    head = "GPU, model, budget|best|learned|worst|time|found in|trial ended in|time lost|inside"
    yield tuple(head.split("|"))
    for (gpu, model, budget), some in found.items():
        energies: Floats = np.array([each.energy for each in some])
        inside = sum(each.trial[0] <= each.energy <= each.trial[1] for each in some)
        yield (
            f"`sim:{gpu}`, {model}, {budget:.0%}",
            percent(some[0].best),
            percent(float(energies.mean())),
            percent(float(energies.max())),
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
            cell: [pool.submit(learned, *cell, seed) for seed in range(given.seeds)]
            for cell in cells
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

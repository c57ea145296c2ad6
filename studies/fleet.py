"""Plans 64 simulated boards from samples of a few, and refines some. Writes docs/evidence/fleet.

    OMP_NUM_THREADS=1 python studies/fleet.py --jobs 16
    OMP_NUM_THREADS=1 python studies/fleet.py --quick

Every plan is executed on every board, as whole steps of its hidden truth. A board's own best is the
least energy, by that truth, of all clock pairs within the time that a plan took there.
"""

import argparse
import dataclasses
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pages import fill, markdown, percent
from truth import Truth, truth_of
from underclock import measure, plan, plan_fleet, refine, trace
from underclock.campaign.survey import Campaign
from underclock.core.planning.goal import Goal
from underclock.gpus.models import gpu_model
from underclock.hw.measurer import BRISK
from underclock.hw.simulated import costs
from underclock.physics.costs import busy_w
from underclock.records import TOLERANCE, Plan, SampleSet

WORKLOAD = "gpt3-xl"
GPUS = ("rtx3080ti", "a100", "h200")
CASES = (*((gpu, times) for gpu in GPUS[:2] for times in (1.0, 2.0)), ("h200", 1.0))
"""GPUs, and how much more their boards differ than they do by themselves."""
BOARDS = 64
MEASURED = 4  # boards of a fleet that are measured
FEWER = (2, 3)  # of these, where planning is quick
QUICK = GPUS[:2]
FLEETS = 5  # draws of these four
FIRST = 1000  # number of the first board that is measured: none of those planned for
BUDGETS = (0.0, 0.01)
ONES_OWN = 0.01  # time budget of the plans that are refined
REFINED = 16  # boards that are
_NEAR = 0.002  # of auto's energy, above a board's own best
_KEPT = (
    *("boards", "measured", "budget", "promised, time / energy", "executed", "budget kept"),
    *("without the tenth", "time inside", "energy inside"),
)
_REFINED = (
    *("boards", "a board's plan run here", "refined here", "whole campaign here"),
    *("refined within 0.2", "budget kept", "windows"),
)
RUNS = 30  # of the step at auto, each with noise of its own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ran:
    """What a plan truly changes on a board, and the best that the board has in that time."""

    time: float
    energy: float
    best: float = math.nan
    windows: int = 0

    @property
    def regret(self) -> float:
        """Energy above the best, as a part of auto's."""
        return self.energy - self.best


class Fleet(NamedTuple):
    """Boards that are measured, and a time budget."""

    draw: int
    measured: int
    budget: float

    @property
    def numbers(self) -> range:
        """Which of all boards that are measured."""
        first = MEASURED * self.draw
        return range(first, first + self.measured)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """What is executed on boards of one GPU.

    Attributes:
        times: How much more they differ.
        fleets: A plan of each.
        one: The plan of the first board measured.
        boards: Samples of the first fleet.
    """

    gpu: str
    times: float
    fleets: dict[Fleet, Plan]
    one: Plan
    boards: Sequence[SampleSet]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnBoard:
    """One board.

    Attributes:
        fleets: Of each fleet's plan.
        ways: Of the plan of the first board measured, of the fleet's plan refined here, and of the
            plan of a whole campaign here; none where that was not tried.
    """

    fleets: dict[Fleet, Ran]
    ways: tuple[Ran, ...] = ()


def differ(times: float) -> None:
    """Let simulated boards differ more than they do by themselves; gains stay."""
    costs.LEAKAGE_SPREAD, costs.VOLTAGE_SPREAD_V = times * 0.10, times * 0.008


def measured(number: int, *, gpu: str, times: float, folder: Path) -> SampleSet:
    """Measure a board by a whole campaign."""
    differ(times)
    return measure(
        trace(WORKLOAD),
        gpu=f"sim:{gpu}#{number}",
        to=folder / f"{number}.db",
        campaign=Campaign(),
        measuring=BRISK,
        seed=number,
    )


def ran(truth: Truth, made: Plan, *, best: bool = False, windows: int = 0) -> Ran:
    """Execute a plan."""
    time, energy = truth.changes(made)
    return Ran(
        time=time,
        energy=energy,
        best=truth.best(time) if best else math.nan,
        windows=windows,
    )


def on_board(planned: Planned, number: int, *, refines: bool) -> OnBoard:
    """Execute every plan on one board; refine one, and plan by a whole campaign."""
    gpu, times = planned.gpu, planned.times
    differ(times)
    own: list[tuple[Plan, int]] = []
    with tempfile.TemporaryDirectory() as name:
        if refines:
            refined = refine(
                planned.fleets[Fleet(0, MEASURED, ONES_OWN)],
                planned.boards,
                gpu=f"sim:{gpu}#{number}",
                to=Path(name) / "own.db",
                measuring=BRISK,
            )
            taken = int(refined.warnings[0].split(" windows")[0].split()[-1])
            whole = measured(number, gpu=gpu, times=times, folder=Path(name))
            by_itself = plan(whole, Goal(max_slowdown=ONES_OWN))
            own = [(planned.one, 0), (refined, taken), (by_itself, len(whole.windows))]
    with truth_of(gpu, trace(WORKLOAD), unit=number, runs=RUNS) as truth:
        return OnBoard(
            fleets={key: ran(truth, each) for key, each in planned.fleets.items()},
            ways=tuple(ran(truth, each, best=True, windows=taken) for each, taken in own),
        )


def power_spread(gpu: str, times: float, boards: Sequence[int]) -> tuple[float, float]:
    """Return how far boards differ in true power and in power as shown, at one clock pair."""
    differ(times)
    model = gpu_model(gpu)
    step = trace(WORKLOAD)
    kernel = model.kernel(max(step.kernels, key=lambda each: each.flops or 0.0))
    powers = []
    for number in boards:
        unit = costs.UnitVariation.of(model.name, number)
        core_mhz, mem_mhz = np.float64(model.core_mhz[-1] * 0.8), np.float64(model.mem_mhz[-1])
        true_w = float(busy_w(unit.constants(model.constants), kernel, core_mhz, mem_mhz, 60.0))
        powers.append((math.log(true_w), math.log(unit.gain * true_w)))
    true, shown = np.std(powers, axis=0, ddof=1).tolist()
    return true, shown


def share(values: Sequence[bool]) -> str:
    """Say how many of how many."""
    return f"{sum(values)} of {len(values)}"


def both(changes: Sequence[tuple[float, float]]) -> str:
    """Write means of changes of time and energy."""
    return " / ".join(percent(mean) for mean in np.mean(changes, axis=0).tolist())


def rows_of(planned: Planned, boards: Sequence[OnBoard]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each size of fleet and budget: promise, what boards did, how it was kept."""
    kinds = sorted({(fleet.budget, -fleet.measured) for fleet in planned.fleets})
    for budget, less in kinds:
        mine = [key for key in planned.fleets if key[1:] == (-less, budget)]
        done = [(planned.fleets[key], b.fleets[key]) for key in mine for b in boards]
        promises = [planned.fleets[key].promise for key in mine]
        yield (
            f"`sim:{planned.gpu}`, {planned.times:g} \N{MULTIPLICATION SIGN}",
            str(-less),
            percent(budget, 0),
            both([(p.time_change, p.energy_change) for p in promises]),
            both([(each.time, each.energy) for _, each in done]),
            share([each.time <= budget + TOLERANCE for _, each in done]),
            share([each.time <= budget for _, each in done]),
            share([_within(made, "time", each.time) for made, each in done]),
            share([_within(made, "energy", each.energy) for made, each in done]),
        )


def _within(made: Plan, what: str, value: float) -> bool:
    low, high = getattr(made.headline, f"{what}_interval") or (0.0, 0.0)
    return bool(low - 1e-9 <= value <= high + 1e-9)


def refined_row(planned: Planned, boards: Sequence[OnBoard]) -> tuple[str, ...]:
    """Return a row: samples, and energy above each board's own best, by way of planning."""
    ways = list(zip(*(b.ways for b in boards if b.ways), strict=True))
    cells = []
    for runs in ways:
        regrets = [each.regret for each in runs]
        cells.append(f"{percent(statistics.fmean(regrets))}, {percent(max(regrets))}")
    taken, usual = (statistics.fmean(each.windows for each in runs) for runs in ways[1:])
    return (
        f"`sim:{planned.gpu}`, {planned.times:g} \N{MULTIPLICATION SIGN}",
        *cells,
        share([each.regret <= _NEAR for each in ways[1]]),
        share([each.time <= ONES_OWN + TOLERANCE for each in ways[1]]),
        f"{taken:.0f} of {usual:.0f} ({taken / usual:.0%})",
    )


def fleets_of(gpu: str, draws: int) -> list[Fleet]:
    """Return the fleets whose boards are planned for."""
    fleets = [Fleet(draw, MEASURED, budget) for draw in range(draws) for budget in BUDGETS]
    if gpu in QUICK:
        fleets += [Fleet(draw, few, ONES_OWN) for draw in range(draws) for few in FEWER]
    return fleets


def planned_in(
    pool: ProcessPoolExecutor, cases: Sequence[tuple[str, float]], draws: int
) -> list[Planned]:
    """Measure boards of every GPU, and plan fleets of them."""
    numbers = range(FIRST, FIRST + MEASURED * draws)
    with tempfile.TemporaryDirectory() as name:
        taken: dict[tuple[str, float], list[Future[SampleSet]]] = {}
        for gpu, times in cases:
            folder = Path(name) / f"{gpu}-{times:g}"
            folder.mkdir()
            work = partial(measured, gpu=gpu, times=times, folder=folder)
            taken[gpu, times] = [pool.submit(work, number) for number in numbers]
        sets = {case: [each.result() for each in some] for case, some in taken.items()}
    made = {
        case: {
            fleet: pool.submit(
                plan_fleet, [mine[n] for n in fleet.numbers], Goal(max_slowdown=fleet.budget)
            )
            for fleet in fleets_of(case[0], draws)
        }
        for case, mine in sets.items()
    }
    return [
        Planned(
            gpu=gpu,
            times=times,
            fleets={fleet: each.result() for fleet, each in made[gpu, times].items()},
            one=plan(mine[0], Goal(max_slowdown=ONES_OWN)),
            boards=mine[:MEASURED],
        )
        for (gpu, times), mine in sets.items()
    ]


def spread_of(planned: Planned, boards: Sequence[int]) -> str:
    """Say how far boards differ."""
    true, shown = power_spread(planned.gpu, planned.times, boards)
    return (
        f"- `sim:{planned.gpu}`, {planned.times:g} \N{MULTIPLICATION SIGN}: boards differ by "
        f"{true:.1%} in true power and by {shown:.1%} in power as their sensors show it (standard "
        "deviations, the largest product at one pair of clocks)"
    )


def main() -> None:
    """Run the study, then write its page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", nargs="+", default=GPUS)
    parser.add_argument("--boards", type=int, default=BOARDS)
    parser.add_argument("--refined", type=int, default=REFINED)
    parser.add_argument("--fleets", type=int, default=FLEETS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one GPU, eight boards, one fleet")
    given = parser.parse_args()
    cases = [case for case in CASES if case[0] in given.gpus]
    if given.quick:
        cases, given.boards, given.fleets, given.refined = cases[:1], min(given.boards, 8), 1, 2
    numbers = range(1, given.boards + 1)
    with ProcessPoolExecutor(max_workers=given.jobs) as pool:
        # The slowest first, so that none is left over at the end.
        planned = planned_in(pool, cases[::-1], given.fleets)
        done = [
            [pool.submit(on_board, each, n, refines=n <= given.refined) for n in numbers]
            for each in planned
        ]
        found = [
            (each, [one.result() for one in some]) for each, some in zip(planned, done, strict=True)
        ][::-1]
    parts = {
        "spread": "\n".join(spread_of(each, numbers) for each, _ in found),
        "kept": markdown([_KEPT, *(row for one in found for row in rows_of(*one))]),
        "refined": markdown([_REFINED, *(refined_row(*one) for one in found)]),
    }
    asked = tuple(cases), given.boards, given.fleets, given.refined
    repeats = (
        f"{given.boards} boards, {given.fleets} draws of {MEASURED} that are measured, the first "
        f"{given.refined} boards refined."
    )
    fill("fleet", parts, repeats=repeats, whole=asked == (CASES, BOARDS, FLEETS, REFINED))


if __name__ == "__main__":
    main()

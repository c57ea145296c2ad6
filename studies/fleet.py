"""Plans 64 simulated boards from samples of four, and refines each. Writes docs/evidence/fleet.

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
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

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
FLEETS = 5  # draws of these four
FIRST = 1000  # number of the first board that is measured: none of those planned for
BUDGETS = (0.0, 0.01)
REFINED = 0.01  # time budget of the plans that are refined
_KEPT = (
    *("boards", "budget", "promised, time / energy", "executed", "budget kept"),
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnBoard:
    """One board.

    Attributes:
        fleets: Of each fleet's plan, for each budget.
        one: The plan of the first board measured, run here.
        refined: The fleet's plan, refined here.
        whole: A plan of a whole campaign here.
    """

    fleets: dict[tuple[int, float], Ran]
    one: Ran
    refined: Ran
    whole: Ran


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


def on_board(
    number: int,
    *,
    gpu: str,
    times: float,
    fleets: dict[tuple[int, float], Plan],
    one: Plan,
    boards: Sequence[SampleSet],
) -> OnBoard:
    """Execute every plan on one board, refine one, and plan by a whole campaign."""
    differ(times)
    goal = Goal(max_slowdown=REFINED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = folder / "own.db"
        refined = refine(
            fleets[0, REFINED], boards, gpu=f"sim:{gpu}#{number}", to=own, measuring=BRISK
        )
        taken = int(refined.warnings[0].split(" windows")[0].split()[-1])
        whole = measured(number, gpu=gpu, times=times, folder=folder)
        with truth_of(gpu, trace(WORKLOAD), unit=number, runs=RUNS) as truth:
            return OnBoard(
                fleets={key: ran(truth, each) for key, each in fleets.items()},
                one=ran(truth, one, best=True),
                refined=ran(truth, refined, best=True, windows=taken),
                whole=ran(truth, plan(whole, goal), best=True, windows=len(whole.windows)),
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


def rows_of(
    gpu: str, times: float, fleets: dict[tuple[int, float], Plan], boards: Sequence[OnBoard]
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each budget: promise, what boards really did, how often it was kept."""
    for budget in BUDGETS:
        plans = {key: made for key, made in fleets.items() if key[1] == budget}
        done = [(plans[key].promise, plans[key], b.fleets[key]) for key in plans for b in boards]
        inside = [
            (_within(made, "time", each.time), _within(made, "energy", each.energy))
            for _, made, each in done
        ]
        promises = [made.promise for made in plans.values()]
        yield (
            f"`sim:{gpu}`, {times:g} \N{MULTIPLICATION SIGN}",
            percent(budget, 0),
            both([(p.time_change, p.energy_change) for p in promises]),
            both([(each.time, each.energy) for *_, each in done]),
            share([each.time <= budget + TOLERANCE for *_, each in done]),
            share([each.time <= budget for *_, each in done]),
            share([time for time, _ in inside]),
            share([energy for _, energy in inside]),
        )


def _within(made: Plan, what: str, value: float) -> bool:
    low, high = getattr(made.headline, f"{what}_interval") or (0.0, 0.0)
    return bool(low - 1e-9 <= value <= high + 1e-9)


def refined_row(gpu: str, times: float, boards: Sequence[OnBoard]) -> tuple[str, ...]:
    """Return a row: samples, and energy above each board's own best, by way of planning."""
    ways = [[getattr(b, way) for b in boards] for way in ("one", "refined", "whole")]
    cells = []
    for runs in ways:
        regrets = [each.regret for each in runs]
        cells.append(f"{percent(statistics.fmean(regrets))}, {percent(max(regrets))}")
    kept = share([each.time <= REFINED + TOLERANCE for each in ways[1]])
    near = share([each.regret <= 0.002 for each in ways[1]])  # noqa: PLR2004
    taken = statistics.fmean(each.windows for each in ways[1])
    usual = statistics.fmean(each.windows for each in ways[2])
    return (
        f"`sim:{gpu}`, {times:g} \N{MULTIPLICATION SIGN}",
        *cells,
        near,
        kept,
        f"{taken:.0f} of {usual:.0f} ({taken / usual:.0%})",
    )


def study(
    gpu: str, times: float, *, boards: int, fleets: int, jobs: int
) -> tuple[str, list[tuple[str, ...]], tuple[str, ...]]:
    """Measure, plan, refine and execute on boards of one GPU."""
    numbers = range(1, boards + 1)
    with (
        ProcessPoolExecutor(max_workers=jobs) as pool,
        tempfile.TemporaryDirectory() as name,
    ):
        work = partial(measured, gpu=gpu, times=times, folder=Path(name))
        sets = list(pool.map(work, range(FIRST, FIRST + MEASURED * fleets)))
        keys = [(fleet, budget) for fleet in range(fleets) for budget in BUDGETS]
        made = [
            pool.submit(
                plan_fleet,
                sets[MEASURED * fleet : MEASURED * (fleet + 1)],
                Goal(max_slowdown=budget),
            )
            for fleet, budget in keys
        ]
        plans = dict(zip(keys, [each.result() for each in made], strict=True))
    on_each = partial(
        on_board,
        gpu=gpu,
        times=times,
        fleets=plans,
        one=plan(sets[0], Goal(max_slowdown=REFINED)),
        boards=sets[:MEASURED],
    )
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        done = list(pool.map(on_each, numbers))
    true, shown = power_spread(gpu, times, numbers)
    spread = (
        f"- `sim:{gpu}`, {times:g} \N{MULTIPLICATION SIGN}: boards differ by {true:.1%} in true "
        f"power and by {shown:.1%} in power as their sensors show it (standard deviations, the "
        "largest product at one pair of clocks)"
    )
    return spread, list(rows_of(gpu, times, plans, done)), refined_row(gpu, times, done)


def main() -> None:
    """Run the study, then write its page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", nargs="+", default=GPUS)
    parser.add_argument("--boards", type=int, default=BOARDS)
    parser.add_argument("--fleets", type=int, default=FLEETS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one GPU, eight boards, one fleet")
    given = parser.parse_args()
    cases = [case for case in CASES if case[0] in given.gpus]
    if given.quick:
        cases, given.boards, given.fleets = cases[:1], min(given.boards, 8), 1
    found = [
        study(gpu, times, boards=given.boards, fleets=given.fleets, jobs=given.jobs)
        for gpu, times in cases
    ]
    kept = [_KEPT, *(row for _, rows, _ in found for row in rows)]
    near = [_REFINED, *(row for *_, row in found)]
    parts = {
        "spread": "\n".join(spread for spread, *_ in found),
        "kept": markdown(kept),
        "refined": markdown(near),
    }
    whole = (tuple(cases), given.boards, given.fleets) == (CASES, BOARDS, FLEETS)
    repeats = f"{given.boards} boards, {given.fleets} draws of {MEASURED} that are measured."
    fill("fleet", parts, repeats=repeats, whole=whole)


if __name__ == "__main__":
    main()

"""Carries samples of GPT-3 XL at batch 40 over to other batches and degrees. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/transfer.py --jobs 16
    OMP_NUM_THREADS=1 python studies/transfer.py --measured
    OMP_NUM_THREADS=1 python studies/transfer.py --quick

Cells are kept line by line in ``--folder``, and a run goes on where the last one stopped.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from executed import auto_course, executed, switching
from pages import fill, markdown, percent
from underclock import measure, trace, transfer
from underclock.app.planning import plan
from underclock.campaign.grid import Campaign, Grid
from underclock.campaign.loop import course_of
from underclock.core.planning.best_choice import Goal
from underclock.hw.measurer import BRISK
from underclock.records import Plan, SampleSet, Step
from underclock.store import read_samples

WORKLOAD = "gpt3-xl"
GPUS = ("a100", "a40", "a4000", "h200", "rtx3080ti", "titanx", "rtx3080ti#1")
SEEDS = 4  # campaigns of the known step on each GPU: cells of one share its errors
BUDGETS = (0.0, 0.01)
BATCHES, DEGREES = tuple(range(1, 41)), (2, 4, 8, 16)
AT_BATCHES = (40, 8)  # at which other degrees are looked at
ANEW = (1, 2, 4, 8, 16, 24, 32)  # batches measured themselves too; so is every degree
SAMPLES = 500  # of a campaign at most
CUT = ((2, 1), (8, 1), (40, 8))  # batch and degree of a quick run, of one campaign and no other
RUNS = 16
HELD = 0.001  # a plan holds its budget to a tenth of a point


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One step to carry over to.

    Attributes:
        anew: Whether it is measured and planned by itself too.
    """

    gpu: str
    batch: int
    tp: int
    seed: int
    anew: bool


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a cell at one budget; changes against auto as executed.

    Attributes:
        told_time: Promised change of time: least, expected, greatest.
        told_energy: The same of energy.
        auto_time: Auto as expected over auto as executed, less one.
        anew_time: Of the plan made on the step's own samples; ``None`` without any.
    """

    cell: Cell
    budget: float
    time: float
    energy: float
    told_time: tuple[float, float, float]
    told_energy: tuple[float, float, float]
    auto_time: float
    auto_energy: float
    anew_time: float | None = None
    anew_energy: float | None = None

    @property
    def time_kept(self) -> bool:
        """Whether the executed time lies in its interval."""
        return self.told_time[0] <= self.time <= self.told_time[2]

    @property
    def energy_kept(self) -> bool:
        """Whether the executed energy lies in its interval."""
        return self.told_energy[0] <= self.energy <= self.told_energy[2]


class Ran(NamedTuple):
    """What a step truly took, in the mean of all runs."""

    time_s: float
    energy_j: float


def step_of(batch: int, tp: int) -> Step:
    """Return the step of a cell, without collectives, as in arXiv 2601.08539."""
    return trace(WORKLOAD, batch=batch, tp=tp, collectives=0)


def samples_of(gpu: str, batch: int, tp: int, seed: int, folder: Path) -> SampleSet:
    """Measure a step, or read what an earlier run measured."""
    path = folder / f"{gpu.replace('#', '_')}-{batch}-{tp}-{seed}.db"
    if not path.exists():
        aside = path.with_suffix(f".{os.getpid()}.part.db")
        measure(
            step_of(batch, tp),
            gpu=f"sim:{gpu}",
            to=aside,
            campaign=Campaign(grid=Grid.ADAPTIVE, max_samples=SAMPLES),
            measuring=BRISK,
            seed=seed,
        )
        aside.rename(path)
    return read_samples(path)


def ran(gpu: str, step: Step, made: Plan | None) -> Ran:
    """Execute a plan, or auto."""
    model, _, unit = gpu.partition("#")
    scheduled = auto_course(step) if made is None else course_of(made)
    if scheduled is None:
        raise AssertionError("a traced step has an order")
    done = executed(switching(model, 0.0), step, [scheduled], RUNS, unit=int(unit or 0))
    return Ran(*done[0].mean(axis=0).tolist())


def results_of(cell: Cell, folder: Path) -> list[Result]:
    """Carry over, plan anew where asked, and execute."""
    known = samples_of(cell.gpu, 40, 1, cell.seed, folder)
    step = step_of(cell.batch, cell.tp)
    own = samples_of(cell.gpu, cell.batch, cell.tp, cell.seed, folder) if cell.anew else None
    auto = ran(cell.gpu, step, None)
    found = []
    for budget in BUDGETS:
        goal = Goal(max_slowdown=budget)
        made = transfer(known, step, goal=goal, latency="free")
        done = ran(cell.gpu, step, made)
        anew = None if own is None else ran(cell.gpu, step, plan(own, goal, latency="free"))
        arm, at_auto = made.headline, made.auto
        if not (arm.time_interval and arm.energy_interval):
            raise AssertionError("costs of a step that is carried over have errors")
        found.append(
            Result(
                cell=cell,
                budget=budget,
                time=done.time_s / auto.time_s - 1.0,
                energy=done.energy_j / auto.energy_j - 1.0,
                told_time=_around(arm.time_interval, arm.time_change),
                told_energy=_around(arm.energy_interval, arm.energy_change),
                auto_time=at_auto.time_s / auto.time_s - 1.0,
                auto_energy=at_auto.energy_j / auto.energy_j - 1.0,
                anew_time=None if anew is None else anew.time_s / auto.time_s - 1.0,
                anew_energy=None if anew is None else anew.energy_j / auto.energy_j - 1.0,
            )
        )
    return found


def _around(interval: tuple[float, float], change: float | None) -> tuple[float, float, float]:
    return interval[0], change or 0.0, interval[1]


def cells(gpus: Sequence[str], batches: Sequence[int], degrees: Sequence[int]) -> Iterator[Cell]:
    """Yield every cell: batches on one GPU each, degrees at two batches."""
    for gpu in gpus:
        sizes = [(batch, 1) for batch in batches] + [(b, tp) for b in AT_BATCHES for tp in degrees]
        for number, (batch, tp) in enumerate(sizes):
            anew = tp > 1 or batch in ANEW
            yield Cell(gpu=gpu, batch=batch, tp=tp, seed=number % SEEDS, anew=anew)


def cut(gpus: Sequence[str]) -> Iterator[Cell]:
    """Yield a few cells, none of which is measured itself."""
    for gpu in gpus:
        for batch, tp in CUT:
            yield Cell(gpu=gpu, batch=batch, tp=tp, seed=0, anew=False)


def rate(results: Sequence[Result], kept: Callable[[Result], bool]) -> str:
    """Say how many were kept, of plans that set anything: others are kept by definition."""
    results = [one for one in results if one.told_energy[0] < one.told_energy[2]]
    if not results:
        return "none sets anything"
    count = sum(map(kept, results))
    return f"{count / len(results):.1%} of {len(results)}"


def held(one: Result) -> bool:
    """Whether a plan kept its budget as executed."""
    return one.time <= one.budget + HELD


def by_gpu(results: Sequence[Result]) -> Iterator[Sequence[str]]:
    """Yield a row for each GPU, and one of all."""
    yield (
        "GPU",
        "time within its interval",
        "energy within its interval",
        "budget kept",
        "regret, time",
        "regret, energy",
        "worst, energy",
        "auto's time expected",
        "auto's energy expected",
    )
    for name in (*dict.fromkeys(one.cell.gpu for one in results), "all"):
        mine = [one for one in results if name in {one.cell.gpu, "all"}]
        yield (
            name if name == "all" else f"`sim:{name}`",
            rate(mine, lambda one: one.time_kept),
            rate(mine, lambda one: one.energy_kept),
            rate(mine, held),
            *regrets(mine),
            percent(float(np.mean([abs(one.auto_time) for one in mine]))),
            percent(float(np.mean([abs(one.auto_energy) for one in mine]))),
        )


def regrets(results: Iterable[Result]) -> tuple[str, str, str]:
    """Return the mean regret in points of time and energy, and the worst of energy."""
    pairs = [
        (one.time - one.anew_time, one.energy - one.anew_energy)
        for one in results
        if one.anew_time is not None and one.anew_energy is not None
    ]
    if not pairs:
        return "", "", ""
    time, energy = np.array(pairs).T
    return percent(float(time.mean())), percent(float(energy.mean())), percent(float(energy.max()))


def by_size(results: Sequence[Result]) -> Iterator[Sequence[str]]:
    """Yield a row for each size that was measured by itself too."""
    yield (
        "batch",
        "degree",
        "saved, carried over",
        "saved, planned anew",
        "time, carried over",
        "time, planned anew",
        "promised ±",
    )
    mine = [one for one in results if one.anew_energy is not None and one.budget == 0.0]
    for batch, tp in dict.fromkeys((one.cell.batch, one.cell.tp) for one in mine):
        same = [one for one in mine if (one.cell.batch, one.cell.tp) == (batch, tp)]

        def mean(of: Callable[[Result], float | None], same: Sequence[Result] = same) -> str:
            return percent(float(np.mean([of(one) or 0.0 for one in same])))

        width = np.mean([one.told_energy[2] - one.told_energy[0] for one in same]) / 2.0
        yield (
            str(batch),
            str(tp),
            mean(lambda one: one.energy),
            mean(lambda one: one.anew_energy),
            mean(lambda one: one.time),
            mean(lambda one: one.anew_time),
            percent(float(width)).removeprefix("+"),
        )


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", nargs="+", default=GPUS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "transfer")
    parser.add_argument(
        "--quick", action="store_true", help="three steps a GPU, none measured anew"
    )
    parser.add_argument(
        "--measured", action="store_true", help="only steps that are measured themselves too"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    wanted = list(cut(given.gpus) if given.quick else cells(given.gpus, BATCHES, DEGREES))
    wanted = [cell for cell in wanted if cell.anew or not given.measured]
    kept = given.folder / "results.jsonl"
    lines = kept.read_bytes().splitlines() if kept.exists() else []
    known = {one[0].cell: one for one in (msgspec.json.decode(x, type=list[Result]) for x in lines)}
    with ProcessPoolExecutor(max_workers=given.jobs) as pool, kept.open("ab") as file:
        first = {(cell.gpu, cell.seed) for cell in wanted if cell not in known}
        for each in [pool.submit(samples_of, g, 40, 1, s, given.folder) for g, s in sorted(first)]:
            each.result()
        pending = {
            pool.submit(results_of, cell, given.folder): cell
            for cell in wanted
            if cell not in known
        }
        for done in as_completed(pending):
            known[pending[done]] = done.result()
            file.write(msgspec.json.encode(done.result()) + b"\n")
            file.flush()
            print(pending[done], flush=True)
    results = [one for cell in wanted for one in known[cell]]
    if given.quick:
        print(markdown(by_gpu(results)))
        return
    parts = {"gpus": markdown(by_gpu(results)), "sizes": markdown(by_size(results))}
    repeats = (
        f"{len(wanted)} steps, {len(BUDGETS)} budgets each; {SEEDS} campaigns of the known step on "
        f"each GPU, of {SAMPLES} samples at most; executed {RUNS} times."
    )
    fill("transfer", parts, repeats=repeats, whole=tuple(given.gpus) == GPUS)


if __name__ == "__main__":
    main()

"""Plans GPT-3 XL at many budgets and latencies, and runs every plan. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/executed.py
    OMP_NUM_THREADS=1 python studies/executed.py --gpus h200 --budgets 0 --latencies 0 6ms

Cells are kept line by line, and a run goes on where the last one stopped; ``--fresh`` begins anew.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from pages import fill, markdown, percent
from simulated_steps import execute as control
from underclock import measure, trace
from underclock.app.planning import plan
from underclock.app.switching import Switching
from underclock.campaign.grid import Campaign, Grid
from underclock.campaign.loop import course_of, switching_model
from underclock.core.planning.best_choice import Goal
from underclock.gpus.models import GpuModel, gpu_model
from underclock.hw.measurer import BRISK
from underclock.hw.simulated.rig import simulated_rig
from underclock.records import AUTO, Plan, SampleSet, Step
from underclock.records.latencies import LatencyTable
from underclock.runtime.simulated import Scheduled
from underclock.store import read_samples
from underclock.units import parse_duration

WORKLOAD = "gpt3-xl"
GPUS = ("rtx3080ti", "a100", "a40", "h200")
BUDGETS = (0.0, 0.006, 0.01, 0.02)
LATENCIES_S = (0.0, 10e-6, 1e-3, 6e-3, 20e-3, 150e-3)  # 0 is free switching
WITHIN_TIME, WITHIN_ENERGY, WITHIN_BUDGET = 0.002, 0.003, 0.001
RUNS = 30  # each draws the noise of a beginning anew: 0.3 % of power, 0.03 % of time
STEPS = 3
WARM_S, AGAIN_S = 200.0, 3.0  # until the first run is at its own heat; between later ones


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One plan and what became of it.

    Attributes:
        gpu: Which model.
        budget: Time budget, as a fraction.
        latency_s: What a change takes; 0 where changes are free.
        arm: Whose promise it is; ``None`` where no schedule was found.
        time_s: Planned.
        energy_j: Planned.
        promise: Planned change of energy against auto.
        switches: Changes in a step as planned, of either clock.
        done: Which happened, in the mean.
        ran_s: Executed.
        ran_j: Executed.
        auto_s: The step at auto, executed.
        auto_j: The step at auto, executed.
        plan_s: How long planning took.
    """

    gpu: str
    budget: float
    latency_s: float
    arm: str | None = None
    time_s: float = 0.0
    energy_j: float = 0.0
    promise: float = 0.0
    switches: int = 0
    done: float = 0.0
    ran_s: float = 0.0
    ran_j: float = 0.0
    auto_s: float = 0.0
    auto_j: float = 0.0
    plan_s: float = 0.0

    @property
    def key(self) -> tuple[str, float, float]:
        """What it is a cell of."""
        return self.gpu, self.budget, self.latency_s

    @property
    def time_off(self) -> float:
        """Executed over planned time, less one."""
        return self.ran_s / self.time_s - 1.0

    @property
    def energy_off(self) -> float:
        """Executed over planned energy, less one."""
        return self.ran_j / self.energy_j - 1.0

    @property
    def over(self) -> float:
        """By how much the executed step is beyond its budget, against auto executed."""
        return self.ran_s / self.auto_s - 1.0 - self.budget

    @property
    def saved(self) -> float:
        """Executed change of energy against auto executed."""
        return self.ran_j / self.auto_j - 1.0


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a step truly took, in the mean of all runs."""

    time_s: float
    energy_j: float
    planned: int
    done: float


def executed(model: GpuModel, step: Step, schedule: Scheduled, runs: int, *, unit: int = 0) -> Ran:
    """Run a step under a schedule at its own heat, over and over; return the truth."""
    launches = [step.kernels[index] for index in step.order]
    if not schedule.predicted_s:
        schedule = dataclasses.replace(schedule, predicted_s=(1e-3,) * len(launches))
    with simulated_rig(model, seed=1, unit=unit) as rig:
        done = [
            control(rig, launches, schedule, steps=STEPS, warm_s=AGAIN_S if run else WARM_S)
            for run in range(runs)
        ]
    return Ran(
        time_s=statistics.fmean(t for one in done for t in one.time_s),
        energy_j=statistics.fmean(j for one in done for j in one.energy_j),
        planned=done[0].planned,
        done=statistics.fmean(n for one in done for n in one.switches),
    )


def switching(gpu: str, latency_s: float) -> GpuModel:
    """Return a GPU whose clocks take a time to change; as it is where they take none."""
    takes = switching_model(LatencyTable.constant(latency_s)) if latency_s else None
    return dataclasses.replace(gpu_model(gpu), switching=takes)


def planned(sample_set: SampleSet, budget: float, latency_s: float) -> Plan:
    """Plan a cell."""
    if not latency_s:
        return plan(sample_set, Goal(max_slowdown=budget), latency="free")
    switching = Switching(latencies=LatencyTable.constant(latency_s), curve=False)
    return plan(sample_set, Goal(max_slowdown=budget), switching=switching)


def cell(
    gpu: str, sample_set: SampleSet, auto: Ran, budget: float, latency_s: float, *, runs: int
) -> Cell:
    """Plan and run one cell."""
    begun = time.perf_counter()
    made = planned(sample_set, budget, latency_s)
    plan_s = time.perf_counter() - begun
    course = course_of(made)
    if course is None:
        raise AssertionError("a traced step has an order")
    cost = made.arm(made.chosen).cost
    empty = Cell(gpu=gpu, budget=budget, latency_s=latency_s, plan_s=plan_s)
    if cost is None or (latency_s and made.schedule is None):
        return empty
    ran = executed(switching(gpu, latency_s), trace(WORKLOAD), course.scheduled, runs)
    return msgspec.structs.replace(
        empty,
        arm=str(made.chosen),
        time_s=cost.time_s,
        energy_j=cost.energy_j,
        promise=cost.energy_change,
        switches=ran.planned,
        done=ran.done,
        ran_s=ran.time_s,
        ran_j=ran.energy_j,
        auto_s=auto.time_s,
        auto_j=auto.energy_j,
    )


def samples_of(gpu: str, folder: Path) -> SampleSet:
    """Measure the step once, or read what an earlier run measured."""
    path = folder / f"{gpu}.db"
    if path.exists():
        return read_samples(path)
    measure(
        trace(WORKLOAD),
        gpu=f"sim:{gpu}",
        to=path,
        campaign=Campaign(grid=Grid.ADAPTIVE),
        measuring=BRISK,
    )
    return read_samples(path)


def auto_course(step: Step) -> Scheduled:
    """Return a schedule that leaves every launch to the driver."""
    return Scheduled(clocks=(AUTO,) * len(step.order))


def gpu_cells(
    gpu: str, *, keys: Sequence[tuple[float, float]], folder: Path, runs: int
) -> list[Cell]:
    """Measure a GPU, then plan and run its cells; they are kept in a file of its own."""
    if not keys:
        return []
    sample_set = samples_of(gpu, folder)
    step = trace(WORKLOAD)
    auto = executed(switching(gpu, 0.0), step, auto_course(step), runs)
    cells = []
    with (folder / f"{gpu}.jsonl").open("a") as file:
        for budget, latency_s in keys:
            one = cell(gpu, sample_set, auto, budget, latency_s, runs=runs)
            file.write(json.dumps(msgspec.to_builtins(one)) + "\n")
            file.flush()
            cells.append(one)
            print(one, flush=True)
    return cells


def latency_text(latency_s: float) -> str:
    """Name a latency."""
    if not latency_s:
        return "free"
    return f"{latency_s * 1e3:g} ms" if latency_s >= 1e-3 else f"{latency_s * 1e6:g} µs"  # noqa: PLR2004


def grid(cells: Iterable[Cell], show: Callable[[Cell], str]) -> str:
    """Return one GPU's cells as a table: latencies down, budgets across."""
    known = {(one.budget, one.latency_s): one for one in cells}
    budgets, lags = (sorted({key[part] for key in known}) for part in (0, 1))
    rows = [["latency", *(f"{budget:.1%}" for budget in budgets)]]
    for latency_s in lags:
        row = [known.get((budget, latency_s)) for budget in budgets]
        shown = [
            "" if one is None else "none found" if one.arm is None else show(one) for one in row
        ]
        rows.append([latency_text(latency_s), *shown])
    return markdown(rows)


def summary(cells: Sequence[Cell]) -> Iterator[str]:
    """Say how many cells are as near as wanted, and which are worst."""
    ran = [one for one in cells if one.arm is not None]
    if not ran:
        return
    judged: tuple[tuple[str, Callable[[Cell], float], float], ...] = (
        ("time", lambda one: abs(one.time_off), WITHIN_TIME),
        ("energy", lambda one: abs(one.energy_off), WITHIN_ENERGY),
        ("time beyond the budget", lambda one: one.over, WITHIN_BUDGET),
    )
    for what, off, wanted in judged:
        worst = max(ran, key=off)
        kept = sum(off(one) <= wanted for one in ran)
        yield (
            f"- {what}: {kept} of {len(ran)} cells within {wanted:.1%}; worst "
            f"{percent(off(worst))} on `sim:{worst.gpu}` at {worst.budget:.1%} and "
            f"{latency_text(worst.latency_s)}"
        )
    for one in ran:
        if one.budget == 0.0 and one.latency_s == 0.0:
            yield (
                f"- `sim:{one.gpu}` at 0 % and free switching: {percent(one.saved)} energy "
                f"executed, {percent(one.promise)} promised"
            )
    seconds = [one.plan_s for one in cells]
    median = statistics.median(seconds)
    yield f"- planning a cell: {median:.1f} s (median), {max(seconds):.1f} s at most"


def sections(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield two tables of each GPU."""
    for gpu in dict.fromkeys(one.gpu for one in cells):
        mine = [one for one in cells if one.gpu == gpu]
        yield f"## sim:{gpu}\n\nExecuted over planned, time and energy:\n"
        yield grid(mine, lambda one: f"{percent(one.time_off)}, {percent(one.energy_off)}")
        yield "\nExecuted against auto, time and energy (switches planned, done):\n"
        yield grid(
            mine,
            lambda one: (
                f"{percent(one.ran_s / one.auto_s - 1.0)}, {percent(one.saved)} "
                f"({one.switches}, {one.done:.0f})"
            ),
        )
        yield ""


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", nargs="+", default=GPUS, choices=GPUS)
    parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS, help="fractions")
    parser.add_argument(
        "--latencies",
        nargs="+",
        type=lambda text: 0.0 if text == "0" else parse_duration(text),
        default=LATENCIES_S,
        help="0 for free switching, 10us, 6ms",
    )
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--jobs", type=int, default=2, help="GPUs simulated at a time")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "executed")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured and run")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.fresh:
        for old in (*given.folder.glob("*.db"), *given.folder.glob("*.json*")):
            old.unlink()
    known: dict[tuple[str, float, float], Cell] = {}
    for gpu in given.gpus:
        kept = given.folder / f"{gpu}.jsonl"
        for line in kept.read_text().splitlines() if kept.exists() else ():
            one = msgspec.json.decode(line, type=Cell)
            known[one.key] = one
    wanted = [(gpu, b, s) for gpu in given.gpus for b in given.budgets for s in given.latencies]
    with ProcessPoolExecutor(max_workers=given.jobs) as pool:
        pending = [
            pool.submit(
                partial(gpu_cells, folder=given.folder, runs=given.runs),
                gpu,
                keys=[key[1:] for key in wanted if key[0] == gpu and key not in known],
            )
            for gpu in given.gpus
        ]
        for each in pending:
            known |= {one.key: one for one in each.result()}
    cells = [known[key] for key in wanted]
    parts = {"summary": "\n".join(summary(cells)), "tables": "\n".join(sections(cells))}
    whole = len(wanted) >= len(GPUS) * len(BUDGETS) * len(LATENCIES_S)
    repeats = f"Means of {given.runs} runs of {STEPS} steps each."
    fill("executed", parts, repeats=repeats, whole=whole)


if __name__ == "__main__":
    main()

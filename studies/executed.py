"""Plans GPT-3 XL on boards, smooth ones and unkind, and runs every plan. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/executed.py
    python studies/executed.py --gpus h200 --boards 1 2 --budgets 0 0.01 --latencies 0 --runs 1

A single run is one without noise. Cells are kept line by line: a run goes on where one stopped.
"""

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
import time as clock
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np

from pages import fill, markdown, percent
from simulated_steps import execute as control
from underclock import measure, trace
from underclock.app.planning import Switching, plan
from underclock.arrays import Floats
from underclock.campaign.grid import Campaign, Grid
from underclock.campaign.loop import course_of, switching_model
from underclock.core.planning.best_choice import Goal
from underclock.gpus.models import SMOOTH, GpuModel, gpu_model
from underclock.hw.measurer import BRISK
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import simulated_rig
from underclock.records import AUTO, Plan, SampleSet, Step
from underclock.records.latencies import LatencyTable
from underclock.runtime.simulated import Scheduled
from underclock.store import read_samples

WORKLOAD = "gpt3-xl"
GPUS = ("rtx3080ti", "a100", "a40", "h200")
BOARDS = ("smooth", "1", "2", "3")  # kind, or a unit
BUDGETS = (0.01,)
LATENCIES_S = (0.0, 6e-3)  # 0 is free switching
OVER = 0.001  # of auto's time: so far beyond its budget a plan may run
RUNS = 8  # of auto and of the plan in turn, each with a beginning of its own
STEPS = 3
_SURELY, _ROUNDING = 2.0, 1e-9  # standard errors; what arithmetic leaves of a plan that is auto
SAMPLES = 450  # about what a smooth board's campaign ends with by itself
# Until the first run is at its own heat, between later ones of one schedule, and after another's.
WARM_S, AGAIN_S, OTHER_S = 200.0, 3.0, 60.0


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One plan and what became of it; changes are against auto, as fractions.

    Attributes:
        board: Of which: a unit, or smooth.
        latency_s: What a change of clocks takes; 0 where changes are free.
        arm: Whose promise it is; ``None`` where no schedule was found.
        time: Least, expected and greatest change of time with 95 % confidence.
        energy: The same of energy.
        ran_time: Executed, in the mean.
        ran_energy: Executed, in the mean.
        errors: Standard errors of those two.
    """

    gpu: str
    board: str
    budget: float
    latency_s: float
    arm: str | None = None
    time: tuple[float, float, float] = (0.0, 0.0, 0.0)
    energy: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ran_time: float = 0.0
    ran_energy: float = 0.0
    errors: tuple[float, float] = (0.0, 0.0)

    @property
    def beyond(self) -> tuple[float, ...]:
        """How far executed time and energy surely lie outside of their intervals; 0 inside."""
        pairs = ((self.ran_time, self.time), (self.ran_energy, self.energy))
        out = [max(low - ran, ran - high) for ran, (low, _, high) in pairs]
        return tuple(o - _SURELY * e - _ROUNDING for o, e in zip(out, self.errors, strict=True))

    @property
    def key(self) -> tuple[str, str, float, float]:
        """What it is a cell of."""
        return self.gpu, self.board, self.budget, self.latency_s


def executed(
    model: GpuModel, step: Step, schedules: Sequence[Scheduled], runs: int, *, unit: int = 0
) -> Floats:
    """Run a step under schedules in turn, each at its own heat, over and over.

    Returns:
        True time in s and energy in J of a step, in each run. Shape (schedules, runs, 2).
    """
    launches = [step.kernels[index] for index in step.order]
    usual = (1e-3,) * len(launches)
    quiet = mock.patch.object(VirtualGpu, "draw_noise", return_value=(1.0, 1.0))
    again_s, ran = AGAIN_S if len(schedules) == 1 else OTHER_S, []
    with simulated_rig(model, seed=1, unit=unit) as rig, quiet if runs == 1 else nullcontext():
        for run in range(runs):
            for each in schedules:
                timed = each if each.predicted_s else dataclasses.replace(each, predicted_s=usual)
                warm_s = again_s if run else WARM_S
                done = control(rig, launches, timed, steps=STEPS, warm_s=warm_s)
                ran.append((statistics.fmean(done.time_s), statistics.fmean(done.energy_j)))
    return np.array(ran).reshape(runs, len(schedules), 2).swapaxes(0, 1)


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


def samples_of(gpu: str, board: str, folder: Path) -> SampleSet:
    """Measure the step once, or read what an earlier run measured."""
    path = folder / f"{gpu}-{board}.db"
    if not path.exists():
        aside = path.with_suffix(".part.db")
        aside.unlink(missing_ok=True)
        campaign = Campaign(grid=Grid.ADAPTIVE, max_samples=SAMPLES)
        measure(
            trace(WORKLOAD), gpu=f"sim:{gpu}#{board}", to=aside, campaign=campaign, measuring=BRISK
        )
        aside.rename(path)
    return read_samples(path)


def auto_course(step: Step) -> Scheduled:
    """Return a schedule that leaves every launch to the driver."""
    return Scheduled(clocks=(AUTO,) * len(step.order))


def board_cells(
    named: tuple[str, str], *, keys: Sequence[tuple[float, float]], folder: Path, runs: int
) -> list[Cell]:
    """Measure a board, then plan and run its cells; they are kept in a file of its own."""
    (gpu, board), cells, step = named, list[Cell](), trace(WORKLOAD)
    kind = board == SMOOTH[1:]
    for budget, latency_s in keys:
        begun_s = clock.perf_counter()
        made = planned(samples_of(gpu, board, folder), budget, latency_s)
        arm, course = made.arm(made.chosen), course_of(made)
        one = Cell(gpu=gpu, board=board, budget=budget, latency_s=latency_s)
        if (
            course
            and arm.cost
            and arm.time_interval
            and arm.energy_interval
            and not made.sets_nothing
        ):
            auto, ran = executed(
                switching(gpu + SMOOTH * kind, latency_s),
                step,
                (auto_course(step), course),
                runs,
                unit=0 if kind else int(board),
            )
            changes = (ran.mean(axis=0) / auto.mean(axis=0) - 1.0).tolist()
            time, energy = (
                (low, change, high)
                for change, (low, high) in (
                    (arm.cost.time_change, arm.time_interval),
                    (arm.cost.energy_change, arm.energy_interval),
                )
            )
            one = msgspec.structs.replace(
                one,
                arm=str(made.chosen),
                time=time,
                energy=energy,
                ran_time=changes[0],
                ran_energy=changes[1],
                errors=tuple((np.std(ran / auto, axis=0) / math.sqrt(max(1, runs - 1))).tolist()),
            )
        cells.append(one)
        with (folder / "cells.jsonl").open("a") as file:
            file.write(json.dumps(msgspec.to_builtins(one)) + "\n")
        print(one, f"{clock.perf_counter() - begun_s:.0f} s", flush=True)
    return cells


def table(cells: Sequence[Cell]) -> str:
    """Return what plans keep, a row for each GPU's smooth board and for its others."""
    heads = (
        "boards",
        "plans",
        "time in",
        "energy in",
        "budget kept",
        "energy off, median",
        "at most",
    )
    rows: list[tuple[object, ...]] = [heads]
    gpus = dict.fromkeys(one.gpu for one in cells)
    names = [(gpu, kind) for kind in (True, False) for gpu in (*gpus, "")]
    for gpu, kind in names:
        some = [
            one
            for one in cells
            if one.arm and gpu in {"", one.gpu} and (one.board == SMOOTH[1:]) is kind
        ]
        if not some:
            continue
        off = [abs(one.ran_energy - one.energy[1]) for one in some]
        inside = (sum(one.beyond[part] <= 0.0 for one in some) for part in (0, 1))
        kept = sum(one.ran_time <= one.budget + OVER for one in some)
        rows.append(
            (
                f"{'smooth' if kind else 'unkind'}, {f'`sim:{gpu}`' if gpu else 'all'}",
                len(some),
                *(f"{count / len(some):.0%}" for count in (*inside, kept)),
                *(f"{100 * each:.2f} points" for each in (statistics.median(off), max(off))),
            )
        )
    return markdown(rows)


def missed(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield plans whose energy lies outside its interval, worst first."""
    out = [one for one in cells if one.arm and one.beyond[1] > 0.0]
    for one in sorted(out, key=lambda one: -one.beyond[1])[:8]:
        low, change, high = map(percent, one.energy)
        yield (
            f"- `sim:{one.gpu}#{one.board}`, {one.budget:.0%}, {1e3 * one.latency_s:g} ms: energy "
            f"{change} ({low} to {high}), executed {percent(one.ran_energy)}, time "
            f"{percent(one.ran_time)}"
        )


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", nargs="+", default=GPUS)
    parser.add_argument("--boards", nargs="+", default=BOARDS, help="smooth, or numbers of units")
    parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS)
    parser.add_argument("--latencies", nargs="+", type=float, default=LATENCIES_S)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--jobs", type=int, default=2, help="boards simulated at a time")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "executed")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    kept = given.folder / "cells.jsonl"
    known: dict[tuple[str, str, float, float], Cell] = {}
    for line in kept.read_text().splitlines() if kept.exists() else ():
        one = msgspec.json.decode(line, type=Cell)
        known[one.key] = one
    keys = [(budget, latency_s) for budget in given.budgets for latency_s in given.latencies]
    boards = [(gpu, board) for gpu in given.gpus for board in given.boards]
    with ProcessPoolExecutor(max_workers=given.jobs) as pool:
        pending = [
            pool.submit(
                partial(board_cells, folder=given.folder, runs=given.runs),
                named,
                keys=[key for key in keys if (*named, *key) not in known],
            )
            for named in boards
        ]
        for each in pending:
            known |= {one.key: one for one in each.result()}
    cells = [known[*named, *key] for named in boards for key in keys]
    parts = {"boards": table(cells), "missed": "\n".join(missed(cells))}
    whole = set(given.gpus) >= set(GPUS) and "smooth" in given.boards
    repeats = f"Means of {given.runs} runs of {STEPS} steps each, auto and the plan in turn."
    fill("executed", parts, repeats=repeats, whole=whole)


if __name__ == "__main__":
    main()

"""Holds drawn plans on drawn boards, and asks the ledger what they saved. Fills evidence/ledger.

    OMP_NUM_THREADS=1 python studies/ledger.py --jobs 16
    OMP_NUM_THREADS=1 python studies/ledger.py --quick

Each run has a step, a board and seeds of its own, and is trained in virtual time by the machine,
the policies and the booking of a run. The truth is what the same board, with the same noise, truly
draws for the same steps when nothing is set. Every second run is not as planned.
"""

import argparse
import dataclasses
import itertools
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import structs

from pages import fill, markdown, mean_and_error
from underclock import measure, plan
from underclock.app.switching import Switching
from underclock.campaign.grid import Campaign
from underclock.core.planning.best_choice import Goal
from underclock.gpus.models import GpuModel, Latency, OwnKernel, SwitchingModel, gpu_model
from underclock.hw.measurer import BRISK
from underclock.hw.simulated.rig import Rig, simulated_rig
from underclock.ledger import LedgerGpu, LedgerRun, totals
from underclock.physics.constants import KernelConstants
from underclock.records import Evidence, Kernel, Plan, Step
from underclock.records.latencies import LatencyTable
from underclock.records.runs import RunLine, StepLine
from underclock.runtime.controller.booking import RunTally
from underclock.runtime.controller.gauges import EnergyCounterSampler, Gauge, TelemetryBuffer
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import PassedStep
from underclock.runtime.machine.timetable import timetable_of
from underclock.runtime.policy.arms import ExpectedRun
from underclock.runtime.policy.policy import policy_of
from underclock.runtime.simulated import Driven, StepLengths
from underclock.runtime.trainer.sites import scheduled

GPUS = ("rtx3080ti", "a100", "h200")
_MEMORY = {"rtx3080ti": (None, 5001)}  # the others' takes no lock
BUDGETS = (0.01, 0.02, 0.04)
RUNS = 100  # of each way
WAYS = {"blocks": "auto,plan", "promise": ""}
KINDS = ("another step", "host-bound", "interrupted")  # every second run is one of them
_SCALES, _JITTERS, _GAPS = (0.6, 1.7), (0.8, 1.25), (0.02, 2.0)  # of a launch's work; of a step
_MOST_STEPS = 6000
_CUTS, _ROUNDING_J = (3.0, 3000.0), 1e-3  # steps until an interrupted run ends
_ROUNDS = (3, 8)  # least and most
_STEPS = (120, 1700)  # likewise
_LENGTH_SPREAD = 0.02
_SEED = 42
_READ_S = 0.36  # from a reading of the energy counter until the next is begun
_WINDOW = 20
_CALL_S, _DELAY_S, _JITTER_S = 1.5e-3, 4.5e-3, 1e-3  # 6 ms ± 1 ms
BELIEVED = LatencyTable.constant(_DELAY_S, call_s=_CALL_S, jitter_s=_JITTER_S)
"""How long a change of clocks takes, as planner and machine have it."""
HIDDEN = SwitchingModel(
    setter=Latency(  # a call's duration over its median, as on an A800
        shares=(0.0, 0.5, 0.75, 0.99, 1.0),
        points_s=tuple(_CALL_S * part for part in (0.78, 1.0, 1.55, 2.9, 3.5)),
    ),
    core_s=_DELAY_S,
    mem_s=_DELAY_S,
    target_spread=0.0,
    jitter=_JITTER_S / _DELAY_S,
    mem_stall_s=0.0,
)
"""How long it does take."""


class Case(NamedTuple):
    """One run, and what was drawn for it."""

    number: int  # seeds everything
    way: str  # how the saving is told
    kind: str  # how it is not as planned; empty where it is


class Found(NamedTuple):
    """What the ledger says of a run, and the truth."""

    case: Case
    gpu: str
    run: LedgerRun
    true_j: float | None  # truly saved; None where nothing was seen
    gain: float  # of the board's sensors

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the truth."""
        low_j, high_j = self.interval_j
        true_j = math.nan if self.true_j is None else self.true_j
        return low_j - _ROUNDING_J <= true_j <= high_j + _ROUNDING_J

    @property
    def is_false(self) -> bool:
        """Whether it says that something was saved, and nothing was."""
        return self.interval_j[0] > 0.0 >= (self.true_j or 0.0)

    @property
    def interval_j(self) -> tuple[float, float]:
        """Of what was saved, as ``underclock saved`` tells it of this run alone."""
        (total,) = totals([self.run])
        return total.saved_interval_j

    @property
    def saved_j(self) -> float:
        """What the ledger says."""
        return (self.entry.auto_j or 0.0) - (self.entry.energy_j or 0.0)

    @property
    def entry(self) -> LedgerGpu:
        """Its one GPU."""
        return self.run.gpus[0]


def drawn_step(random: np.random.Generator, number: int) -> Step:
    """Return a step of some launches, bound by either clock or by both."""
    kernels = []
    for at in range(int(random.integers(6, 12))):
        lasts_s, other = random.uniform(4e-3, 14e-3), random.uniform(0.1, 0.9)
        flops, moved = (1.0, 0.4 * other) if random.integers(2) else (0.3 * other, 1.0)
        kernels.append(
            Kernel(
                name=f"kernel {at}",
                flops=lasts_s * 2.2e13 * flops,
                bytes_moved=lasts_s * 7.5e11 * moved,
            )
        )
    return Step(name=f"drawn {number}", kernels=tuple(kernels), order=tuple(range(len(kernels))))


def planned(step: Step, gpu: str, unit: int, budget: float, seed: int) -> Plan:
    """Measure a step on a board, and plan it for clocks that take 6 ms to change."""
    clocks = gpu_model(gpu).core_mhz
    grid = Campaign(
        core_mhz=(None, *clocks[len(clocks) // 2 :: 6]), mem_mhz=_MEMORY.get(gpu, (None,))
    )
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(
            step,
            gpu=f"sim:{gpu}#{unit}",
            to=Path(folder) / "samples.db",
            campaign=grid,
            measuring=BRISK,
            seed=seed,
        )
        switching = Switching(latencies=BELIEVED, curve=False)
        return plan(samples, Goal(max_slowdown=budget), switching=switching)


Rounds = list[tuple[float, float]]  # when each step began, and the true energy up to then


class Ran(NamedTuple):
    """What really runs."""

    launched: tuple[Kernel, ...]  # in this order
    model: GpuModel  # of the GPU, with what it takes to wait for the host, where it does
    lengths: StepLengths  # of steps
    cut: float  # steps after which the run ends, whatever it has come to


class Stumbling(StepLengths):
    """Of these steps one in 50 takes 3 to 10 times as long, as where input comes late."""

    def drawn(self) -> Iterator[float]:
        """Return the length of one step after the other, against the usual one."""
        random = np.random.default_rng([self.seed, 7])
        for usual in StepLengths.drawn(self):
            yield usual * float(random.choice([1.0, random.uniform(3.0, 10.0)], p=[0.98, 0.02]))


def drawn_run(case: Case, made: Plan, model: GpuModel, seed: int) -> Ran:
    """Draw what runs in the place of the plan's step."""
    random = np.random.default_rng([_SEED, case.number, 99])
    launched, cut = [made.runs[at] for at in made.order], math.inf
    lengths = StepLengths(spread=_LENGTH_SPREAD, seed=seed)
    if case.kind == "another step":
        scale = _drawn(random, _SCALES)
        works = {each.name: scale * _drawn(random, _JITTERS) for each in made.runs}
        launched = [
            structs.replace(
                each,
                flops=(each.flops or 0.0) * works[each.name],
                bytes_moved=(each.bytes_moved or 0.0) * works[each.name],
            )
            for each in launched
        ]
    elif case.kind == "host-bound":
        gap_s = math.fsum(scheduled(made).launch_s) * _drawn(random, _GAPS)
        wait = OwnKernel(kernel=Kernel(name="wait"), constants=KernelConstants(fixed_s=gap_s))
        launched, model = [*launched, wait.kernel], dataclasses.replace(model, own=(wait,))
    elif case.kind:
        cut = _drawn(random, _CUTS)
        lengths = Stumbling(spread=_LENGTH_SPREAD, seed=seed)
    return Ran(tuple(launched), model, lengths, cut)


def _drawn(random: np.random.Generator, ends: tuple[float, float]) -> float:
    """Draw a number whose logarithm lies evenly between two ends'."""
    return ends[0] * float((ends[1] / ends[0]) ** random.random())


def at_auto(rig: Rig, ran: Ran, count: int) -> Rounds:
    """Run steps with nothing set."""
    with rig.launcher.loop(ran.launched):
        driven = Driven(rig.device, None, ran.lengths)
        with driven.driving():
            while len(driven.rounds) < count:
                rig.clock.sleep_s(1.0)
    return driven.rounds


def held(
    made: Plan, rig: Rig, ran: Ran, way: str, seed: int, rounds: int
) -> tuple[LedgerRun, list[StepLine], Rounds]:
    """Run a plan's steps as a controller has them; return what the ledger gets, and of which."""
    info = rig.gpu.info()
    shown, waiting, lines = TelemetryBuffer(), list[tuple[PassedStep, str]](), list[StepLine]()
    board = [(str(made.gpu.uuid), info.name)]  # by which a board that waits has another name
    tally = RunTally(made, board, 0, {}, lambda _gpu: shown)
    machine = Machine(timetable_of(scheduled(made), range(len(made.order))))
    policy = policy_of(machine, made, arms=WAYS[way], window=0 if WAYS[way] else _WINDOW, seed=seed)
    began_s = rig.clock.now_s()
    gpus, arms, simulated = (info.name,), WAYS[way], Evidence.SIMULATED
    begun = RunLine(evidence=simulated, gpus=gpus, workload="", began_s=began_s, arms=arms)
    tally.add(begun)
    with rig.launcher.loop(ran.launched):
        climbs = EnergyCounterSampler(rig.gpu.energy_j, rig.clock)
        driven = Driven(rig.device, machine, ran.lengths)
        with driven.driving():
            while len(driven.rounds) < ran.cut and all(
                line.rounds < rounds for line in policy.differences()
            ):
                rig.clock.sleep_s(_READ_S)
                energy_s, energy_j = climbs.next()
                gauge = Gauge(
                    at_s=rig.clock.now_s(),
                    clocks=rig.gpu.observed(),
                    reasons=rig.gpu.throttle_reasons(),
                    power_w=rig.gpu.power_w(),
                    energy_j=energy_j,
                    energy_s=energy_s,
                )
                shown.add([gauge])
                for passed in machine.passed():
                    waiting.append((passed, policy.label))
                    policy.passed(passed)
                while waiting and waiting[0][0].ended_s <= shown.upto_s():
                    line = shown.line(0, *waiting[0])
                    policy.known(waiting.pop(0)[0], line.energy_j)
                    tally.add(line)
                    if line.energy_j is not None and tally.counted_as(line) not in {"", "other"}:
                        lines.append(line)
    for difference in policy.differences(ExpectedRun(enqueued=len(driven.rounds) + 1)):
        tally.add(difference)
    run = tally.run(rig.clock.now_s() - began_s)
    if run is None:
        raise AssertionError("it began")
    return run, lines, driven.rounds


def true_saving_j(lines: Sequence[StepLine], run: Rounds, auto: Rounds) -> float | None:
    """Return what the steps that the ledger counts truly drew less than the same at auto."""
    begins_s = [began_s for began_s, _ in run]  # the first where the first step ends
    saved_j = 0.0
    for line in lines:
        first = min(range(len(run)), key=lambda at: abs(begins_s[at] - line.began_s))
        last = first + line.steps
        saved_j += auto[last][1] - auto[first][1] - (run[last][1] - run[first][1])
    return saved_j if lines else None


def found(case: Case) -> Found:
    """Measure, plan, run and compare; a step whose plan sets nothing is drawn again."""
    for attempt in itertools.count():
        random = np.random.default_rng([_SEED, case.number, attempt])
        step = drawn_step(random, case.number)
        gpu, budget = GPUS[case.number % len(GPUS)], float(random.choice(BUDGETS))
        unit, seed = int(random.integers(1, 10_000)), int(random.integers(1, 1 << 30))
        made = planned(step, gpu, unit, budget, seed)
        if made.schedule and not all(clocks.is_auto for clocks in made.schedule.clocks):
            break
    rounds: int = int(random.integers(_ROUNDS[0], _ROUNDS[1], endpoint=True))
    steps: int = round(_STEPS[0] * (_STEPS[1] / _STEPS[0]) ** random.random())
    ran = drawn_run(case, made, dataclasses.replace(gpu_model(gpu), switching=HIDDEN), seed)
    ran = ran._replace(cut=min(ran.cut, _MOST_STEPS if WAYS[case.way] else steps))
    with simulated_rig(ran.model, seed=seed + 1, unit=unit) as rig:
        run, lines, seen = held(made, rig, ran, case.way, seed, rounds)
        gain = rig.device.unit.gain
    with simulated_rig(ran.model, seed=seed + 1, unit=unit) as rig:
        auto = at_auto(rig, ran, len(seen) + 1)
    true_j = true_saving_j(lines, seen, auto)
    return Found(case, gpu, run, true_j, gain)


def row(name: str, some: Sequence[Found]) -> tuple[object, ...]:
    """Return what many runs come to, as a row of a table."""
    told = [each for each in some if not each.entry.untold]
    if len(told) < 2:  # noqa: PLR2004 - of one there is no spread
        return name, len(some), len(some) - len(told)
    inside = sum(each.is_inside for each in told)
    (total,) = totals([each.run for each in told])
    true_j = math.fsum(each.true_j or 0.0 for each in told)
    low_j, high_j = total.saved_interval_j
    reach_j = [(each.interval_j[1] - each.interval_j[0]) / 2.0 for each in told]
    widths = [j / (each.entry.auto_j or 1.0) for j, each in zip(reach_j, told, strict=True)]
    off = [(each.saved_j - (each.true_j or 0.0)) / (each.entry.auto_j or 1.0) for each in told]
    mean, error = mean_and_error(off)
    return (
        name,
        len(some),
        len(some) - len(told),
        f"{inside} of {len(told)}",
        sum(each.is_false for each in told),
        f"{100.0 * mean:+.3f} ± {100.0 * error:.3f}",
        f"{100.0 * statistics.median(widths):.2f}",
        f"{total.saved_j / 1e3:.2f} ({low_j / 1e3:.2f} to {high_j / 1e3:.2f})",
        f"{true_j / 1e3:.2f}",
        "yes" if low_j <= true_j <= high_j else "**no**",
    )


def main() -> None:
    """Run all of it, and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a few runs; nothing is written")
    asked = parser.parse_args()
    runs = 12 if asked.quick else RUNS
    cases = [
        Case(at, way, KINDS[at // 6 % 3] if at % 2 else "") for way in WAYS for at in range(runs)
    ]
    with ProcessPoolExecutor(asked.jobs) as pool:
        everything = list(pool.map(found, cases))
    header = "told by;runs;cannot tell;truth inside;a saving where none was;mean error, % of auto"
    header += ";half-width, % of auto;sum told, kJ;truth, kJ;inside"
    rows = []
    for way, kind in itertools.product(WAYS, ("", *KINDS)):
        some = [each for each in everything if (each.case.way, each.case.kind) == (way, kind)]
        rows += [row(f"{way}, {kind or 'as planned'}", some)] if some else []
    told = [each for each in everything if not each.entry.untold]
    outside = [each for each in told if not each.is_inside]
    worst = [
        f"- run {each.case.number}, {each.case.way}, {each.gpu}, {each.case.kind or 'as planned'}: "
        f"told {each.saved_j:.1f} J ({each.interval_j[0]:.1f} to {each.interval_j[1]:.1f}), true "
        f"{each.true_j:.1f} J, its sensors show {each.gain:.3f} of what is true"
        for each in outside
    ]
    none = sum(each.is_false for each in told)
    fill(
        "ledger",
        {"table": markdown([header.split(";"), *rows]), "outside": "\n".join(worst) or "None."},
        repeats=f"{len(cases)} runs, {sum(bool(case.kind) for case in cases)} of them not as "
        f"planned, each with a step, a board and seeds of its own: of {len(told)} whose saving "
        f"is known {len(told) - len(outside)} had the truth inside, {none} a false saving.",
        whole=not asked.quick,
    )


if __name__ == "__main__":
    main()

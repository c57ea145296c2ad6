"""A plan from one GPU on others of its model: as it is, refined, and planned anew.

    python studies/refining.py [--units N]

All units are written to docs/evidence/refining.md; fewer are printed.
"""

import argparse
import datetime as dt
import os
import platform
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from promises_truth import Truth, truth_of
from underclock.campaign.survey import Campaign, Grid
from underclock.core.planning.goal import Goal
from underclock.hw.measurer import BRISK
from underclock.records import Plan, SampleSet
from underclock.stages.measure import measure
from underclock.stages.plan import plan
from underclock.stages.refine import refine
from underclock.tracing.trace import trace
from underclock.units import format_percent

if TYPE_CHECKING:
    from underclock.campaign.progress import Tally

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "evidence" / "refining.md"
_MODEL = "rtx3080ti"
_WORKLOAD = "gpt3-xl"
_UNITS = 8
_BUDGET = 0.01
_WAYS = {"as it is": "the plan of unit 0, as it is", "refined": "refined", "anew": "planned anew"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one way of coming by a plan gave on one unit."""

    way: str
    time_change: float
    energy_change: float
    promised_time: float
    promised_energy: float
    interval: tuple[float, float]
    samples: int
    gpu_s: float

    @property
    def covered(self) -> bool:
        """Whether the energy lies in the interval that the promise came with."""
        return self.interval[0] <= self.energy_change <= self.interval[1]


def _outcome(way: str, truth: Truth, made: Plan, samples: int, gpu_s: float) -> Outcome:
    time_change, energy_change = truth.changes(made)
    arm = made.arm(made.chosen)
    if arm.energy_interval is None:
        raise AssertionError("a plan on fitted costs has intervals")
    return Outcome(
        way=way,
        time_change=time_change,
        energy_change=energy_change,
        promised_time=made.promise.time_change,
        promised_energy=made.promise.energy_change,
        interval=arm.energy_interval,
        samples=samples,
        gpu_s=gpu_s,
    )


def _size(sample_set: SampleSet) -> int:
    return len(sample_set.samples) + len(sample_set.in_situ)


def _campaign(unit: int, folder: Path) -> tuple[Plan, int, float]:
    """Measure and plan on one unit, knowing nothing of another."""
    tallies: list[Tally] = []
    sample_set = measure(
        trace(_WORKLOAD),
        gpu=f"sim:{_MODEL}#{unit}",
        to=folder / f"anew{unit}.db",
        campaign=Campaign(grid=Grid.ADAPTIVE, slowdowns=(_BUDGET,)),
        measuring=BRISK,
        seed=unit,
        progress=tallies.append,
    )
    return plan(sample_set, Goal(max_slowdown=_BUDGET)), _size(sample_set), tallies[-1].gpu_s


def _refined(given: Plan, unit: int, folder: Path) -> tuple[Plan, int, float]:
    tallies: list[Tally] = []
    sample_set = refine(
        given,
        gpu=f"sim:{_MODEL}#{unit}",
        to=folder / f"refined{unit}.db",
        seed=unit,
        progress=tallies.append,
    )
    return plan(sample_set, Goal(max_slowdown=_BUDGET)), _size(sample_set), tallies[-1].gpu_s


def _on_unit(given: Plan, folder: Path, unit: int) -> list[Outcome]:
    """Come by a plan in each way; what it is worth is the truth of this unit."""
    with truth_of(_MODEL, trace(_WORKLOAD), unit=unit) as truth:
        return [
            _outcome("as it is", truth, given, 0, 0.0),
            _outcome("refined", truth, *_refined(given, unit, folder)),
            _outcome("anew", truth, *_campaign(unit, folder)),
        ]


def _line(unit: int, outcome: Outcome) -> str:
    over = outcome.time_change > _BUDGET
    mark = "**" if over else ""
    return (
        f"| {unit} | {_WAYS[outcome.way]} | {mark}{format_percent(outcome.time_change)}{mark} "
        f"| {format_percent(outcome.energy_change)} | {format_percent(outcome.promised_time)} "
        f"| {format_percent(outcome.promised_energy)} | {_interval(outcome.interval)} "
        f"| {'yes' if outcome.covered else '**no**'} | {outcome.samples} | {outcome.gpu_s:.0f} s |"
    )


def _interval(ends: tuple[float, float]) -> str:
    return " … ".join(format_percent(end) for end in ends)


def _summary(way: str, outcomes: list[Outcome]) -> str:
    off = [o.energy_change - o.promised_energy for o in outcomes]
    return (
        f"| {_WAYS[way]} | {_spread([o.time_change for o in outcomes])} "
        f"| {format_percent(max(o.time_change for o in outcomes))} "
        f"| {sum(o.time_change > _BUDGET for o in outcomes)} of {len(outcomes)} "
        f"| {_spread([o.energy_change for o in outcomes])} "
        f"| {100 * statistics.fmean(map(abs, off)):.2f} "
        f"| {sum(o.covered for o in outcomes)} of {len(outcomes)} "
        f"| {statistics.fmean(o.samples for o in outcomes):.0f} "
        f"| {statistics.fmean(o.gpu_s for o in outcomes):.0f} s |"
    )


def _spread(values: list[float]) -> str:
    off = 100 * statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{format_percent(statistics.fmean(values))} ± {off:.2f}"


_PAGE_TEXT = """# A plan from another GPU of the same model

GPUs of one model are not alike: on simulated units of an RTX 3080 Ti power sensors show up to 5 %
more or less than is true, leakage has a spread of 10 % and the core voltage one of 8 mV. What is a
plan from one of them worth on the others, and what does `underclock refine` add, which
measures again only around the plan's clocks? All of it is **simulated**; the sizes of the spreads
in leakage and voltage are assumed, so whether real units differ more is open. Command:

    make refine

{machine}; {date}; {spent:.0f} s in all.

The step is {workload}, the time budget {budget:.0%} above auto, free switching. Unit 0 is measured
by an adaptive campaign ({samples} samples, {gpu_s:.0f} s of the GPU's time, warming it included),
which promises {promise}. Then, on each of {units} other units:

- *as it is*: the plan of unit 0 is executed; its promise is unit 0's.
- *refined*: the whole step is run once at auto; every kernel is measured at auto, at its planned
  clocks and next to them, once each; the plan is made on these samples only.
- *planned anew*: an adaptive campaign that knows nothing of unit 0.

Time and energy are the unit's own, without noise: changes against auto clocks of that unit. The
interval is the promise's, for energy, with 95 % confidence, and *holds* where it has the true
change in it. Noise of each unit has one seed.

## In short

Mean ± standard deviation over units; *off* is the mean size of the promise's error in energy, in
percentage points.

| plan | time | most | over the budget | energy | off | interval holds | samples | GPU time |
|---|---|---|---|---|---|---|---|---|
{summary}

## What it says

{says}

## Unit by unit

| unit | plan | time | energy | time promised | energy promised | interval | holds | samples | GPU |
|---|---|---|---|---|---|---|---|---|---|
{lines}
"""

_SAYS = """\
- Executed as it is, the plan of unit 0 keeps the time budget on {as_it_is} of {units} units and
  saves {kept:.0%} of what planning anew saves there; but nothing measured there says so, and the
  interval it came with holds the unit's own saving on {given} of {units}.
- Refining takes {share:.0%} of the GPU time of planning anew, and the interval of its promise holds
  on {refined} of {units} units. Its plans save {gain:+.2f} percentage points more than the plan as
  it is, and use {time:.2f} % of time where that uses {given_time:.2f} %.
- A refined plan rests on one sample of each pair and one run of the whole step, so its interval is
  wider than a campaign's, and it leaves more of the time budget unused to be sure.
"""


def _says(outcomes: dict[str, list[Outcome]]) -> str:
    def mean(way: str, field: str) -> float:
        return statistics.fmean(getattr(o, field) for o in outcomes[way])

    return _SAYS.format(
        kept=mean("as it is", "energy_change") / mean("anew", "energy_change"),
        as_it_is=sum(o.time_change <= _BUDGET for o in outcomes["as it is"]),
        units=len(outcomes["anew"]),
        share=mean("refined", "gpu_s") / mean("anew", "gpu_s"),
        refined=sum(o.covered for o in outcomes["refined"]),
        given=sum(o.covered for o in outcomes["as it is"]),
        time=100 * mean("refined", "time_change"),
        given_time=100 * mean("as it is", "time_change"),
        gain=100 * (mean("as it is", "energy_change") - mean("refined", "energy_change")),
    ).rstrip()


def main() -> None:
    """Compare on every unit, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=_UNITS)
    count = parser.parse_args().units
    begun = time.perf_counter()
    units = range(1, count + 1)
    with tempfile.TemporaryDirectory() as made, ProcessPoolExecutor() as pool:
        given, samples, gpu_s = _campaign(0, Path(made))
        each = list(pool.map(partial(_on_unit, given, Path(made)), units))
    outcomes = {way: [o for some in each for o in some if o.way == way] for way in _WAYS}
    arm = given.arm(given.chosen)
    text = _PAGE_TEXT.format(
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"numpy {np.__version__}",
        date=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        spent=time.perf_counter() - begun,
        workload="GPT-3 XL",
        budget=_BUDGET,
        samples=samples,
        gpu_s=gpu_s,
        promise=f"{format_percent(given.promise.energy_change)} of energy "
        f"({_interval(arm.energy_interval or (0.0, 0.0))}) at "
        f"{format_percent(given.promise.time_change)} of time",
        units=count,
        summary="\n".join(_summary(way, some) for way, some in outcomes.items()),
        says=_says(outcomes),
        lines="\n".join(
            _line(unit, outcome) for unit, some in zip(units, each, strict=True) for outcome in some
        ),
    )
    if count < _UNITS:
        print(text)
        return
    _PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {_PAGE.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()

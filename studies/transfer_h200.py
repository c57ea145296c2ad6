"""Carries steps that were measured on real H200s over to one another. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/transfer_h200.py

Nothing here is simulated: both steps of a pair were steered on the same board, so the one that is
carried over to is judged by its own samples.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from calibrate_h200 import read
from pages import fill, markdown, percent
from underclock.app.planning import PlanCosts, decided
from underclock.app.transferring import transfer
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.estimate import estimate
from underclock.core.model.predicted_change import PredictedChange
from underclock.core.planning.goal import Goal
from underclock.core.step.under_cap import cap_of
from underclock.core.transfer import Carried, carried
from underclock.records import Plan, SampleSet, Step

PAIRS = (
    *(("layer-8", "layer8-8"), ("layer8-8", "layer-8")),
    *itertools.permutations(("layer-9", "medium-9", "small-9"), 2),
)
WHAT = {
    "layer-8": "XL layer, batch 40",
    "layer8-8": "XL layer, batch 8",
    "layer-9": "XL layer, batch 40",
    "medium-9": "medium, 2 layers",
    "small-9": "small, whole",
}
BUDGET, SURE, BIG = 0.01, 1.96, 0.002  # of the step's time: kernels that are judged


@dataclass(frozen=True, kw_only=True)
class Direction:
    """One step carried over to another of the same board, and what that one's samples say."""

    known: str
    new: str
    found: Carried
    own: CostEstimate
    samples: SampleSet
    made: Plan

    @classmethod
    def of(cls, known: str, new: str) -> "Direction":
        """Carry over, and plan."""
        own = read(new)
        step = Step(name=own.workload, kernels=own.kernels, order=own.order, modules=own.modules)
        return cls(
            known=known,
            new=new,
            found=carried(read(known), step),
            own=estimate(own),
            samples=own,
            made=transfer(read(known), step, goal=Goal(max_slowdown=BUDGET), latency="free"),
        )

    @property
    def name(self) -> str:
        """The two steps, in words."""
        return f"{WHAT[self.known]} → {WHAT[self.new]}"

    def kernels(self) -> Sequence[str]:
        """Return a row about kernels at the highest clock that both have."""
        carried_over, own = self.found.estimated, self.own.posterior
        each = carried_over.table.launches
        boost = cap_of(carried_over.table).boost
        at = own.settings.index(each.settings[boost])
        share = np.exp(own.log_s[:, at]) * [kernel.count for kernel in self.samples.kernels]
        share /= share.sum()
        big = share > BIG
        cells = [self.name, str(int(big.sum()))]
        power_w = each.energy_j / each.time_s
        for q, (ours, theirs) in enumerate(((each.time_s, own.log_s), (power_w, own.log_w))):
            off = (theirs[:, at] - np.log(ours[:, boost]))[big]
            spread2 = carried_over.off[:, q, :, boost].var(axis=0)
            spread2 = spread2 + own.variance(1.0 - q, q)[:, at]
            inside = np.abs(off) <= SURE * np.sqrt(spread2[big])
            cells += [f"{np.median(np.abs(off)):.1%}", f"{inside.mean():.0%}"]
        ways: dict[str, float] = {}
        matches = self.found.told.matches.values()
        for match, part in zip(matches, share.tolist(), strict=True):
            ways[match.way] = ways.get(match.way, 0.0) + part
        return [*cells, "; ".join(f"{way} {part:.1%}" for way, part in ways.items())]

    def step(self) -> Sequence[str]:
        """Return a row about the step, and the plan that was carried over."""
        ours, theirs = self.found.estimated.table, self.own.table
        goal = Goal(max_slowdown=BUDGET)
        costs = PlanCosts.of(self.own)
        seen = changed(self.made, self.own)
        anew = changed(decided(self.samples, goal, costs, None), self.own)
        arm = self.made.headline
        return (
            self.name,
            percent(ours.auto_time_s / theirs.auto_time_s - 1.0, 1),
            percent(ours.auto_energy_j / theirs.auto_energy_j - 1.0, 1),
            f"{between(arm.time_interval)}: {seen_as(seen.time_change, seen.time_spread)}",
            f"{between(arm.energy_interval)}: {seen_as(seen.energy_change, seen.energy_spread)}",
            percent(seen.time_change - anew.time_change, 1),
            percent(seen.energy_change - anew.energy_change, 1),
        )


def seen_as(change: float, spread: float) -> str:
    """Write what a step's own samples say, and how surely."""
    return f"{percent(change, 1)} ± {SURE * spread:.1%}"


def between(interval: tuple[float, float] | None) -> str:
    """Write an interval."""
    if interval is None:
        raise AssertionError("what is carried over has errors")
    return " … ".join(percent(end, 1) for end in interval)


def changed(plan: Plan, own: CostEstimate) -> PredictedChange:
    """Return what a plan changes against auto, at the nearest clocks that a table has."""
    table = own.table
    core = np.array([clocks.core_mhz or math.inf for clocks in table.settings])
    places = {
        name: table.baseline
        if choice.clocks.core_mhz is None
        else int(np.argmin(np.abs(core - choice.clocks.core_mhz)))
        for name, choice in plan.kernels.items()
    }
    return own.predicted_schedule(np.array([places[plan.runs[k].name] for k in plan.order]))


def steps(found: Sequence[Direction]) -> Iterator[Sequence[str]]:
    """Yield the table of steps."""
    yield (
        "carried over",
        "auto's time expected",
        "auto's energy expected",
        "plan's time promised, and as its samples have it",
        "plan's energy",
        "regret, time",
        "regret, energy",
    )
    for one in found:
        yield one.step()


def kernels(found: Sequence[Direction]) -> Iterator[Sequence[str]]:
    """Yield the table of kernels."""
    yield (
        "carried over",
        "kernels",
        "time off",
        "inside",
        "power off",
        "inside",
        "matched, by share of time",
    )
    for one in found:
        yield one.kernels()


def main() -> None:
    """Carry over every pair, and write the tables."""
    found = [Direction.of(*pair) for pair in PAIRS]
    command = "    OMP_NUM_THREADS=1 python studies/transfer_h200.py"
    parts = [command, markdown(steps(found)), markdown(kernels(found))]
    fill("transfer", {"h200": "\n\n".join(parts)})


if __name__ == "__main__":
    main()

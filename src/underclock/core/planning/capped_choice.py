"""Choices that the cap holds: what is proven of them, those that it need not hold, the fastest.

The solver knows nothing of the cap. Where windows of what it chooses draw more than the limit, the
loop lowers clocks, and the step takes longer than was reckoned. Multipliers of these windows lead
to choices that the loop leaves alone, or nearly so; the best of them is found by settling each.

With Lagrange's multiplier for power, least time within mean power L is least E + λt for some λ: the
same trade of energy against time as in every plan. So the fastest step is the knapsack with its
parts changed over: minimise Σ t subject to Σ (E - L·t) ≤ 0, windows by multipliers too.

Shape letters: G groups, S settings, K kernels, n launches.
"""

import dataclasses
import math

import numpy as np

from underclock.arrays import Ints
from underclock.core.planning.chance_constraint import Candidate
from underclock.core.solvers import (
    Effort,
    Problem,
    WindowedGroups,
    cheapest_below,
    fastest_below,
    solve,
)
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_cap import greatest_mean_w
from underclock.core.step.power_capped_step import (
    Grouped,
    cap_of,
    settled_step,
    step_cost,
)
from underclock.records import Cost, Status

_FASTEST_ROUNDS = 24  # choices looked at for the fastest step
_ROUNDS = 12  # choices looked at within a time budget
_ROUNDING_MHZ = 1e-6
_SMALL = 1e-9  # of a time or an energy: what rounding leaves


def is_held(table: CostTable, choice: Ints) -> bool:
    """Whether the cap lowers clocks of a schedule; never where there is none, or auto is measured.

    Args:
        choice: Setting of each launch. Shape (n,).
    """
    cap = table.power_cap
    if cap is None or (choice == table.baseline).all():
        return False
    launches = table.launches
    time_s, energy_j = launches.time_s[cap.order, choice], launches.energy_j[cap.order, choice]
    return greatest_mean_w(cap, time_s, energy_j) > cap.limit_w


def cheapest_within(table: CostTable, groups: Grouped, effort: Effort, aim: float) -> Ints | None:
    """Return the choice whose step settles at least energy within an aim. Shape (G,)."""
    cap = cap_of(table)

    def settled_j(choice: Ints) -> float:
        cost = step_cost(table, groups.spread(choice)[cap.order])
        return math.inf if cost.time_change > aim + _SMALL else cost.energy_j

    windowed = WindowedGroups(
        problem=Problem(
            time_s=groups.time_s,
            energy_j=groups.energy_j,
            budget_s=table.auto_time_s * (1.0 + aim),
        ),
        limit_w=cap.limit_w,
        fading=cap.fading,
        order=groups.member[cap.order],
        judge=settled_j,
    )
    return cheapest_below(windowed, effort, rounds=_ROUNDS)[0]


def as_it_runs(table: CostTable, groups: Grouped, setting: Ints) -> Ints:
    """Return the same choice, no group asking for a higher clock than the cap leaves it.

    A ceiling that is taken to follow the mean at once makes them the same. A real one moves bin by
    bin: it climbs while launches at low clocks run, and what asks for more runs above where it
    would settle until it has come down.

    Args:
        setting: Of each kernel. Shape (K,).
    """
    order = cap_of(table).order
    reached_mhz = np.zeros(len(groups.time_s))
    settled = settled_step(table, setting[order])
    np.maximum.at(reached_mhz, groups.member[order], settled.core_mhz)
    core = np.array([clocks.core_mhz or math.nan for clocks in table.settings])
    asked: Ints = setting.copy()
    for g, least_mhz in enumerate(reached_mhz.tolist()):
        mine = groups.member == g
        own = int(setting[mine][0])
        memory = table.settings[own].mem_mhz
        enough = [
            s
            for s, clocks in enumerate(table.settings)
            if clocks.mem_mhz == memory
            and least_mhz - _ROUNDING_MHZ <= core[s] < core[own]
            and np.isfinite(table.time_s[mine, s]).all()
        ]
        asked[mine] = min(enough, key=lambda s: float(core[s]), default=own)
    return asked


def held_candidate(table: CostTable, groups: Grouped, effort: Effort, setting: Ints) -> Candidate:
    """Say how good a choice is that the cap holds, as it settles, heat apart.

    No choice within the limit takes less energy in as much time than the solver finds without a
    cap.

    Args:
        setting: Of each kernel. Shape (K,).
    """
    cap = cap_of(table)
    settled = settled_step(table, setting[cap.order])
    # The cap makes no launch faster than its fastest setting, so there is such a choice.
    free = solve(
        Problem(
            time_s=groups.time_s,
            energy_j=groups.energy_j,
            budget_s=math.fsum(settled.time_s) * (1.0 + _SMALL),
        ),
        effort,
    )
    found = Candidate.bounded(setting, free.bound_j, math.fsum(settled.energy_j))
    return dataclasses.replace(found, status=Status.BOUNDED)


def fastest(table: CostTable, groups: Grouped, effort: Effort) -> tuple[Ints, Cost] | None:
    """Return the choice whose step takes least time under the cap, and what the step takes.

    ``None`` where no choice keeps the limit. A setting of each kernel. Shape (K,).
    """
    cap = cap_of(table)

    def settled(choice: Ints) -> Cost:
        return step_cost(table, groups.spread(choice)[cap.order])

    windowed = WindowedGroups(
        problem=Problem(time_s=groups.time_s, energy_j=groups.energy_j),
        limit_w=cap.limit_w,
        fading=cap.fading,
        order=groups.member[cap.order],
        judge=lambda choice: cap.limit_w * settled(choice).time_s,
    )
    choice, _ = fastest_below(windowed, effort, rounds=_FASTEST_ROUNDS)
    return None if choice is None else (groups.spread(choice), settled(choice))

"""plan: samples in, clocks out."""

from pathlib import Path

from underclock.core.costs import CostTable, cost_table
from underclock.core.groups import Ints
from underclock.core.planning import Goal, choices, compare_arms
from underclock.errors import InfeasibleError
from underclock.records import Clocks, Objective, Plan, Profile
from underclock.stages.sources import as_profile
from underclock.units import format_percent


def plan(
    samples: Profile | str | Path, goal: Goal | None = None, *, baseline: Clocks | None = None
) -> Plan:
    """Choose clocks for every kernel, and compare with simpler ways of choosing.

    Args:
        samples: A profile, a samples file or a CSV table.
        goal: What to minimise; by default energy, without being any slower.
        baseline: The clocks to call auto; by default auto itself, or in a table without it the
            fastest clocks that every kernel has.

    Raises:
        DataError: The samples cannot be planned on.
        InfeasibleError: No choice meets the time budget.
    """
    goal = goal or Goal()
    profile = as_profile(samples)
    table = cost_table(profile, baseline=baseline)
    compared = compare_arms(table, goal)
    if goal.chosen not in compared.settings:
        raise InfeasibleError(
            f"no choice of clocks changes time by {format_percent(goal.max_slowdown)} or less",
            hint=f"the fastest changes it by {format_percent(compared.fastest_change)}: "
            "raise --max-slowdown to that or more",
        )
    waste = goal.objective is Objective.WASTE
    return Plan(
        evidence=profile.evidence,
        gpu=profile.gpu,
        workload=profile.workload,
        fingerprint=profile.fingerprint,
        objective=goal.objective,
        max_slowdown=goal.max_slowdown if waste else None,
        granularity=goal.granularity,
        aggregate=goal.aggregate,
        baseline=table.settings[table.baseline],
        chosen=goal.chosen,
        arms=compared.arms,
        kernels=choices(table, compared.settings[goal.chosen]),
        fixed=_fixed(table, compared.settings),
        frontier=compared.frontier,
        closure=table.closure,
        runs=profile.kernels,
        order=profile.order,
        warnings=table.warnings,
    )


def _fixed(table: CostTable, settings: dict[str, Ints]) -> Clocks | None:
    """Return the clocks of the best fixed arm."""
    return table.settings[int(settings["best_fixed"][0])] if "best_fixed" in settings else None

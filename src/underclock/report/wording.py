"""How tables and pages name arms, statuses, budgets and missing values.

Both say the same thing in the same words, so the words live here once.
"""

import math
from collections.abc import Iterable, Mapping

from underclock.records import (
    Aggregate,
    Arm,
    Choice,
    Clocks,
    Evidence,
    Granularity,
    Objective,
    Plan,
    Status,
)
from underclock.units import format_duration, format_mhz, format_percent

DASH = "\N{EN DASH}"
UNKNOWN = "unknown"

ARM_TITLES = {
    "auto": "auto",
    "best_fixed": "best fixed clock",
    "pass": "pass-level",
    "kernel_local": "kernel, local",
    "kernel_global": "kernel, global",
    "achievable": "achievable here",
}

ARM_SENTENCES = {
    "auto": "Nothing is set: the driver picks the clocks.",
    "best_fixed": "One core clock and one memory clock for the whole step.",
    "pass": "One pair of clocks for the forward pass, one for the backward pass, and so on.",
    "kernel_local": (
        "Each kernel has its own clocks, chosen for it alone; a time budget binds each of them."
    ),
    "kernel_global": (
        "Each kernel has its own clocks, chosen together; a time budget binds the whole step only, "
        "so kernels lend each other time."
    ),
    "achievable": (
        "Clocks change only as often as this GPU can change them; what changes cost is counted."
    ),
}

EVIDENCE_SENTENCES = {
    Evidence.MEASURED: "measured on this GPU by Underclock",
    Evidence.REPLAYED: "taken from a table of measurements that somebody made earlier",
    Evidence.SIMULATED: "computed by a model of this GPU, not measured on one",
}

OBJECTIVE_SENTENCES = {
    Objective.WASTE: "waste: the least energy within the time budget",
    Objective.EDP: "EDP: the least product of energy and time",
    Objective.ED2P: "ED²P: the least product of energy and time squared",
    Objective.ENERGY: "energy: the least energy, whatever the time",
}

_GRANULARITY = {
    Granularity.KERNEL: "each kernel has clocks of its own",
    Granularity.PASS: "each pass has clocks of its own",
    Granularity.STEP: "one pair of clocks for the whole step",
}

_JOULES = (("MJ", 1e6), ("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3))


def change_text(fraction: float | None, *, digits: int = 2) -> str:
    """Write a change in percent; a missing one is a dash, one that rounds to zero is +0."""
    return DASH if fraction is None else format_percent(fraction, digits=digits)


def duration_text(seconds: float | None) -> str:
    """Write a duration; a missing one is a dash."""
    return DASH if seconds is None else format_duration(seconds)


def energy_text(joules: float | None) -> str:
    """Write an energy to three digits in the largest unit that keeps it above one."""
    if joules is None:
        return DASH
    for unit, size in _JOULES:
        if joules >= size:
            value = joules / size
            digits = ".0f" if value >= 100.0 else "#.3g"  # noqa: PLR2004 - g would write 1e+03
            return f"{value:{digits}}".rstrip(".") + f" {unit}"
    return f"{joules / 1e-6:.3g} µJ"


def clocks_text(clocks: Clocks) -> str:
    """Write a pair of clocks briefly, in MHz: ``core 1680, mem auto``."""
    return f"core {format_mhz(clocks.core_mhz)}, mem {format_mhz(clocks.mem_mhz)}"


def arm_title(name: str) -> str:
    """Return what a reader calls the arm; a name of unknown origin stays as it is."""
    return ARM_TITLES.get(name, name)


def gap_text(gap: float) -> str:
    """Write a gap rounded up, for a certificate must not claim more than was proven."""
    return f"{math.ceil(gap * 1e4 - 1e-9) / 100.0:.2f} %"


def status_text(arm: Arm) -> str:
    """Say in a word or two how the arm's clocks came about."""
    if arm.status is Status.BOUNDED and arm.gap is not None:
        return f"within {gap_text(arm.gap)}"
    return {
        Status.BASELINE: "baseline",
        Status.GIVEN: "given",
        Status.OPTIMAL: "optimal",
        Status.BOUNDED: "feasible",
        Status.INFEASIBLE: "infeasible",
    }[arm.status]


def certificate_text(arm: Arm) -> str:
    """Say in a sentence what is proven about the arm's choice."""
    if arm.status is Status.BOUNDED and arm.gap is not None:
        return f"feasible, and proven to be within {gap_text(arm.gap)} of the optimum"
    if arm.status is Status.OPTIMAL:
        return "optimal: proven that no allowed choice does better on the same costs"
    return arm.status.value


def budget_text(plan: Plan) -> str:
    """Say in a sentence how much time the plan was allowed to take."""
    if plan.max_slowdown is None:
        return "none: time was free"
    who = "each kernel" if plan.aggregate is Aggregate.LOCAL else "the whole step"
    if plan.max_slowdown == 0.0:
        return f"{change_text(0.0)}: {who} may not get slower"
    if plan.max_slowdown > 0.0:
        return f"{change_text(plan.max_slowdown)}: {who} may be slower by that much"
    return f"{change_text(plan.max_slowdown)}: {who} must be faster by at least that much"


def granularity_text(plan: Plan) -> str:
    """Say what got clocks of its own."""
    return _GRANULARITY[plan.granularity]


def greatest_savings(kernels: Mapping[str, Choice], limit: int) -> list[tuple[str, Choice]]:
    """Return the kernels that save the largest share of their own energy, best first."""
    return sorted(kernels.items(), key=lambda item: item[1].energy_change)[:limit]


def once(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return every sentence once, in the order of first mention."""
    return tuple(dict.fromkeys(sentences))

"""How tables and pages name arms, statuses, budgets, quantities and missing values."""

import math
import re
from collections.abc import Sequence

from underclock.records import (
    MOST_REPEATS,
    Accounting,
    Aggregate,
    Arm,
    Clocks,
    Evidence,
    Granularity,
    Objective,
    Plan,
    Spread,
    Status,
    Strategy,
    Validation,
    Verdict,
)
from underclock.units import format_duration, format_mhz, format_percent

DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
UNKNOWN = "unknown"
_JOULES = (("MJ", 1e6), ("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6))

ARM_TITLES: dict[str, str] = {
    Strategy.AUTO: "auto",
    Strategy.BEST_FIXED: "best fixed clock",
    Strategy.PASS: "each pass",
    Strategy.KERNEL_LOCAL: "each kernel, alone",
    Strategy.KERNEL_GLOBAL: "each kernel, together",
    Strategy.ACHIEVABLE: "each stretch",
    Strategy.RANK: "each rank",
    Strategy.DIRECTION: "each direction",
    Strategy.INSTRUCTION: "each instruction",
    Strategy.KERNEL: "each kernel",
}

ARM_SENTENCES: dict[str, str] = {
    Strategy.AUTO: "Nothing is set: the driver picks the clocks.",
    Strategy.BEST_FIXED: "One core clock and one memory clock for the whole step.",
    Strategy.PASS: "One pair of clocks for the forward pass, one for the backward pass, and so on.",
    Strategy.KERNEL_LOCAL: (
        "Each kernel has its own clocks, chosen for it alone; a time budget binds each of them."
    ),
    Strategy.KERNEL_GLOBAL: (
        "Each kernel has its own clocks, chosen together; a time budget binds the whole step only, "
        "so kernels lend each other time."
    ),
    Strategy.ACHIEVABLE: (
        "Each stretch of launches has its own clocks, as often as this GPU can change them; what "
        "changes cost is counted."
    ),
}

EVIDENCE_SENTENCES = {
    Evidence.MEASURED: "measured on this GPU by Underclock",
    Evidence.REPLAYED: "read from a table, whose rows Underclock did not measure",
    Evidence.SIMULATED: "computed by a model of this GPU, not measured on one",
}

ACCOUNTING_WORDS = {
    Accounting.STEP: "the step as it runs under its power cap",
    Accounting.ISOLATED: "kernels measured alone, as in arXiv 2601.08539",
}

OBJECTIVE_SENTENCES = {
    Objective.WASTE: "waste: the least energy within the time budget",
    Objective.EDP: "EDP: the least product of energy and time",
    Objective.ED2P: "ED²P: the least product of energy and time squared",
    Objective.ENERGY: "energy: the least energy, whatever the time",
}

GRANULARITY_WORDS = {
    Granularity.KERNEL: "each kernel may have clocks of its own",
    Granularity.PASS: "each pass may have clocks of its own",
    Granularity.STEP: "one pair of clocks for the whole step",
}


def minus(text: str) -> str:
    """Write true minus signs before numbers: a hyphen is too short to be seen."""
    return re.sub(r"(?<![\w-])-(?=\d)", MINUS, text)


def listed(words: Sequence[str]) -> str:
    """Join words as a sentence does."""
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def change_text(fraction: float | None, *, digits: int = 2) -> str:
    """Write a change in percent; a missing one is a dash, one that rounds to zero is +0."""
    return DASH if fraction is None else format_percent(fraction, digits=digits)


def changes_text(energy: float | None, time: float | None) -> str:
    """Write what changes."""
    return f"{change_text(energy)} energy at {change_text(time)} time"


def interval_text(interval: tuple[float, float] | None) -> str:
    """Write what the truth may lie between; a missing interval is a dash."""
    if interval is None:
        return DASH
    low, high = (change_text(end) for end in interval)
    return f"{low.removesuffix(' %')} to {high}"


def duration_text(seconds: float | None) -> str:
    """Write a duration; a missing one is a dash."""
    return DASH if seconds is None else format_duration(seconds)


def energy_text(joules: float | None) -> str:
    """Write an energy to three digits in the largest unit that keeps it above one.

    A missing one is a dash; one that is lost instead of saved has a minus sign.
    """
    if joules is None:
        return DASH
    if joules <= 0.0:
        return f"-{energy_text(-joules)}" if joules else "0 J"
    unit, size = energy_unit(joules)
    value = joules / size
    digits = ".0f" if value >= 100.0 else "#.3g"  # noqa: PLR2004 - g would write 1e+03
    return f"{value:{digits}}".rstrip(".") + f" {unit}"


def energy_unit(joules: float) -> tuple[str, float]:
    """Return the largest unit that keeps an energy above one, else the smallest, and its size."""
    return next((unit for unit in _JOULES if joules >= unit[1]), _JOULES[-1])


def clocks_text(clocks: Clocks) -> str:
    """Write a pair of clocks briefly, in MHz: ``core 1680, mem auto``."""
    return f"core {format_mhz(clocks.core_mhz)}, mem {format_mhz(clocks.mem_mhz)}"


def arm_title(name: str, plan: Plan | None = None) -> str:
    """Return what a reader calls the arm of a plan; a name of unknown origin stays as it is."""
    return auto_word(plan) if plan and name == Strategy.AUTO else ARM_TITLES.get(name, name)


def auto_word(plan: Plan) -> str:
    """Name what everything is compared with: auto, or where that was not run the baseline."""
    return "auto" if plan.baseline.is_auto else "baseline"


def gap_text(gap: float) -> str:
    """Write a gap rounded up, for a certificate must not claim more than was proven."""
    return f"{math.ceil(gap * 1e4 - 1e-9) / 100.0:.2f} %"


def status_text(arm: Arm) -> str:
    """Say in a word or two how the arm's clocks came about."""
    if arm.status is Status.BOUNDED:
        return "feasible" if arm.gap is None else f"within {gap_text(arm.gap)}"
    return arm.status.name.lower()


def certificate_text(arm: Arm) -> str:
    """Say in a sentence what is proven about the arm's choice."""
    if arm.status is Status.BOUNDED:
        if arm.gap is None:
            return "feasible; how far it is from the optimum is not known"
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


def measured_changes(
    validation: Validation,
) -> list[tuple[str, float | None, Spread, tuple[float, float] | None]]:
    """Return of the plan, then of every other arm: names, promises, what pairs gave, intervals."""
    v = validation
    rows: list[tuple[str, float | None, Spread, tuple[float, float] | None]] = [
        ("time", v.promised_time_change, v.time_change, v.time_interval),
        ("energy", v.promised_energy_change, v.energy_change, v.energy_interval),
    ]
    for other in v.others:
        title = arm_title(other.name)
        rows.append((f"{title}, time", None, other.time_change, other.time_interval))
        rows.append((f"{title}, energy", None, other.energy_change, other.energy_interval))
    return rows


def verdict_text(validation: Validation) -> str:
    """Say whether the promise held, against what, and what would decide it where that is open."""
    v = validation
    if v.verdict is None:
        return "unknown: made by a version that did not judge"
    promised = change_text(v.promised_energy_change)
    if v.promised_energy_interval is not None:
        low, high = v.promised_energy_interval
        promised += f" ± {format_percent((high - low) / 2).removeprefix('+')}"
    energy = (
        f"energy {change_text(v.energy_change.mean)} ({interval_text(v.energy_interval)}) against "
        f"{promised} promised"
    )
    time = f"time {change_text(v.time_change.mean)} "
    if v.max_slowdown is None:
        time += "was free"
    else:
        budget = change_text(v.max_slowdown)
        time += f"({interval_text(v.time_interval)}) against a budget of {budget}"
    needed, more = "", v.further_repeats
    if v.verdict is Verdict.INCONCLUSIVE:
        needed = f": too close to call, even with {MOST_REPEATS} repeats"
        if v.energy_interval is None or v.time_interval is None:
            needed = ": a single run of each has no spread"
        elif more is not None:
            needed = f": about {more} more {'repeat' if more == 1 else 'repeats'} would decide"
    return f"{v.verdict}{needed}: {energy}; {time}; tolerance {_tolerance_text(v)}"


def _tolerance_text(validation: Validation) -> str:
    return f"{100.0 * (validation.tolerance or 0.0):g} points"


def keeping_time_text(validation: Validation) -> str:
    """Say how many pairs are fast enough, to the tolerance that the verdict uses."""
    if validation.pairs_keeping_time is None:
        return "time was free"
    within = f", to {_tolerance_text(validation)}" if validation.tolerance else ""
    return f"{validation.pairs_keeping_time} keep the time budget{within}"


def accounting_text(validation: Validation) -> str:
    """Say what was run, and how clocks changed."""
    latency = validation.latency
    switching = "taken as free" if latency is None else f"latency {latency}"
    return f"whole steps, {validation.evidence}; switching {switching}"

"""What other time budgets let expect, told from a frontier: never a promise."""

from collections.abc import Sequence

from underclock.records import Arm, Cost, Objective, Plan, Strategy
from underclock.report.wording import arm_title, change_text, no_change

ONE_PAIR = (
    "every sample is at one pair of clocks, so there is nothing to choose from: "
    "`underclock predict` says what other clocks would save"
)
"""Warning of a plan that had no choice."""

# Slowdowns, as fractions, that a plan without savings is compared with.
_LENT = (0.005, 0.01, 0.02)


def expected_energy_change(frontier: Sequence[Cost], time_change: float) -> float | None:
    """Return the least energy change expected at a time change; ``None`` before the fastest point.

    Between two points a mixture of both is meant; beyond the last, more time saves nothing more.

    Args:
        frontier: Fastest first, energy falling.
        time_change: Fraction of auto.
    """
    if not frontier or time_change < frontier[0].time_change:
        return None
    before = frontier[0]
    for point in frontier:
        if point.time_change >= time_change:
            span = point.time_change - before.time_change
            part = (time_change - before.time_change) / span if span > 0 else 1.0
            return before.energy_change + part * (point.energy_change - before.energy_change)
        before = point
    return before.energy_change


def gives_nothing(plan: Plan) -> bool:
    """Whether the arm that counts leaves the step as it is at auto."""
    arm = plan.headline
    if arm.name is Strategy.ACHIEVABLE:
        return arm.cost is not None and no_change(arm)
    return plan.sets_nothing


def lent(plan: Plan) -> tuple[tuple[float, float], ...]:
    """Return what greater time budgets would bring: each, and the energy change expected with it.

    As on the frontier that counts; nothing where time is what is minimised, for then none is lent.
    """
    frontier = frontier_of(plan)
    if plan.objective is Objective.TIME:
        return ()
    return tuple(
        (slowdown, change)
        for slowdown in _LENT
        if len(frontier) > 1  # a single point knows of nothing else
        and slowdown > (plan.max_slowdown or 0.0)
        and (change := expected_energy_change(frontier, slowdown)) is not None
    )


def frontier_of(plan: Plan) -> Sequence[Cost]:
    """Return the frontier that counts: under the plan's latency where it has one."""
    return plan.achievable_frontier or plan.frontier


def auto_plan_sentence(plan: Plan) -> str | None:
    """Say that a plan gives nothing, and what some more time would give.

    Returns:
        ``None`` where it gives something, or where its warnings say why not.
    """
    if not gives_nothing(plan) or ONE_PAIR in plan.warnings:
        return None
    text = _nothing_text(plan)
    offers = lent(plan)
    if not offers:
        return text
    at = f"at {_listed([plain_percent(slowdown) for slowdown, _ in offers])} % slower"
    if all(round(change, 3) >= 0.0 for _, change in offers):
        return f"{text}; {at} none are expected to either"
    changes = [change_text(change, digits=1).removesuffix(" %") for _, change in offers]
    return f"{text}; {at} about {_listed(changes)} % energy is expected, {bound_words(plan)}"


def bound_words(plan: Plan) -> str:
    """Say what numbers of the frontier are worth."""
    if plan.chosen is Strategy.BEST_FIXED or plan.achievable_frontier:
        return "not promised"
    return "with free switching: a bound, not promised"


def _nothing_text(plan: Plan) -> str:
    if plan.objective is Objective.TIME:
        within = "the power limit" if plan.limit_w is None else f"{plan.limit_w:g} W"
        return f"the plan is auto: no other clocks surely make the step faster within {within}"
    if plan.max_slowdown is None:
        return f"the plan is auto: no other clocks are better for {plan.objective}"
    budget = f"at \N{LESS-THAN OR EQUAL TO} {plain_percent(plan.max_slowdown)} % slower"
    if plan.headline.name is Strategy.ACHIEVABLE:
        return f"the plan is auto: no schedule was found that surely saves energy {budget}"
    better = [arm for arm in plan.arms if _surely_saves(arm)]
    if better:
        kind, other = arm_title(plan.chosen), min(better, key=lambda arm: arm.energy_change or 0.0)
        return (
            f"the plan is auto: clocks of the kind asked for ({kind}) do not surely save energy "
            f"{budget}; {arm_title(other.name)} does, {change_text(other.energy_change)}"
        )
    return f"the plan is auto: no other clocks surely save energy {budget}"


def _surely_saves(arm: Arm) -> bool:
    """Whether an arm saves energy, with 95 % confidence where that is known."""
    high = arm.energy_change if arm.energy_interval is None else arm.energy_interval[1]
    return high is not None and high < 0.0 and not no_change(arm)


def plain_percent(fraction: float) -> str:
    """Write a fraction in percent without sign, unit or needless digits."""
    return f"{round(100.0 * fraction, 4) + 0.0:g}"


def _listed(words: Sequence[str]) -> str:
    """Join words as a sentence does."""
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]

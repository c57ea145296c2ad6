"""What a reader should take away from a plan: which saving is real, and where it comes from.

Which clocks to hold, which kernels save most, and what more time would give (from a frontier, so
never a promise).
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from underclock.records import Choice, Clocks, Cost, Evidence, Plan, Strategy
from underclock.records.answers import (
    ONE_PAIR,
    gives_nothing,
    is_unsure,
    may_save_nothing,
    no_change,
)
from underclock.records.planned import MatchWay
from underclock.report.wording import (
    arm_title,
    auto_word,
    change_text,
    changes_text,
    clocks_text,
    energy_unit,
    interval_text,
    listed,
)
from underclock.units import plain_percent

_EXACT = 1e-5  # of auto's time: so far above a budget is rounding
_AS_MUCH = 0.001  # of auto's energy and time: two arms this near are equally good
_LARGER_BUDGETS = (0.005, 0.01, 0.02)  # that a plan without savings is compared with
_MOST_OF_IT = 0.9  # of all that kernels save
_MOST_OPERATORS = 6  # of those that draw most


def next_sentence(plan: Plan, file: str, train: str = "") -> str:
    """Say what to type next: of a plan in a file, and a command that trains if that is known."""
    if is_unsure(plan):
        again = "the same command" if train else "underclock measure into the same file"
        text = f"more samples narrow the interval: {again}, with a longer --time-limit"
    elif gives_nothing(plan):
        text = _more_time(plan)
        if train and ONE_PAIR in plan.warnings:
            text = f"learn clocks while it trains, where they may be set: underclock run -- {train}"
    elif plan.bound is plan.chosen:
        text = "--latency 6ms, or as long as your GPU takes, for what it can follow"
        if not plan.step.order:  # then changes between launches cannot be planned
            text = "a step of your own, in the order of its launches: underclock tune"
    elif plan.evidence is Evidence.SIMULATED:
        text = "the same command with --hold trains under these clocks, on the simulated GPU"
        if not train:
            text = "your own script: underclock tune --gpu sim:rtx3080ti -- python train.py"
    elif fixed_is_enough(plan):
        text = f"one clock for all does as well; until Ctrl-C: underclock apply {file}"
    else:
        run = f"underclock run {file} --compare auto,plan -- {train or 'python train.py'}"
        text = f"train under these clocks, and measure what they save: {run}"
    return f"Next: {text}"


def _more_time(plan: Plan) -> str:
    offers = larger_budgets(plan)
    if ONE_PAIR in plan.warnings:
        return "samples at other clocks: underclock measure"
    if plan.latency_range_s and plan.latency_curve and not no_change(plan.latency_curve[0]):
        return "measure how long your GPU takes: underclock latency --gpu nvml:0 -o latency.json"
    if not offers or round(offers[-1][1], 3) >= 0.0:
        return "nothing to do; no clocks are worth changing here"
    slowdown, change = offers[-1]
    budget, saved = f"{plain_percent(slowdown)}%", f"{-100.0 * change:.1f} %"
    return f"with --max-slowdown {budget} about {saved} is expected, {bound_words(plan)}"


def carried_sentence(plan: Plan) -> str | None:
    """Say how the kernels of a step that was not measured are known; ``None`` where it was."""
    carried = plan.carried
    if carried is None:
        return None
    total_j = sum(choice.auto_energy_j for choice in plan.kernels.values())
    parts, unknown = [], []
    for way in MatchWay:
        names = [name for name, match in carried.matches.items() if match.way is way]
        share = sum(plan.kernels[name].auto_energy_j for name in names) / total_j
        parts += [f"{len(names)} {way} ({share:.1%} of energy)"] if names else []
        unknown += [] if way.is_told else names
    text = f"Carried over from samples of {carried.workload}, kernels known as: {', '.join(parts)}."
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        text += f" Left at auto: {unknown[0]}{more}."
    if carried.confirmed:
        text += f" Measured after all: {listed(carried.confirmed)}."
    if carried.regret_energy is not None and carried.regret_time is not None:
        text += (
            " Against one planned on the step's own samples, as those have both: "
            f"{change_text(carried.regret_energy)} energy, {change_text(carried.regret_time)} time."
        )
    return text


def strict_sentence(plan: Plan) -> str | None:
    """Say what no loss of time would give; ``None`` where none was allowed, or nothing is given."""
    if (plan.max_slowdown or 0.0) <= 0.0 or gives_nothing(plan):
        return None
    known = (*frontier_of(plan), plan.promise)  # choices, for a mixture may be of unlike ones
    kept = [each.energy_change for each in known if each.time_change <= _EXACT]
    change = change_text(min([0.0, *kept]))
    what = "no saving" if change == change_text(0.0) else f"{change} energy"
    return f"At 0 % slower {what} is expected, {bound_words(plan)}."


def has_latencies(plan: Plan) -> bool:
    """Whether a plan knows of other latencies, and saves at any of them."""
    return not all(no_change(point) for point in plan.latency_curve)


def fixed_is_enough(plan: Plan) -> bool:
    """Whether one clock pair for the whole step does as well as what counts.

    It saves as much at no more time, or more within the time budget.
    """
    arm = plan.find(Strategy.BEST_FIXED)
    fixed, best = None if arm is None else arm.cost, plan.promise
    if arm is None or fixed is None or plan.chosen is Strategy.BEST_FIXED:
        return False
    if may_save_nothing(arm) or fixed.energy_change >= -_AS_MUCH:
        return False
    as_fast = fixed.time_change <= best.time_change + _AS_MUCH
    more = fixed.energy_change - best.energy_change
    if more < -_AS_MUCH and plan.max_slowdown is not None:
        return True
    return more <= _AS_MUCH and as_fast


def fixed_sentence(plan: Plan) -> str | None:
    """Say what the best fixed clock is worth; ``None`` where it is auto or unknown."""
    arm, best = plan.find(Strategy.BEST_FIXED), plan.headline
    if plan.fixed is None or plan.fixed.is_auto or arm is None or arm.cost is None:
        return None
    changes = changes_text(arm.energy_change, arm.time_change)
    text = f"best fixed clock, {clocks_text(plan.fixed)}: {changes}"
    if arm.energy_interval is not None and may_save_nothing(arm):
        return f"{text}, which may be nothing: {interval_text(arm.energy_interval)}"
    if not fixed_is_enough(plan):
        return text
    if best.energy_change is None or no_change(best):
        return f"{text}: use that"
    than = change_text(best.energy_change)
    if arm.cost.energy_change < best.energy_change - _AS_MUCH:
        return f"{text}, better than {than}: use that"
    return f"{text}, as good as {than} within 0.1 points: use that"


def can_be_held_by_hand(plan: Plan) -> bool:
    """Whether the best fixed clock surely saves energy on a GPU that is there to be set."""
    arm = plan.find(Strategy.BEST_FIXED)
    sure = arm is not None and arm.cost is not None and not may_save_nothing(arm)
    return sure and plan.evidence is not Evidence.SIMULATED and fixed_sentence(plan) is not None


def hold_commands(clocks: Clocks) -> tuple[str, ...]:
    """Return what to paste into a shell to hold a clock pair; Underclock never runs it."""
    held = (("-lgc", clocks.core_mhz), ("-lmc", clocks.mem_mhz))
    return tuple(
        f"sudo nvidia-smi -i 0 {option} {mhz},{mhz}" for option, mhz in held if mhz is not None
    )


def undo_command(clocks: Clocks) -> str:
    """Return what gives the clocks of `hold_commands` back to the driver."""
    held = (("-rgc", clocks.core_mhz), ("-rmc", clocks.mem_mhz))
    return " && ".join(f"sudo nvidia-smi -i 0 {option}" for option, mhz in held if mhz is not None)


def expected_energy_change(frontier: Sequence[Cost], time_change: float) -> float | None:
    """Return the least energy change expected at a time change; ``None`` before the fastest point.

    Between two points a mixture of both is meant; beyond the last, more time saves nothing more.
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


def frontier_of(plan: Plan) -> Sequence[Cost]:
    """Return the frontier that counts: under the plan's latency where it has one."""
    return plan.achievable_frontier or plan.frontier


def larger_budgets(plan: Plan) -> tuple[tuple[float, float], ...]:
    """Return larger time budgets, and the energy change expected with each on its frontier."""
    frontier = frontier_of(plan)
    if len(frontier) < 2 or ONE_PAIR in plan.warnings:  # noqa: PLR2004 - one is no line
        return ()
    return tuple(
        (slowdown, change)
        for slowdown in _LARGER_BUDGETS
        if slowdown > (plan.max_slowdown or 0.0)
        and (change := expected_energy_change(frontier, slowdown)) is not None
    )


def bound_words(plan: Plan) -> str:
    """Say what numbers of the frontier are worth."""
    if plan.chosen is Strategy.BEST_FIXED or plan.achievable_frontier:
        return "not promised"
    return "if clocks changed at once: a bound, not promised"


def auto_plan_sentence(plan: Plan) -> str | None:
    """Say that a plan gives nothing, and what more time would; ``None`` where warnings say it."""
    if not gives_nothing(plan) or ONE_PAIR in plan.warnings:
        return None
    text = _nothing_text(plan)
    offers = larger_budgets(plan)
    if not offers:
        return text
    at = f"at {listed([plain_percent(slowdown) for slowdown, _ in offers])} % slower"
    if all(round(change, 3) >= 0.0 for _, change in offers):
        return f"{text}; {at} none are expected to either"
    changes = [change_text(change, digits=1).removesuffix(" %") for _, change in offers]
    return f"{text}; {at} about {listed(changes)} % energy is expected, {bound_words(plan)}"


def _nothing_text(plan: Plan) -> str:
    is_auto = f"the plan is {auto_word(plan)}:"
    if plan.max_slowdown is None:
        return f"{is_auto} no other clocks are better for {plan.objective}"
    budget = f"at \N{LESS-THAN OR EQUAL TO} {plain_percent(plan.max_slowdown)} % slower"
    if plan.schedule is not None:
        return f"{is_auto} no schedule was found that surely saves energy {budget}"
    better = []  # arms that save energy, with 95 % confidence where that is known
    for arm in plan.arms:
        high = arm.energy_change if arm.energy_interval is None else arm.energy_interval[1]
        better += [arm] if high is not None and high < 0.0 and not no_change(arm) else []
    if better:
        kind, other = arm_title(plan.chosen), min(better, key=lambda arm: arm.energy_change or 0.0)
        return (
            f"{is_auto} clocks of the kind asked for ({kind}) do not surely save energy "
            f"{budget}; {arm_title(other.name)} does, {change_text(other.energy_change)}"
        )
    return f"{is_auto} no other clocks surely save energy {budget}"


def top_savings(plan: Plan, most: int) -> tuple[dict[str, Choice], dict[str, Choice]]:
    """Return the kernels that save nine tenths of what is saved, and the rest.

    The first are at most ``most``, greatest saving first; each saves something.
    """
    everything = sorted(plan.kernels.items(), key=lambda item: -item[1].saved_j)
    enough_j = _MOST_OF_IT * sum(max(choice.saved_j, 0.0) for _, choice in everything)
    top: dict[str, Choice] = {}
    for name, choice in everything[:most]:
        if choice.saved_j <= 0.0 or sum(row.saved_j for row in top.values()) >= enough_j:
            break
        top[name] = choice
    return top, dict(everything[len(top) :])


def saved_text(plan: Plan, total_j: float) -> str:
    """Say what all kernels save by themselves, and what the step saves with their clocks.

    The two differ where the step is not the sum of its kernels: they share one power cap.
    """
    promise = plan.promise
    auto_j = promise.energy_j / (1.0 + promise.energy_change)
    free = " if clocks changed at once, a bound" if plan.bound is plan.chosen else ""
    unit, (kernels, step) = joules_column([total_j, auto_j - promise.energy_j])
    alone = "" if kernels == step else f"; kernels by themselves add up to {kernels} {unit}"
    return f"{step} {unit} of a step are saved{free}{alone}"


def joules_column(values_j: Sequence[float]) -> tuple[str, list[str]]:
    """Return the unit of the greatest of some energies, and all of them in it, without it."""
    unit, size = energy_unit(max((abs(value) for value in values_j), default=0.0))
    return unit, [f"{round(value / size, 2) + 0.0:.2f}" for value in values_j]


def energy_parts(plan: Plan) -> tuple[tuple[str, int, float, float], ...]:
    """Say where a step's energy goes at auto: passes in their order, then the main operators.

    Each has its name, its launches, and its shares of the step's time and of its energy. Nothing
    where the step is one kernel.
    """
    if len(plan.step.kernels) < 2:  # noqa: PLR2004 - one kernel has no parts
        return ()
    passes, operators = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for kernel in plan.step.kernels:
        passes[kernel.pass_.value].append(kernel.name)
        launch = kernel.launch
        own = launch.operator if launch is not None and launch.operator else ""
        operators[own or kernel.name.split(" ")[0]].append(kernel.name)
    counts = {kernel.name: kernel.count for kernel in plan.step.kernels}
    all_s = math.fsum(choice.auto_time_s for choice in plan.kernels.values())
    all_j = math.fsum(choice.auto_energy_j for choice in plan.kernels.values())

    def parts(groups: dict[str, list[str]]) -> Iterator[tuple[str, int, float, float]]:
        for name, kernels in groups.items():
            yield (
                name,
                sum(counts[each] for each in kernels),
                math.fsum(plan.kernels[each].auto_time_s for each in kernels) / all_s,
                math.fsum(plan.kernels[each].auto_energy_j for each in kernels) / all_j,
            )

    most = sorted(parts(operators), key=lambda part: -part[-1])[:_MOST_OPERATORS]
    return (*(parts(passes) if len(passes) > 1 else ()), *(most if len(operators) > 1 else ()))


def auto_clock_sentence(plan: Plan) -> str:
    """Say at which core clock the step runs at auto; nothing where it is unknown."""
    known = [choice for choice in plan.kernels.values() if choice.auto_core_mhz]
    time_s = math.fsum(choice.auto_time_s for choice in known)
    if not time_s:
        return ""
    mean = math.fsum(c.auto_time_s * (c.auto_core_mhz or 0) for c in known) / time_s
    return f"at {auto_word(plan)} the step runs at {mean:.0f} MHz in the mean"

"""What a reader should take away from a plan: which saving is real, and which clocks to hold."""

from underclock.records import Arm, Clocks, Evidence, Objective, Plan, Strategy
from underclock.report.expected import gives_nothing
from underclock.report.wording import (
    accounting_words,
    arm_title,
    change_text,
    changes_text,
    clocks_text,
    duration_text,
    interval_text,
    no_change,
)

_AS_MUCH = 0.001  # of auto's energy and time: two arms this near are equally good


def headline(plan: Plan) -> str:
    """Say the answer in a line: what is saved, how that is known, and of what."""
    return f"{saving(plan)}, {basis(plan)}"


def saving(plan: Plan) -> str:
    """Say what the arm that counts saves, at what time; of a plan for time, that first."""
    arm = plan.headline
    if arm.cost is None:
        return f"No schedule keeps {change_text(plan.max_slowdown)} time"
    best = plan.at_best
    if gives_nothing(plan) or no_change(arm):
        faster = plan.objective is Objective.TIME
        nothing = "No faster step to promise" if faster else "No saving to promise"
        if best is None or no_change(best):
            return nothing
        least = changes_text(plan, best.energy_change, best.time_change)
        most, quick = (duration_text(p.latency_s) for p in (plan.latency_curve[-1], best))
        return f"{nothing} where clocks take {most} to change, {least} where they take {quick}"
    if best is None or no_change(best):
        return changes_text(plan, arm.energy_change, arm.time_change)
    changes = interval_text((arm.energy_change or 0.0, best.energy_change or 0.0))
    latencies = " and ".join(duration_text(p.latency_s) for p in reversed(plan.latency_curve))
    time = change_text(arm.time_change)
    return f"{changes} energy at {time} time, where clocks take {latencies} to change"


def basis(plan: Plan) -> str:
    """Say how a plan's numbers are known, and what they are sums of."""
    table = ", of this table" if _is_of_table(plan) else ""
    return f"{plan.evidence} on {plan.gpu.name}{table}: {accounting_words(plan.accounting)}"


def _is_of_table(plan: Plan) -> bool:
    """Whether a plan's numbers are a table's own, of which nobody knows how sure they are."""
    return plan.evidence is Evidence.REPLAYED and plan.arm(plan.chosen).energy_interval is None


def limit_sentence(plan: Plan) -> str | None:
    """Say under which power limit all of it is, and how to set that; ``None`` at the GPU's own."""
    limit_w, own_w = plan.power_limit_w, plan.gpu.power_limit_w
    if limit_w is None or limit_w == own_w:
        return None
    than = "" if own_w is None else f" instead of {own_w:g} W"
    return (
        f"Planned for a power limit of {limit_w:g} W{than}; auto is what the driver's own cap "
        f"would make of the step there. To set it on GPU 0: {limit_command(limit_w)}"
    )


def limit_command(limit_w: float) -> str:
    """Return what to paste into a shell to set a power limit; Underclock never runs it."""
    return f"sudo nvidia-smi -i 0 -pl {limit_w:g}"


def switching_sentence(plan: Plan) -> str | None:
    """Say what the headline takes changing clocks to cost, and what it would be for free.

    Returns:
        ``None`` where no clocks change and nobody asked for a latency.
    """
    arm = plan.headline
    if arm.name is Strategy.ACHIEVABLE:
        return f"{_schedule_sentence(plan)} {_bound_sentence(plan)}"
    if gives_nothing(plan):
        return None
    if arm.name is Strategy.BEST_FIXED:
        return "One clock pair holds for the whole step, so no clocks change during it."
    bound = "Changing clocks is taken as free, so this is a bound on what a GPU can follow."
    return f"{bound} {_safe(plan)}"


def _safe(plan: Plan) -> str:
    """Say what is left of a bound: at latencies that GPUs have, and with one clock pair for all."""
    told = "`--latency` says what is achievable."
    if plan.latency_curve:
        ends = (plan.latency_curve[0], plan.latency_curve[-1])
        at = " and ".join(
            f"{change_text(point.energy_change)} at {duration_text(point.latency_s)}"
            for point in ends
        )
        told = f"How long {plan.gpu.name} takes is not known: it would be {at}."
    fixed = _arm(plan, Strategy.BEST_FIXED)
    if fixed is None or fixed.cost is None or no_change(fixed):
        return told
    one = changes_text(plan, fixed.energy_change, fixed.time_change)
    return f"{told} Whatever it is, the best fixed clock gives {one}."


def _schedule_sentence(plan: Plan) -> str:
    if plan.headline.cost is None:
        return "No schedule under this latency keeps the time budget."
    if gives_nothing(plan):
        return f"No saving is achievable with {_latency_text(plan)}."
    changes = 0 if plan.schedule is None else plan.schedule.switches
    if plan.latency_range_s is None:
        return (
            f"This is achievable with {_latency_text(plan)}, {changes} changes of clocks per step."
        )
    most = duration_text(plan.latency_range_s[1])
    return (
        f"This is achievable at latencies that are reported of GPUs like this one; what is held is "
        f"for {most}, {changes} changes of clocks per step. `underclock latency` measures it."
    )


def _bound_sentence(plan: Plan) -> str:
    free = plan.arm(plan.chosen)
    if no_change(free):
        return "Free switching would save nothing within this budget either."
    energy, time = change_text(free.energy_change), change_text(free.time_change)
    return f"With free switching, a bound: {energy} energy at {time} time ({arm_title(free.name)})."


def _latency_text(plan: Plan) -> str:
    if plan.schedule is None:
        return "this latency"
    latency = plan.schedule.latency
    return (
        f"a latency {latency}" if latency.startswith(("as ", "of ")) else f"a latency of {latency}"
    )


def doubt_sentence(plan: Plan) -> str | None:
    """Warn of a plan that may save nothing; ``None`` where it surely saves, or sets nothing."""
    arm, faster = plan.headline, plan.objective is Objective.TIME
    interval = arm.time_interval if faster else arm.energy_interval
    if interval is None or gives_nothing(plan) or not interval[0] <= 0.0 <= interval[1]:
        return None
    if faster:
        return (
            "the plan may be no faster: with 95 % confidence the step's time changes by "
            f"{interval_text(interval)}"
        )
    return (
        "the plan may save nothing: with 95 % confidence the step's energy changes by "
        f"{interval_text(interval)}"
    )


def fixed_is_enough(plan: Plan) -> bool:
    """Whether one clock pair for the whole step does as well as what counts.

    It saves as much at no more time, or more within the time budget; of a plan for time, it is as
    fast.
    """
    arm, best = _arm(plan, Strategy.BEST_FIXED), plan.headline
    fixed = None if arm is None else arm.cost
    if plan.objective is Objective.TIME:
        return _fixed_is_as_fast(plan)
    if fixed is None or best.name is Strategy.BEST_FIXED or fixed.energy_change >= -_AS_MUCH:
        return False
    if best.cost is None:
        return True
    more = fixed.energy_change - best.cost.energy_change
    if more < -_AS_MUCH and plan.max_slowdown is not None:
        return True
    return more <= _AS_MUCH and fixed.time_change <= best.cost.time_change + _AS_MUCH


def _fixed_is_as_fast(plan: Plan) -> bool:
    """Whether one clock pair makes the step faster than auto, and as fast as what counts."""
    arm, best = _arm(plan, Strategy.BEST_FIXED), plan.headline
    fixed = None if arm is None else arm.cost
    if fixed is None or best.name is Strategy.BEST_FIXED or fixed.time_change >= -_AS_MUCH:
        return False
    return best.cost is None or fixed.time_change <= best.cost.time_change + _AS_MUCH


def fixed_sentence(plan: Plan) -> str | None:
    """Say what the best fixed clock is worth; ``None`` where it is auto or unknown."""
    arm = _arm(plan, Strategy.BEST_FIXED)
    if plan.fixed is None or plan.fixed.is_auto or arm is None or arm.cost is None:
        return None
    changes = changes_text(plan, arm.energy_change, arm.time_change)
    text = f"best fixed clock, {clocks_text(plan.fixed)}: {changes}"
    if not fixed_is_enough(plan):
        return text
    best = plan.headline
    if best.energy_change is None or no_change(best):
        return f"{text}: use that"
    if plan.objective is Objective.TIME:
        return f"{text}, as fast as {change_text(best.time_change)} within 0.1 points: use that"
    than = change_text(best.energy_change)
    if arm.cost.energy_change < best.energy_change - _AS_MUCH:
        return f"{text}, better than {than}: use that"
    return f"{text}, as good as {than} within 0.1 points: use that"


def _arm(plan: Plan, name: Strategy) -> Arm | None:
    return next((arm for arm in plan.arms if arm.name is name), None)


def hold_commands(clocks: Clocks) -> tuple[str, ...]:
    """Return what to paste into a shell to hold a clock pair; Underclock never runs it."""
    core, mem = clocks.core_mhz, clocks.mem_mhz
    lines = [] if core is None else [f"sudo nvidia-smi -i 0 -lgc {core},{core}"]
    return (*lines, *([] if mem is None else [f"sudo nvidia-smi -i 0 -lmc {mem},{mem}"]))


def undo_command(clocks: Clocks) -> str:
    """Return what gives the clocks of `hold_commands` back to the driver."""
    resets = [
        option
        for option, mhz in (("-rgc", clocks.core_mhz), ("-rmc", clocks.mem_mhz))
        if mhz is not None
    ]
    return " && ".join(f"sudo nvidia-smi -i 0 {option}" for option in resets)

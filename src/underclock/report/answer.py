"""What a reader should take away from a plan: which saving is real, and which clocks to hold."""

from underclock.records import Arm, Clocks, Plan
from underclock.report.wording import arm_title, change_text, clocks_text

_AS_MUCH = 0.001  # of auto's energy and time: two arms this near are equally good


def headline_arm(plan: Plan) -> Arm:
    """Return the arm to speak of first: what this GPU can follow, where that was asked for."""
    arm = _arm(plan, "achievable")
    return plan.arm(plan.chosen) if arm is None or arm.cost is None else arm


def headline(plan: Plan) -> str:
    """Say the page in a line: what is saved, at what time, and how that is known."""
    where = f"{plan.evidence} on {plan.gpu.name}"
    arm = headline_arm(plan)
    energy, time = change_text(arm.energy_change), change_text(arm.time_change)
    if energy == time == change_text(0.0):
        return f"No saving to promise, {where}"
    return f"{energy} energy at {time} time, {where}"


def switching_sentence(plan: Plan) -> str:
    """Say what the headline takes changing clocks to cost, and what it would be for free."""
    free = plan.arm(plan.chosen)
    title, energy = arm_title(free.name), change_text(free.energy_change)
    if headline_arm(plan) is not free and plan.schedule is not None:
        latency, changes = _latency_text(plan), plan.schedule.switches
        first = (
            f"This is achievable with a latency {latency}, {changes} changes of clocks per step."
        )
        if change_text(headline_arm(plan).energy_change) == change_text(0.0):
            first = f"No saving is achievable with a latency {latency}."
        return f"{first} Were changing clocks free ({title}), {energy} energy would be the bound."
    if _arm(plan, "achievable") is not None:
        return (
            "This is a bound, with changes of clocks taken as free: no schedule keeps the time "
            "budget with this GPU\N{RIGHT SINGLE QUOTATION MARK}s latency."
        )
    if free.name == "best_fixed":
        return "One clock pair holds for the whole step, so no clocks change during it."
    return (
        "Changing clocks is taken as free, so this is a bound on what a GPU can follow; a plan "
        "that is given a latency says what is achievable."
    )


def _latency_text(plan: Plan) -> str:
    """Return a plan's latency so that it reads after the word."""
    latency = "" if plan.schedule is None else plan.schedule.latency
    return latency if latency.startswith(("as ", "of ")) else f"of {latency}"


def fixed_is_enough(plan: Plan) -> bool:
    """Whether one clock pair for the whole step saves as much as what the headline says."""
    arm, best = _arm(plan, "best_fixed"), headline_arm(plan).cost
    fixed = None if arm is None else arm.cost
    if best is None or fixed is None or plan.chosen == "best_fixed":
        return False
    return (
        fixed.energy_change < -_AS_MUCH
        and fixed.energy_change <= best.energy_change + _AS_MUCH
        and (plan.max_slowdown is not None or fixed.time_change <= best.time_change + _AS_MUCH)
    )


def fixed_sentence(plan: Plan) -> str | None:
    """Say what the best fixed clock is worth; ``None`` where it is auto or unknown."""
    arm = _arm(plan, "best_fixed")
    if plan.fixed is None or plan.fixed.is_auto or arm is None:
        return None
    energy = change_text(arm.energy_change)
    text = f"best fixed clock, {clocks_text(plan.fixed)}: {energy} energy"
    if fixed_is_enough(plan):
        best = change_text(headline_arm(plan).energy_change)
        return f"{text}, as good as {best} within 0.1 points: use that"
    return text


def _arm(plan: Plan, name: str) -> Arm | None:
    return next((arm for arm in plan.arms if arm.name == name), None)


def hold_commands(clocks: Clocks) -> tuple[str, ...]:
    """Return what to paste into a shell to hold a clock pair."""
    core, mem = clocks.core_mhz, clocks.mem_mhz
    lines = [] if core is None else [f"sudo nvidia-smi -lgc {core},{core}"]
    return (*lines, *([] if mem is None else [f"sudo nvidia-smi -lmc {mem},{mem}"]))


def undo_command(clocks: Clocks) -> str:
    """Return what gives the clocks of `hold_commands` back to the driver."""
    resets = [
        option
        for option, mhz in (("-rgc", clocks.core_mhz), ("-rmc", clocks.mem_mhz))
        if mhz is not None
    ]
    return " && ".join(f"sudo nvidia-smi {option}" for option in resets)

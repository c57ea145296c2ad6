"""What a plan comes to, in three lines that terminals, pages, notebooks and logs share.

The first says what it saves, the second what that costs in time, the third what both rest on.
"""

from typing import TYPE_CHECKING

from underclock.records.choices import Accounting, Arm, Cost, LatencyPoint
from underclock.records.common import Evidence
from underclock.units import KWH_J, format_duration, format_percent, plain_percent

if TYPE_CHECKING:
    from underclock.records.job import JobPlan
    from underclock.records.outcomes import Validation
    from underclock.records.planned import Plan

PRICE_EUR = 0.25  # a kWh, assumed and said so; `underclock saved --price` takes the reader's own
_YEAR_S = 365.25 * 86400.0
_FINE, _NARROW = 0.00995, 0.0005  # smaller changes and narrower half intervals have a second digit
_SHOWN = 0.00005  # of auto: less rounds to 0.00 %

_EVIDENCE = {
    Evidence.MEASURED: "Measured on {}",
    Evidence.REPLAYED: "Replayed from a table of {}, which Underclock did not measure",
    Evidence.SIMULATED: "Simulated {}, not measured on a GPU",
}

ONE_PAIR = "every sample is at one pair of clocks, so there is nothing to choose from"
"""Warning of a plan that had no choice."""
Interval = tuple[float, float] | None


def answer_of(plan: "Plan", validation: "Validation | None" = None) -> tuple[str, str, str]:
    """Return what a plan saves, what that costs in time, and how sure both are.

    Where the plan's 95 % interval of energy holds 0, the first line says that no saving is
    promised; the last, how a validation came out that ran the plan again.
    """
    arm = None if gives_nothing(plan) else plan.headline
    against = "" if plan.baseline.is_auto else f" against {plan.baseline}"
    most = "at most " if plan.bound is plan.chosen else ""
    saves = _saves(arm, plan.auto, of=against, most=most)
    if ONE_PAIR in plan.warnings:
        saves = "No other clocks were measured: clocks stay as they are."
    takes = f"{_time(plan.headline, plan.max_slowdown)}{_if_clocks(plan)}."
    if arm is None or arm.time_change is None:
        budget = plan.max_slowdown
        within = "" if budget is None else f"; {plain_percent(budget)} % more was allowed"
        takes = f"Takes no more time{within}{_if_clocks(plan)}."
    return saves, takes, _rests_on(plan, validation)


def job_answer(plan: "JobPlan") -> tuple[str, str, str]:
    """Return the same of a job's plan: energy is of all ranks, a GPU-year of each."""
    arm, ranks = plan.arm(plan.chosen), len(plan.job.ranks)
    held = None if no_change(arm) else arm
    saves = _saves(held, plan.auto, of=f" of all {ranks} ranks", gpus=ranks)
    clocks = f", if clocks take {format_duration(plan.latency_s)} to change"
    takes = f"{_time(arm, plan.max_slowdown)}{clocks if plan.latency_s else ''}."
    rests_on = _EVIDENCE[plan.evidence].format(plan.gpu.name)
    sure = "; \N{PLUS-MINUS SIGN} is a 95 % interval" if arm.energy_interval else ""
    return saves, takes, f"{rests_on}{sure}."


def outcome(energy_change: float, interval: Interval, time_change: float) -> str:
    """Say what a comparison on a job found, in the words of an answer."""
    if interval is not None and interval[0] <= 0.0 <= interval[1]:
        text = f"no saving shown, energy changed by {_between(interval)}"
    else:
        way = "saved" if energy_change < 0.0 else "took more:"
        size, margin = _size(energy_change, interval), _margin(energy_change, interval)
        text = f"{way} {size} of energy{margin}"
    if abs(time_change) < _SHOWN:
        return f"{text} for no more time"
    return f"{text} for {_size(time_change, None)} {'more' if time_change > 0.0 else 'less'} time"


def gives_nothing(plan: "Plan") -> bool:
    """Whether the plan leaves the step as it is at auto."""
    return plan.sets_nothing or (plan.schedule is not None and no_change(plan.headline))


def is_unsure(plan: "Plan") -> bool:
    """Whether a plan that changes clocks may save nothing: its 95 % interval of energy holds 0."""
    return not gives_nothing(plan) and may_save_nothing(plan.headline)


def may_save_nothing(arm: Arm) -> bool:
    """Whether the 95 % interval of an arm's energy holds 0; not where that is unknown."""
    interval = arm.energy_interval
    return interval is not None and interval[0] <= 0.0 <= interval[1]


def no_change(change: Arm | LatencyPoint) -> bool:
    """Whether two digits show nothing of a change; what is infeasible changes nothing."""
    changes = (change.energy_change, change.time_change)
    return all(each is None or abs(each) < _SHOWN for each in changes)


def _saves(arm: Arm | None, auto: Cost, *, of: str = "", most: str = "", gpus: int = 1) -> str:
    """Say what clocks that differ from auto's save; of ``None`` that there are none."""
    if arm is None or arm.energy_change is None:
        return "No saving was found: clocks stay as they are."
    change, interval = arm.energy_change, arm.energy_interval
    if interval is not None and may_save_nothing(arm):
        changes = f"changes by {_between(interval)} (95 % interval)"
        return f"No saving is promised: energy{of} {changes}."
    if no_change(arm):
        return "No saving was found, at no more time."
    size, margin = _size(change, interval), _margin(change, interval)
    if change > 0.0:
        return f"Takes {size} more energy{of}{margin}."
    kwh = -change * auto.energy_j / auto.time_s / gpus * _YEAR_S / KWH_J
    year = f"{_two_digits(kwh)} kWh or {_two_digits(kwh * PRICE_EUR)} EUR"
    saves = f"Saves {most}{size} of energy{of}{margin}"
    return f"{saves}: {year} a GPU-year, at {PRICE_EUR:g} EUR/kWh."


def _time(arm: Arm, budget: float | None) -> str:
    change = arm.time_change or 0.0
    notes = [_margin(change, arm.time_interval).strip(" ()")]
    notes += [] if budget is None else [f"{plain_percent(budget)} % allowed"]
    if abs(change) < _SHOWN:
        text = "Takes no more time"
    else:
        way = "more" if change > 0.0 else "less"
        text = f"Takes {_size(change, arm.time_interval)} {way} time"
    said = "; ".join(filter(None, notes))
    return f"{text} ({said})" if said else text


def _if_clocks(plan: "Plan") -> str:
    """Say on which time to change clocks an answer hangs, and what it is at another."""
    if plan.bound is plan.chosen:
        text = ", if clocks changed at once, which no GPU can"
        ends = (plan.latency_curve[:1], plan.latency_curve[-1:])
        known = [f"{_saved(point)} if they take {_lasts(point)}" for at in ends for point in at]
        return f"{text}; {', '.join(known)}" if known else text
    schedule = plan.schedule
    best = plan.latency_curve[0] if plan.latency_range_s and plan.latency_curve else None
    if gives_nothing(plan) and (schedule is None or best is None or no_change(best)):
        return ""
    if schedule is None or not (schedule.switches or gives_nothing(plan)):
        return ", with one pair of clocks throughout"
    if schedule.latency.startswith(("as ", "of ")):
        return ", at the measured speed of changing clocks"
    own_s, named = schedule.latencies.constant_s, schedule.latency.partition(",")[0]
    text = f", if clocks take {format_duration(own_s) if own_s else named} to change"
    if best is None or no_change(best):
        return text
    return f"{text}; {_saved(best)} if {_lasts(best)}"


def _saved(point: LatencyPoint) -> str:
    change = point.energy_change
    return "saves nothing" if change is None or change >= 0.0 else f"saves {_size(change, None)}"


def _lasts(point: LatencyPoint) -> str:
    return format_duration(point.latency_s)


def _rests_on(plan: "Plan", validation: "Validation | None") -> str:
    text = _EVIDENCE[plan.evidence].format(plan.gpu.name)
    if plan.carried is not None:
        text += f"; carried over from {plan.carried.workload}, for this step was not measured"
    if plan.accounting is Accounting.ISOLATED:
        text += "; kernels measured alone, added up"
    if gives_nothing(plan):
        return f"{text}."
    if plan.headline.energy_interval is None:
        exact = plan.provenance is not None and plan.provenance.table
        text += "; its rows taken as exact" if exact else "; how sure was not worked out"
    elif not is_unsure(plan):
        text += "; \N{PLUS-MINUS SIGN} is a 95 % interval"
    if validation is None or validation.verdict is None:
        return f"{text}."
    energy, time = (
        format_percent(each.mean, digits=1)
        for each in (validation.energy_change, validation.time_change)
    )
    return (
        f"{text}. Run again {validation.repeats} times, {validation.evidence}: "
        f"energy {energy}, time {time}: promise {validation.verdict}."
    )


def _between(interval: tuple[float, float]) -> str:
    low, high = (format_percent(end, digits=1) for end in interval)
    return f"{low.removesuffix(' %')} to {high}"


def _digits(change: float, interval: Interval) -> int:
    narrow = interval is not None and 0.5 * (interval[1] - interval[0]) < _NARROW
    return 2 if narrow or abs(change) < _FINE else 1


def _size(change: float, interval: Interval) -> str:
    return f"{abs(100.0 * change):.{_digits(change, interval)}f} %"


def _margin(change: float, interval: Interval) -> str:
    """Write half the width of an interval to stand behind a number; nothing where unknown."""
    if interval is None:
        return ""
    half = 50.0 * (interval[1] - interval[0])
    return f" (\N{PLUS-MINUS SIGN} {half:.{_digits(change, interval)}f})"


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):.15g}"

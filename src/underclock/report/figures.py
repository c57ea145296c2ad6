"""The figures of a plan's page: records to charts, charts to SVG.

Every figure is drawn for a wide page and for a telephone; the page shows the one that fits.
"""

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

from underclock.records import Arm, Cost, Plan, Strategy, Validation
from underclock.records.latencies import Domain, mhz_of
from underclock.report.axes import MINUS
from underclock.report.bars import savings_bars
from underclock.report.chart import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    Chart,
    Series,
    Shade,
)
from underclock.report.expected import expected_energy_change, frontier_of
from underclock.report.plot import both, draw
from underclock.report.power_tables import power_chart
from underclock.report.ranking import top_savings
from underclock.report.wording import arm_title, change_text

MOST_BARS = 16
_TIMELINE_PX = 150
_NAMED = 2  # kernels of a stretch, of more the number
_SHOWN = 0.05  # of auto's time: how far right the frontier is drawn at least
_BEYOND = 1.5  # times the greatest time change that must be seen
_LEFT, _RIGHT = 0.02, 0.03  # of what is shown, beyond both ends
_ARM_MARKERS: dict[str, tuple[str, str]] = {
    Strategy.AUTO: (GREY, "circle"),
    Strategy.BEST_FIXED: (ORANGE, "square"),
    Strategy.PASS: (SKY, "diamond"),
    Strategy.KERNEL_LOCAL: (PINK, "triangle"),
    Strategy.KERNEL_GLOBAL: (VERMILION, "star"),
    Strategy.ACHIEVABLE: (GREEN, "circle"),
}
_AXIS_UNITS = {"s": (("s", 1.0), ("ms", 1e-3)), "J": (("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3))}


def frontier(plan: Plan) -> str:
    """Draw the frontier as a line, the arms as points, and shade what is over the time budget."""
    chart = frontier_chart(plan)
    return both(lambda width_px: draw(chart, width_px))


def savings(plan: Plan) -> str:
    """Draw the kernels that save most of the step's energy as bars; empty if none saves any."""
    ranking = top_savings(plan, MOST_BARS)
    if not ranking.rows:
        return ""
    return both(lambda width_px: savings_bars(ranking, width_px))


def repeats(validation: Validation) -> str:
    """Draw every repeat of every arm as a point."""
    chart = repeats_chart(validation)
    return both(lambda width_px: draw(chart, width_px))


def power(plan: Plan) -> str:
    """Draw the fastest step at other power limits; empty where it was not worked out."""
    if not plan.power_curve:
        return ""
    chart = power_chart(plan)
    return both(lambda width_px: draw(chart, width_px))


def timeline(plan: Plan) -> str:
    """Draw the clocks of a plan's schedule over one step; empty where it has none that changes."""
    return "".join(both(functools.partial(draw, chart)) for chart in timeline_charts(plan))


def timeline_charts(plan: Plan) -> tuple[Chart, ...]:
    """Return a chart for each clock that changes within a step; none of what the driver picks."""
    if plan.schedule is None:
        return ()
    launch_s = plan.schedule.launch_s
    unit, size = _axis_unit("s", [math.fsum(launch_s)])
    charts = []
    for domain, colour in ((Domain.CORE, BLUE), (Domain.MEMORY, ORANGE)):
        held = [mhz_of(clocks, domain) for clocks in plan.schedule.clocks]
        points: list[tuple[float, float]] = []
        begins = end = 0
        for mhz, run in itertools.groupby(held):
            end += len(list(run))
            ends = (math.fsum(launch_s[:begins]) / size, math.fsum(launch_s[:end]) / size)
            points += [(place, math.nan if mhz is None else float(mhz)) for place in ends]
            begins = end
        if len({mhz for _, mhz in points if not math.isnan(mhz)}) > 1:
            line = Series(name=f"{domain} clock", points=tuple(points), colour=colour)
            charts.append(
                Chart(
                    key=f"timeline-{domain}",
                    title=f"The {domain} clock over a step ({plan.evidence})",
                    x_title=f"time in the step ({unit})",
                    y_title="MHz",
                    series=(line,),
                    signed=False,
                    plot_px=_TIMELINE_PX,
                )
            )
    return tuple(charts)


def stretches(plan: Plan) -> tuple[tuple[str, float], ...]:
    """Name the kernels of each stretch of a schedule, most time first, and say what it takes."""
    if plan.schedule is None:
        return ()
    found, begins = [], 0
    for segment in plan.schedule.segments:
        taken_s: dict[str, float] = defaultdict(float)
        for launch in range(begins, begins + segment.launches):
            name = plan.runs[plan.order[launch]].name if plan.order else ""
            taken_s[name] += plan.schedule.launch_s[launch]
        begins += segment.launches
        most = sorted(taken_s, key=lambda name: -taken_s[name])[:_NAMED]
        more = f" and {len(taken_s) - len(most)} more" if len(taken_s) > len(most) else ""
        found.append((f"{', '.join(most)}{more}", math.fsum(taken_s.values())))
    return tuple(found)


def shown_frontier(plan: Plan) -> tuple[Cost, ...]:
    """Return the part that is drawn of the frontier that counts, from its fastest point on."""
    return _shown(plan, frontier_of(plan))


def _shown(plan: Plan, frontier: Sequence[Cost]) -> tuple[Cost, ...]:
    limit = _slowest_shown(plan)
    shown = [cost for cost in frontier if cost.time_change <= limit]
    if 0 < len(shown) < len(frontier):
        shown.append(_at(plan, frontier, limit))
    return tuple(shown)


def frontier_chart(plan: Plan) -> Chart:
    """Return the arms over the frontier as a chart."""
    arms = [(arm, arm.cost) for arm in plan.arms if arm.cost is not None]
    seen = [(arm, cost) for arm, cost in arms if arm.name == "auto" or not _is_auto(cost)]
    # The first line is the one that the page's slider follows.
    drawn = [("frontier", BLUE, plan.frontier)]
    if plan.achievable_frontier:
        drawn = [
            ("achievable here", GREEN, plan.achievable_frontier),
            ("with free switching, a bound", BLUE, plan.frontier),
        ]
    lines = [
        Series(name=name, points=tuple(map(_percent, shown)), colour=colour)
        for name, colour, frontier in drawn
        if len(shown := _shown(plan, frontier)) > 1
    ]
    line = [point for series in lines for point in series.points]
    places = [_percent(cost)[0] for _, cost in arms] + [x for x, _ in line]
    low, high = min(places), 100.0 * _slowest_shown(plan)
    budget = plan.max_slowdown
    return Chart(
        key="frontier",
        title=f"Time and energy of a step ({plan.evidence})",
        x_title="time, change against auto (%)",
        y_title="energy, change (%)",
        series=(
            *lines,
            *(_arm_series(plan, arm, cost) for arm, cost in seen),
        ),
        x_limits=(low - _LEFT * (high - low), high + _RIGHT * (high - low)),
        shade=None
        if budget is None
        else Shade(
            start=100.0 * budget,
            text=f"over the time budget, {change_text(budget)}".replace("-", MINUS),
        ),
    )


def repeats_chart(validation: Validation) -> Chart:
    """Return every run as a chart."""
    runs = [
        ("auto", validation.auto_time_s, validation.auto_energy_j, "auto"),
        ("plan", validation.plan_time_s, validation.plan_energy_j, "kernel_global"),
        *((arm_title(o.name), o.time_s, o.energy_j, o.name) for o in validation.others),
    ]
    x_unit, x_size = _axis_unit("s", [t for _, times_s, _, _ in runs for t in times_s])
    y_unit, y_size = _axis_unit("J", [e for _, _, energies_j, _ in runs for e in energies_j])
    return Chart(
        key="repeats",
        title=f"Every run ({validation.evidence})",
        x_title=f"time ({x_unit})",
        y_title=f"energy ({y_unit})",
        series=tuple(
            _runs_series(name, [t / x_size for t in times_s], [e / y_size for e in energies_j], arm)
            for name, times_s, energies_j, arm in runs
        ),
        signed=False,
    )


def _runs_series(name: str, times: Sequence[float], energies: Sequence[float], arm: str) -> Series:
    colour, symbol = _marker_of(arm)
    points = tuple(zip(times, energies, strict=True))
    return Series(name=name, points=points, colour=colour, symbol=symbol)


def _arm_series(plan: Plan, arm: Arm, cost: Cost) -> Series:
    colour, symbol = _marker_of(arm.name)
    note = f"time {change_text(cost.time_change)}, energy {change_text(cost.energy_change)}"
    held = plan.headline.cost
    stays = arm.name is Strategy.AUTO and held is not None and _is_auto(held)
    counts = stays or arm.name is plan.headline.name
    return Series(
        name=f"{arm_title(arm.name)} (the plan)" if counts else arm_title(arm.name),
        points=(_percent(cost),),
        colour=colour,
        symbol=symbol,
        large=counts,
        labelled=True,
        notes=(note.replace("-", MINUS),),
    )


def _is_auto(cost: Cost) -> bool:
    """Whether a choice costs as much as auto to all digits shown, and would hide it."""
    return change_text(cost.time_change) == change_text(cost.energy_change) == change_text(0.0)


def _marker_of(arm: str) -> tuple[str, str]:
    return _ARM_MARKERS.get(arm, (SKY, "diamond"))


def _slowest_shown(plan: Plan) -> float:
    """Return the greatest time change to draw: all arms, the budget, and some of the frontier."""
    marks = [arm.cost.time_change for arm in plan.arms if arm.cost is not None]
    if plan.max_slowdown is not None:
        marks.append(plan.max_slowdown)
    return max(_SHOWN, _BEYOND * max(marks))


def _at(plan: Plan, frontier: Sequence[Cost], time_change: float) -> Cost:
    """Return the place of a frontier at a time between two of its points."""
    auto = plan.arm("auto")
    energy_change = expected_energy_change(frontier, time_change)
    if energy_change is None or auto.time_s is None or auto.energy_j is None:
        raise AssertionError("between two points, and auto has costs")
    return Cost(
        time_s=auto.time_s * (1.0 + time_change),
        energy_j=auto.energy_j * (1.0 + energy_change),
        time_change=time_change,
        energy_change=energy_change,
    )


def _percent(cost: Cost) -> tuple[float, float]:
    return 100.0 * cost.time_change, 100.0 * cost.energy_change


def _axis_unit(unit: str, values: Sequence[float]) -> tuple[str, float]:
    """Return the largest unit that keeps every value above one, else the smallest known."""
    units = _AXIS_UNITS[unit]
    return next((u for u in units if min(values) >= u[1]), units[-1])

"""The figures of a plan's page: records to charts, charts to SVG."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

from underclock.records import Arm, Cost, Plan, Strategy, Validation
from underclock.records.latencies import Domain, mhz_of
from underclock.report.answer import Ranking, expected_energy_change, frontier_of
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
    both,
    figure,
)
from underclock.report.svg import Box, document, rectangle, shortened, text, text_px
from underclock.report.wording import arm_title, change_text, clocks_text, energy_text, minus

MOST_BARS = 16
_ROW_PX, _BAR_PX = 40, 13
_VALUE_PX = 130  # what stands to the right of the longest bar
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
    Strategy.POWER_LIMIT: (ORANGE, "triangle"),
    Strategy.FEEDBACK: (BLUE, "diamond"),
    Strategy.EDP: (PINK, "circle"),
    Strategy.ED2P: (PINK, "square"),
    Strategy.GENETIC: (GREEN, "triangle"),
    Strategy.RANK: (ORANGE, "square"),
    Strategy.DIRECTION: (SKY, "diamond"),
    Strategy.INSTRUCTION: (PINK, "triangle"),
    Strategy.KERNEL: (VERMILION, "star"),
}
_SECONDS = (("s", 1.0), ("ms", 1e-3))
_JOULES = (("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3))


def savings(ranking: Ranking) -> str:
    """Draw the kernels that save most of the step's energy as bars; empty if none saves any."""
    return both(lambda width_px: _bars(ranking, width_px)) if ranking.rows else ""


def _bars(ranking: Ranking, width_px: int) -> str:
    """Draw a line for each kernel's name and clocks, and a line for its bar."""
    parts: list[str] = []
    top = 0.0
    scale = (width_px - _VALUE_PX) / max(ranking.rows[0][1].saved_j, ranking.others_j)
    for name, choice in ranking.rows:
        clocks = clocks_text(choice.clocks)
        most = int((width_px - text_px(clocks)) / text_px("x")) - 3
        parts.append(text(0, top + 14, shortened(name, most)))
        parts.append(text(width_px, top + 14, clocks, anchor="end"))
        parts += _bar(choice.saved_j, ranking.total_j, scale, BLUE, top + 20)
        top += _ROW_PX
    if ranking.others:
        parts.append(text(0, top + 14, ranking.others_text))
        parts += _bar(ranking.others_j, ranking.total_j, scale, GREY, top + 20)
        top += _ROW_PX
    return document(parts, width_px, top + 6, "Energy that kernels save, per step")


def _bar(saved_j: float, total_j: float, scale: float, colour: str, top: float) -> list[str]:
    """Draw one bar, its joules and its share of all that is saved."""
    length_px = max(scale * saved_j, 0.0)
    share = f" ({saved_j / total_j:.0%})" if total_j > 0.0 else ""
    return [
        rectangle(Box(0, top, length_px, top + _BAR_PX), f'fill="{colour}"'),
        text(length_px + 7, top + 11, f"{energy_text(saved_j)}{share}"),
    ]


def power(plan: Plan) -> str:
    """Draw the fastest step at other power limits; empty where it was not worked out."""
    curve = plan.power_curve
    if not curve:
        return ""
    drawn = [
        Series(name=name, points=points, colour=colour, symbol="" if len(curve) > 1 else "circle")
        for name, colour, points in (
            ("the driver's own cap", GREY, tuple((p.limit_w, 1e3 * p.auto_time_s) for p in curve)),
            ("fastest clocks", VERMILION, tuple((p.limit_w, 1e3 * p.time_s) for p in curve)),
        )
    ]
    return figure(
        Chart(
            key="power",
            title=f"Time of a step against the power limit ({plan.evidence})",
            x_title="power limit (W)",
            y_title="time of a step (ms)",
            series=tuple(drawn),
            signed=False,
        )
    )


def timeline(plan: Plan) -> str:
    """Draw the clocks of a plan's schedule over one step; empty where it has none that changes.

    A drawing for each clock that changes within a step; none of what the driver picks.
    """
    if plan.schedule is None:
        return ""
    launch_s = plan.schedule.launch_s
    unit, size = _axis_unit(_SECONDS, [math.fsum(launch_s)])
    drawn = ""
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
            chart = Chart(
                key=f"timeline-{domain}",
                title=f"The {domain} clock over a step ({plan.evidence})",
                x_title=f"time in the step ({unit})",
                y_title="MHz",
                series=(line,),
                signed=False,
                plot_px=_TIMELINE_PX,
            )
            drawn += figure(chart)
    return drawn


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


def shown_frontier(plan: Plan) -> list[tuple[float, float]]:
    """Return changes of time and energy on the frontier that counts, as far as it is drawn."""
    return _shown(plan, frontier_of(plan))


def _shown(plan: Plan, frontier: Sequence[Cost]) -> list[tuple[float, float]]:
    limit = _slowest_shown(plan)
    shown = [
        (cost.time_change, cost.energy_change) for cost in frontier if cost.time_change <= limit
    ]
    end = expected_energy_change(frontier, limit)
    if len(shown) < len(frontier) and end is not None:
        shown.append((limit, end))
    return shown


def frontier(plan: Plan) -> str:
    """Draw the frontier as a line, the arms as points, and shade what is over the time budget."""
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
        Series(
            name=name,
            points=tuple((100.0 * time, 100.0 * energy) for time, energy in shown),
            colour=colour,
        )
        for name, colour, frontier in drawn
        if len(shown := _shown(plan, frontier)) > 1
    ]
    line = [point for series in lines for point in series.points]
    places = [100.0 * cost.time_change for _, cost in arms] + [x for x, _ in line]
    low, high = min(places), 100.0 * _slowest_shown(plan)
    budget = plan.max_slowdown
    return trade(
        "frontier",
        f"Time and energy of a step ({plan.evidence})",
        (*lines, *(_plans_series(plan, arm, cost) for arm, cost in seen)),
        limits=(low - _LEFT * (high - low), high + _RIGHT * (high - low)),
        budget=budget,
    )


def trade(
    key: str,
    title: str,
    series: Sequence[Series],
    *,
    limits: tuple[float, float] | None = None,
    budget: float | None = None,
) -> str:
    """Draw energy against time; what is over a budget is shaded."""
    shade = None
    if budget is not None:
        over = minus(f"over the time budget, {change_text(budget)}")
        shade = Shade(start=100.0 * budget, text=over)
    return figure(
        Chart(
            key=key,
            title=title,
            x_title="time, change against auto (%)",
            y_title="energy, change (%)",
            series=tuple(series),
            x_limits=limits,
            shade=shade,
        )
    )


def repeats(validation: Validation) -> str:
    """Draw every repeat of every arm as a point."""
    runs = [
        ("auto", validation.auto_time_s, validation.auto_energy_j, "auto"),
        ("plan", validation.plan_time_s, validation.plan_energy_j, "kernel_global"),
        *((arm_title(o.name), o.time_s, o.energy_j, o.name) for o in validation.others),
    ]
    x_unit, x_size = _axis_unit(_SECONDS, [t for _, times_s, _, _ in runs for t in times_s])
    y_unit, y_size = _axis_unit(_JOULES, [e for _, _, energies_j, _ in runs for e in energies_j])
    series = []
    for name, times_s, energies_j, arm in runs:
        colour, symbol = _marker_of(arm)
        points = tuple((t / x_size, e / y_size) for t, e in zip(times_s, energies_j, strict=True))
        series.append(Series(name=name, points=points, colour=colour, symbol=symbol))
    return figure(
        Chart(
            key="repeats",
            title=f"Every run ({validation.evidence})",
            x_title=f"time ({x_unit})",
            y_title=f"energy ({y_unit})",
            series=tuple(series),
            signed=False,
        )
    )


def _plans_series(plan: Plan, arm: Arm, cost: Cost) -> Series:
    held = plan.headline.cost
    stays = arm.name is Strategy.AUTO and held is not None and _is_auto(held)
    counts = stays or arm.name is plan.headline.name
    return arm_series(arm.name, cost, " (the plan)" if counts else "", large=counts)


def arm_series(
    arm: str,
    cost: Cost,
    more: str = "",
    *,
    large: bool = False,
    hollow: bool = False,
    labelled: bool = True,
) -> Series:
    """Return a way of choosing clocks as a point; ``more`` stands behind its title."""
    colour, symbol = _marker_of(arm)
    note = f"time {change_text(cost.time_change)}, energy {change_text(cost.energy_change)}"
    return Series(
        name=f"{arm_title(arm)}{more}",
        points=((100.0 * cost.time_change, 100.0 * cost.energy_change),),
        colour=colour,
        symbol=symbol,
        large=large,
        hollow=hollow,
        labelled=labelled,
        notes=(minus(note),),
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


def _axis_unit(units: tuple[tuple[str, float], ...], values: Sequence[float]) -> tuple[str, float]:
    """Return the largest unit that keeps every value above one, else the smallest known."""
    return next((unit for unit in units if min(values) >= unit[1]), units[-1])

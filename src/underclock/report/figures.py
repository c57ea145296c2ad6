"""The page's figures, as fragments of HTML that expect plotly.js on the page.

Loaded only when a page is made. Arms differ in symbol as well as in colour.
"""

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from underclock.records import Arm, Choice, Cost, Plan, Strategy, Validation
from underclock.report.drawing import (
    BLUE,
    BOTTOM_PX,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    TOP_PX,
    VERMILION,
    blank,
    fragment,
    plain,
)
from underclock.report.wording import arm_title, change_text, greatest_savings
from underclock.units import format_mhz

MOST_BARS = 40
_ARM_MARKERS: dict[str, tuple[str, str]] = {
    Strategy.AUTO: (GREY, "circle"),
    Strategy.BEST_FIXED: (ORANGE, "square"),
    Strategy.PASS: (SKY, "diamond"),
    Strategy.KERNEL_LOCAL: (PINK, "triangle-up"),
    Strategy.KERNEL_GLOBAL: (VERMILION, "star"),
}
_LEVERS = {
    "core clock set": BLUE,
    "memory clock set": ORANGE,
    "both set": PINK,
    "left alone": GREY,
}
_HEIGHT_PX = 440
_ROW_PX = 21  # one kernel, or one entry of the legend
_LEGEND_PX = 54  # below the title
_LABEL_PX = 17  # least distance between two labels
_TICK_CHARACTERS = 24
_AXIS_UNITS = {"s": (("s", 1.0), ("ms", 1e-3)), "J": (("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3))}


def script() -> str:
    """Return plotly.js itself, so that the page asks no network for it."""
    source: str = get_plotlyjs()
    return source


def frontier(plan: Plan) -> str:
    """Draw the frontier as a line, the arms as points and the time budget as a vertical."""
    arms = [(arm, *_percent(arm.cost)) for arm in plan.arms if arm.cost is not None]
    marks = [x for _, x, _ in arms]
    if plan.max_slowdown is not None:
        marks.append(100.0 * plan.max_slowdown)
    line = [_percent(cost) for cost in plan.frontier]
    low, high = min(marks + [x for x, _ in line[:1]]), max(marks)
    span = max(high - low, 1.0)
    x_range = (low - 0.1 * span, high + 0.6 * span)  # labels stand to the right of the points
    seen = [y for x, y in line if x <= x_range[1]] + [y for _, _, y in arms]
    pad = 0.1 * max(max(seen) - min(seen), 1.0)
    y_range = (min(seen) - pad, max(seen) + pad)
    figure = blank(f"Time and energy of a step ({plan.evidence})", _HEIGHT_PX)
    figure.add_scatter(
        x=[x for x, _ in line],
        y=[y for _, y in line],
        mode="lines" if len(line) > 1 else "markers",
        line={"color": BLUE, "width": 2.5},
        hovertemplate="frontier<br>time %{x:+.2f} %<br>energy %{y:+.2f} %<extra></extra>",
    )
    for arm, x, y in arms:
        colour, symbol = _ARM_MARKERS.get(arm.name, (GREEN, "cross"))
        chosen = arm.name == plan.chosen
        figure.add_scatter(
            x=[x],
            y=[y],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 16 if chosen else 11},
            hovertemplate=f"{plain(arm_title(arm.name))}<br>time {change_text(arm.time_change)}"
            f"<br>energy {change_text(arm.energy_change)}<extra></extra>",
        )
    _label(figure, plan, arms, y_range)
    if plan.max_slowdown is not None:
        figure.add_vline(x=100.0 * plan.max_slowdown, line={"color": GREY, "dash": "dash"})
        figure.add_annotation(
            x=100.0 * plan.max_slowdown,
            y=1.0,
            yref="paper",
            yanchor="bottom",
            text=f"time budget {change_text(plan.max_slowdown, digits=1)}",
            showarrow=False,
        )
    figure.update_xaxes(title_text="time, change against auto (%)", range=x_range)
    figure.update_yaxes(title_text="energy, change (%)", range=y_range)
    return fragment(figure, "figure-frontier")


def kernels(plan: Plan) -> str:
    """Draw what each kernel saves as a bar, and write its clocks beside it."""
    rows = greatest_savings(plan.kernels, MOST_BARS)
    names = [_short(name) for name, _ in rows]
    changes = [100.0 * choice.energy_change for _, choice in rows]
    low, high = min([*changes, 0.0]), max([*changes, 0.0])
    pad = 0.03 * max(high - low, 1.0)
    top_px = TOP_PX + _ROW_PX * (len({_lever(choice, plan) for _, choice in rows}) - 1)
    height_px = top_px + BOTTOM_PX + _ROW_PX * len(rows)
    figure = blank(f"Energy per kernel ({plan.evidence})", height_px)
    _add_bars(figure, plan, rows)
    figure.add_scatter(
        x=[max(0.0, change) for change in changes],
        y=list(range(len(rows))),
        mode="text",
        text=[f" {format_mhz(c.core_mhz)} / {format_mhz(c.mem_mhz)}" for _, c in rows],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )
    figure.update_xaxes(
        title_text="energy change (%)", range=(low - pad, high + pad), fixedrange=True
    )
    figure.update_yaxes(
        automargin=False,
        tickvals=list(range(len(rows))),
        ticktext=[plain(name) for name in names],
        range=(len(rows) - 0.4, -0.6),
        fixedrange=True,
        showgrid=False,
    )
    figure.update_layout(
        barmode="overlay",
        bargap=0.25,
        margin_t=top_px,
        margin_l=16 + 7 * max(len(name) for name in names),
        margin_r=90,  # the clocks stand there
        showlegend=True,
        legend={
            "orientation": "h",  # plotly hides a vertical legend that stands above the plot
            "x": 0.0,
            "xref": "container",
            "y": 1.0 - _LEGEND_PX / height_px,
            "yref": "container",
            "yanchor": "top",
        },
    )
    return fragment(figure, "figure-kernels", zoom=False)


def repeats(validation: Validation) -> str:
    """Draw every repeat of every arm as a point."""
    others = validation.others
    times_s = (
        *validation.auto_time_s,
        *validation.plan_time_s,
        *(t for o in others for t in o.time_s),
    )
    energies_j = (
        *validation.auto_energy_j,
        *validation.plan_energy_j,
        *(e for o in others for e in o.energy_j),
    )
    (x_unit, x_size), (y_unit, y_size) = _axis_unit("s", times_s), _axis_unit("J", energies_j)
    figure = blank(f"Every run ({validation.evidence})", _HEIGHT_PX - 60)
    for name, time_s, energy_j, colour, symbol in (
        ("auto", validation.auto_time_s, validation.auto_energy_j, GREY, "circle"),
        ("plan", validation.plan_time_s, validation.plan_energy_j, VERMILION, "star"),
        *(
            (
                arm_title(other.name),
                other.time_s,
                other.energy_j,
                *_ARM_MARKERS.get(other.name, (SKY, "diamond")),
            )
            for other in others
        ),
    ):
        figure.add_scatter(
            x=[value / x_size for value in time_s],
            y=[value / y_size for value in energy_j],
            mode="markers",
            name=name,
            marker={"color": colour, "symbol": symbol, "size": 11, "opacity": 0.8},
            hovertemplate=f"{name}<br>%{{x:.4g}} {x_unit}<br>%{{y:.4g}} {y_unit}<extra></extra>",
        )
    figure.update_xaxes(title_text=f"time ({x_unit})")
    figure.update_yaxes(title_text=f"energy ({y_unit})")
    figure.update_layout(
        showlegend=True, legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0.0}
    )
    return fragment(figure, "figure-validation")


def _add_bars(figure: go.Figure, plan: Plan, rows: list[tuple[str, Choice]]) -> None:
    """Draw one bar per kernel, coloured by which of its clocks are set."""
    for label, colour in _LEVERS.items():
        part = [(i, name, c) for i, (name, c) in enumerate(rows) if _lever(c, plan) == label]
        if part:
            figure.add_bar(
                x=[100.0 * c.energy_change for _, _, c in part],
                y=[i for i, _, _ in part],
                orientation="h",
                name=label,
                marker={"color": colour},
                customdata=[_hover(name, c) for _, name, c in part],
                hovertemplate="%{customdata}<extra></extra>",
            )


def _lever(choice: Choice, plan: Plan) -> str:
    """Say which clocks differ from those the kernel has under the baseline."""
    core = choice.core_mhz != plan.baseline.core_mhz
    mem = choice.mem_mhz != plan.baseline.mem_mhz
    if core and mem:
        return "both set"
    if core:
        return "core clock set"
    return "memory clock set" if mem else "left alone"


def _percent(cost: Cost) -> tuple[float, float]:
    return 100.0 * cost.time_change, 100.0 * cost.energy_change


def _label(
    figure: go.Figure,
    plan: Plan,
    arms: list[tuple[Arm, float, float]],
    y_range: tuple[float, float],
) -> None:
    """Name the points, top to bottom; a label too close to the one above moves down."""
    scale = (_HEIGHT_PX - TOP_PX - BOTTOM_PX) / (y_range[1] - y_range[0])
    above_px = -float(_LABEL_PX)
    for arm, x, y in sorted(arms, key=lambda point: -point[2]):
        point_px = (y_range[1] - y) * scale
        above_px = max(point_px, above_px + _LABEL_PX)
        title = plain(arm_title(arm.name))
        figure.add_annotation(
            x=x,
            y=y,
            xanchor="left",
            xshift=12,
            yshift=point_px - above_px,
            text=f"<b>{title}</b>" if arm.name == plan.chosen else title,
            showarrow=False,
        )


def _hover(name: str, choice: Choice) -> str:
    return (
        f"{plain(name)}<br>{choice.clocks}<br>energy {change_text(choice.energy_change)}"
        f"<br>time {change_text(choice.time_change)}"
    )


def _short(name: str) -> str:
    """Cut a long name in the middle, for kernel names differ at both ends."""
    if len(name) <= _TICK_CHARACTERS:
        return name
    half = _TICK_CHARACTERS // 2
    return f"{name[: half - 1]}…{name[-half:]}"


def _axis_unit(unit: str, values: tuple[float, ...]) -> tuple[str, float]:
    """Return the largest unit that keeps every value above one, else the smallest known."""
    units = _AXIS_UNITS[unit]
    return next((u for u in units if min(values) >= u[1]), units[-1])

"""The fastest step at other power limits: as a table for a terminal, and as a chart."""

from rich.table import Table
from rich.text import Text

from underclock.records import Plan, PowerPoint
from underclock.report.chart import GREY, VERMILION, Chart, Series
from underclock.report.fitting import bare_table
from underclock.report.wording import change_text, duration_text

_MS = 1e3


def power_tables(plan: Plan) -> tuple[Table, ...]:
    """Return the frontier of time against power limit; none where it was not worked out."""
    if not plan.power_curve:
        return ()
    table = bare_table(f"the fastest step at other power limits: {plan.evidence}")
    for header in (
        "power\nlimit",
        "the driver's\nown cap",
        "fastest\nclocks",
        "time",
        "energy",
    ):
        table.add_column(header, justify="right", no_wrap=True)
    for point in plan.power_curve:
        table.add_row(
            Text(limit_text(point)),
            Text(duration_text(point.auto_time_s)),
            Text(duration_text(point.time_s)),
            Text(change_text(point.time_change)),
            Text(change_text(point.energy_change)),
        )
    table.caption = Text(
        "time and energy against the driver's own cap at the same limit, changes of clocks taken "
        "as free; expected, not promised"
    )
    return (table,)


def limit_text(point: PowerPoint) -> str:
    """Write a point's power limit."""
    return f"{point.limit_w:.0f} W"


def power_chart(plan: Plan) -> Chart:
    """Return the frontier of time against power limit as a chart."""
    ways = (
        ("the driver's own cap", GREY, [point.auto_time_s for point in plan.power_curve]),
        ("fastest clocks", VERMILION, [point.time_s for point in plan.power_curve]),
    )
    limits_w = [point.limit_w for point in plan.power_curve]
    drawn = []
    for name, colour, times_s in ways:
        points = tuple((w, _MS * s) for w, s in zip(limits_w, times_s, strict=True))
        if len(points) > 1:
            drawn.append(Series(name=name, points=points, colour=colour))
        else:
            drawn.append(Series(name=name, points=points, colour=colour, symbol="circle"))
    return Chart(
        key="power",
        title=f"Time of a step against the power limit ({plan.evidence})",
        x_title="power limit (W)",
        y_title="time of a step (ms)",
        series=tuple(drawn),
        signed=False,
    )

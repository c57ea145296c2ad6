"""Switching latencies, and what could be achieved at others, as tables for a terminal."""

from rich.table import Table
from rich.text import Text

from underclock.records import Plan
from underclock.records.latencies import LatencyTable
from underclock.report.fitting import bare_table
from underclock.report.wording import change_text, duration_text, no_change
from underclock.units import format_mhz


def latency_table(latencies: LatencyTable) -> Table:
    """Return how long it takes to get to each sampled clock, from where that takes longest."""
    gpu = "any GPU" if latencies.gpu is None else latencies.gpu.name
    table = bare_table(f"changing clocks on {gpu}: {latencies.evidence or 'assumed'}")
    table.add_column("clock")
    headers = ("to\nMHz", "from\nMHz", "call", "delay", "jitter", "stall", "repeats")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for switch in latencies.slowest():
        durations_s = (switch.call_s, switch.delay_s, switch.jitter_s, switch.stall_s)
        table.add_row(
            Text(switch.domain),
            Text(format_mhz(switch.to_mhz)),
            Text(format_mhz(switch.from_mhz)),
            *(Text(duration_text(duration_s)) for duration_s in durations_s),
            Text(str(switch.repeats)),
        )
    table.caption = Text(
        "medians, from the slowest of the sampled origins; delay: from the call's return until "
        "the new clock or its stall; jitter: of the delay; stall: no work is done then"
    )
    return table


def has_latencies(plan: Plan) -> bool:
    """Whether a plan knows of other latencies, and any of them or of its proposals saves."""
    points, ways = plan.latency_curve, plan.proposals
    return not (all(no_change(point) for point in points) and all(no_change(way) for way in ways))


def latency_tables(plan: Plan) -> tuple[Table, ...]:
    """Return what could be achieved at other switching latencies; none where that is nothing."""
    if not has_latencies(plan):
        return ()
    table = bare_table(f"achievable on {plan.gpu.name} if clocks took this long: {plan.evidence}")
    table.add_column("latency", justify="right", no_wrap=True)
    for header in ("time", "energy", "switches\nper step"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("known hardware", overflow="fold")
    for point in plan.latency_curve:
        table.add_row(
            Text(duration_text(point.latency_s)),
            Text(change_text(point.time_change)),
            Text(change_text(point.energy_change)),
            Text("-" if point.switches is None else str(point.switches)),
            Text(point.hardware),
        )
    if plan.schedule is not None:
        table.caption = Text(
            f"this plan's own latency: {plan.schedule.latency}, "
            f"{plan.schedule.switches} switches per step{no_way_text(plan)}"
        )
    return (table, _proposals_table(plan)) if plan.proposals else (table,)


def no_way_text(plan: Plan) -> str:
    """Say that no way to lengthen segments pays, where such ways were looked for; else nothing."""
    looked = plan.schedule is not None and plan.latency_range_s is None
    return (
        "; no way that was tried to lengthen them (larger micro-batches, other orders) saves more"
        if looked and not plan.proposals
        else ""
    )


def _proposals_table(plan: Plan) -> Table:
    """Return what longer segments would bring."""
    table = bare_table(f"proposed, to make switching pay: {plan.evidence}")
    table.add_column("way", overflow="fold")
    for header in ("time", "energy", "switches"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("needs", overflow="fold")
    for proposal in plan.proposals:
        table.add_row(
            Text(proposal.name),
            Text(change_text(proposal.time_change)),
            Text(change_text(proposal.energy_change)),
            Text(str(proposal.switches)),
            Text(proposal.needs),
        )
    return table

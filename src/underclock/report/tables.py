"""Records as tables for an 80-column terminal.

Cells are `rich.text.Text`, never plain strings: rich would read ``[...]`` in a kernel name as
markup.
"""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from underclock.records import Arm, Plan, Score, Strategy, Validation
from underclock.records.latencies import LatencyTable
from underclock.records.observed import Breakdown, ClockLog
from underclock.report.answer import (
    fixed_sentence,
    hold_commands,
    switching_sentence,
    undo_command,
)
from underclock.report.fitting import FittingTable
from underclock.report.ranking import joules_column, others_text, top_savings
from underclock.report.wording import (
    arm_title,
    change_text,
    clocks_text,
    duration_text,
    energy_text,
    interval_text,
    measured_changes,
    promise_text,
    status_text,
)
from underclock.units import format_mhz

_MOST_OPERATORS = 12
_MOST_SAVINGS = 8


def arms_table(plan: Plan) -> Table:
    """Return the ways of choosing clocks side by side; the chosen one has a star."""
    table = bare_table(f"{plan.workload} on {plan.gpu.name}: {plan.evidence}")
    table.add_column("clocks chosen", overflow="fold")
    for header in ("time", "energy", "time\nper step", "energy\nper step"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for arm in plan.arms:
        chosen = arm.name == plan.chosen
        table.add_row(
            _arm_cell(plan, arm),
            Text(change_text(arm.time_change)),
            Text(change_text(arm.energy_change)),
            Text(duration_text(arm.time_s)),
            Text(energy_text(arm.energy_j)),
            Text(status_text(arm)),
            style="bold" if chosen else "",
        )
    lines = [promise_text(plan), "* the plan holds these clocks; time and energy against auto"]
    if any(arm.name == "achievable" for arm in plan.arms):
        lines.insert(0, switching_sentence(plan))
    table.caption = Text("\n".join(lines))
    return table


def savings_table(plan: Plan) -> FittingTable:
    """Return the clocks of the kernels that save most of the step's energy, and the others' sum."""
    ranking = top_savings(plan, _MOST_SAVINGS)
    choices = [choice for _, choice in ranking.rows]
    unit, saved = joules_column([*(c.saved_j for c in choices), ranking.others_j, ranking.total_j])
    table = bare_table(f"top savings of a step: {plan.evidence}")
    table.add_column("kernel", overflow="fold")
    for header in ("core / mem\nMHz", f"saved\n{unit}", "time", "energy"):
        table.add_column(header, justify="right", no_wrap=True)
    for (name, choice), joules in zip(ranking.rows, saved, strict=False):
        table.add_row(
            Text(name),
            Text(f"{format_mhz(choice.core_mhz)} / {format_mhz(choice.mem_mhz)}"),
            Text(joules),
            Text(change_text(choice.time_change)),
            Text(change_text(choice.energy_change)),
        )
    if ranking.others:
        table.add_row(Text(others_text(ranking)), Text(""), Text(saved[-2]), Text(""), Text(""))
    table.caption = Text(
        f"{saved[-1]} {unit} of a step are saved; time and energy against the kernel's own at auto"
    )
    return table


def plan_tables(plan: Plan) -> tuple[RenderableType, ...]:
    """Return all that a terminal shows of a plan: arms, savings, what to paste, latencies."""
    parts: list[RenderableType] = [arms_table(plan)]
    if any(choice.saved_j > 0.0 for choice in plan.kernels.values()):
        parts.append(savings_table(plan))
    sentence = fixed_sentence(plan)
    if sentence is not None and plan.fixed is not None:
        parts.append(Text(f"{sentence}; to hold it (undo: {undo_command(plan.fixed)})"))
        # Never wrapped, for these lines are to be pasted.
        parts += [Text(f"  {line}", no_wrap=True) for line in hold_commands(plan.fixed)]
    return (*parts, *latency_tables(plan))


def validation_table(validation: Validation) -> Table:
    """Return what was promised against what all pairs of repeats gave."""
    table = bare_table(
        f"{validation.workload} on {validation.gpu.name}, run again: {validation.evidence}"
    )
    table.add_column("")
    for header in ("promised", "mean", "95 %\ninterval", "best\npair", "worst\npair"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, promised, spread, interval in measured_changes(validation):
        changes = (spread.best, spread.worst)
        table.add_row(
            Text(name.replace(", ", ",\n  ")),
            Text(change_text(promised)),
            Text(change_text(spread.mean)),
            Text(interval_text(interval)),
            *(Text(change_text(change)) for change in changes),
        )
    pairs = validation.repeats**2
    time = (
        "time was free"
        if validation.pairs_keeping_time is None
        else f"{validation.pairs_keeping_time} keep the time budget"
    )
    table.caption = Text(
        f"of {pairs} pairs, {validation.pairs_keeping_energy} save the promised energy; {time}"
    )
    return table


def score_table(score: Score) -> Table:
    """Return what a plan promised against what its clocks cost on a full table."""
    table = bare_table(
        f"{score.plan} on {score.gpu.name}, promised against actual: {score.evidence}"
    )
    table.add_column("")
    for header in ("promised", "actual", "auto\nper step", "plan\nper step"):
        table.add_column(header, justify="right", no_wrap=True)
    auto = next((arm for arm in score.arms if arm.name is Strategy.AUTO), None)
    table.add_row(
        Text("time"),
        Text(change_text(score.promised_time_change)),
        Text(change_text(score.time_change)),
        Text(duration_text(auto.time_s if auto else None)),
        Text(duration_text(score.time_s)),
    )
    table.add_row(
        Text("energy"),
        Text(change_text(score.promised_energy_change)),
        Text(change_text(score.energy_change)),
        Text(energy_text(auto.energy_j if auto else None)),
        Text(energy_text(score.energy_j)),
    )
    return table


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


def bare_table(title: str, *, keep: int = 3) -> FittingTable:
    """Return a table without rows or columns, in the style of all of them.

    Args:
        title: What it shows.
        keep: How many columns, from the left, stay however narrow the terminal is.
    """
    return FittingTable(title, keep=keep)


def _arm_cell(plan: Plan, arm: Arm) -> Text:
    """Name the arm; under the best fixed clock write which clock that is."""
    cell = Text(f"{'*' if arm.name == plan.chosen else ' '} {arm_title(arm.name)}")
    if arm.name is Strategy.BEST_FIXED and plan.fixed is not None:
        cell.append(f"\n  {clocks_text(plan.fixed)}", style="dim")
    return cell


def breakdown_tables(found: Breakdown) -> tuple[Table, ...]:
    """Return where a step's energy goes: by pass, operator, bound, and at which clock."""
    heading = f"{found.workload} on {found.gpu.name} at auto clocks: {found.evidence}"
    tables = []
    for title, parts in (
        (f"{heading}\n\nby pass", found.by_pass),
        ("by operator", found.by_operator[:_MOST_OPERATORS]),
        ("by what bounds the kernel", found.by_bound),
        ("by clock", found.by_clock),
    ):
        table = bare_table(title)
        table.add_column("", overflow="fold")
        for header in ("launches", "time\nper step", "energy\nper step", "of\ntime", "of\nenergy"):
            table.add_column(header, justify="right", no_wrap=True)
        for part in parts:
            table.add_row(
                Text(part.name),
                Text(str(part.launches)),
                Text(duration_text(part.time_s)),
                Text(energy_text(part.energy_j)),
                Text(f"{part.time_share:.1%}"),
                Text(f"{part.energy_share:.1%}"),
            )
        tables.append(table)
    left_out = len(found.by_operator) - _MOST_OPERATORS
    if left_out > 0:
        tables[1].caption = Text(f"and {left_out} more, with less energy")
    tables[-1].caption = Text(_reachable_text(found))
    return tuple(tables)


def _reachable_text(found: Breakdown) -> str:
    capped = f"{found.capped_share:.0%} of the kernels' own time is at the power cap"
    if found.full_core_mhz is None:
        return f"{capped}; no clocks were read"
    if found.reachable_j is None:
        return f"{capped}; no counters were read, so what bounds the kernels is unknown"
    return (
        f"{found.reachable_j / found.energy_j:.1%} of the energy is spent at the full core clock "
        f"({found.full_core_mhz} MHz) by kernels that DRAM or latency bounds: within a plan's "
        f"reach; {capped}"
    )


def clock_log_table(found: ClockLog) -> Table:
    """Return what a log of clocks shows, kernel by kernel where a step ran."""
    table = bare_table(f"{found.gpu.name}, {found.entries} readings: {found.evidence}")
    table.add_column("", overflow="fold")
    for header in ("readings", "core\nMHz", "power\nW"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, place in (("least", 0), ("mean", 1), ("greatest", 2)):
        core, power = found.core_mhz[place], found.power_w[place]
        table.add_row(Text(name), Text(""), Text(f"{core:.0f}"), Text(f"{power:.1f}"))
    for kernel in found.kernels:
        table.add_row(
            Text(kernel.kernel),
            Text(str(kernel.entries)),
            Text(f"{kernel.core_mhz:.0f}"),
            Text(f"{kernel.power_w:.1f}"),
        )
    table.caption = Text(
        f"{found.rate_hz:.0f} readings a second; "
        f"throttle reasons seen: 0x{found.throttle_reasons:x}"
        + (f"; a step took {duration_text(found.step_s)}" if found.step_s else "")
    )
    return table


def latency_tables(plan: Plan) -> tuple[Table, ...]:
    """Return what could be achieved at other switching latencies; none where it was not asked."""
    if not plan.latency_curve:
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
            f"{plan.schedule.switches} switches per step"
        )
    return (table, _proposals_table(plan))


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

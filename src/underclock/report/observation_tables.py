"""What was observed of a step, its energy and its clocks, as tables for a terminal."""

from rich.table import Table
from rich.text import Text

from underclock.records.observed import Breakdown, ClockLog
from underclock.report.fitting import bare_table
from underclock.report.wording import duration_text, energy_text

_MOST_OPERATORS = 12


def breakdown_tables(breakdown: Breakdown) -> tuple[Table, ...]:
    """Return where a step's energy goes: by pass, operator, bound, and at which clock."""
    heading = f"{breakdown.workload} on {breakdown.gpu.name} at auto clocks: {breakdown.evidence}"
    tables = []
    for title, parts in (
        (f"{heading}\n\nby pass", breakdown.by_pass),
        ("by operator", breakdown.by_operator[:_MOST_OPERATORS]),
        ("by what bounds the kernel", breakdown.by_bound),
        ("by clock", breakdown.by_clock),
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
    left_out = len(breakdown.by_operator) - _MOST_OPERATORS
    if left_out > 0:
        tables[1].caption = Text(f"and {left_out} more, with less energy")
    tables[-1].caption = Text(_reachable_text(breakdown))
    return tuple(tables)


def _reachable_text(breakdown: Breakdown) -> str:
    capped = f"{breakdown.capped_share:.0%} of the kernels' own time is at the power cap"
    if breakdown.full_core_mhz is None:
        return f"{capped}; no clocks were read"
    if breakdown.reachable_j is None:
        return f"{capped}; no counters were read, so what bounds the kernels is unknown"
    return (
        f"launched alone, kernels that DRAM or latency bounds use "
        f"{breakdown.reachable_j / breakdown.energy_j:.1%} of the energy at the full core clock "
        f"({breakdown.full_core_mhz} MHz); in a step at the power limit all kernels share one "
        f"clock, so that is where to look, not what can be saved; {capped}"
    )


def clock_log_table(log: ClockLog) -> Table:
    """Return what a log of clocks shows, kernel by kernel where a step ran."""
    table = bare_table(f"{log.gpu.name}, {log.entries} readings: {log.evidence}")
    table.add_column("", overflow="fold")
    for header in ("readings", "core\nMHz", "power\nW"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, place in (("least", 0), ("mean", 1), ("greatest", 2)):
        core, power = log.core_mhz[place], log.power_w[place]
        table.add_row(Text(name), Text(""), Text(f"{core:.0f}"), Text(f"{power:.1f}"))
    for kernel in log.kernels:
        table.add_row(
            Text(kernel.kernel),
            Text(str(kernel.entries)),
            Text(f"{kernel.core_mhz:.0f}"),
            Text(f"{kernel.power_w:.1f}"),
        )
    table.caption = Text(
        f"{log.rate_hz:.0f} readings a second; "
        f"throttle reasons seen: 0x{log.throttle_reasons:x}"
        + (f"; a step took {duration_text(log.step_s)}" if log.step_s else "")
    )
    return table

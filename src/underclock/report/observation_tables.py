"""What was observed of a step, its energy and its clocks, as tables for a terminal."""

from rich.table import Table
from rich.text import Text

from underclock.records.observed import Bound, Breakdown, ClockLog
from underclock.report.fitting import bare_table
from underclock.report.wording import DASH, change_text, duration_text, energy_text

_MOST_OPERATORS = 12
_MOST_KERNELS = 12


def breakdown_tables(breakdown: Breakdown) -> tuple[Table, ...]:
    """Return where a step's energy goes: by pass, operator and bound, and kernel by kernel."""
    heading = f"{breakdown.workload} on {breakdown.gpu.name} at auto clocks: {breakdown.evidence}"
    tables: list[Table] = []
    for title, parts in (
        (f"{heading}\n\nby pass", breakdown.by_pass),
        ("by operator", breakdown.by_operator[:_MOST_OPERATORS]),
        ("by what bounds the kernel", breakdown.by_bound),
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
    if any(part.exponent or part.in_step_change is not None for part in breakdown.kernels):
        tables.append(_kernels_table(breakdown))
    tables[-1].caption = Text("\n".join(_sentences(breakdown)))
    return tuple(tables)


def _kernels_table(breakdown: Breakdown) -> Table:
    """Return how the kernels with most energy follow the core clock, and what the step does."""
    table = bare_table("how time follows the core clock: time ~ clock^-exponent")
    table.add_column("kernel", overflow="fold")
    headers = ("of\nenergy", "exponent", "seen at\nMHz", "in step\nvs alone")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for part in breakdown.kernels[:_MOST_KERNELS]:
        exponent = part.exponent
        seen = DASH if exponent is None else f"{exponent.least_mhz:.0f}-{exponent.most_mhz:.0f}"
        value = DASH if exponent is None else f"{exponent.value:.2f} ± {exponent.error:.2f}"
        table.add_row(
            Text(part.kernel),
            Text(f"{part.energy_share:.1%}"),
            Text(value),
            Text(seen),
            Text(change_text(part.in_step_change, digits=1)),
        )
    return table


def _sentences(breakdown: Breakdown) -> tuple[str, ...]:
    return (
        _clock_text(breakdown),
        _reachable_text(breakdown),
        f"alone, kernels spend {breakdown.capped_share:.0%} of their time at the power cap",
    )


def _clock_text(breakdown: Breakdown) -> str:
    clock = breakdown.step_clock
    if clock is None:
        return "at which core clock the step runs is unknown: it was not run whole, or not read"
    if clock.spread_mhz is None:
        return (
            f"the step runs at {clock.core_mhz:.0f} MHz, as glimpsed at the end of each window: "
            "not a mean"
        )
    return f"the step runs at {clock.core_mhz:.0f} ± {clock.spread_mhz:.0f} MHz"


def _reachable_text(breakdown: Breakdown) -> str:
    """Say what does not follow the core clock; utilisation does not tell, so it gives no number."""
    if breakdown.reachable_j is not None:
        text = (
            f"{breakdown.reachable_j / breakdown.energy_j:.1%} of its energy goes to kernels "
            "whose time does not follow the core clock: a lower one hardly slows them"
        )
        if not breakdown.undecided_j:
            return text
        return f"{text}; it is not known of kernels with {_undecided_share(breakdown)}"
    measure = "samples at two core clocks or more tell it"
    if all(part.bound is Bound.UNKNOWN for part in breakdown.kernels):
        return (
            "what bounds the kernels is unknown: no counters were read, nor times at other core "
            f"clocks; {measure}"
        )
    return (
        "utilisation was read at the clocks of kernels alone, and does not say whose time follows "
        f"the core clock; {measure}"
    )


def _undecided_share(breakdown: Breakdown) -> str:
    return f"{breakdown.undecided_j / breakdown.energy_j:.1%}"


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

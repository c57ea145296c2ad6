"""Measured latencies of clocks as a table for an 80-column terminal."""

from rich.table import Table

from underclock.records.latencies import LatencyTable
from underclock.report.terminal import filled, numbers, words
from underclock.report.wording import duration_text
from underclock.units import format_mhz


def latency_table(latencies: LatencyTable) -> Table:
    """Return how long it takes to get to each sampled clock, from where that takes longest."""
    gpu = "any GPU" if latencies.gpu is None else latencies.gpu.name
    headers = ("to\nMHz", "from\nMHz", "call", "delay", "jitter", "stall", "repeats")
    return filled(
        f"changing clocks on {gpu}: {latencies.evidence or 'assumed'}",
        (*words("clock"), *numbers(*headers)),
        (
            (
                switch.domain,
                format_mhz(switch.to_mhz),
                format_mhz(switch.from_mhz),
                duration_text(switch.call_s),
                duration_text(switch.delay_s),
                duration_text(switch.jitter_s),
                duration_text(switch.stall_s),
                str(switch.repeats),
            )
            for switch in latencies.slowest()
        ),
        "medians, from the slowest of the sampled origins; delay: from the call's return until "
        "the new clock or its stall; jitter: of the delay; stall: no work is done then",
    )

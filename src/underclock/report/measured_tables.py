"""What was measured, fitted and checked, as tables for an 80-column terminal."""

from rich.table import Table

from underclock.records.latencies import LatencyTable
from underclock.records.outcomes import CheckedPromise, PromiseCheck
from underclock.report.terminal import filled, numbers, words
from underclock.report.wording import (
    duration_text,
    plain_percent,
)
from underclock.units import format_mhz, format_percent

_MOST_OPERATORS = 12
_MOST_KERNELS = 12


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


_CHECKED = (
    "time\nbudget",
    "promised\nenergy",
    "\nexecuted",
    "\nbias",
    "energy\ncovered",
    "time\ncovered",
    "over\nbudget",
    "beyond\nnoise",
)


def check_sentence(checked: PromiseCheck) -> str:
    """Say what was split, and how often."""
    return (
        f"{checked.workload} on {checked.gpu.name}, {checked.evidence}: {checked.runs} runs of "
        f"{checked.rows} rows of {checked.kernels} kernels, split {checked.splits} times (seed "
        f"{checked.seed}); planned on one half, executed on the other"
    )


def check_table(checked: PromiseCheck) -> Table:
    """Return every budget."""
    return filled(
        f"promises against execution: {checked.evidence}",
        (*words(_CHECKED[0]), *numbers(*_CHECKED[1:])),
        (_checked_cells(promise) for promise in checked.promises),
        "bias: promised less executed energy, in points; covered: within the promise's 95 % "
        f"interval, the noise of the other half granted; against {checked.baseline}",
    )


def _checked_cells(promise: CheckedPromise) -> tuple[str, ...]:
    """Write a budget's numbers."""
    shares = (
        promise.energy_coverage,
        promise.time_coverage,
        promise.over_budget,
        promise.beyond_noise,
    )
    return (
        plain_percent(promise.max_slowdown) + " %",
        format_percent(promise.promised_energy.value),
        format_percent(promise.executed_energy.value),
        f"{100.0 * promise.energy_bias.value:+.2f}",
        *(f"{100.0 * share.value:.0f} %" for share in shares),
    )

"""What was measured, fitted and checked, as tables for an 80-column terminal."""

from rich.table import Column, Table
from rich.text import Text

from underclock.records.fitted import GpuFit, KernelFit
from underclock.records.latencies import LatencyTable
from underclock.records.observed import (
    Bound,
    Breakdown,
)
from underclock.records.outcomes import CheckedPromise, PromiseCheck
from underclock.report.terminal import filled, numbers, words
from underclock.report.wording import (
    DASH,
    change_text,
    duration_text,
    energy_text,
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


def breakdown_tables(breakdown: Breakdown) -> tuple[Table, ...]:
    """Return where a step's energy goes: by pass, operator and bound, and kernel by kernel."""
    heading = f"{breakdown.workload} on {breakdown.gpu.name} at auto clocks: {breakdown.evidence}"
    left_out = len(breakdown.by_operator) - _MOST_OPERATORS
    headers = ("launches", "time\nper step", "energy\nper step", "of\ntime", "of\nenergy")
    tables: list[Table] = [
        filled(
            title,
            (*words(""), *numbers(*headers)),
            (
                (
                    part.name,
                    str(part.launches),
                    duration_text(part.time_s),
                    energy_text(part.energy_j),
                    f"{part.time_share:.1%}",
                    f"{part.energy_share:.1%}",
                )
                for part in parts
            ),
            caption,
        )
        for title, parts, caption in (
            (f"{heading}\n\nby pass", breakdown.by_pass, ""),
            (
                "by operator",
                breakdown.by_operator[:_MOST_OPERATORS],
                f"and {left_out} more, with less energy" if left_out > 0 else "",
            ),
            ("by what bounds the kernel", breakdown.by_bound, ""),
        )
    ]
    if any(part.exponent or part.in_step_change is not None for part in breakdown.kernels):
        tables.append(_kernels_table(breakdown))
    capped = f"alone, kernels spend {breakdown.capped_share:.0%} of their time at the power cap"
    tables[-1].caption = Text(f"{_clock_text(breakdown)}\n{_reachable_text(breakdown)}\n{capped}")
    return tuple(tables)


def _kernels_table(breakdown: Breakdown) -> Table:
    """Return how the kernels with most energy follow the core clock, and what the step does."""
    rows = []
    for part in breakdown.kernels[:_MOST_KERNELS]:
        exponent = part.exponent
        rows.append(
            (
                part.kernel,
                f"{part.energy_share:.1%}",
                f"{exponent.value:.2f} ± {exponent.error:.2f}" if exponent else DASH,
                f"{exponent.least_mhz:.0f}-{exponent.most_mhz:.0f}" if exponent else DASH,
                change_text(part.in_step_change, digits=1),
            )
        )
    return filled(
        "how time follows the core clock: time ~ clock^-exponent",
        (*words("kernel"), *numbers("of\nenergy", "exponent", "seen at\nMHz", "in step\nvs alone")),
        rows,
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
        undecided = f"{breakdown.undecided_j / breakdown.energy_j:.1%}"
        return f"{text}; it is not known of kernels with {undecided}"
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


def fit_tables(fitted: GpuFit) -> tuple[Table, Table]:
    """Return the constants of the GPU, and how well each kernel is described."""
    cap = "no sample at the power cap"
    if fitted.cap_w is not None:
        cap = f"the power cap holds at {fitted.cap_w:.4g} W"
    boost = "" if fitted.boost_mhz is None else f"; boosts to {fitted.boost_mhz:.0f} MHz"
    constants = filled(
        f"{fitted.gpu.name}, fitted to {fitted.workload}: {fitted.evidence}",
        (
            *words("constant"),
            *numbers("value", "standard\nerror"),
            Column("unit", no_wrap=True),
            *numbers("told by\nsamples"),
        ),
        (
            (each.name, f"{each.value:.4g}", f"{each.error:.2g}", each.unit, f"{each.told:.0%}")
            for each in fitted.constants
        ),
        f"{fitted.rows} rows at known clocks, from {fitted.samples} samples; {cap}{boost}; "
        f"noise of one sample: time {fitted.time_noise:.2%}, power {fitted.power_noise:.2%}; "
        f"discrepancy: time {fitted.time_discrepancy:.2%}, power {fitted.power_discrepancy:.2%}; "
        f"residual: time {fitted.time_rms:.2%}, power {fitted.power_rms:.2%}",
    )
    kernels = filled(
        f"kernels on {fitted.gpu.name}: {fitted.evidence}",
        (
            *words("kernel"),
            *numbers("rows", "core", "DRAM", "fixed", "time\noff", "power\noff"),
            *words(""),
        ),
        (
            (
                kernel.name,
                str(kernel.rows),
                _share_text(kernel.core_share),
                _share_text(kernel.dram_share),
                _share_text(kernel.fixed_share),
                _share_text(kernel.time_rms, 1),
                _share_text(kernel.power_rms, 1),
                _note(kernel),
            )
            for kernel in fitted.kernels
        ),
        "core, DRAM, fixed: what goes with the core clock, the memory clock or neither, of the "
        "time at the kernel's fastest sample or the baseline given; off: residual of its rows; "
        f"{fitted.common_share:.0%} of the variance of the summed energy is common to all kernels",
    )
    return constants, kernels


def _note(kernel: KernelFit) -> str:
    if not kernel.rows:
        return "no usable sample: measure lower clocks"
    if not kernel.described:
        return "keeps its own samples: measure it more"
    return ""


def _share_text(share: float | None, digits: int = 0) -> str:
    return DASH if share is None else f"{share:.{digits}%}"


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

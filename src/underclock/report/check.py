"""A check of promises, as a table and as a page anybody can make of a table of their own."""

from collections.abc import Callable

from rich.table import Table
from rich.text import Text

from underclock.records.outcomes import CheckedNumber, CheckedPromise, PromiseCheck
from underclock.report.expected import plain_percent
from underclock.report.fitting import bare_table
from underclock.units import format_percent

_HEADERS = (
    "time\nbudget",
    "promised\nenergy",
    "\nexecuted",
    "\nbias",
    "energy\ncovered",
    "time\ncovered",
    "over\nbudget",
    "beyond\nnoise",
)
_INTERVALS = "intervals of 95 % are of more splits of this table, not of other tables"


def check_sentence(checked: PromiseCheck) -> str:
    """Say what was split, and how often."""
    return (
        f"{checked.workload} on {checked.gpu.name}, {checked.evidence}: {checked.runs} runs of "
        f"{checked.rows} rows of {checked.kernels} kernels, split {checked.splits} times (seed "
        f"{checked.seed}); planned on one half, executed on the other"
    )


def check_table(checked: PromiseCheck) -> Table:
    """Return every budget."""
    table = bare_table(f"promises against execution: {checked.evidence}")
    table.add_column(_HEADERS[0])
    for header in _HEADERS[1:]:
        table.add_column(header, justify="right", no_wrap=True)
    for promise in checked.promises:
        table.add_row(*(Text(cell) for cell in _cells(promise)))
    table.caption = Text(
        "bias: promised less executed energy, in points; covered: within the promise's 95 % "
        f"interval, the noise of the other half granted; against {checked.baseline}"
    )
    return table


def check_page(checked: PromiseCheck, command: str) -> str:
    """Return the same as Markdown, with the intervals over splits.

    Args:
        checked: What came out.
        command: What to type to make the page again.
    """
    header = " | ".join(header.replace("\n", " ").strip() for header in _HEADERS)
    lines = [f"| {header} | time bias |", "|---" * (len(_HEADERS) + 1) + "|"]
    lines += [f"| {' | '.join(_long_cells(promise))} |" for promise in checked.promises]
    notes = "".join(f"- {warning}\n" for warning in checked.warnings)
    return (
        f"{_HEAD}\n## {checked.workload}\n\n{check_sentence(checked)}. Changes are against "
        f"{checked.baseline}; {_INTERVALS}.\n\n" + "\n".join(lines) + "\n"
        f"{chr(10) + notes if notes else ''}\nMade by\n\n    {command}\n"
    )


_HEAD = """# Calibration of promises

A promise is worth what it says if it comes true on runs that it was not made on. `underclock check`
splits the repeats of every row of a table at random, plans on one half and looks up on the other
what the planned clocks cost there.

- Plans keep their budget with 95 % confidence, as far as a half tells.
- *bias*: promised less executed change of energy, in points; below zero too much was promised.
  Choosing the least of noisy numbers does that (the winner's curse).
- *covered*: share of splits in which what came lies within the promise's 95 % interval. The other
  half is noisy too, so its standard error is added to the promise's, in squares.
- *over budget*: share of splits that took longer than the budget at all; half of them would, where
  a plan just kept it. *Beyond noise*: by more than 1.645 standard errors of the other half.
- A run is as noisy as runs at like clocks of its kernel usually are; an odd one is as far off as
  all repeats of its row show it to be, so in the other half it is noise, not a broken promise.
- Both halves come from one GPU on one day: what another board or a warmer room does is not in it.
"""


def _cells(promise: CheckedPromise) -> tuple[str, ...]:
    return (
        plain_percent(promise.max_slowdown) + " %",
        format_percent(promise.promised_energy.value),
        format_percent(promise.executed_energy.value),
        _points(promise.energy_bias.value),
        *(_share(each.value) for each in _shares(promise)),
    )


def _long_cells(promise: CheckedPromise) -> tuple[str, ...]:
    return (
        *_cells(promise)[:3],
        _between(promise.energy_bias, _points),
        *(_between(each, _share) for each in _shares(promise)),
        _between(promise.time_bias, _points),
    )


def _shares(promise: CheckedPromise) -> tuple[CheckedNumber, ...]:
    return (
        promise.energy_coverage,
        promise.time_coverage,
        promise.over_budget,
        promise.beyond_noise,
    )


def _between(number: CheckedNumber, write: Callable[[float], str]) -> str:
    if number.low is None or number.high is None:
        return write(number.value)
    return f"{write(number.value)} ({write(number.low)} to {write(number.high)})"


def _points(fraction: float) -> str:
    return f"{100.0 * fraction:+.2f}"


def _share(fraction: float) -> str:
    return f"{100.0 * fraction:.0f} %"

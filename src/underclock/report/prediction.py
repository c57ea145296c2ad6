"""A prediction from auto clocks as a sentence and a table."""

from rich.table import Table
from rich.text import Text

from underclock.records import Strategy
from underclock.records.observed import Interval, PredictedArm, Prediction
from underclock.report.fitting import bare_table
from underclock.report.wording import ARM_TITLES, change_text
from underclock.units import format_percent

_CHOSEN = Strategy.KERNEL_GLOBAL
_UNMEASURED = "kernel, not measured"
_PERCENT = 0.01
_TO = "\N{HORIZONTAL ELLIPSIS}"


def prediction_sentence(prediction: Prediction) -> str:
    """Say what would be saved, how sure that is, and what it rests on."""
    change = prediction.arm(_CHOSEN).energy_change
    return (
        f"energy would change by about {_whole(change.expected)} % ({_whole(change.low)} {_TO} "
        f"{_whole(change.high)} %, {100 * prediction.confidence:g} %) at <= "
        f"{100 * prediction.max_slowdown:g} % slower, predicted from auto clocks only; "
        "measuring would tell"
    )


def prediction_table(prediction: Prediction) -> Table:
    """Return every way of choosing clocks with its interval."""
    table = bare_table(
        f"{prediction.workload} on {prediction.gpu.name}: "
        f"predicted from {prediction.evidence} samples"
    )
    table.add_column("clocks chosen", overflow="fold")
    for header in ("energy", "between", "time", "between"):
        table.add_column(header, justify="right", no_wrap=True)
    for arm in prediction.arms:
        table.add_row(*_row(ARM_TITLES[arm.name], arm), style="bold" if arm.name == _CHOSEN else "")
    table.add_row(*_row(_UNMEASURED, prediction.without_measuring))
    table.caption = Text(
        f"after measuring at other clocks; the last line holds clocks without it and may be "
        f"slower than asked; like {prediction.like}; {prediction.counted} of "
        f"{prediction.kernels} kernels with utilisation; {prediction.draws} draws"
    )
    return table


def _row(title: str, arm: PredictedArm) -> tuple[Text, ...]:
    cells = [title]
    for change in (arm.energy_change, arm.time_change):
        cells += [change_text(change.expected, digits=1), _between(change)]
    return tuple(Text(cell) for cell in cells)


def _between(change: Interval) -> str:
    low, high = (format_percent(end, digits=1) for end in (change.low, change.high))
    return f"{low} {_TO} {high}"


def _whole(change: float) -> str:
    """Write a change in whole percent, or with a digit where that would be 0."""
    return format_percent(change, digits=0 if abs(change) >= _PERCENT else 1).removesuffix(" %")

"""Records as tables for an 80-column terminal.

Cells are `rich.text.Text`, never plain strings: rich would read ``[...]`` in a kernel name as
markup.
"""

from rich import box
from rich.table import Table
from rich.text import Text

from underclock.records import Arm, Plan, Score, Validation
from underclock.report.wording import (
    arm_title,
    change_text,
    clocks_text,
    duration_text,
    energy_text,
    greatest_savings,
    status_text,
)
from underclock.units import format_mhz

_MIN_WIDTH = 64  # so that a narrow table does not break its title into many lines


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
    table.caption = Text("* the plan holds these clocks; time and energy against auto")
    return table


def clocks_table(plan: Plan, limit: int | None) -> Table:
    """Return the clocks of each kernel.

    Args:
        plan: Whose clocks to show.
        limit: Show only so many kernels, those that save most first; ``None`` shows all, in the
            plan's order.
    """
    table = bare_table(f"{plan.workload} on {plan.gpu.name}, clocks per kernel: {plan.evidence}")
    table.add_column("kernel", overflow="fold")
    for header in ("core\nMHz", "memory\nMHz", "time", "energy"):
        table.add_column(header, justify="right", no_wrap=True)
    whole = limit is None or limit >= len(plan.kernels)
    rows = plan.kernels.items() if limit is None else greatest_savings(plan.kernels, limit)
    for name, choice in rows:
        table.add_row(
            Text(name),
            Text(format_mhz(choice.core_mhz)),
            Text(format_mhz(choice.mem_mhz)),
            Text(change_text(choice.time_change)),
            Text(change_text(choice.energy_change)),
        )
    which = "" if whole else f"{limit} of {len(plan.kernels)} kernels, greatest savings first; "
    table.caption = Text(f"{which}time and energy against the kernel's own at auto")
    return table


def validation_table(validation: Validation) -> Table:
    """Return what was promised against what all pairs of repeats gave."""
    table = bare_table(
        f"{validation.workload} on {validation.gpu.name}, run again: {validation.evidence}"
    )
    table.add_column("")
    for header in ("promised", "mean", "best pair", "worst pair"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, promised, found in (
        ("time", validation.promised_time_change, validation.time_change),
        ("energy", validation.promised_energy_change, validation.energy_change),
    ):
        changes = (promised, found.mean, found.best, found.worst)
        table.add_row(Text(name), *(Text(change_text(change)) for change in changes))
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
    auto = next((arm for arm in score.arms if arm.name == "auto"), None)
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


def bare_table(title: str) -> Table:
    """Return a table without rows or columns, in the style of all of them."""
    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        min_width=_MIN_WIDTH,
    )


def _arm_cell(plan: Plan, arm: Arm) -> Text:
    """Name the arm; under the best fixed clock write which clock that is."""
    cell = Text(f"{'*' if arm.name == plan.chosen else ' '} {arm_title(arm.name)}")
    if arm.name == "best_fixed" and plan.fixed is not None:
        cell.append(f"\n  {clocks_text(plan.fixed)}", style="dim")
    return cell

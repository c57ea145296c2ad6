"""The paper's numbers and ours as tables for an 80-column terminal."""

from itertools import groupby

from rich.table import Table
from rich.text import Text

from underclock.paper.records import Study
from underclock.report.fitting import bare_table
from underclock.report.wording import DASH
from underclock.units import format_mhz


def table2_table(study: Study) -> Table:
    """Return the eight ways of choosing, ours beside the paper's."""
    table = _table(
        f"Table 2 of arXiv 2601.08539 and ours, {study.gpu.name}: {study.evidence}",
        ("clocks per", "objective", "aggregate"),
        ("time,\npaper", "ours", "energy,\npaper", "ours"),
    )
    for cell in study.table2:
        table.add_row(
            cell.granularity,
            cell.objective,
            cell.aggregate,
            *(
                number_text(value, "%")
                for value in (
                    cell.paper_time_pct,
                    cell.time_pct,
                    cell.paper_energy_pct,
                    cell.energy_pct,
                )
            ),
        )
    table.caption = Text("percent, against auto clocks; sums of isolated kernels, as in the paper")
    return table


def table1_table(study: Study) -> Table:
    """Return the clocks per kernel, ours beside the paper's."""
    table = _table(
        f"Table 1 of arXiv 2601.08539 and ours, {study.gpu.name}: {study.evidence}",
        ("kernel", "core/mem\npaper", "core/mem\nours"),
        ("time,\npaper", "ours", "energy,\npaper", "ours", ""),
    )
    for row in study.table1:
        table.add_row(
            f"{row.kernel_id} {row.kernel}",
            f"{format_mhz(row.paper_core_mhz)}/{format_mhz(row.paper_mem_mhz)}",
            f"{format_mhz(row.core_mhz)}/{format_mhz(row.mem_mhz)}",
            *(
                number_text(value, "%")
                for value in (
                    row.paper_time_pct,
                    row.time_pct,
                    row.paper_energy_pct,
                    row.energy_pct,
                )
            ),
            "=" if row.lever is row.paper_lever else "",
        )
    table.caption = Text("clocks in MHz, changes in percent; = lowers the same clocks as the paper")
    return table


def relaxed_table(study: Study) -> Table:
    """Return what a time budget is worth; the paper gives numbers for a budget of zero only."""
    table = _table(
        f"Relaxed waste, {study.gpu.name}: {study.evidence}",
        (),
        ("time\nbudget", "energy,\npass", "kernel,\nlocal", "kernel,\nglobal"),
    )
    for point in study.relaxed:
        arms = (point.pass_global, point.kernel_local, point.kernel_global)
        table.add_row(
            number_text(point.max_slowdown_pct, "%"),
            *(number_text(arm.energy_pct if arm else None, "%") for arm in arms),
        )
    table.caption = Text("percent, against auto clocks")
    return table


def transfer_table(study: Study) -> Table:
    """Return what the discovered clocks do on other steps."""
    table = _table(
        f"The discovered clocks elsewhere, {study.gpu.name}: {study.evidence}",
        (),
        ("batch", "tensor\nparallel", "time,\npaper", "ours", "energy,\npaper", "ours"),
    )
    for row in (*study.batch_transfer, *study.tensor_parallel_transfer):
        values = (row.paper_time_pct, row.time_pct, row.paper_energy_pct, row.energy_pct)
        table.add_row(
            str(row.batch),
            str(row.tensor_parallel),
            *(number_text(value, "%") for value in values),
        )
    table.caption = Text("percent, against auto clocks on the same step")
    return table


def quoted_table(study: Study) -> Table:
    """Return every quoted number with ours and the difference."""
    table = _table(
        f"The paper's numbers and ours, {study.gpu.name}: {study.evidence}",
        ("",),
        ("paper", "ours", "difference", ""),
    )
    for group, numbers in groupby(study.quoted, key=lambda number: number.group):
        table.add_row(Text(group, style="bold"))
        for number in numbers:
            table.add_row(
                f"  {number.name}",
                *(
                    number_text(value, number.unit)
                    for value in (number.paper, number.ours, number.difference)
                ),
                number.unit,
            )
        table.add_section()
    return table


def agreement_text(study: Study) -> str:
    """Say in a sentence how often the same clocks are lowered."""
    agreement = study.agreement
    return (
        f"{agreement.same} of {agreement.kernels} kernels ({agreement.share:.0%}) lower exactly "
        f"the clocks that the paper lowers; {agreement.overlapping} where one clock in common is "
        "enough"
    )


def number_text(value: float | None, unit: str) -> str:
    """Write a number in its unit's digits; a missing one is a dash."""
    if value is None:
        return DASH
    if unit == "%":
        return f"{round(value, 2) + 0.0:+.2f}"  # + 0.0: no "-0.00"
    return f"{round(value, 2) + 0.0:g}"


def _table(title: str, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    table = bare_table(title)
    for header in left:
        table.add_column(header, overflow="fold")
    for header in right:
        table.add_column(header, justify="right", no_wrap=True)
    return table

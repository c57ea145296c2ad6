"""The paper's numbers and ours as tables for an 80-column terminal."""

from itertools import groupby

from rich.table import Table
from rich.text import Text

from underclock.paper.records import Study
from underclock.report.terminal import filled, numbers, words
from underclock.report.wording import DASH
from underclock.units import format_mhz

_BESIDE = ("time,\npaper", "ours", "energy,\npaper", "ours")


def table2_table(study: Study) -> Table:
    """Return the eight ways of choosing, ours beside the paper's."""
    return filled(
        f"Table 2 of arXiv 2601.08539 and ours, {study.gpu.name}: {study.evidence}",
        (*words("clocks per", "objective", "aggregate"), *numbers(*_BESIDE)),
        (
            (
                cell.granularity,
                cell.objective,
                cell.aggregate,
                *percents(
                    cell.paper_time_pct, cell.time_pct, cell.paper_energy_pct, cell.energy_pct
                ),
            )
            for cell in study.table2
        ),
        "percent, against auto clocks; sums of isolated kernels, as in the paper",
    )


def table1_table(study: Study) -> Table:
    """Return the clocks per kernel, ours beside the paper's."""
    return filled(
        f"Table 1 of arXiv 2601.08539 and ours, {study.gpu.name}: {study.evidence}",
        (*words("kernel", "core/mem\npaper", "core/mem\nours"), *numbers(*_BESIDE, "")),
        (
            (
                f"{row.kernel_id} {row.kernel}",
                f"{format_mhz(row.paper_core_mhz)}/{format_mhz(row.paper_mem_mhz)}",
                f"{format_mhz(row.core_mhz)}/{format_mhz(row.mem_mhz)}",
                *percents(row.paper_time_pct, row.time_pct, row.paper_energy_pct, row.energy_pct),
                "=" if row.lever is row.paper_lever else "",
            )
            for row in study.table1
        ),
        "clocks in MHz, changes in percent; = lowers the same clocks as the paper",
    )


def relaxed_table(study: Study) -> Table:
    """Return what a time budget is worth; the paper gives numbers for a budget of zero only."""
    rows = []
    for point in study.relaxed:
        arms = (point.pass_global, point.kernel_local, point.kernel_global)
        rows.append(
            percents(point.max_slowdown_pct, *(arm.energy_pct if arm else None for arm in arms))
        )
    return filled(
        f"Relaxed waste, {study.gpu.name}: {study.evidence}",
        numbers("time\nbudget", "energy,\npass", "kernel,\nlocal", "kernel,\nglobal"),
        rows,
        "percent, against auto clocks",
    )


def transfer_table(study: Study) -> Table:
    """Return what the discovered clocks do on other steps."""
    return filled(
        f"The discovered clocks elsewhere, {study.gpu.name}: {study.evidence}",
        numbers("batch", "tensor\nparallel", *_BESIDE),
        (
            (
                str(row.batch),
                str(row.tensor_parallel),
                *percents(row.paper_time_pct, row.time_pct, row.paper_energy_pct, row.energy_pct),
            )
            for row in (*study.batch_transfer, *study.tensor_parallel_transfer)
        ),
        "percent, against auto clocks on the same step",
    )


def quoted_table(study: Study) -> Table:
    """Return every quoted number with ours and the difference."""
    table = filled(
        f"The paper's numbers and ours, {study.gpu.name}: {study.evidence}",
        (*words(""), *numbers("paper", "ours", "difference", "")),
        (),
    )
    for group, quoted in groupby(study.quoted, key=lambda number: number.group):
        table.add_row(Text(group, style="bold"))
        for each in quoted:
            written = (number_text(v, each.unit) for v in (each.paper, each.ours, each.difference))
            table.add_row(f"  {each.name}", *written, each.unit)
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


def percents(*values: float | None) -> tuple[str, ...]:
    """Write numbers in percent; a missing one is a dash."""
    return tuple(number_text(value, "%") for value in values)


def number_text(value: float | None, unit: str) -> str:
    """Write a number in its unit's digits; a missing one is a dash."""
    if value is None:
        return DASH
    if unit == "%":
        return f"{round(value, 2) + 0.0:+.2f}"  # + 0.0: no "-0.00"
    return f"{round(value, 2) + 0.0:g}"

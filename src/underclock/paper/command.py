"""``underclock paper``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import folder_option, force_option, json_option, seed_option
from underclock.app.output import print_json, print_table, progress_bar, say, warn

if TYPE_CHECKING:
    from rich.table import Table

    from underclock.paper.records import Study


@click.command(name="paper")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    default=["sim:rtx3080ti", "sim:rtx3080ti#paper"],
    show_default=True,
    metavar="GPU",
    help="A simulated one; more than once for several.",
)
@click.option("--grid", type=click.Choice(["coarse", "full"]), default="coarse", show_default=True)
@folder_option("Where numbers and a page go.")
@seed_option
@json_option
@force_option
def command(
    *, gpus: tuple[str, ...], grid: str, output: Path | None, seed: int, as_json: bool, force: bool
) -> None:
    """Run the whole study of arXiv 2601.08539 on simulated GPUs, beside its numbers.

    By default on the RTX 3080 Ti whose sweep was published, and on the paper's own board, which is
    fitted to the paper's Table 1. Here Table 2 is shown; the pages, of every further GPU in a
    folder of its own, and --json have every number.

    Example: underclock paper -o underclock-paper
    """
    from underclock.campaign.survey import Grid
    from underclock.paper.outputs import PAGE, agreement_text, run_paper
    from underclock.paper.study import Conditions

    folders = {
        gpu: output / gpu.partition(":")[2].replace("#", "-") if output and at else output
        for at, gpu in enumerate(gpus)
    }
    studies = []
    for gpu, folder in folders.items():
        with progress_bar(f"paper on {gpu}") as show:
            conditions = Conditions(gpu=gpu, grid=Grid(grid), seed=seed, progress=show)
            studies.append(run_paper(conditions, folder, force=force))
    for study in studies:
        warn(study.warnings)
    if as_json:
        print_json(studies[0] if len(studies) == 1 else studies)
        return
    print_table(_table2(list(folders), studies))
    for gpu, study in zip(folders, studies, strict=True):
        say(f"{gpu}, {study.evidence}: {agreement_text(study)}")
        say(f"{gpu}: {study.calibration}")
    second = studies[0].a4000
    say(second.missing or f"{second.gpu}: {second.calibration}")
    for folder in folders.values():
        if folder:
            say(f"page: {folder / PAGE}")


def _table2(gpus: Sequence[str], studies: Sequence["Study"]) -> "Table":
    """Return the eight ways of choosing, ours beside the paper's."""
    from underclock.paper.comparison import basis_of
    from underclock.paper.outputs import number_text
    from underclock.report.terminal import filled, numbers, words

    def both(time_pct: float, energy_pct: float) -> str:
        return f"{number_text(time_pct, '%')} / {number_text(energy_pct, '%')}"

    rows = []
    for cells in zip(*(study.table2 for study in studies), strict=True):
        cell, basis = cells[0], basis_of("Table 2", cells[0].granularity)
        rows.append(
            (
                f"{cell.granularity}, {cell.objective}, {cell.aggregate} ({basis[0]})",
                both(cell.paper_time_pct, cell.paper_energy_pct),
                *(both(each.time_pct, each.energy_pct) for each in cells),
            )
        )
    names = [gpu.partition(":")[2] for gpu in gpus]
    columns = [*words("way"), *numbers("paper", *names)]
    return filled(
        f"Table 2 of arXiv 2601.08539 and ours: {studies[0].evidence}",
        columns,
        rows,
        "time / energy in percent, against auto clocks; sums of isolated kernels, as in the paper. "
        "(i) informed: follows partly from Table 1's choices, to which GPUs were fitted; "
        "(p) predicted",
    )

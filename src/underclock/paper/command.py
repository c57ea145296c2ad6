"""``underclock paper``."""

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
    "--gpu", default="sim:rtx3080ti", show_default=True, metavar="GPU", help="A simulated one."
)
@click.option("--grid", type=click.Choice(["coarse", "full"]), default="coarse", show_default=True)
@folder_option("Where numbers and a page go.")
@seed_option
@json_option
@force_option
def command(
    *, gpu: str, grid: str, output: Path | None, seed: int, as_json: bool, force: bool
) -> None:
    """Run the whole study of arXiv 2601.08539 on a simulated GPU, beside its numbers.

    Here Table 2 is shown; the page and --json have every number.

    Example: underclock paper -o underclock-paper
    """
    from underclock.campaign.survey import Grid
    from underclock.paper.outputs import PAGE, agreement_text, run_paper
    from underclock.paper.study import Conditions

    with progress_bar("paper") as show:
        conditions = Conditions(gpu=gpu, grid=Grid(grid), seed=seed, progress=show)
        study = run_paper(conditions, output, force=force)
    warn(study.warnings)
    if as_json:
        print_json(study)
        return
    print_table(_table2(study))
    say(f"{study.evidence}: {agreement_text(study)}")
    say(f"{study.gpu.name}: {study.calibration}")
    say(study.a4000.missing or f"{study.a4000.gpu}: {study.a4000.calibration}")
    if output:
        say(f"page: {output / PAGE}")


def _table2(study: "Study") -> "Table":
    """Return the eight ways of choosing, ours beside the paper's."""
    from underclock.paper.outputs import number_text
    from underclock.report.terminal import filled, numbers, words

    titles = numbers("time,\npaper", "ours", "energy,\npaper", "ours")
    rows = []
    for cell in study.table2:
        pcts = cell.paper_time_pct, cell.time_pct, cell.paper_energy_pct, cell.energy_pct
        percents = (number_text(value, "%") for value in pcts)
        rows.append((cell.granularity, cell.objective, cell.aggregate, *percents))
    return filled(
        f"Table 2 of arXiv 2601.08539 and ours, {study.gpu.name}: {study.evidence}",
        (*words("clocks per", "objective", "aggregate"), *titles),
        rows,
        "percent, against auto clocks; sums of isolated kernels, as in the paper",
    )

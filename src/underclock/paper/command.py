"""``underclock paper``."""

from typing import TYPE_CHECKING

import click

from underclock.app.options import json_option, seed_option
from underclock.app.output import print_json, print_table, progress_bar, say, warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from underclock.paper.study import Study


@click.command(name="paper")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    default=["sim:rtx3080ti#smooth", "sim:rtx3080ti#paper"],
    show_default=True,
    metavar="GPU",
    help="A simulated one; more than once for several.",
)
@click.option("--grid", type=click.Choice(["coarse", "full"]), default="coarse", show_default=True)
@seed_option
@json_option
def command(*, gpus: tuple[str, ...], grid: str, seed: int, as_json: bool) -> None:
    """Run the whole study of arXiv 2601.08539 on simulated GPUs, next to its numbers.

    By default on the RTX 3080 Ti whose sweep was published, and on the paper's own board, which is
    fitted to the paper's Table 1. --json has more of the set-up.

    Example: underclock paper --gpu sim:rtx3080ti#smooth
    """
    from underclock.campaign.grid import Grid
    from underclock.paper.study import Conditions, run_study

    studies = []
    for gpu in gpus:
        with progress_bar(f"paper on {gpu}") as show:
            conditions = Conditions(gpu=gpu, grid=Grid(grid), seed=seed, progress=show)
            studies.append(run_study(conditions))
    for study in studies:
        warn(study.warnings)
    if as_json:
        print_json(studies[0] if len(studies) == 1 else studies)
        return
    print_table(*_tables(gpus, studies))
    for gpu, study in zip(gpus, studies, strict=True):
        say(f"{gpu}, {study.evidence}: {study.agreement}")
        say(f"{gpu}: {study.calibration}")
    say(studies[0].second)


def number_text(value: float | None, unit: str) -> str:
    """Write a number in its unit's digits; a missing one is a dash."""
    from underclock.report.wording import DASH

    if value is None:
        return DASH
    return f"{round(value, 2) + 0.0:{'+.2f' if unit == '%' else 'g'}}"  # + 0.0: no "-0.00"


def _tables(gpus: "Sequence[str]", studies: "Sequence[Study]") -> "Iterator[Table]":
    from itertools import groupby

    from underclock.paper.study import basis_of
    from underclock.report.terminal import filled, numbers, words

    rows = zip(*(study.quoted for study in studies), strict=True)
    for group, some in groupby(rows, key=lambda row: row[0].group):
        if group == "Set-up":
            continue
        yield filled(
            f"{group} of arXiv 2601.08539 and ours: {studies[0].evidence}",
            [*words(""), *numbers("paper", *(gpu.partition(":")[2] for gpu in gpus), "")],
            [
                (
                    f"{row[0].name} ({basis_of(group, row[0].name)[0]})",
                    number_text(row[0].paper, row[0].unit),
                    *(number_text(each.ours, each.unit) for each in row),
                    row[0].unit,
                )
                for row in some
            ],
            "(f) fitted, (i) informed by what GPUs were fitted to, (p) predicted",
        )

"""``underclock paper``."""

from pathlib import Path

import click

from underclock.app.options import (
    folder_option,
    force_option,
    json_option,
    seed_option,
)
from underclock.app.output import print_json, print_table, progress_bar, say, warn
from underclock.errors import UsageError


@click.command(name="paper")
@click.option(
    "--gpu", default="sim:rtx3080ti", show_default=True, metavar="GPU", help="A simulated one."
)
@click.option("--grid", type=click.Choice(["coarse", "full"]), default="coarse", show_default=True)
@folder_option("Where numbers and a page go.")
@click.option("--svg", is_flag=True, help="Write every drawing as SVG too.")
@seed_option
@json_option
@force_option
def command(
    *, gpu: str, grid: str, output: Path | None, svg: bool, seed: int, as_json: bool, force: bool
) -> None:
    """Run the whole study of arXiv 2601.08539 on a simulated GPU, beside its numbers.

    Example: underclock paper -o underclock-paper
    """
    from underclock.campaign.survey import Grid
    from underclock.paper.outputs import PAGE, run_paper
    from underclock.paper.study import Conditions
    from underclock.paper.tables import (
        agreement_text,
        quoted_table,
        relaxed_table,
        table1_table,
        table2_table,
        transfer_table,
    )

    if svg and output is None:
        raise UsageError("--svg needs a folder to write to", hint="name one with -o")
    with progress_bar("paper") as show:
        conditions = Conditions(gpu=gpu, grid=Grid(grid), seed=seed, progress=show)
        study = run_paper(conditions, output, svg=svg, force=force)
    warn(study.warnings)
    if as_json:
        print_json(study)
        return
    print_table(
        quoted_table(study),
        table1_table(study),
        relaxed_table(study),
        transfer_table(study),
        table2_table(study),
    )
    say(f"{study.evidence}: {agreement_text(study)}")
    say(f"{study.gpu.name}: {study.calibration}")
    say(study.a4000.missing or f"{study.a4000.gpu}: {study.a4000.calibration}")
    if output:
        say(f"page: {output / PAGE}")

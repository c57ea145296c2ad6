"""``underclock latency``."""

from pathlib import Path

import click

from underclock.app.options import (
    force_option,
    json_option,
    output_option,
    seed_option,
)
from underclock.app.output import check_place, deliver, print_table, progress_bar


@click.command(name="latency")
@click.option("--gpu", required=True, metavar="GPU", help="sim:rtx3080ti.")
@output_option("latencies", required=True)
@click.option("--targets", default=6, show_default=True, help="Core clocks to sample.")
@click.option("--repeats", default=20, show_default=True, help="Of every change of a clock.")
@seed_option
@json_option
@force_option
def command(
    *,
    gpu: str,
    output: Path,
    targets: int,
    repeats: int,
    seed: int,
    as_json: bool,
    force: bool,
) -> None:
    """Measure how long a GPU takes to change its clocks.

    Locks clocks, and gives them back at the end. Auto and every memory clock are sampled too.

    Example: underclock latency --gpu sim:rtx3080ti -o latency.json
    """
    from underclock.report import latency_table
    from underclock.stages.latency import measure_latency

    check_place(output, force=force)
    with progress_bar("changing clocks") as show:
        table = measure_latency(gpu, targets=targets, repeats=repeats, seed=seed, progress=show)
    deliver(
        table,
        output,
        lambda: print_table(latency_table(table)),
        as_json=as_json,
        force=force,
        warnings=table.warnings,
    )

"""``underclock fit``."""

from pathlib import Path

import click

from underclock.app.options import (
    CLOCKS,
    force_option,
    json_option,
    output_option,
)
from underclock.app.output import check_place, deliver, print_table, share_bar
from underclock.records import Clocks


@click.command(name="fit")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--baseline", type=CLOCKS, help="State kernels here, not at their fastest sample.")
@output_option("fit", required=False)
@json_option
@force_option
def command(
    *,
    samples: tuple[Path, ...],
    baseline: Clocks | None,
    output: Path | None,
    as_json: bool,
    force: bool,
) -> None:
    """Fit one model of a GPU to SAMPLES: one or more files of one GPU.

    Shows its constants, how sure they are, and which kernels the model describes.

    Example: underclock fit samples.db -o fit.json
    """
    from underclock.report import fit_tables
    from underclock.stages.fit import fit

    check_place(output, force=force, inputs=samples)
    with share_bar("fitting"):
        model = fit(samples, baseline=baseline)
    deliver(
        model,
        output,
        lambda: print_table(*fit_tables(model)),
        as_json=as_json,
        force=force,
        warnings=model.warnings,
    )

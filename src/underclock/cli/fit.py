"""``underclock fit``."""

from pathlib import Path

import click

from underclock.cli.common import (
    CLOCKS,
    force_option,
    json_option,
    output_option,
    print_record,
    print_table,
    warn,
)
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
    from underclock.report.fit import fit_tables
    from underclock.stages.fit import fit
    from underclock.store import check_output, write_document

    if output:
        check_output(output, force=force, inputs=samples)
    found = fit(samples, baseline=baseline)
    if output:
        write_document(output, found, force=force)
    warn(found.warnings)
    if as_json:
        print_record(found)
    else:
        print_table(*fit_tables(found))

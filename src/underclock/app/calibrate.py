"""``underclock calibrate``."""

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import delivered, file_argument, force_option, output_option
from underclock.app.output import Delivery, print_json, say, share_bar
from underclock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from underclock.app.calibrating import Check


@click.command(name="calibrate")
@file_argument("table")
@output_option("simulated GPU (.json)", required=False, stdout=False)
@force_option
@click.option("--gpu", metavar="GPU", help="With --check: the simulated GPU to check.")
@click.option("--check", is_flag=True, help="Predict TABLE with --gpu instead of fitting.")
@click.option("--points", default=4, show_default=True, help="With --check: rows a kernel.")
@delivered()
def command(
    *,
    table: Path,
    output: Path | None,
    gpu: str | None,
    check: bool,
    points: int,
    force: bool,
    to: Delivery,
) -> None:
    """Make a simulated GPU of a measured sweep, or check one against a sweep.

    Checking fits only the constants of each kernel, to a few of its rows, and predicts the others.

    Example: underclock calibrate sweep.csv -o mygpu.json
    """
    if check:
        if gpu is None or output is not None:
            raise UsageError("--check needs --gpu and writes no file", hint="--gpu sim:rtx3080ti")
        from underclock.app.calibrating import check_calibration

        errors = check_calibration(table, gpu=gpu, points=points)
        to.give(errors, lambda: _said(gpu, errors))
        return
    if output is None or gpu is not None:
        raise UsageError(
            "say where the simulated GPU goes, or what to check",
            hint="-o mygpu.json, or --check --gpu sim:rtx3080ti",
        )
    from underclock.app.calibrating import write_calibration

    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    with share_bar("fitting") as show:
        model = write_calibration(table, to=output, date=today, force=force, progress=show)
    if to.as_json:
        print_json({"file": str(output), "calibration": model.calibration})
    else:
        say(f"sim:{output}: {model.calibration}")


def _said(gpu: str, errors: "Check") -> "Iterator[str]":
    yield (
        f"{gpu} against {errors.evidence} rows: {errors.points} rows a kernel fitted, "
        f"{errors.rows} predicted"
    )
    yield f"mean error: time {errors.time_mape:.1%}, power {errors.power_mape:.1%}"
    for name, one in errors.kernels.items():
        yield f"  {name:40.40s} time {one.time_mape:6.1%}  power {one.power_mape:6.1%}"

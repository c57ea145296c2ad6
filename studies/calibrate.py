"""Fit simulated GPUs to measured sweeps: a user's own, or all of the package's data.

    python studies/calibrate.py sweep.csv -o mygpu.json [--json]
    python studies/calibrate.py ../shared/data            the package's data, and its evidence
    python studies/calibrate.py ../shared/data --only a40      that GPU's file alone, and no page

``mygpu.json`` is ``sim:mygpu.json``. `locked` judges the package's data by other sweeps, later.

Of the package's data, the four sweeps fit shared and kernel constants. arXiv 2601.08539's Table 1
fits what an RTX 3080 Ti does per cycle; its Table 2, relaxed curve, validation and transfer are
never read. The H200 has no sweep: `calibrate_h200` fits it to measurements by steering in
docs/evidence/h200.
"""

import dataclasses
import datetime as dt
from pathlib import Path

import click
import numpy as np

from calibrate_h200 import calibrated
from calibration import Calibrated, MeanErrors, calibrate, errors_by_kernel, errors_of, held_out
from gpu_specs import SPECS
from pages import ROOT, fill, markdown, run_command
from throughput import PublishedGpu, fit_throughput, residuals_of, table1
from underclock.app.options import file_argument, force_option, json_option, output_option
from underclock.app.output import print_json
from underclock.core.model.parameters import unknown_gpu
from underclock.errors import UsageError
from underclock.gpus.models import Accuracy, Calibration, GpuModel, OwnKernel, encode, gpu_model
from underclock.records import SampleSet
from underclock.store import check_output, read_samples, write_text

_DATA = ROOT / "src" / "underclock" / "gpus" / "data"
_SWEEPS = {
    "rtx3080ti": "rtx3080ti_kernels.csv",
    "a40": "a40_llm_stages.csv",
    "a100": "a100_apps.csv",
    "titanx": "titanx_apps.csv",
}

# Leakage rises by 0.5 to 1 % a degree, of no GPU by more. Where temperature follows power in every
# row, a fit puts into it what else rises with power: 17 % a degree of an A40's sweep, and without
# end of a laptop's.
_MOST_LEAK_PER_C = 0.02
_POINTS = 4
_DUMMY_MEM_MHZ = 1000


def calibrate_gpu(
    table: SampleSet | str | Path,
    *,
    base: GpuModel | None = None,
    date: str,
) -> GpuModel:
    """Fit a simulated GPU to a sweep.

    Args:
        base: Clock tables, limits and rates to keep; by default those the table itself shows.
        date: When, as YYYY-MM-DD.
    """
    sample_set = read_samples(table)
    base = base or base_of(sample_set)
    limit_w = base.limit_w[0]
    held: tuple[str, ...] = ()
    found, note = calibrate(sample_set, base.constants, limit_w), ""
    if found.gpu.leak_per_c > _MOST_LEAK_PER_C:
        held = ("leak_per_c",)
        note = (
            f"its rows would have leakage rise by {found.gpu.leak_per_c:.0%} a degree, so they do "
            f"not say what heat does: {base.constants.leak_per_c:.2%} is assumed"
        )
        found = calibrate(sample_set, base.constants, limit_w, held)
    out = None
    if len(sample_set.kernels) > 1:
        out = held_out(sample_set, base.constants, limit_w, _POINTS, held)
    return dataclasses.replace(
        base,
        constants=found.gpu,
        cap_margin_w=max(0.0, limit_w - found.limit_w),
        own=tuple(
            OwnKernel(kernel=kernel, constants=found.kernels[kernel.name])
            for kernel in sample_set.kernels
        ),
        calibration=Calibration(
            source=sample_set.workload,
            rows=len(sample_set.samples),
            date=date,
            fit=_accuracy(errors_of(found, sample_set.samples)),
            held_out=_accuracy(out) if out else None,
            note=note,
        ),
    )


def check_calibration(table: Path, gpu: str, points: int = _POINTS) -> MeanErrors:
    """Predict a sweep with a packaged GPU's shared constants, each kernel from a few of its rows.

    The rows are chosen for what they tell; all others are predicted, those at the power cap too.
    """
    model = gpu_model(gpu)
    known = Calibrated(
        gpu=model.constants,
        kernels={item.kernel.name: item.constants for item in model.own},
        limit_w=model.limit_w[0] - model.cap_margin_w,
    )
    results = errors_by_kernel(known, read_samples(table), model.limit_w[0], points)
    return MeanErrors.over(list(results.values()))


def base_of(sample_set: SampleSet) -> GpuModel:
    """Make a bare model of the clocks that a table shows."""
    asked = [sample.asked for sample in sample_set.samples]
    cores = tuple(sorted({c.core_mhz for c in asked if c.core_mhz is not None}))
    mems = tuple(sorted({c.mem_mhz for c in asked if c.mem_mhz is not None}))
    most_w = max((s.energy_j / s.time_s for s in sample_set.samples), default=1.0)
    like = gpu_model("rtx3080ti")
    points, fastest_mhz = mems or (_DUMMY_MEM_MHZ,), float(cores[-1] if cores else 1.0)
    constants = unknown_gpu(points, fastest_mhz=fastest_mhz, most_w=most_w)
    # Nothing says that the crossbar has a clock of its own.
    xbar_mhz = float(cores[0] if cores else 1.0)
    return GpuModel(
        name=sample_set.gpu.name,
        driver=like.driver,
        core_mhz=cores or like.core_mhz,
        mem_mhz=points,
        memory_lockable=bool(mems),
        limit_w=(most_w, 0.25 * most_w, most_w),
        constants=dataclasses.replace(constants, xbar_floor_mhz=xbar_mhz, xbar_lag_mhz=0.0),
    )


def _accuracy(errors: MeanErrors) -> Accuracy:
    return Accuracy(time=errors.time, power=errors.power, rows=errors.rows)


def _with_table1(model: GpuModel) -> GpuModel:
    """Fit throughput to the published per-kernel choices."""
    if model.throughput is None:
        raise AssertionError(f"{model.name} has no throughput to begin with")
    changes = table1()
    board = PublishedGpu(
        constants=model.constants,
        core_mhz=np.array(model.core_mhz, dtype=np.float64),
        limit_w=model.limit_w[0] - model.cap_margin_w,
        auto_mem_mhz=model.constants.mem_points_mhz[-1],
    )
    throughput, boost_mhz = fit_throughput(board, model.throughput, changes)
    constants = dataclasses.replace(model.constants, boost_mhz=boost_mhz)
    board = dataclasses.replace(board, constants=constants)
    off = np.abs(np.expm1(residuals_of(board, throughput, changes))).mean(axis=0)
    note = (
        f"boost clock, rates and energies per operation fitted to {len(changes)} rows of "
        "arXiv 2601.08539's Table 1: mean error of the change in "
        f"time {off[0]:.1%}, in energy {off[1]:.1%}"
    )
    calibration = dataclasses.replace(model.calibration, note=note)
    return dataclasses.replace(
        model, constants=constants, throughput=throughput, calibration=calibration
    )


def _errors(models: dict[str, GpuModel], folder: Path) -> str:
    """Return the table of what the fits are worth."""
    heads = ("simulated GPU", "table", "rows", "fit", "held-out kernels")
    lines: list[tuple[object, ...]] = [(*heads, "4 rows a kernel")]
    for name, table in _SWEEPS.items():
        calibration = models[name].calibration
        fit, out = calibration.fit, calibration.held_out
        if fit is None or out is None:
            raise AssertionError(f"{name} was fitted without errors")
        check = check_calibration(folder / "measured" / table, name)
        errors = [f"{each.time:.1%} / {each.power:.1%}" for each in (fit, out)]
        checked = f"{check.time:.1%} / {check.power:.1%} over {check.rows} rows"
        lines.append((f"`sim:{name}`", f"`{table}`", calibration.rows, *errors, checked))
    return markdown(lines)


def _package_data(folder: Path, only: tuple[str, ...], today: str) -> None:
    """Write one file a GPU, and the page."""
    models = {
        name: calibrate_gpu(folder / "measured" / table, base=SPECS[name], date=today)
        for name, table in _SWEEPS.items()
        if name in (only or _SWEEPS)
    }
    if "rtx3080ti" in models:
        models["rtx3080ti"] = _with_table1(models["rtx3080ti"])
    if not only:
        models["h200"] = calibrated()
    for name, model in models.items():
        (_DATA / f"{name}.json").write_text(encode(model), encoding="utf-8")
        print(f"{name}: {model.calibration}")
    if only:
        return
    parts = {
        "errors": _errors(models, folder),
        "rates": str(models["rtx3080ti"].calibration.note),
        "h200": str(models["h200"].calibration),
    }
    fill("calibration", parts, repeats="Five folds over kernels.")


@click.command()
@file_argument("table")
@output_option("simulated GPU (.json)", required=False, stdout=False)
@force_option
@click.option("--only", multiple=True, type=click.Choice(list(_SWEEPS)), help="Of a folder.")
@json_option
def command(
    *,
    table: Path,
    output: Path | None,
    force: bool,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a simulated GPU of TABLE, a measured sweep; or of a folder all of ours."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    if table.is_dir():
        _package_data(table, only, today)
    elif output is not None and output.suffix == ".json":
        check_output(output, force=force, inputs=(table,), begins="{")
        model = calibrate_gpu(table, date=today)
        write_text(output, encode(model), force=force)
        if as_json:
            print_json({"file": str(output), "calibration": model.calibration})
        else:
            print(f"sim:{output}: {model.calibration}")
    else:
        raise UsageError("say where the simulated GPU goes", hint="-o mygpu.json")


if __name__ == "__main__":
    run_command(command)

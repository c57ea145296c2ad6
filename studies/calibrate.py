"""Fit simulated GPUs to measured sweeps: a user's own, or all of the package's data.

    python studies/calibrate.py sweep.csv -o mygpu.json [--json]
    python studies/calibrate.py sweep.csv --check --gpu sim:rtx3080ti [--points 4] [--json]
    python studies/calibrate.py ../shared/data            the package's data, and its evidence
    python studies/calibrate.py ../shared/data --only a40      that GPU's file alone, and no page

``mygpu.json`` is ``sim:mygpu.json``. Checking fits only the constants of each kernel, to a few of
its rows, and predicts the other rows.

Of the package's data, the four sweeps fit shared and kernel constants. arXiv 2601.08539's Table 1
fits what an RTX 3080 Ti does per cycle; its Table 2, relaxed curve, validation and transfer are
never read. The H200 has no sweep: `calibrate_h200` fits it to measurements by steering in
docs/evidence/h200.
"""

import dataclasses
import datetime as dt
from collections.abc import Collection
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
from underclock.records import Evidence, Record, SampleSet
from underclock.store import check_output, read_samples, write_text

_DATA = ROOT / "src" / "underclock" / "gpus" / "data"
_SWEEPS = {
    "rtx3080ti": "rtx3080ti_kernels.csv",
    "a40": "a40_llm_stages.csv",
    "a100": "a100_apps.csv",
    "titanx": "titanx_apps.csv",
}

# Its kernels are whole passes, too alike to tell what heat does to leakage: left to the fit that
# rose by 17 % for a degree, and campaigns on the GPU that came of it were misled.
_HELD = {"a40": ("leak_per_c",)}
_POINTS = 4
_DUMMY_MEM_MHZ = 1000


class KernelCheck(Record, frozen=True, kw_only=True):
    """Mean absolute relative errors of one kernel, as fractions."""

    time_mape: float
    power_mape: float
    rows: int


class Check(Record, frozen=True, kw_only=True):
    """How well a model predicts a sweep, each kernel from ``points`` of its rows."""

    evidence: Evidence
    gpu: str
    points: int
    time_mape: float
    power_mape: float
    rows: int
    kernels: dict[str, KernelCheck]


def calibrate_gpu(
    table: SampleSet | str | Path,
    *,
    base: GpuModel | None = None,
    date: str,
    held: Collection[str] = (),
) -> GpuModel:
    """Fit a simulated GPU to a sweep.

    Args:
        base: Clock tables, limits and rates to keep; by default those the table itself shows.
        date: When, as YYYY-MM-DD.
        held: Names of constants that stay as in ``base``.
    """
    sample_set = read_samples(table)
    base = base or base_of(sample_set)
    limit_w = base.limit_w[0]
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
        ),
    )


def check_calibration(table: SampleSet | str | Path, *, gpu: str, points: int = _POINTS) -> Check:
    """Predict a sweep with a model whose shared constants stay as they are.

    Each kernel's own constants are fitted to a few of its rows, chosen for what they tell; all its
    other rows are predicted, those at the power cap too.

    Args:
        gpu: ``sim:NAME`` or ``sim:FILE.json``.

    Raises:
        UsageError: A table, no such model, or no points.
        DataError: The table cannot be read, or says too little.
    """
    if points < 2:  # noqa: PLR2004 - a line needs two
        raise UsageError(f"cannot fit a kernel to {points} rows", hint="--points 4 or more")
    model, sample_set = gpu_model(gpu.removeprefix("sim:")), read_samples(table)
    if not model.own:
        raise UsageError(
            f"{model.name} was not calibrated on a sweep", hint="check a calibrated GPU"
        )
    known = Calibrated(
        gpu=model.constants,
        kernels={item.kernel.name: item.constants for item in model.own},
        limit_w=model.limit_w[0] - model.cap_margin_w,
    )
    results = errors_by_kernel(known, sample_set, model.limit_w[0], points)
    if not results:
        raise UsageError(f"no rows are left after {points} a kernel", hint="use fewer points")
    total = MeanErrors.over(list(results.values()))
    return Check(
        evidence=sample_set.evidence,
        gpu=gpu,
        points=points,
        time_mape=total.time,
        power_mape=total.power,
        rows=total.rows,
        kernels={
            name: KernelCheck(time_mape=e.time, power_mape=e.power, rows=e.rows)
            for name, e in results.items()
        },
    )


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
        check = check_calibration(folder / "measured" / table, gpu=f"sim:{name}")
        errors = [f"{each.time:.1%} / {each.power:.1%}" for each in (fit, out)]
        checked = f"{check.time_mape:.1%} / {check.power_mape:.1%} over {check.rows} rows"
        lines.append((f"`sim:{name}`", f"`{table}`", calibration.rows, *errors, checked))
    return markdown(lines)


def _package_data(folder: Path, only: tuple[str, ...], today: str) -> None:
    """Write one file a GPU, and the page."""
    models = {
        name: calibrate_gpu(
            folder / "measured" / table, base=SPECS[name], date=today, held=_HELD.get(name, ())
        )
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
@click.option("--check", is_flag=True, help="Predict TABLE with --gpu instead of fitting.")
@click.option("--gpu", help="With --check: the simulated GPU to check.")
@click.option("--points", default=_POINTS, show_default=True, help="With --check: rows a kernel.")
@json_option
def command(
    *,
    table: Path,
    output: Path | None,
    force: bool,
    only: tuple[str, ...],
    check: bool,
    gpu: str | None,
    points: int,
    as_json: bool,
) -> None:
    """Make a simulated GPU of TABLE, a measured sweep, or check one; or of a folder all of ours."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    if table.is_dir():
        _package_data(table, only, today)
    elif check and gpu is not None:
        found = check_calibration(table, gpu=gpu, points=points)
        if as_json:
            print_json(found)
            return
        print(f"{gpu} against {found.evidence} rows: {points} rows a kernel fitted")
        rows: list[tuple[str, Check | KernelCheck]] = [("all", found), *found.kernels.items()]
        for name, each in rows:
            errors = f"time {each.time_mape:.1%}, power {each.power_mape:.1%}"
            print(f"{name}: mean error {errors}, {each.rows} rows")
    elif output is not None and output.suffix == ".json" and not check:
        check_output(output, force=force, inputs=(table,), begins="{")
        model = calibrate_gpu(table, date=today)
        write_text(output, encode(model), force=force)
        if as_json:
            print_json({"file": str(output), "calibration": model.calibration})
        else:
            print(f"sim:{output}: {model.calibration}")
    else:
        raise UsageError(
            "say where the simulated GPU goes, or what to check",
            hint="-o mygpu.json, or --check --gpu sim:rtx3080ti",
        )


if __name__ == "__main__":
    run_command(command)

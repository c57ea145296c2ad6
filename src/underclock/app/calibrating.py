"""calibrate: a measured sweep in, a simulated GPU out; or a check of one against a sweep."""

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path

from underclock.app.backends import model_of
from underclock.core.calibration import (
    Calibrated,
    MeanErrors,
    calibrate,
    errors_by_kernel,
    errors_of,
    held_out,
)
from underclock.core.model.parameters import unknown_gpu
from underclock.errors import UsageError
from underclock.gpus.models import Accuracy, Calibration, GpuModel, OwnKernel, encode, gpu_model
from underclock.hw.base import Capability
from underclock.hw.gpu_names import parse_gpu
from underclock.records import Evidence, Record, SampleSet
from underclock.store import check_output, read_samples, write_text

_POINTS = 4
_FITTING = 0.2  # of the time goes into the fit itself, the rest into checking it in five folds
_DUMMY_MEM_MHZ = 1000


class KernelCheck(Record, frozen=True, kw_only=True):
    """How well one kernel is predicted; fractions."""

    time_mape: float
    power_mape: float
    rows: int


class Check(Record, frozen=True, kw_only=True):
    """How well a model predicts a sweep, each kernel from a few of its rows.

    Attributes:
        evidence: Of the rows predicted.
        points: Rows of each kernel that its constants were fitted to.
        time_mape: Mean absolute relative error of time over all other rows.
        power_mape: Mean absolute relative error of power over the same rows.
        kernels: The same by kernel.
    """

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
    progress: Callable[[float], None] | None = None,
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
    calibrated = calibrate(sample_set, base.constants, limit_w, held)
    fit = errors_of(calibrated, sample_set.samples)
    show = progress or (lambda _share: None)
    out = None
    if len(sample_set.kernels) > 1:
        show(_FITTING)
        out = held_out(
            sample_set,
            base.constants,
            limit_w,
            _POINTS,
            lambda share: show(_FITTING + (1.0 - _FITTING) * share),
            held,
        )
    return dataclasses.replace(
        base,
        constants=calibrated.gpu,
        cap_margin_w=max(0.0, base.limit_w[0] - calibrated.limit_w),
        own=tuple(
            OwnKernel(kernel=kernel, constants=calibrated.kernels[kernel.name])
            for kernel in sample_set.kernels
        ),
        calibration=Calibration(
            source=sample_set.workload,
            rows=len(sample_set.samples),
            date=date,
            fit=_accuracy(fit),
            held_out=_accuracy(out) if out else None,
        ),
    )


def write_calibration(
    table: SampleSet | str | Path,
    *,
    to: str | Path,
    date: str,
    force: bool = False,
    progress: Callable[[float], None] | None = None,
) -> GpuModel:
    """Fit a simulated GPU to a sweep and write it for ``sim:FILE.json``.

    Raises:
        UsageError: The file exists, cannot be written, or is not named ``.json``.
        DataError: The table cannot be read, or says too little.
    """
    path = Path(to)
    if path.suffix != ".json":
        raise UsageError(f"{path} must end in .json", hint="that is how sim:FILE.json is known")
    source = None if isinstance(table, SampleSet) else Path(table)
    check_output(path, force=force, inputs=(source,), begins="{")
    model = calibrate_gpu(table, date=date, progress=progress)
    write_text(path, encode(model), force=force)
    return model


def check_calibration(table: SampleSet | str | Path, *, gpu: str, points: int = _POINTS) -> Check:
    """Predict a sweep with a model whose shared constants stay as they are.

    Each kernel's own constants are fitted to a few of its rows, chosen for what they tell; all its
    other rows are predicted, those at the power cap too.

    Args:
        gpu: ``sim:NAME``, ``sim:NAME#UNIT`` or ``sim:FILE.json``.

    Raises:
        UsageError: A table, no such model, or no points.
        NotSupportedError: A real GPU.
        DataError: The table cannot be read, or says too little.
    """
    name = parse_gpu(gpu)
    name.need(Capability.MODEL)
    if points < 2:  # noqa: PLR2004 - a line needs two
        raise UsageError(f"cannot fit a kernel to {points} rows", hint="--points 4 or more")
    model, sample_set = model_of(name), read_samples(table)
    results = errors_by_kernel(_calibrated(model), sample_set, model.limit_w[0], points)
    if not results:
        raise UsageError(
            f"no rows are left to predict after {points} of each kernel", hint="use fewer points"
        )
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


def _calibrated(model: GpuModel) -> Calibrated:
    """Return a model as the calibration left it."""
    if not model.own:
        raise UsageError(
            f"{model.name} was not calibrated on a sweep", hint="check a calibrated GPU"
        )
    return Calibrated(
        gpu=model.constants,
        kernels={item.kernel.name: item.constants for item in model.own},
        limit_w=model.limit_w[0] - model.cap_margin_w,
    )


def _accuracy(errors: MeanErrors) -> Accuracy:
    return Accuracy(time=errors.time, power=errors.power, rows=errors.rows)

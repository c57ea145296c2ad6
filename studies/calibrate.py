"""Fit every simulated GPU to the measurements in a folder: the package's data, and its evidence.

Usage: python studies/calibrate.py [FOLDER]   (default: ../shared/data)
       python studies/calibrate.py FOLDER a40   (that GPU's file alone; the page is left)

The four sweeps fit shared and kernel constants. arXiv 2601.08539's Table 1 fits what an RTX 3080 Ti
does per cycle; its Table 2, relaxed curve, validation and transfer are never read. The H200 has no
sweep: `calibrate_h200` fits it to measurements by steering in docs/evidence/h200.
"""

import dataclasses
import datetime as dt
import sys
from pathlib import Path

import numpy as np

from calibrate_h200 import calibrated
from gpu_specs import SPECS
from pages import ROOT, fill, markdown
from throughput import (
    PublishedGpu,
    fit_throughput,
    residuals_of,
    table1,
)
from underclock.app.calibrating import calibrate_gpu, check_calibration
from underclock.gpus.models import GpuModel, encode

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


def main() -> None:
    """Write one file a GPU, and the page."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared" / "data"
    only = sys.argv[2:]
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
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


if __name__ == "__main__":
    main()

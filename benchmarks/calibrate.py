"""Fit every simulated GPU to the measurements in a folder, and write the package's data.

Usage: python benchmarks/calibrate.py [FOLDER]   (default: ../shared/data)

The four sweeps fit shared and kernel constants. arXiv 2601.08539's Table 1 fits what an RTX 3080 Ti
does per cycle; its Table 2, relaxed curve, validation and transfer are never read. Our measured
H200 layer gives that GPU kernels of its own, from one run each at auto clocks.
"""

import csv
import dataclasses
import datetime as dt
import sys
from pathlib import Path

import numpy as np

from underclock.core.one_clock import kernel_from_auto
from underclock.core.throughput import Board, Change, fit_throughput, misfit
from underclock.hw.simulated.models import Calibration, GpuModel, OwnKernel, encode
from underclock.hw.simulated.specs import SPECS
from underclock.records import Clocks, Kernel, Pass
from underclock.stages.calibrate import calibrate_gpu
from underclock.workloads import workload

_ROOT = Path(__file__).resolve().parent.parent
_DATA = _ROOT / "src" / "underclock" / "hw" / "simulated" / "data"
_SWEEPS = {
    "rtx3080ti": "rtx3080ti_kernels.csv",
    "a40": "a40_llm_stages.csv",
    "a100": "a100_apps.csv",
    "titanx": "titanx_apps.csv",
}
_H200_DRAM_W = 120.0  # HBM3e at full bandwidth, about 3.5 pJ/bit


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _mhz(text: str) -> int | None:
    return None if text == "auto" else int(text)


def _with_table1(model: GpuModel, table: Path) -> GpuModel:
    """Fit throughput to the published per-kernel choices."""
    if model.throughput is None:
        raise AssertionError(f"{model.name} has no throughput to begin with")
    changes = [
        Change(
            kernel=kernel,
            clocks=Clocks(core_mhz=_mhz(row["core_mhz"]), mem_mhz=_mhz(row["mem_mhz"])),
            time_change=float(row["time_change_pct"]) / 100.0,
            energy_change=float(row["energy_change_pct"]) / 100.0,
        )
        for kernel, row in zip(workload("gpt3-xl").kernels, _rows(table), strict=False)
    ]
    board = Board(
        constants=model.constants,
        core_mhz=np.array(model.core_mhz, dtype=np.float64),
        limit_w=model.limit_w[0] - model.cap_margin_w,
    )
    throughput, boost_mhz = fit_throughput(board, model.throughput, changes)
    constants = dataclasses.replace(model.constants, boost_mhz=boost_mhz)
    board = dataclasses.replace(board, constants=constants)
    off = np.abs(np.expm1(misfit(board, throughput, changes))).mean(axis=0)
    note = (
        f"boost clock, rates and energies per operation fitted to {len(changes)} rows of "
        f"{table.stem}: mean error of the change in time {off[0]:.1%}, in energy {off[1]:.1%}"
    )
    calibration = dataclasses.replace(model.calibration, note=note)
    return dataclasses.replace(
        model, constants=constants, throughput=throughput, calibration=calibration
    )


def _h200(spec: GpuModel, table: Path, today: str) -> GpuModel:
    """Give the H200 the kernels of our measured layer."""
    own = []
    for row in _rows(table):
        index = int(row["index"])
        constants = kernel_from_auto(
            spec.constants,
            time_s=float(row["time_us"]) / 1e6,
            power_w=float(row["power_w"]),
            core_mhz=float(row["sm_clock_mean_mhz"]),
            dram_share=float(row["dram_bw_util_pct"]) / 100.0,
            temperature_c=float(row["temperature_c"]),
            dram_w=_H200_DRAM_W,
        )
        name = f"{index:02d} {row['kernel_function'][:60]}"
        own.append(OwnKernel(kernel=Kernel(name=name, pass_=Pass.OTHER), constants=constants))
    calibration = Calibration(
        source=table.stem,
        rows=len(own),
        date=today,
        note="one run of each kernel at auto clocks; uncalibrated for sweeps: no clock was set",
    )
    return dataclasses.replace(spec, own=tuple(own), calibration=calibration)


def main() -> None:
    """Write one file a GPU."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT.parent / "shared" / "data"
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    models = {
        name: calibrate_gpu(folder / "measured" / table, base=SPECS[name], date=today)
        for name, table in _SWEEPS.items()
    }
    table1 = folder / "spaan2026_table1_rtx3080ti.csv"
    models["rtx3080ti"] = _with_table1(models["rtx3080ti"], table1)
    layer = folder / "measured" / "h200_gpt3xl_layer_auto.csv"
    models["h200"] = _h200(SPECS["h200"], layer, today)
    for name, model in models.items():
        (_DATA / f"{name}.json").write_text(encode(model), encoding="utf-8")
        print(f"{name}: {model.calibration}")


if __name__ == "__main__":
    main()

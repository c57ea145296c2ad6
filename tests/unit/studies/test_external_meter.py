"""Promises made of NVML-like readings, against an external meter on a real RTX 4000 Ada."""

import csv
from pathlib import Path

import numpy as np
import pytest

from draws import Table, seen
from estimates import costs_of
from underclock.core.step.cost_table import cost_table
from underclock.store import read_samples

_METER = (
    Path(__file__).resolve().parents[4] / "shared/data/locked/rtx4000ada_gemm_external_meter.csv"
)
_GAIN, _NOISE = 1.03, 0.005  # of a board's own sensor; of a reading


@pytest.mark.skipif(not _METER.exists(), reason="the shared data is not there")
def test_least_energy_promised_at_clocks_not_read_holds_by_the_meter(tmp_path: Path) -> None:
    """Every second clock of 40 kernels is read; of the rest the one of least energy is planned."""
    random, tables = np.random.default_rng(4), []
    rows = list(csv.DictReader(_METER.read_text().splitlines()))
    for name in ("meter", "nvml"):
        lines = ["gpu,kernel,core_mhz,mem_mhz,time_s,energy_j"]
        for row in rows:
            time_s, power_w = float(row["time_ms"]) / 1e3, float(row["ps3_power_w"])
            if name == "nvml":
                power_w = round(_GAIN * power_w * float(np.exp(random.normal(0.0, _NOISE))), 1)
            clocks = f"{row['clock_mhz']},9001"
            lines.append(f"{row['gpu']},{row['variant']},{clocks},{time_s},{time_s * power_w}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
        runs = read_samples(tmp_path / f"{name}.csv")
        tables.append(Table(runs=runs, truth=cost_table(runs)))
    assert sum(_kept(tables[0], tables[1], first) for first in (0, 1)) >= 0.92 * 80


def _kept(meter: Table, read: Table, first: int) -> int:
    """Return for how many kernels the interval of energy holds what the meter shows."""
    order = np.argsort([each.core_mhz or 0 for each in read.truth.settings])[::-1]
    known = np.zeros(read.truth.time_s.shape, dtype=bool)
    known[:, [read.truth.baseline, *order[first::2]]] = True
    costs = costs_of(seen(read, known), read.auto)
    table, kept = costs.table, 0
    columns = np.array([table.settings.index(each) for each in read.truth.settings])
    at_auto_j = table.energy_j[:, table.baseline]
    for k, kernel in enumerate(table.kernels):
        own = [each.name for each in meter.truth.kernels].index(kernel.name)
        unread = np.flatnonzero(~known[own])
        best = int(unread[np.argmin(table.energy_j[k, columns[unread]])])
        choice = np.full(len(table.kernels), table.baseline)
        choice[k] = columns[best]
        promise = costs.predicted_change(choice)
        of_all = at_auto_j.sum() / at_auto_j[k]  # only this kernel's clocks change
        ratio = np.divide(*meter.truth.energy_j[own, [best, meter.truth.baseline]])
        off = ratio - 1.0 - of_all * promise.energy_change
        kept += int(abs(off) <= of_all * promise.intervals[1][1])
    return kept

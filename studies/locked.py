"""Judge simulated GPUs by sweeps at locked clocks that no fit saw, and write what they are off.

    OMP_NUM_THREADS=1 python studies/locked.py ../shared/data/locked [--kept-back FOLDER]

Of a sweep's kernel two constants are fitted, and of a GPU the bands of clocks that cost more, or
less, than its equations say. Each clock is predicted from the sweep's other clocks, what that is
off goes into the GPU's file; or all of a kept-back folder is, and nothing is written.
"""

import argparse
import csv
import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from pages import ROOT, fill, markdown
from underclock.arrays import Bools, Floats
from underclock.gpus.models import Accuracy, GpuModel, encode, gpu_model
from underclock.hw.simulated.boards import Unit, band_costs
from underclock.physics.cap import REAL, settled_mhz
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w

# Each with where the fit of its bands begins: a centre and a width in MHz, and logarithms of power
# and of time there over those of equations; a time of 0 stays.
SWEEPS = {
    "h200": ("h200_dgemm", ((690.0, 45.0, 0.33, 0.12), (700.0, 350.0, -0.12, 0.0))),
    "a100": ("a100_dgemm", ((1350.0, 150.0, 0.2, 0.0),)),
    "a40": ("a40_sgemm", ((300.0, 300.0, 0.12, 0.0),)),
}
_WITHIN = np.array([100.0, 100.0, 0.3, 0.3])  # of where bands begin they are believed to lie
_UNITS, _CENTRAL = 400, (0.025, 0.975)
_PINNED = 0.985  # of the limit: there the loop holds the clock
_SLOW = 1.15  # times the least of five runs
DATA = ROOT / "src" / "underclock" / "gpus" / "data"
_POWER, _RATE = 0.03, 0.003  # what rows are off by, as the fit takes it


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Rows of one kernel at locked clocks, missing figures NaN. Each of shape (R,).

    Attributes:
        rate: Work per s, in the source's unit.
        limit_w: Power at which the board is held.
    """

    asked_mhz: Floats
    power_w: Floats
    rate: Floats
    run: tuple[str, ...]
    limit_w: float

    @classmethod
    def read(cls, path: Path) -> "Sweep":
        """Read a sweep."""
        rows = _rows(path)
        names = ("asked_core_mhz", "power_w_median", "performance", "power_limit_w")
        asked_mhz, power_w, rate, limit_w = (
            np.array([float(row[name] or "nan") for row in rows]) for name in names
        )
        runs = tuple(row["sweep"] for row in rows)
        return cls(asked_mhz=asked_mhz, power_w=power_w, rate=rate, run=runs, limit_w=limit_w[0])

    def where(self, which: Bools) -> "Sweep":
        """Return some of its rows."""
        each = (self.asked_mhz[which], self.power_w[which], self.rate[which])
        runs = tuple(run for run, taken in zip(self.run, which, strict=True) if taken)
        return Sweep(
            asked_mhz=each[0], power_w=each[1], rate=each[2], run=runs, limit_w=self.limit_w
        )

    def ratios(self) -> Iterator[Floats]:
        """Yield logarithms of power at one clock over another run's, of each pair of runs."""
        by_run: dict[str, dict[float, float]] = defaultdict(dict)
        for mhz, watts, run in zip(self.asked_mhz, self.power_w, self.run, strict=True):
            if watts < _PINNED * self.limit_w:
                by_run[run][mhz] = math.log(watts)
        runs = list(by_run.values())
        for i, one in enumerate(runs):
            for other in runs[:i]:
                yield np.array([one[mhz] - other[mhz] for mhz in one.keys() & other.keys()])


@dataclass(frozen=True, kw_only=True)
class Board:
    """A GPU with bands, and the kernel of a sweep on it: rate per MHz, switching J at 1 V."""

    gpu: GpuModel
    rate: float
    work_j: float

    def power_w(
        self, core_mhz: Floats, drawn_w: Floats | float, unit: Unit | None = None
    ) -> Floats:
        """Return what its sensor shows in W, bands left out, as warm as what is drawn makes it."""
        gpu = self.gpu.constants if unit is None else unit.constants(self.gpu.constants)
        kernel = KernelConstants(core_mcycles=1e3, work_j_per_v2=self.work_j)
        warm_c = gpu.ambient_c + gpu.c_per_w * np.nan_to_num(drawn_w, nan=np.nanmedian(drawn_w))
        mem_mhz = np.full_like(core_mhz, gpu.mem_points_mhz[-1])
        drawn: Floats = busy_w(gpu, kernel, core_mhz, mem_mhz, warm_c)
        return drawn if unit is None else unit.gain * drawn

    def predict(self, sweep: Sweep, unit: Unit | None = None) -> tuple[Floats, Floats]:
        """Return rate and power in W of each row, held at the limit as the power loop does."""
        bins_mhz = np.array(self.gpu.core_mhz, dtype=float)
        log_power, log_time = band_costs(self.gpu.bands, bins_mhz)
        if unit is not None:
            log_power, log_time = np.log(unit.power), np.log(unit.time)
        drawn_w = self.power_w(bins_mhz, 0.75 * sweep.limit_w, unit) * np.exp(log_power)
        counts = np.searchsorted(bins_mhz, sweep.asked_mhz, side="right").tolist()
        core_mhz = np.array([settled_mhz(bins_mhz[:n], drawn_w[:n], sweep.limit_w) for n in counts])
        rate = self.rate * core_mhz * np.exp(-np.interp(core_mhz, bins_mhz, log_time))
        return rate, np.interp(core_mhz, bins_mhz, drawn_w)


def fitted(name: str, sweep: Sweep, locked: Accuracy | None = None) -> Board:
    """Fit a kernel and a GPU's bands to the rows that the limit does not hold."""
    gpu, begin = gpu_model(name), np.array(SWEEPS[name][1])
    calibration = dataclasses.replace(gpu.calibration, locked=locked)
    pinned_mhz = sweep.asked_mhz[sweep.power_w > _PINNED * sweep.limit_w]
    rows = sweep.where(sweep.asked_mhz < pinned_mhz.min(initial=math.inf))
    free = begin != 0.0

    def made(vector: Floats) -> Board:
        bands = begin.copy()
        bands[free] += vector[2:] * np.broadcast_to(_WITHIN, begin.shape)[free]
        model = dataclasses.replace(
            gpu,
            bands=tuple(map(tuple, bands.tolist())),
            calibration=calibration,
            cap_fading=REAL if name == "h200" else gpu.cap_fading,
        )
        return Board(gpu=model, rate=math.exp(vector[0]), work_j=math.exp(vector[1]))

    def off(vector: Floats) -> Floats:
        board = made(vector)
        log_power, log_time = band_costs(board.gpu.bands, rows.asked_mhz)
        power_w = board.power_w(rows.asked_mhz, rows.power_w)
        watts = np.log(power_w / rows.power_w) + log_power
        rate = np.log(board.rate * rows.asked_mhz / rows.rate) - log_time
        away: Floats = np.nan_to_num(np.concatenate([watts / _POWER, rate / _RATE, vector[2:]]))
        return away

    start = np.zeros(2 + int(free.sum()))
    start[:2] = np.nanmedian(np.log(rows.rate / rows.asked_mhz)), 6.0
    return made(least_squares(off, start, loss="soft_l1").x)


def judged(board: Board, sweep: Sweep) -> Floats:
    """Return relative errors of time and of power, and whether units draw that. Shape (3, R).

    A row's power counts where it lies among what the middle 95 % of units draw; at the limit every
    board draws the same, and it counts where some of those are held.
    """
    rate, power_w = board.predict(sweep)
    units = (Unit.of(board.gpu, number) for number in range(1, _UNITS + 1))
    drawn_w = np.array([board.predict(sweep, unit)[1] for unit in units])
    low_w, high_w = np.quantile(drawn_w, _CENTRAL, axis=0)
    held_w = _PINNED * sweep.limit_w
    inside = (low_w <= sweep.power_w) & (sweep.power_w <= high_w)
    inside |= (sweep.power_w > held_w) & (high_w >= held_w)
    covered = np.where(np.isnan(sweep.power_w), math.nan, inside)
    return np.array([sweep.rate / rate - 1.0, power_w / sweep.power_w - 1.0, covered])


def left_out(name: str, sweep: Sweep, locked: Accuracy | None = None) -> Floats:
    """Return `judged` of each clock, by a board fitted to the other clocks. Shape (3, R)."""
    found = np.empty((3, len(sweep.asked_mhz)))
    for clock in np.unique(sweep.asked_mhz):
        out = sweep.asked_mhz == clock
        found[:, out] = judged(fitted(name, sweep.where(~out), locked), sweep.where(out))
    return found


def _accuracy(off: Floats) -> Accuracy:
    time, power = np.nanmean(np.abs(off[:2]), axis=1).tolist()
    return Accuracy(time=time, power=power, rows=int((~np.isnan(off[1])).sum()))


def constants(folder: Path, sweeps: Sequence[Sweep]) -> Iterator[tuple[str, str, str]]:
    """Yield what units draw, what it was read from, and what that shows."""
    pairs = [[each - each.mean() for each in sweep.ratios() if len(each) > 1] for sweep in sweeps]
    spread = [
        math.sqrt(sum(float(each @ each) for each in some) / sum(len(e) - 1 for e in some) / 2.0)
        for some in ([*pairs[0], *pairs[1]], pairs[1])
    ]
    yield (
        "coarse levels",
        "two sweeps each of H200s and A100s, over their mean ratio",
        f"{spread[0]:.1%}",
    )
    yield (
        "wander",
        "the same of A100s alone, which keep nearly the same ratio at all clocks",
        f"{spread[1]:.1%}",
    )
    metered = _rows(folder / "rtx4000ada_gemm_external_meter.csv")
    clocks = sorted({float(row["clock_mhz"]) for row in metered})
    log_w = np.log([float(row["ps3_power_w"]) for row in metered]).reshape(-1, len(clocks))
    curves = np.polynomial.Polynomial.fit(clocks, log_w.mean(axis=0), 2)
    shared = log_w.mean(axis=0) - curves(np.array(clocks))
    fine = math.sqrt(float(shared @ shared) / (len(clocks) - 3))
    yield "fine levels", "what 40 kernels share over a parabola, RTX 4000 Ada", f"{fine:.1%}"
    (_, low, lower_s), (_, high, higher_s) = (
        tuple(float(row[name]) for name in ("clock_mhz", "core_mhz_median", "time_ms"))
        for row in _rows(folder / "a4000_fp32_locked_clock.csv")[-2:]
    )
    lost = (higher_s / lower_s - 1.0) / (2100.0 / high - 1905.0 / low)
    yield (
        "speed lost",
        "A4000 asked for 1905 and 2100 MHz; A40, H100 and H200: none",
        f"0 to {lost:.3f}",
    )
    runs = [
        [float(row[f"run{i}_s"]) for i in range(1, 6)]
        for row in _rows(folder / "l4_lu_cholesky_locked_clock.csv")
    ]
    slow = [each for each in runs if each[0] > _SLOW * min(each)]
    first = np.quantile([each[0] / min(each) for each in slow], (0.0, 0.5, 1.0))
    lasts_s = [sum(t for t in each if t > _SLOW * min(each)) for each in slow]
    long = f"{first[0]:.2f} to {first[2]:.2f} times as long"
    shows = (
        f"{len(slow)} of {len(runs)} locks, {long}, for {min(lasts_s):.0f} to {max(lasts_s):.0f} s"
    )
    yield "settling", "runs right after a lock, four L4s that talk to one another", shows


def main() -> None:
    """Judge every GPU; write its file and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kept-back", type=Path, help="judge this folder's rows, write nothing")
    given = parser.parse_args()
    table, sweeps = [["GPU", "time", "power", "power within units"]], []
    for name, (file, _) in SWEEPS.items():
        sweeps.append(sweep := Sweep.read(given.folder / f"{file}_locked_clock.csv"))
        if given.kept_back is None:
            locked = _accuracy(left_out(name, sweep))
            board, off = fitted(name, sweep, locked), left_out(name, sweep, locked)
            (DATA / f"{name}.json").write_text(encode(board.gpu), encoding="utf-8")
        else:
            board = fitted(name, sweep, gpu_model(name).calibration.locked)
            off = judged(board, Sweep.read(given.kept_back / f"{file}_locked_clock.csv"))
        is_off, timed = _accuracy(off), int((~np.isnan(off[0])).sum())
        cells = (f"{is_off.time:.2%} of {timed}", f"{is_off.power:.1%} of {is_off.rows}")
        table.append([f"`sim:{name}`", *cells, f"{np.nanmean(off[2]):.0%}"])
    parts = {"locked": markdown(table)}
    if given.kept_back is None:
        parts["units"] = markdown(
            [("drawn", "read from", "shows"), *constants(given.folder, sweeps)]
        )
    fill("calibration", parts, whole=given.kept_back is None)


if __name__ == "__main__":
    main()

"""Random tables with a known truth: a random GPU, random kernels, and runs that scatter badly.

A table holds what somebody might have measured: some clocks, some rows more than once, some not at
all, a few runs far off. The truth is what the GPU really does there, which no run shows.
"""

import csv
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from underclock.physics.cap import capped_core_mhz
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import busy_w, dram_mhz, duration_s, voltage_v, xbar_mhz
from underclock.records import AUTO, Clocks

_WARM_C = 60.0
_FEW, _MANY = 15, 60  # kernels
_RARE = 0.03  # of tables that are large
_BIN_MHZ = 15.0
_HEAVY_TAILS = 3.0  # degrees of freedom of Student's t


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """How runs scatter around the truth.

    Attributes:
        time: Relative, of usual runs; tails are heavy.
        power: The same of power.
        wild_runs: Part of runs that were disturbed.
        wild_rows: Part of rows all runs of which scatter by a third.
    """

    time: float
    power: float
    wild_runs: float
    wild_rows: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeTable:
    """A table and the truth behind it.

    Attributes:
        rows: Kernel, clocks, launches a step, time in s and energy in J of every run.
        truth: Time in s and energy in J of a launch. Every clock pair of every kernel is there.
        counts: Launches of each kernel in a step.
        scatter: Of the runs.
        repeats: Most runs of a row.
        capped: Whether a power cap holds some rows.
    """

    rows: tuple[tuple[str, Clocks, float, float], ...]
    truth: Mapping[tuple[str, Clocks], tuple[float, float]]
    counts: Mapping[str, int]
    scatter: Scatter
    repeats: int
    capped: bool

    @property
    def pairs(self) -> tuple[Clocks, ...]:
        """Return every clock pair there is."""
        return tuple(dict.fromkeys(clocks for _, clocks in self.truth))

    def write(self, path: Path) -> None:
        """Write the table as somebody would hand it over."""
        with path.open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(("gpu", "kernel", "core_mhz", "mem_mhz", "time_s", "energy_j", "count"))
            for name, clocks, time_s, energy_j in self.rows:
                mhz = (clocks.core_mhz or "", clocks.mem_mhz or "")
                costs = (f"{time_s:.8g}", f"{energy_j:.8g}", self.counts[name])
                lines.writerow(("Random GPU", name, *mhz, *costs))


@dataclass(slots=True)
class _Maker:
    """Draws one table."""

    random: np.random.Generator
    wild_runs: float | None = None
    least_repeats: int = 1
    capped: bool = field(init=False)

    def __post_init__(self) -> None:
        self.capped = self._happens(0.5)

    def _happens(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def table(self, most_kernels: int) -> MadeTable:
        random = self.random
        gpu, limit_w = self._gpu()
        most = min(most_kernels, _MANY if self._happens(_RARE) else _FEW)
        kernels = 2 + int((most - 1) * random.random() ** 2)  # often few
        pairs = self._pairs(gpu)
        counts = {f"k{i}": int(10 ** random.uniform(0.0, 2.0)) for i in range(kernels)}
        own = {name: self._kernel(gpu, limit_w) for name in counts}
        # What no physics says of a row, but is so: it is part of the truth.
        unruly = float(10 ** random.uniform(-3.5, -2.0)) if self._happens(0.5) else 0.0
        truth = {}
        for name, kernel in own.items():
            for clocks in pairs:
                time_s, power_w = self._costs(gpu, kernel, clocks, limit_w)
                time_s *= float(np.exp(unruly * random.standard_normal()))
                truth[name, clocks] = time_s, power_w * time_s
        scatter = Scatter(
            time=float(10 ** random.uniform(-3.3, -1.7)),
            power=float(10 ** random.uniform(-3.0, -1.7)),
            wild_runs=float(random.choice([0.0, random.uniform(0.0, 0.03)])),
            wild_rows=float(random.choice([0.0, random.uniform(0.0, 0.03)])),
        )
        if self.wild_runs is not None:
            scatter = dataclasses.replace(scatter, wild_runs=self.wild_runs, wild_rows=0.0)
        repeats = int(random.choice([1, 2, 3, 5], p=[0.25, 0.25, 0.4, 0.1]))
        repeats = max(repeats, self.least_repeats)
        rows = tuple(self._runs(truth, scatter, repeats))
        return MadeTable(
            rows=rows,
            truth=truth,
            counts=counts,
            scatter=scatter,
            repeats=repeats,
            capped=self.capped,
        )

    def _gpu(self) -> tuple[GpuConstants, float]:
        """Return a GPU that nobody built, and the power that holds it; none is infinite."""
        random = self.random
        boost = float(random.uniform(1200, 2500))
        knee = boost * float(random.uniform(0.45, 0.95))
        floor_v = float(random.uniform(0.6, 0.9))
        rise_v = floor_v * float(random.uniform(0.1, 0.5))
        bend = float(random.uniform(0.0, 0.7))  # of the rise that comes from the bend
        above = boost - knee
        tdp_w = float(random.uniform(60, 800))
        mems = int(random.integers(1, 4))
        mem = float(random.uniform(1200, 10000))
        ratios = np.sort(random.uniform(0.5, 0.95, mems - 1))
        if mems > 1 and self._happens(0.3):
            ratios[0] = random.uniform(0.05, 0.3)  # an idle mode
        points = np.array([*ratios, 1.0])
        memory_w = tdp_w * float(random.uniform(0.03, 0.25))
        gpu = GpuConstants(
            exponent=float(random.uniform(1.5, 8.0)),
            xbar_floor_mhz=boost * float(random.uniform(0.3, 0.8)),
            xbar_lag_mhz=float(random.uniform(0, 150)),
            floor_v=floor_v,
            knee_mhz=knee,
            slope_v_per_mhz=(1 - bend) * rise_v / above,
            bend_v_per_mhz2=bend * rise_v / above**2,
            board_w=tdp_w * float(random.uniform(0.02, 0.15)),
            mem_points_mhz=tuple((mem * points).tolist()),
            mem_points_w=tuple((memory_w * points ** random.uniform(0.5, 1.5)).tolist()),
            mem_points_efficiency=(*random.uniform(0.85, 1.1, mems - 1).tolist(), 1.0),
            leak_w_per_v3=tdp_w * float(random.uniform(0.03, 0.2)),
            leak_per_c=0.01,
            clock_w_per_ghz_v2=tdp_w * float(random.uniform(0.03, 0.15)) / (boost / 1000),
            ambient_c=_WARM_C,
            c_per_w=0.0,
            thermal_tau_s=60.0,
            boost_mhz=boost,
            boost_knee_c=90.0,
            boost_loss_mhz=15.0,
            boost_step_c=4.0,
        )
        return gpu, (tdp_w if self.capped else np.inf)

    def _pairs(self, gpu: GpuConstants) -> tuple[Clocks, ...]:
        """Return the clocks of the table; auto is among them, or is not."""
        random = self.random
        least = gpu.boost_mhz * float(random.uniform(0.2, 0.7))
        cores = np.linspace(least, gpu.boost_mhz, int(random.integers(3, 9)))
        core_mhz = sorted({int(_BIN_MHZ * (mhz // _BIN_MHZ)) for mhz in cores})
        mem_mhz: list[int | None] = [round(mhz) for mhz in gpu.mem_points_mhz]
        if len(mem_mhz) == 1 and self._happens(0.5):
            mem_mhz = [None]
        pairs = [Clocks(core_mhz=core, mem_mhz=mem) for core in core_mhz for mem in mem_mhz]
        return tuple(pairs) if self._happens(0.2) else (AUTO, *pairs)

    def _kernel(self, gpu: GpuConstants, limit_w: float) -> KernelConstants:
        """Return a kernel with random parts of time and a random power at boost."""
        random = self.random
        top, mem = gpu.boost_mhz, gpu.mem_points_mhz[-1]
        time_s = float(10 ** random.uniform(-5.5, -1.5))
        parts = time_s * random.dirichlet([0.6, 0.6, 0.2, 0.2])
        traffic_w = float(random.uniform(0.0, 0.2))
        shape = KernelConstants(
            core_mcycles=float(parts[0]) * top,
            dram_mcycles=float(parts[1] * dram_mhz(gpu, mem)),
            xbar_mcycles=float(parts[2] * xbar_mhz(gpu, top)),
            fixed_s=float(parts[3]),
            serial=self._happens(0.1),
        )
        idle = float(busy_w(gpu, shape, top, mem, _WARM_C))
        most_w = limit_w if np.isfinite(limit_w) else 6.0 * idle
        own_w = max(0.05 * idle, float(random.uniform(0.2, 1.3)) * most_w - idle)
        own_j = own_w * float(duration_s(gpu, shape, top, mem))
        work_j_per_v2 = (1.0 - traffic_w) * own_j / float(voltage_v(gpu, top)) ** 2
        return dataclasses.replace(shape, work_j_per_v2=work_j_per_v2, dram_j=traffic_w * own_j)

    @staticmethod
    def _costs(
        gpu: GpuConstants, kernel: KernelConstants, clocks: Clocks, limit_w: float
    ) -> tuple[float, float]:
        """Return time in s and power in W, under the cap."""
        core = float(clocks.core_mhz or gpu.boost_mhz)
        mem = float(clocks.mem_mhz or gpu.mem_points_mhz[-1])
        if np.isfinite(limit_w):
            bins = np.arange(100.0, core + 1e-6, _BIN_MHZ)
            bins = np.unique(np.append(bins, core))
            core = capped_core_mhz(gpu, kernel, bins, mem, _WARM_C, limit_w)
        time_s = float(duration_s(gpu, kernel, core, mem))
        return time_s, float(busy_w(gpu, kernel, core, mem, _WARM_C))

    def _runs(
        self,
        truth: Mapping[tuple[str, Clocks], tuple[float, float]],
        scatter: Scatter,
        repeats: int,
    ) -> Iterator[tuple[str, Clocks, float, float]]:
        """Measure what is in the table; some rows are not."""
        random = self.random
        missing = float(random.choice([0.0, random.uniform(0.0, 0.4)]))
        uneven = self._happens(0.3)  # rows were not repeated alike
        for (name, clocks), (time_s, energy_j) in truth.items():
            if clocks != AUTO and self._happens(missing):
                continue
            wild = self._happens(scatter.wild_rows)
            for _ in range(int(random.integers(1, repeats + 1)) if uneven else repeats):
                time = scatter.time * float(random.standard_t(_HEAVY_TAILS))
                power = scatter.power * float(random.standard_t(_HEAVY_TAILS))
                if wild:
                    time += 0.3 * float(random.standard_normal())
                    power += 0.3 * float(random.standard_normal())
                if self._happens(scatter.wild_runs):
                    time += float(random.exponential(0.5))  # disturbed runs take longer
                    power += 0.3 * float(random.standard_normal())
                time, power = np.clip([time, power], -1.0, 1.0).tolist()
                yield name, clocks, time_s * np.exp(time), energy_j * np.exp(time + power)


def made_table(
    seed: int, *, most_kernels: int = _MANY, wild_runs: float | None = None, least_repeats: int = 1
) -> MadeTable:
    """Draw a table.

    Args:
        seed: Of everything in it.
        most_kernels: No table has more.
        wild_runs: Part of runs that were disturbed, no row being wild; by default it is drawn.
        least_repeats: A row that is repeated most has so many runs at least.
    """
    random = np.random.default_rng([seed, 14])
    return _Maker(random, wild_runs, least_repeats).table(most_kernels)

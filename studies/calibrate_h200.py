"""Fit ``sim:h200`` to measurements by steering on a real one: the package's data.

    OMP_NUM_THREADS=1 python studies/calibrate_h200.py

What all kernels share follows from the model's fit of the layer, but for the exponent of time: the
range of clocks is too narrow to tell it. Each kernel's constants are then fitted to its own rows.
Core clocks below those reached rest on physics alone, memory clocks too.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from scipy.optimize import least_squares

from gpu_specs import SPECS
from underclock.arrays import Floats
from underclock.core.model.estimate import estimate
from underclock.core.model.most_likely import fitted
from underclock.core.model.parameters import Shared
from underclock.core.model.sample_rows import rows_of
from underclock.core.step.whole_step import STEADY_C
from underclock.gpus.models import Accuracy, Calibration, GpuModel, OwnKernel, encode
from underclock.physics.cap import WINDOW_S
from underclock.physics.constants import GpuConstants, KernelConstants, Throughput
from underclock.physics.costs import busy_w, duration_s, idle_w, voltage_v
from underclock.records import Kernel, Kind, SampleSet

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence" / "h200"
DATE = "2026-11-22"  # of the measurements
SHARED, OTHERS = "layer-3", ("xl-3",)  # what is fitted to: one board
PEAK_W = 970.0  # eleven products thinned out by idling drew 963 to 986 W
_MEM_MHZ = 3201.0
_FULL = 0.92  # of DRAM's peak: the greatest utilisation seen
_PEAK_BYTE = 1500.0  # per memory cycle: 4.8 TB/s
_SHORT_S = 1.2e-6  # what the shortest kernels take
_IDLE_WEIGHT = 25  # the model takes idling as known within 10 %; here it is a measurement
_BIG_S = 100e-6
_C_PER_W = 0.045  # 53 to 54, 59 to 61 and 65 to 67 °C on three boards at 693 W
_KNOWN = 4  # rows of a held-out kernel
_NOISE = 0.005  # of a time
_PRIOR = np.array([1.0, 0.3, 0.7])  # of the logarithms of core and DRAM cycles and of fixed time
_NEARLY_ALL = 0.85  # of DRAM's peak: what uses more only moves bytes
_LITTLE = 0.3  # of DRAM's peak: what uses less is bound by other things
NOTE = (
    "core clocks from 1440 to 1980 MHz rest on measurements by steering, lower ones and the lower "
    "memory clock on physics"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One kernel's rows.

    Attributes:
        core_mhz: Shape (R,).
        time_s: Shape (R,).
        power_w: In the step; nan where a row tells none. Shape (R,).
        weight: Of a row's time. Shape (R,).
        temperature_c: Shape (R,).
        dram_share: Part of DRAM's peak in use, alone.
    """

    core_mhz: Floats
    time_s: Floats
    power_w: Floats
    weight: Floats
    temperature_c: Floats
    dram_share: float


def read(name: str) -> SampleSet:
    """Read what was measured by steering."""
    path = EVIDENCE / f"{'decode' if name.startswith('b') else 'steered'}-{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=SampleSet)


def shared_constants(sample_set: SampleSet, spec: GpuModel) -> GpuConstants:
    """Fit what kernels share, time's exponent apart."""
    own = spec.constants
    base = dataclasses.replace(
        own,
        mem_points_mhz=own.mem_points_mhz[-1:],
        mem_points_w=own.mem_points_w[-1:],
        mem_points_efficiency=own.mem_points_efficiency[-1:],
    )
    gpu = base
    for _ in range(2):  # company is taken off as usual, then as fitted
        rows = rows_of(sample_set, gpu)
        rows = dataclasses.replace(rows, idle=rows.idle * _IDLE_WEIGHT)
        parameters = fitted(rows, Shared(base)).parameters
        gpu = parameters.family.gpu(parameters.shared)
    scale = gpu.mem_points_w[-1] / own.mem_points_w[-1]
    return dataclasses.replace(
        gpu,
        exponent=own.exponent,
        c_per_w=_C_PER_W,
        mem_points_mhz=own.mem_points_mhz,
        mem_points_w=tuple(scale * each_w for each_w in own.mem_points_w),
        mem_points_efficiency=own.mem_points_efficiency,
    )


def settled(sample_set: SampleSet) -> SampleSet:
    """Leave out a step beside its companion that is longer than the cap averages over.

    Such a round has no one clock: the step's part runs faster than the companion's. It stays where
    company was spread, for then each kernel's clock is known.
    """
    step_s = statistics.fmean(sample.time_s for sample in sample_set.in_situ)
    if step_s < WINDOW_S:
        return sample_set
    windows = tuple(s for s in sample_set.windows if s.kernel_mhz or not (s.is_step and s.mix.hot))
    return msgspec.structs.replace(sample_set, windows=windows)


def measured(sample_set: SampleSet, gpu: GpuConstants) -> list[Measured]:
    """Return the rows of each kernel, power as the step draws it."""
    rows = rows_of(settled(sample_set), gpu)
    in_step = estimate(sample_set).ratio
    ratio = 1.0 if in_step is None else in_step.ratio
    share = {s.kernel: s.utilisation.dram for s in sample_set.samples if s.utilisation}
    found = []
    for k, kernel in enumerate(sample_set.kernels):
        mine = slice(rows.bounds[k], rows.bounds[k + 1])
        tells = rows.windows[1, mine] > 0
        found.append(
            Measured(
                core_mhz=rows.core_mhz[mine],
                time_s=np.exp(rows.log[0, mine]),
                power_w=np.where(tells, ratio * np.exp(rows.log[1, mine]), math.nan),
                weight=np.sqrt(rows.windows[0, mine]),
                temperature_c=rows.temperature_c[mine],
                dram_share=share.get(kernel.name, 0.0),
            )
        )
    return found


def kernel_of(gpu: GpuConstants, rows: Measured, dram_byte_j: float) -> KernelConstants:
    """Fit one kernel: its times in logarithms, with weak priors, then its energy."""
    timed = np.flatnonzero(rows.weight > 0)
    core_mhz, log_s, weight = rows.core_mhz[timed], np.log(rows.time_s[timed]), rows.weight[timed]
    usual_s = float(np.exp(np.median(log_s)))
    moved = rows.dram_share * usual_s * _MEM_MHZ * _PEAK_BYTE * 1e6  # bytes
    start = np.log(
        [
            usual_s * float(np.median(core_mhz)),
            max(moved / (_FULL * _PEAK_BYTE * 1e6), 1e-3 * usual_s * _MEM_MHZ),
            min(_SHORT_S, 0.9 * usual_s),
        ]
    )

    def made(vector: Floats) -> KernelConstants:
        core, dram, fixed_s = np.exp(vector).tolist()
        return KernelConstants(core_mcycles=core, dram_mcycles=dram, fixed_s=fixed_s)

    def residuals(vector: Floats) -> Floats:
        time_s = duration_s(gpu, made(vector), core_mhz, np.full_like(core_mhz, _MEM_MHZ))
        off = weight * (np.log(time_s) - log_s) / _NOISE
        away: Floats = np.concatenate([off, (vector - start) / _PRIOR])
        return away

    found = made(least_squares(residuals, start, loss="soft_l1").x)
    dram_j = moved * dram_byte_j
    works = [
        (
            (watts - idle_w(gpu, mhz, _MEM_MHZ, warm_c))
            * float(duration_s(gpu, found, mhz, _MEM_MHZ))
            - dram_j
        )
        / voltage_v(gpu, mhz) ** 2
        for mhz, watts, warm_c in zip(
            rows.core_mhz.tolist(), rows.power_w.tolist(), rows.temperature_c.tolist(), strict=True
        )
        if not math.isnan(watts)
    ]
    work_j = max(0.0, statistics.fmean(works))
    return dataclasses.replace(found, dram_j=dram_j, work_j_per_v2=work_j)


def off_rows(
    gpu: GpuConstants, kernels: Sequence[KernelConstants], rows: Sequence[Measured]
) -> tuple[Floats, Floats]:
    """Return relative errors of time and of power, each over the rows that tell it."""
    time_off, power_off = [], []
    for kernel, mine in zip(kernels, rows, strict=True):
        mem_mhz = np.full_like(mine.core_mhz, _MEM_MHZ)
        told = mine.weight > 0
        time_s = duration_s(gpu, kernel, mine.core_mhz, mem_mhz)
        time_off.append((time_s / mine.time_s - 1.0)[told])
        power_w = busy_w(gpu, kernel, mine.core_mhz, mem_mhz, mine.temperature_c)
        power_off.append((power_w / mine.power_w - 1.0)[~np.isnan(mine.power_w)])
    return np.concatenate(time_off), np.concatenate(power_off)


def few(rows: Measured) -> tuple[Measured, Measured]:
    """Split a kernel's rows: the few that tell its constants, and those to predict."""
    timed = np.flatnonzero(rows.weight > 0)
    order = timed[np.argsort(rows.core_mhz[timed])]
    places = np.unique(np.linspace(0, len(order) - 1, min(_KNOWN, len(order))).astype(int))
    chosen = np.zeros(len(rows.core_mhz), dtype=bool)
    chosen[order[places]] = True
    known = dataclasses.replace(rows, weight=np.where(chosen, rows.weight, 0.0))
    rest = dataclasses.replace(rows, weight=np.where(chosen, 0.0, rows.weight))
    return known, rest


def alone_off(
    gpu: GpuConstants, sample_set: SampleSet, kernels: Sequence[KernelConstants]
) -> Floats:
    """Return relative errors of power of kernels that ran alone, away from the cap.

    None of these measurements took part in any fit.
    """
    by_name = {k.name: own for k, own in zip(sample_set.kernels, kernels, strict=True)}
    off = []
    for sample in sample_set.samples:
        seen = sample.observed.core_mhz if sample.observed else None
        if seen is None or sample.throttle_reasons:
            continue
        warm_c = STEADY_C if sample.temperature_c is None else sample.temperature_c
        watts = busy_w(gpu, by_name[sample.kernel], float(seen), _MEM_MHZ, warm_c)
        off.append(watts / (sample.energy_j / sample.time_s) - 1.0)
    return np.array(off)


def throughput_of(
    spec: Throughput, kernels: Sequence[tuple[Kernel, KernelConstants, float, float]]
) -> Throughput:
    """Return rates and energies of operations from kernels: with DRAM share and time alone."""
    known = [
        (kernel.kind, kernel.flops or 0.0, own, share, share * time_s * _MEM_MHZ * _PEAK_BYTE * 1e6)
        for kernel, own, share, time_s in kernels
        if time_s >= _BIG_S
    ]
    products = [one for one in known if one[0] is Kind.GEMM]
    moving = [one for one in known if one[0] is Kind.MEMORY and one[3] >= _LITTLE]
    only_bytes = [one for one in moving if one[3] >= _NEARLY_ALL]
    # Each kernel's energy as that of its operations and bytes, relative to itself.
    parts = [
        (flops / own.work_j_per_v2, moved / own.work_j_per_v2)
        for _, flops, own, _, moved in (*products, *only_bytes)
    ]
    (flop_j, sm_byte_j), *_ = np.linalg.lstsq(np.array(parts), np.ones(len(parts)), rcond=None)
    return dataclasses.replace(
        spec,
        tensor_flop=statistics.median(
            flops / own.core_mcycles / 1e6
            for _, flops, own, share, _ in products
            if share < _LITTLE
        ),
        sm_byte=statistics.median(moved / own.core_mcycles / 1e6 for *_, own, _, moved in moving),
        dram_byte=_FULL * _PEAK_BYTE,
        launch_s=_SHORT_S,
        tensor_j_per_v2=float(flop_j),
        vector_j_per_v2=0.0,  # in the energy of bytes, as their kernels were measured
        sm_byte_j_per_v2=float(sm_byte_j),
    )


def calibrated() -> GpuModel:
    """Fit the model."""
    spec = SPECS["h200"]
    if spec.throughput is None:
        raise AssertionError("the data sheet gives rates")
    byte_j = spec.throughput.dram_byte_j
    sets = {name: read(name) for name in (SHARED, *OTHERS)}
    gpu = shared_constants(sets[SHARED], spec)
    rows = {name: measured(one, gpu) for name, one in sets.items()}
    kernels = {name: [kernel_of(gpu, mine, byte_j) for mine in rows[name]] for name in sets}
    offs = [off_rows(gpu, kernels[name], rows[name]) for name in sets]
    time_off, power_off = (np.concatenate(each) for each in zip(*offs, strict=True))
    out_time, out_power = [], []
    for name in OTHERS:
        split = [few(mine) for mine in rows[name]]
        own = [kernel_of(gpu, known, byte_j) for known, _ in split]
        out_time.append(off_rows(gpu, own, [rest for _, rest in split])[0])
        out_power.append(alone_off(gpu, sets[name], own))
    owned, listed = [], []
    for name, one in sets.items():
        alone = {s.kernel: s.time_s for s in one.samples}
        for kernel, constants, mine in zip(one.kernels, kernels[name], rows[name], strict=True):
            named = Kernel(
                name=f"{name.split('-')[0]}: {kernel.name}",
                kind=kernel.kind,
                pass_=kernel.pass_,
                count=kernel.count,
                flops=kernel.flops,
            )
            owned.append(OwnKernel(kernel=named, constants=constants))
            listed.append((kernel, constants, mine.dram_share, alone[kernel.name]))
    in_situ = sets[SHARED].in_situ
    settles_w = statistics.median(s.energy_j / s.time_s for s in in_situ)
    held_time, held_power = np.concatenate(out_time), np.concatenate(out_power)
    return dataclasses.replace(
        spec,
        constants=gpu,
        throughput=throughput_of(spec.throughput, listed),
        own=tuple(owned),
        peak_w=PEAK_W,
        cap_margin_w=spec.limit_w[0] - settles_w,
        calibration=Calibration(
            source="docs/evidence/h200/steering.md",
            rows=len(time_off),
            date=DATE,
            fit=Accuracy(
                time=float(np.mean(np.abs(time_off))),
                power=float(np.mean(np.abs(power_off))),
                rows=len(time_off),
            ),
            held_out=Accuracy(
                time=float(np.mean(np.abs(held_time))),
                power=float(np.mean(np.abs(held_power))),
                rows=len(held_time),
            ),
            note=NOTE,
        ),
    )


def main() -> None:
    """Write the model."""
    model = calibrated()
    path = ROOT / "src" / "underclock" / "gpus" / "data" / "h200.json"
    path.write_text(encode(model), encoding="utf-8")
    print(model.calibration, model.throughput, model.constants, model.cap_margin_w, sep="\n")


if __name__ == "__main__":
    main()

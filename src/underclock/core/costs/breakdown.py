"""Where a step's energy goes at auto clocks: by pass, operator and bound, and at which clock.

Shape letters: K kernels.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable

import numpy as np

from underclock.arrays import Floats
from underclock.core.costs.cap import driver_says
from underclock.core.costs.table import cost_table
from underclock.errors import DataError
from underclock.records import AUTO, Kernel, Sample, SampleSet, Utilisation
from underclock.records.observed import Bound, Breakdown, Share

_BUSY = 0.5  # our convention: what is busy half of the time bounds a kernel; else latency does
_CLOCK_STEP_MHZ = 15  # clocks this near to the highest seen count as full
_FULL = "full clock"


def bound_of(utilisation: Utilisation | None) -> Bound:
    """Say what bounds a kernel: the busiest of tensor pipes, FP32 pipes and DRAM, if any is."""
    if utilisation is None:
        return Bound.UNKNOWN
    busy = {
        Bound.TENSOR: utilisation.tensor,
        Bound.FP32: utilisation.fp32,
        Bound.DRAM: utilisation.dram,
    }
    most = max(busy, key=lambda bound: busy[bound])
    return most if busy[most] >= _BUSY else Bound.LATENCY


def breakdown(sample_set: SampleSet) -> Breakdown:
    """Break a step's cost at auto clocks down.

    Raises:
        DataError: No kernel was measured at auto clocks.
    """
    auto = _auto_samples(sample_set)
    table = cost_table(sample_set, baseline=AUTO)
    time_s, energy_j = table.time_s[:, table.baseline], table.energy_j[:, table.baseline]
    kernels = sample_set.kernels
    samples = [auto[kernel.name] for kernel in kernels]
    bounds = [bound_of(sample.utilisation) for sample in samples]
    full_mhz = max((mhz for sample in samples if (mhz := _core_mhz(sample))), default=None)
    pace = [_pace(sample, full_mhz) for sample in samples]
    isolated_s = np.array([s.time_s * k.count for s, k in zip(samples, kernels, strict=True)])
    capped = np.array([bool(driver_says(sample.throttle_reasons)) for sample in samples])

    def shares(name_of: Callable[[int], Hashable]) -> tuple[Share, ...]:
        return _shares(kernels, time_s, energy_j, name_of)

    full = [word == _FULL for word in pace]
    wasted = [f and b in {Bound.DRAM, Bound.LATENCY} for f, b in zip(full, bounds, strict=True)]
    seen = full_mhz is not None and set(bounds) != {Bound.UNKNOWN}
    return Breakdown(
        evidence=sample_set.evidence,
        gpu=sample_set.gpu,
        workload=sample_set.workload,
        time_s=float(time_s.sum()),
        energy_j=float(energy_j.sum()),
        by_pass=shares(lambda k: kernels[k].pass_.value),
        by_operator=shares(lambda k: _operator(kernels[k])),
        by_bound=shares(lambda k: bounds[k].value),
        by_clock=shares(lambda k: f"{pace[k]}, {bounds[k]}" if full[k] else pace[k]),
        reachable_j=math.fsum(energy_j[np.array(wasted, dtype=bool)]) if seen else None,
        capped_share=float(isolated_s[capped].sum() / isolated_s.sum()),
        full_core_mhz=full_mhz,
        closure=table.closure,
        warnings=table.warnings,
    )


def _auto_samples(sample_set: SampleSet) -> dict[str, Sample]:
    """Return one auto sample of each kernel."""
    auto = {sample.kernel: sample for sample in sample_set.samples if sample.asked == AUTO}
    missing = [kernel.name for kernel in sample_set.kernels if kernel.name not in auto]
    if missing:
        raise DataError(
            f"{missing[0]!r} was not measured at auto clocks, so the step cannot be broken down",
            hint="measure every kernel at auto clocks",
        )
    return auto


def _core_mhz(sample: Sample) -> int | None:
    return sample.observed.core_mhz if sample.observed else None


def _pace(sample: Sample, full_mhz: int | None) -> str:
    mhz = _core_mhz(sample)
    if mhz is None or full_mhz is None:
        return "clock not read"
    return _FULL if mhz >= full_mhz - _CLOCK_STEP_MHZ else "below full clock"


def _operator(kernel: Kernel) -> str:
    if kernel.launch is not None and kernel.launch.operator:
        return kernel.launch.operator
    return kernel.name.split(" ")[0]


def _shares(
    kernels: tuple[Kernel, ...],
    time_s: Floats,
    energy_j: Floats,
    name_of: Callable[[int], Hashable],
) -> tuple[Share, ...]:
    """Sum kernels by a name, most energy first."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for k in range(len(kernels)):
        members[name_of(k)].append(k)
    parts = [
        Share(
            name=str(name),
            launches=sum(kernels[k].count for k in some),
            time_s=float(time_s[some].sum()),
            energy_j=float(energy_j[some].sum()),
            time_share=float(time_s[some].sum() / time_s.sum()),
            energy_share=float(energy_j[some].sum() / energy_j.sum()),
        )
        for name, some in members.items()
    ]
    return tuple(sorted(parts, key=lambda part: -part.energy_j))

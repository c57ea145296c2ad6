"""Where a step's energy goes at auto clocks: by pass, by operator, by what bounds the kernels.

Shape letters: K kernels.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Hashable

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.step.cap import capped_kernels, driver_says
from underclock.core.step.following import exponents, follows_core, in_step_s, step_clock
from underclock.core.step.table import CostTable, cost_table, overlapped, step_means, waited_counts
from underclock.core.step.whole import check_kernels_alone
from underclock.errors import DataError
from underclock.records import AUTO, Closure, Kernel, SampleSet, Utilisation, Window
from underclock.records.observed import Bound, Breakdown, Follows, KernelPart, Share

_BUSY = 0.5  # our convention: what is busy half of the time bounds a kernel; else latency does
_UNKNOWN = {Follows.UNDECIDED, Follows.UNMEASURED}


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

    Energy is that of the step where it was run whole, settled on its kernels; time is split as the
    launches inside the step were timed, or else as kernels take it alone.

    Raises:
        DataError: A kernel was not measured at auto clocks, or the step that was timed is another.
    """
    check_kernels_alone(sample_set)
    auto = _at_auto(sample_set)
    table = cost_table(sample_set, baseline=AUTO)
    # What runs beside others has no clock of its own that could save any of its energy.
    own = 1.0 - table.fixed_j / table.energy_j[:, table.baseline]
    if sample_set.in_situ:
        table = settle_auto(table, sample_set.in_situ, capped_kernels(sample_set))
    kernels, energy_j = sample_set.kernels, table.energy_j[:, table.baseline]
    samples = [some[-1] for some in auto]
    alone_s = np.array([math.fsum(s.time_s for s in some) / len(some) for some in auto])
    counts = waited_counts(kernels)
    inside_s = in_step_s(sample_set)
    time_s = table.time_s[:, table.baseline]
    if inside_s is not None:
        time_s = inside_s * counts * (time_s.sum() / (inside_s * counts).sum())
    time_s = np.where(overlapped(kernels), 0.0, time_s)
    capped = np.array([bool(driver_says(sample.throttle_reasons)) for sample in samples])
    changes: list[float | None] = [None] * len(kernels)
    if inside_s is not None:
        changes = (inside_s / alone_s - 1.0).tolist()
    parts = _kernel_parts(sample_set, samples, energy_j, changes)
    unknown = np.array([part.follows in _UNKNOWN for part in parts])
    free = np.array([part.follows is Follows.NOT_CORE for part in parts])

    def shares(name_of: Callable[[int], Hashable]) -> tuple[Share, ...]:
        return _shares(kernels, time_s, energy_j, name_of)

    return Breakdown(
        evidence=sample_set.evidence,
        gpu=sample_set.gpu,
        workload=sample_set.workload,
        time_s=float(time_s.sum()),
        energy_j=float(energy_j.sum()),
        by_pass=shares(lambda k: kernels[k].pass_.value),
        by_operator=shares(lambda k: _operator(kernels[k])),
        by_bound=shares(lambda k: _bound_name(parts[k])),
        kernels=tuple(sorted(parts, key=lambda part: -part.energy_j)),
        reachable_j=None if unknown.all() else math.fsum((own * energy_j)[free]),
        undecided_j=math.fsum((own * energy_j)[unknown]),
        step_clock=step_clock(sample_set),
        capped_share=float((alone_s * counts)[capped].sum() / (alone_s * counts).sum()),
        closure=table.closure,
        warnings=table.warnings,
    )


def _at_auto(sample_set: SampleSet) -> list[list[Window]]:
    """Return the auto samples of each kernel. Length K."""
    auto: defaultdict[str, list[Window]] = defaultdict(list)
    for sample in sample_set.samples:
        if sample.asked == AUTO:
            auto[sample.kernel].append(sample)
    missing = [kernel.name for kernel in sample_set.kernels if kernel.name not in auto]
    if missing:
        raise DataError(
            f"{missing[0]!r} was not measured at auto clocks, so the step cannot be broken down",
            hint="measure every kernel at auto clocks",
        )
    return [auto[kernel.name] for kernel in sample_set.kernels]


def _kernel_parts(
    sample_set: SampleSet,
    samples: list[Window],
    energy_j: Floats,
    changes: list[float | None],
) -> list[KernelPart]:
    """Say of every kernel what bounds it, in the order of the step.

    Args:
        changes: By what launches take longer in the step than alone. Length K.
    """
    fitted = exponents(sample_set)
    return [
        KernelPart(
            kernel=kernel.name,
            launches=kernel.count,
            energy_j=joules,
            energy_share=joules / float(energy_j.sum()),
            follows=follows_core(fitted.get(kernel.name)),
            exponent=fitted.get(kernel.name),
            bound=bound_of(sample.utilisation),
            in_step_change=change,
        )
        for kernel, sample, joules, change in zip(
            sample_set.kernels, samples, energy_j.tolist(), changes, strict=True
        )
    ]


def _bound_name(part: KernelPart) -> str:
    """Name what bounds a kernel: how it follows the core clock; utilisation is second best."""
    if part.follows not in _UNKNOWN:
        return part.follows.value
    if part.bound is not Bound.UNKNOWN:
        return f"{part.bound}, by utilisation"
    return part.follows.value


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


def settle_auto(table: CostTable, in_situ: tuple[Window, ...], capped: Bools) -> CostTable:
    """Make the auto column add up to the step as it really runs; other columns stay as measured.

    Args:
        capped: Which kernels were at the power cap when measured alone at auto. Shape (K,).

    Raises:
        DataError: The step costs less than its kernels away from the cap do.
    """
    real_s, real_j = step_means(in_situ)
    time_s, energy_j = table.time_s.copy(), table.energy_j.copy()
    for costs, real in ((time_s, real_s), (energy_j, real_j)):
        costs[:, table.baseline] *= _settling_factors(costs[:, table.baseline], real, capped)
    return dataclasses.replace(
        table,
        time_s=time_s,
        energy_j=energy_j,
        closure=Closure(time=table.auto_time_s / real_s, energy=table.auto_energy_j / real_j),
    )


def _settling_factors(auto: Floats, total: float, capped: Bools) -> Floats:
    """Return by how much each kernel's isolated auto cost must change to add up to the step's.

    A power cap averages over many kernels: in the step a kernel at the cap borrows power from its
    neighbours, alone it cannot, so isolated kernels at auto do not add up to the step. The
    difference is put on the kernels that were at the cap, in proportion; on all where none was.
    """
    movable = capped if capped.any() else np.ones_like(capped)
    factor = (total - auto[~movable].sum()) / auto[movable].sum()
    if factor <= 0:
        raise DataError(
            f"the whole step cost {total:g} s or J, less than its kernels did one by one",
            hint="the samples are not of this step: measure again",
        )
    return np.where(movable, factor, 1.0)

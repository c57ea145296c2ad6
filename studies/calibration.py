"""The constants of a simulated GPU, and of kernels on it, fitted to a measured sweep.

It is the least squares of `core.model` with errors of one size: a simulator has no discrepancy.
Rows at the power cap are left out of the fit, for their clocks are not the asked ones; they are
predicted with the cap, and count in the errors.

Shape letters: R rows, K kernels.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from underclock.arrays import Ints
from underclock.core.model.damped_steps import (
    FitProblem,
    converge,
    converge_kernels,
)
from underclock.core.model.most_likely import learn_priors, restart
from underclock.core.model.parameters import (
    PER_DRAM_CYCLE,
    PER_KERNEL,
    Parameters,
    Points,
    Rows,
    Shared,
    predicted_rows,
)
from underclock.core.model.sample_rows import rows_of
from underclock.core.model.sample_sets import UNKNOWN_MHZ
from underclock.errors import DataError
from underclock.physics.cap import capped_core_mhz
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import BY_GPU, boost_mhz, busy_w, duration_s
from underclock.records import SampleSet, Step, Window

_NOISE = 0.02  # of a row
_LEAST_ROWS, _LEAST_CORE_CLOCKS = 2, 4  # as many clocks as a kernel has constants
_ROUNDS = 3  # of kernels that lean on one another, and the fit of all
_FOLDS = 5
_CAPPED = 0.93  # of the limit: a mean power includes moments below it
_TINY = 1e-9
_WIDER = 2.0  # than the priors of a campaign, which has fewer rows
_APART = 0.15  # core clocks closer than this, as a ratio, tell much the same
_REPETITION = 1e6  # more than any row tells
_HELD = 1e12  # precision of a constant that no row moves
_KNOWN = 1e-3  # information on a constant before any row
_LEAST_MHZ, _BIN_MHZ = 200.0, 5.0  # of the ladder that a capped kernel comes down


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanErrors:
    """Mean absolute relative errors of time and power, as fractions, over so many rows."""

    time: float
    power: float
    rows: int

    @classmethod
    def over(cls, parts: Sequence["MeanErrors"]) -> "MeanErrors":
        """Return the errors of all parts together, weighed by their rows."""
        rows = sum(part.rows for part in parts)
        return cls(
            time=math.fsum(part.time * part.rows for part in parts) / rows,
            power=math.fsum(part.power * part.rows for part in parts) / rows,
            rows=rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What a sweep says of a GPU.

    Attributes:
        kernels: Constants by kernel name.
        limit_w: Power at which rows settle when capped.
    """

    gpu: GpuConstants
    kernels: dict[str, KernelConstants]
    limit_w: float

    @property
    def per_dram_cycle(self) -> tuple[float, float]:
        """Energy of traffic in J, and crossbar cycles, of a DRAM cycle: the same of all kernels."""
        one = next(iter(self.kernels.values()))
        xbar = max(one.xbar_mcycles / one.dram_mcycles, _TINY)  # as a logarithm
        return one.dram_j / one.dram_mcycles, xbar


def calibrate(
    sample_set: SampleSet, start: GpuConstants, limit_w: float, held: Collection[str] = ()
) -> Calibrated:
    """Fit shared and per-kernel constants to a sweep.

    Args:
        start: Where to begin, and the constants no sweep can tell: voltage floor, board, heat,
            boost. Its memory points say which memory clocks there are.
        limit_w: Power limit of the GPU.
        held: Names of constants in ``start`` that stay as they are, besides those no sweep tells:
            of a table whose kernels are too alike to tell one from another.

    Raises:
        DataError: Too few rows to say anything of a GPU.
    """
    free = _free(sample_set, limit_w)
    _check(sample_set, free)
    problem = _problem(_rows(sample_set, free, start), start, held)
    fitted = problem.begin()
    for _ in range(_ROUNDS):
        problem = _leaning(problem, fitted)
        fitted = converge(problem, _restart(problem, fitted, 1.0))
    powers_w = [s.energy_j / s.time_s for s in sample_set.samples]
    capped_w = [each for each in powers_w if _is_capped(each, limit_w)]
    return Calibrated(
        gpu=problem.family.gpu(fitted.shared),
        kernels=_constants(problem, fitted),
        limit_w=float(np.median(capped_w)) if capped_w else limit_w,
    )


def _free(sample_set: SampleSet, limit_w: float) -> tuple[Window, ...]:
    """Return the rows at a locked core clock and away from the cap."""
    return tuple(
        s
        for s in sample_set.samples
        if s.asked.core_mhz is not None and not _is_capped(s.energy_j / s.time_s, limit_w)
    )


def _is_capped(power_w: float, limit_w: float) -> bool:
    return power_w >= _CAPPED * limit_w


def _check(sample_set: SampleSet, free: Sequence[Window]) -> None:
    """Refuse a sweep of too few rows or clocks."""
    rows = Counter(sample.kernel for sample in free)
    poor = [kernel.name for kernel in sample_set.kernels if rows[kernel.name] < _LEAST_ROWS]
    if poor:
        raise DataError(
            f"{poor[0]!r} has fewer than two rows at locked clocks away from the power cap",
            hint="measure each kernel at several core clocks, some of them low",
        )
    if len({sample.asked.core_mhz for sample in free}) < _LEAST_CORE_CLOCKS:
        raise DataError(
            "the sweep has fewer than four core clocks", hint="measure at more core clocks"
        )


def _rows(sample_set: SampleSet, windows: Iterable[Window], gpu: GpuConstants) -> Rows:
    """Return rows of a sweep, as warm as what they draw makes the GPU."""
    warm = tuple(
        msgspec.structs.replace(
            window, temperature_c=gpu.ambient_c + gpu.c_per_w * window.energy_j / window.time_s
        )
        for window in windows
    )
    rows = rows_of(msgspec.structs.replace(sample_set, windows=warm))
    fastest_mhz = gpu.mem_points_mhz[-1]
    return dataclasses.replace(
        rows,
        mem_mhz=np.where(rows.mem_mhz == UNKNOWN_MHZ, fastest_mhz, rows.mem_mhz),
        mem_points_mhz=np.array(gpu.mem_points_mhz),
    )


def _problem(rows: Rows, gpu: GpuConstants, held: Collection[str]) -> FitProblem:
    """Return what is to be fitted; constants of these names stay as they are."""
    problem = FitProblem.of(rows, Shared(gpu))
    shared = problem.shared_precision / _WIDER**2
    shared[[BY_GPU.index(name) for name in held]] = _HELD
    own = problem.by_kernels(rows.windows) / _NOISE**2
    # What usual GPUs and kernels are like pulls little.
    prior = dataclasses.replace(problem.prior, spread=_WIDER * problem.prior.spread)
    return dataclasses.replace(problem, shared_precision=shared, precision=own, prior=prior)


def _leaning(problem: FitProblem, fitted: Parameters) -> FitProblem:
    """Let kernels of a kind lean on one another; what is expected of the GPU stays."""
    return dataclasses.replace(problem, prior=learn_priors(problem, fitted).prior)


def _restart(problem: FitProblem, fitted: Parameters, odds: float) -> Parameters:
    """Let each kernel try every start, its parts overlapping or, by such odds rarer, adding."""
    each = np.ones(len(problem.rows.names), dtype=bool)
    overlap, add = (
        restart(problem, dataclasses.replace(fitted, serial=serial)) for serial in (~each, each)
    )
    costs = (problem.kernel_costs(one.kernels, problem.seen(one)[1]) for one in (overlap, add))
    better = np.diff(np.array(list(costs)), axis=0)[0] < -math.log(odds)
    kernels = np.where(better[:, None], add.kernels, overlap.kernels)
    return dataclasses.replace(fitted, kernels=kernels, serial=better)


def _constants(problem: FitProblem, parameters: Parameters) -> dict[str, KernelConstants]:
    """Return the constants of every kernel with rows, by name."""
    found = {}
    dram_j, per_dram = np.exp(parameters.shared[PER_DRAM_CYCLE]).tolist()
    for k in np.flatnonzero(np.diff(problem.rows.bounds)).tolist():
        core, dram, fixed_s, work_j = np.exp(parameters.kernels[k]).tolist()
        found[problem.rows.names[k]] = KernelConstants(
            core_mcycles=core,
            dram_mcycles=dram,
            xbar_mcycles=per_dram * dram,
            fixed_s=fixed_s,
            work_j_per_v2=work_j,
            dram_j=dram_j * dram,
            serial=parameters.serial is not None and bool(parameters.serial[k]),
        )
    return found


def held_out(
    sample_set: SampleSet,
    start: GpuConstants,
    limit_w: float,
    points: int,
    held: Collection[str] = (),
) -> MeanErrors:
    """Return errors on kernels that took no part in fitting the shared constants.

    Kernels are left out in five folds; of each left-out kernel, a few rows fit its own constants
    and the others are predicted.
    """
    parts: list[MeanErrors] = []
    folds = min(_FOLDS, len(sample_set.kernels))
    for fold in range(folds):
        out = sample_set.kernels[fold::_FOLDS]
        rest = tuple(kernel for kernel in sample_set.kernels if kernel not in out)
        names = {kernel.name for kernel in rest}
        windows = tuple(s for s in sample_set.samples if s.kernel in names)
        of_rest = Step(name=sample_set.workload, kernels=rest)
        others = msgspec.structs.replace(sample_set, step=of_rest, windows=windows)
        known = calibrate(others, start, limit_w, held)
        left_out = [kernel.name for kernel in out]
        beside = _free(others, limit_w)
        parts += errors_by_kernel(known, sample_set, limit_w, points, left_out, beside).values()
    return MeanErrors.over(parts)


def errors_by_kernel(
    known: Calibrated,
    sample_set: SampleSet,
    limit_w: float,
    points: int,
    names: Collection[str] | None = None,
    beside: tuple[Window, ...] = (),
) -> dict[str, MeanErrors]:
    """Predict kernels from a few of their rows; return the errors on other rows, by kernel.

    Args:
        points: Rows of each kernel that its constants are fitted to, the shared ones held.
        names: Which kernels; by default all of the sweep.
        beside: Rows of other kernels, for these to lean on.
    """
    free = _free(sample_set, limit_w)
    picked: list[Window] = []
    for name in [k.name for k in sample_set.kernels] if names is None else names:
        mine = [sample for sample in free if sample.kernel == name]
        picked += [mine[i] for i in design(known, mine, points).tolist()]
    problem = _problem(_rows(sample_set, (*picked, *beside), known.gpu), known.gpu, ())
    shared = problem.shared_mean.copy()
    shared[PER_DRAM_CYCLE] = np.log(known.per_dram_cycle)
    adding = sum(each.serial for each in known.kernels.values())
    odds = (1 + len(known.kernels) - adding) / (1 + adding)
    fitted = _restart(problem, dataclasses.replace(problem.begin(), shared=shared), odds)
    problem = _leaning(problem, fitted)
    fitted = converge_kernels(problem, _restart(problem, fitted, odds))[0]
    own = dataclasses.replace(known, kernels=_constants(problem, fitted))
    found = {}
    for name in dict.fromkeys(sample.kernel for sample in picked):
        mine = [s for s in sample_set.samples if s.kernel == name and s not in picked]
        if mine:
            found[name] = errors_of(own, mine)
    return found


def design(known: Calibrated, windows: Sequence[Window], points: int) -> Ints:
    """Choose which rows tell most about a kernel not yet known. Shape (points,).

    Each next row is the one that adds most information about the four constants, averaged over the
    kernels that are known.
    """
    gpu, count = known.gpu, len(known.kernels)
    core_mhz = np.array([float(w.asked.core_mhz or 0) for w in windows])
    mem_mhz = np.array([float(w.asked.mem_mhz or gpu.mem_points_mhz[-1]) for w in windows])
    family = Shared(gpu)
    shared = family.start()
    shared[PER_DRAM_CYCLE] = np.log(known.per_dram_cycle)
    kernels = [
        (each.core_mcycles, each.dram_mcycles, each.fixed_s, each.work_j_per_v2)
        for each in known.kernels.values()
    ]
    parameters = Parameters(
        family=family, shared=shared, kernels=np.log(np.maximum(kernels, _TINY))
    )
    at = Points(
        kernel=np.repeat(np.arange(count), len(windows)),
        core_mhz=np.tile(core_mhz, count),
        mem_mhz=np.tile(mem_mhz, count),
        temperature_c=np.full(count * len(windows), gpu.ambient_c),
    )
    by = predicted_rows(parameters, at).by_kernel().reshape(2, count, len(windows), PER_KERNEL)
    added = np.einsum("qkci,qkcj->kcij", by, by)
    information = np.tile(_KNOWN * np.eye(PER_KERNEL), (count, 1, 1))
    handicap, chosen = np.zeros(len(windows)), list[int]()
    for _ in range(min(points, len(windows))):
        gains = np.linalg.slogdet(information[:, None] + added)[1].sum(axis=0) + handicap
        gains[chosen] = -math.inf
        best = int(np.argmax(gains))
        chosen.append(best)
        information += added[:, best]
        # Where the model is off, it is off alike at like clocks: do not ask there twice.
        near = np.abs(np.log(core_mhz / core_mhz[best])) < _APART
        handicap = handicap - np.where(near, _REPETITION, 0.0)
    return np.array(chosen, dtype=np.int64)


def errors_of(known: Calibrated, windows: Sequence[Window]) -> MeanErrors:
    """Return the errors of predicting rows, the cap included."""
    gpu, off = known.gpu, []
    for window in windows:
        kernel, power_w = known.kernels[window.kernel], window.energy_j / window.time_s
        warm_c = gpu.ambient_c + gpu.c_per_w * power_w
        top_mhz = float(window.asked.core_mhz or boost_mhz(gpu, warm_c))
        mem_mhz = float(window.asked.mem_mhz or gpu.mem_points_mhz[-1])
        ladder = np.append(np.arange(min(_LEAST_MHZ, top_mhz), top_mhz, _BIN_MHZ), top_mhz)
        core_mhz = capped_core_mhz(gpu, kernel, ladder, mem_mhz, warm_c, known.limit_w)
        time_s = float(duration_s(gpu, kernel, core_mhz, mem_mhz))
        drawn_w = float(busy_w(gpu, kernel, core_mhz, mem_mhz, warm_c))
        off.append((abs(time_s / window.time_s - 1.0), abs(drawn_w / power_w - 1.0)))
    time, power = np.mean(off, axis=0).tolist()
    return MeanErrors(time=time, power=power, rows=len(windows))

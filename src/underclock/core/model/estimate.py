"""From a sample_set to a posterior about every kernel at every setting, and the cost table of it.

Where the step was run whole, costs are those of the step: kernels at locked clocks, the power cap
apart, under one cap on the mean power of the sequence. Else they are those of kernels alone.

Shape letters: K kernels, C settings but the baseline, n launches.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from underclock.arrays import Bools, Floats, Ints
from underclock.core.costs.heat import Heat
from underclock.core.costs.step import known_step, step_cost
from underclock.core.costs.table import CostTable, cost_table
from underclock.core.model.in_step import StepRatio, in_step, step_ratio
from underclock.core.model.laplace import FittedModel
from underclock.core.model.parameters import Shared
from underclock.core.model.posterior import Posterior, with_means, with_measured
from underclock.core.model.predicted_change import (
    ONE_SIDED,
    Baseline,
    PredictedChange,
    predicted_change,
    scheduled_change,
)
from underclock.core.model.predictive import clocks_of, posterior_of
from underclock.core.model.rows import Rows, rows_of
from underclock.core.model.start import unknown_gpu
from underclock.core.model.subsample import fitted
from underclock.core.steering.taking_off import reach_mhz, told
from underclock.physics.constants import GpuConstants
from underclock.physics.power import idle_w
from underclock.physics.thermal import AMBIENT_C
from underclock.records import Clocks, Evidence, Sample, SampleSet

STEADY_C = 55.0
_ONE_SIDE = 0.95
# What repeats in a row do not average out of a step's time. Windows of one kernel, off the cap of
# an H200, differ by 0.027 % (docs/evidence/h200).
_REPEATABLE = 2.7e-4
_FAR_OFF = 2.0  # deviations by which a model that is right misses one step in twenty
_ALONE = 0.985  # of the limit: a kernel expected to draw more may be held by the cap
_OF_HEAT = 0.2  # relative error of what heat adds: 8 °C of ambient, against 40 above it
_HALF_BIN_MHZ = 7.5
_FREE_CLOCK = 0.004  # half a clock bin of 15 MHz: what boosts by itself was not at one clock


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """What samples say of every setting, measured or not.

    Attributes:
        rows: What could be fitted.
        model: The fit.
        posterior: Of the settings but the baseline. Length C.
        counts: Launches of each kernel. Shape (K,).
        baseline: What auto costs.
        table: Expected costs; the baseline is its last setting.
        measurable: Which settings a kernel has an answer at. Shape (K, C).
        can: Of these, the ones that can be planned. A kernel without rows, because all of its
            samples ran at the power cap, say, only where it was measured; so is every kernel of a
            table, of which another row costs nothing but a look. Shape (K, C).
        exact: Whether a measurement is the truth, as in a table that is replayed.
        step_error: By how much more than its own errors the model misses the step at auto, as
            fractions: time, energy.
    """

    rows: Rows
    model: FittedModel
    posterior: Posterior
    counts: Floats
    baseline: Baseline
    table: CostTable
    measurable: Bools
    can: Bools
    exact: bool
    step_error: tuple[float, float] = (0.0, 0.0)

    @property
    def holds_alone(self) -> Bools:
        """Where a kernel that runs alone draws less than the cap leaves it. Shape (K, C)."""
        below: Bools = self.posterior.log_w < math.log(_ALONE * self.rows.limit_w)
        return below

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice is expected to change.

        Args:
            setting: Index into the table's settings, of each kernel. Shape (K,).
        """
        columns = np.where(setting == self.table.baseline, -1, setting)
        change = predicted_change(self.posterior, self.counts, self.baseline, columns)
        if self.table.power_cap is None or (columns < 0).all():
            return change
        return self._under_cap(change, setting[self.table.power_cap.order])

    def predicted_schedule(self, choice: Ints) -> PredictedChange:
        """Say what a schedule is expected to change, changes of clocks apart.

        Args:
            choice: Index into the table's settings, of each launch. Shape (n,).

        Raises:
            ValueError: Costs are not those of the step.
        """
        cap = self.table.power_cap
        if cap is None:
            raise ValueError("a schedule is of launches, costs are of kernels alone")
        pairs, launches = np.unique(np.stack([cap.order, choice]), axis=1, return_counts=True)
        locked = pairs[1] != self.table.baseline
        change = scheduled_change(
            self.posterior, self.baseline, pairs[:, locked], launches[locked].astype(np.float64)
        )
        return self._under_cap(change, choice)

    def _under_cap(self, change: PredictedChange, choice: Ints) -> PredictedChange:
        """Add what the cap makes of a schedule, and how well the model knows the step."""
        cost = step_cost(self.table, choice)
        time, energy = self.step_error
        if self.table.heat is not None:
            # What heat adds is as unsure as the ambient temperature is against the step's own.
            as_cool = dataclasses.replace(self.table, heat=None)
            added = cost.energy_change - step_cost(as_cool, choice).energy_change
            energy = math.hypot(energy, _OF_HEAT * added)
        return PredictedChange(
            time_change=cost.time_change,
            energy_change=cost.energy_change,
            time_spread=math.hypot(change.time_spread, (1.0 + cost.time_change) * time),
            energy_spread=math.hypot(change.energy_spread, (1.0 + cost.energy_change) * energy),
        )


def estimate(
    sample_set: SampleSet, *, baseline: Clocks | None = None, isolated: bool = False
) -> CostEstimate:
    """Fit a sample_set and predict every setting it set out to visit.

    Args:
        sample_set: Samples of every kernel at the baseline, and of some at other settings.
        baseline: The setting to call auto; as for `cost_table`.
        isolated: Whether costs are those of kernels alone even where the step was run whole, as in
            arXiv 2601.08539.

    Raises:
        DataError: The samples cannot be costed or fitted.
    """
    measured = cost_table(sample_set, baseline=baseline)
    auto = measured.settings[measured.baseline]
    whole = bool(sample_set.in_situ and sample_set.order and auto.is_auto and not isolated)
    settings = _settings(sample_set, auto)
    if whole:
        settings = tuple(clocks for clocks in settings if clocks.core_mhz is not None)
    rows, model = fit_rows(sample_set, settings)
    limit_w = rows.peak_w if whole else rows.limit_w
    posterior = posterior_of(
        model, settings, temperature_c=temperature_of(sample_set), limit_w=limit_w
    )
    exact = sample_set.evidence is Evidence.REPLAYED
    log_s, log_w, repeats = _measured(sample_set, settings)
    unknown = np.diff(rows.bounds) == 0
    if exact:
        posterior = with_measured(posterior, log_s, log_w)
    else:
        posterior = with_means(posterior, unknown, log_s, log_w, repeats)
    counts = np.array([kernel.count for kernel in sample_set.kernels], dtype=np.float64)
    ratio = step_ratio(rows, posterior, counts) if whole else StepRatio()
    posterior = in_step(posterior, ratio)
    measurable = _measurable(sample_set, settings, rows.ceiling_mhz)
    predicted = np.zeros_like(unknown) if exact else ~unknown
    can = measurable & (np.isfinite(log_s) | predicted[:, None])
    at = measured.baseline
    auto_s, auto_j = measured.time_s[:, at], measured.energy_j[:, at]
    time_s, energy_j = (np.where(can, costs, math.inf) for costs in posterior.costs(counts))
    table = dataclasses.replace(
        measured,
        warnings=(*measured.warnings, *told(sample_set)),
        settings=(*settings, auto),
        time_s=np.column_stack([time_s, auto_s]),
        energy_j=np.column_stack([energy_j, auto_j]),
        baseline=len(settings),
    )
    known = None
    if whole:
        known = known_step(table, sample_set, rows.limit_w)
    if known is not None:
        table = dataclasses.replace(known.table, heat=_heat(model, table, sample_set))
        auto_s, auto_j = table.time_s[:, -1], table.energy_j[:, -1]
    whole_step = sample_set.in_situ if known is not None else ()
    estimated = CostEstimate(
        rows=rows,
        model=model,
        posterior=posterior,
        counts=counts,
        baseline=Baseline(
            time_s=auto_s,
            energy_j=auto_j,
            spread=(0.0, 0.0)
            if exact
            else _auto_spread(sample_set, posterior, (auto_s, auto_j), whole_step),
            of_kernels=np.zeros_like(posterior.noise) if exact else _of_kernels(posterior),
        ),
        table=table,
        measurable=measurable,
        can=can,
        exact=exact,
    )
    return estimated if known is None else _with_step_error(estimated, known.at_auto)


def _heat(model: FittedModel, table: CostTable, sample_set: SampleSet) -> Heat | None:
    """Return how the step's heat follows its power; ``None`` where no temperature was read."""
    read = [s.temperature_c for s in sample_set.in_situ if s.temperature_c is not None]
    if not read:
        return None
    mean_w = sum(s.energy_j for s in sample_set.in_situ) / sum(s.time_s for s in sample_set.in_situ)
    core_mhz, mem_mhz = clocks_of(model.rows, table.settings)
    gpu = model.parameters.family.gpu(model.parameters.shared)
    drawn_w = [idle_w(gpu, core_mhz, mem_mhz, float(c)) for c in (STEADY_C, STEADY_C + 1.0)]
    return Heat(
        c_per_w=max(0.0, float(np.mean(read)) - AMBIENT_C) / mean_w, w_per_c=drawn_w[1] - drawn_w[0]
    )


def _with_step_error(estimated: CostEstimate, at_auto: Ints) -> CostEstimate:
    """Return an estimate that knows by how much more than its errors it misses the step at auto.

    Args:
        estimated: From which the step at auto is predicted.
        at_auto: Setting of each launch in it. Shape (n,).
    """
    closure = estimated.table.closure
    if closure is None:
        raise AssertionError("a step that was run whole has one")
    change = estimated.predicted_schedule(at_auto)
    errors = [
        math.sqrt(max(0.0, math.log(ratio) ** 2 - (_FAR_OFF * spread) ** 2))
        for ratio, spread in (
            (closure.time, change.time_spread),
            (closure.energy, change.energy_spread),
        )
    ]
    return dataclasses.replace(estimated, step_error=(errors[0], errors[1]))


def _settings(sample_set: SampleSet, auto: Clocks) -> tuple[Clocks, ...]:
    """Return every setting but the baseline, slowest first."""
    known = dict.fromkeys((*sample_set.settings, *(sample.asked for sample in sample_set.samples)))
    reach = reach_mhz(sample_set)
    return tuple(
        sorted(
            (
                s
                for s in known
                if s != auto and not s.is_auto and (reach is None or _is_reached(s, *reach))
            ),
            key=lambda clocks: clocks.rank,
        )
    )


def _is_reached(clocks: Clocks, lowest_mhz: float, highest_mhz: float) -> bool:
    """Whether steering went there: it sees no other memory clocks, and no lower core clocks."""
    core_mhz = clocks.core_mhz
    if clocks.mem_mhz is not None or core_mhz is None:
        return False
    return lowest_mhz - _HALF_BIN_MHZ <= core_mhz <= highest_mhz + _HALF_BIN_MHZ


def fit_rows(sample_set: SampleSet, settings: Sequence[Clocks]) -> tuple[Rows, FittedModel]:
    """Fit samples.

    Steered company is taken off twice: how idle power follows the clock is first assumed, then
    fitted. At held clocks it was measured.

    Args:
        sample_set: The samples.
        settings: Clocks of the GPU, to begin with.

    Returns:
        The rows, all of them, and the fit.

    Raises:
        DataError: The samples cannot be fitted.
    """
    rows = rows_of(sample_set)
    model = fitted(rows, Shared(start_of(rows, settings)))
    if any(sample.asked.is_auto for sample in sample_set.mixed):
        parameters = model.parameters
        rows = rows_of(sample_set, parameters.family.gpu(parameters.shared))
        model = fitted(rows, Shared(start_of(rows, settings)))
    return rows, model


def start_of(rows: Rows, settings: Sequence[Clocks]) -> GpuConstants:
    """Return constants to begin the fit of some rows with."""
    asked = [float(s.core_mhz) for s in settings if s.core_mhz is not None]
    return unknown_gpu(
        rows.mem_points_mhz.tolist(),
        fastest_mhz=max([float(rows.core_mhz.max()), *asked]),
        most_w=float(np.exp(rows.log_w.max())),
    )


def temperature_of(sample_set: SampleSet) -> float:
    """Return the temperature the step runs at: in situ, else that of the samples."""
    for samples in (sample_set.in_situ, sample_set.samples):
        seen = [s.temperature_c for s in samples if s.temperature_c is not None]
        if seen:
            return float(np.median(seen))
    return STEADY_C


def _measured(sample_set: SampleSet, settings: Sequence[Clocks]) -> tuple[Floats, Floats, Floats]:
    """Return logarithms of the mean measured time and power, ``nan`` where none, and repeats."""
    place = {clocks: c for c, clocks in enumerate(settings)}
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    sums = np.zeros((3, len(index), len(settings)))
    for sample in sample_set.samples:
        c = place.get(sample.asked)
        if c is not None:
            sums[:, index[sample.kernel], c] += (1.0, sample.time_s, sample.energy_j)
    with np.errstate(divide="ignore", invalid="ignore"):
        time_s, energy_j = sums[1:] / sums[0]
        return np.log(time_s), np.log(energy_j / time_s), sums[0]


def _measurable(sample_set: SampleSet, settings: Sequence[Clocks], ceiling_mhz: float) -> Bools:
    """Return which settings a kernel has an answer at: not where a lock would not hold."""
    can = np.ones((len(sample_set.kernels), len(settings)), dtype=bool)
    can[:, [(clocks.core_mhz or 0) > ceiling_mhz for clocks in settings]] = False
    place = {clocks: c for c, clocks in enumerate(settings)}
    for k, kernel in enumerate(sample_set.kernels):
        # What a table lacks may be auto, which is no setting to choose.
        lacking = [place[c] for c in sample_set.lacking.get(kernel.name, ()) if c in place]
        can[k, lacking] = False
    return can


def _of_kernels(posterior: Posterior) -> Floats:
    """Return the relative errors of each kernel's time and energy at auto. Shape (2, K)."""
    time2, power2 = posterior.noise**2
    errors: Floats = np.sqrt(np.stack([time2, time2 + power2]) + _FREE_CLOCK**2)
    return errors


def _auto_spread(
    sample_set: SampleSet,
    posterior: Posterior,
    auto: tuple[Floats, Floats],
    whole: Sequence[Sample],
) -> tuple[float, float]:
    """Return the relative errors of what auto costs: of the whole step, or of kernels' sum."""
    time2, power2 = posterior.noise**2
    spreads = []
    for variance, costs, values in (
        (time2, auto[0], [s.time_s for s in whole]),
        (time2 + power2, auto[1], [s.energy_j for s in whole]),
    ):
        if not whole:
            repeats = max(1.0, len(sample_set.samples) / max(1, len(costs)) / 8)
            spreads.append(math.sqrt(float((variance * costs**2).sum()) / repeats) / costs.sum())
            continue
        # One kernel's noise stands for one window's; repeats, where there are some, say more.
        prior2, weight = float(np.median(variance)), 1.0
        off2 = float(np.var(values)) * len(values) / float(np.mean(values)) ** 2
        freedom = weight + len(values) - 1
        each2 = (weight * prior2 + off2) / freedom
        # A scatter known from few runs: Student's t where the others have a normal distribution.
        wider = float(stdtrit(freedom, _ONE_SIDE)) / ONE_SIDED
        spreads.append(wider * math.sqrt(each2 / len(values)))
    return math.hypot(spreads[0], _REPEATABLE if whole else 0.0), spreads[1]

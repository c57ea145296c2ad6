"""Predicted savings: what other clocks would save, from samples at one pair of clocks or few more.

The question is what measuring at other clocks, and planning on it, would bring. Nobody knows the
cost table that measuring would give, so many possible ones are drawn (`draws`, and `rows` where
there are samples at other clocks). Each is planned on as if it were the true one, and the savings
make the interval. Beside that stands what locking clocks without measuring would bring: one plan,
made for the mean of the drawn tables and costed on each of them. It saves less and may be slower
than asked.

Shape letters: D draws, K kernels, S settings.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import solve_strategies
from underclock.core.prediction.draws import draw_costs
from underclock.core.prediction.prior import BaselineRun, Prior
from underclock.core.prediction.rows import given_rows
from underclock.core.step.breakdown import settle_auto
from underclock.core.step.cap import CapMargin, capped_kernels, driver_says
from underclock.core.step.table import CostTable, cost_table, overlapped
from underclock.errors import DataError
from underclock.records import Arm, Clocks, Cost, Kernel, SampleSet, Strategy, Window
from underclock.records.observed import Interval, PredictedArm

# Of the power limit: less is below any GPU at rest, and no mean over a launch overshoots by more.
_LEAST_POWER, _MOST_POWER = 0.01, 1.5
_MOST_KERNELS = 200  # of a step that is drawn kernel by kernel: half of them, and pools of others


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTableDraws:
    """Cost tables that samples at one pair of clocks leave possible.

    Attributes:
        measured: The kernels, the settings and the baseline of every draw. Its costs are those
            measured at the baseline, in every column.
        time_s: Costs in every draw. Shape (D, K, S).
        energy_j: Costs in every draw. Shape (D, K, S).
    """

    measured: CostTable
    time_s: Floats
    energy_j: Floats

    def draw(self, d: int) -> CostTable:
        """Return one of the drawn tables."""
        return dataclasses.replace(self.measured, time_s=self.time_s[d], energy_j=self.energy_j[d])

    def mean(self) -> CostTable:
        """Return the mean of the drawn tables."""
        return dataclasses.replace(
            self.measured, time_s=self.time_s.mean(axis=0), energy_j=self.energy_j.mean(axis=0)
        )


def at_baseline(sample_set: SampleSet, baseline: Clocks) -> SampleSet:
    """Return a sample set with the samples at one pair of clocks only.

    Raises:
        DataError: A kernel has no such sample.
    """
    samples = tuple(sample for sample in sample_set.samples if sample.asked == baseline)
    sampled = {sample.kernel for sample in samples}
    lacking = [kernel.name for kernel in sample_set.kernels if kernel.name not in sampled]
    if lacking:
        raise DataError(
            f"{lacking[0]!r} has no sample at {baseline}",
            hint="measure at auto clocks, which needs no permission, or name a --baseline that "
            "every kernel has",
        )
    in_situ = sample_set.in_situ if baseline.is_auto else ()
    return msgspec.structs.replace(sample_set, windows=(*samples, *in_situ))


def pooled(sample_set: SampleSet, baseline: Clocks) -> SampleSet:
    """Return a step of fewer kernels, where it has many: the small ones stand together.

    Kernels of one pass that were measured at the same clocks, and draw about as much, become one
    that costs what they do together. Of hundreds of them, what each has of its own evens out.
    """
    if len(sample_set.kernels) <= _MOST_KERNELS:
        return sample_set
    rows: dict[str, dict[Clocks, list[Window]]] = {k.name: {} for k in sample_set.kernels}
    for sample in sample_set.samples:
        rows[sample.kernel].setdefault(sample.asked, []).append(sample)
    runs = {name: some[baseline] for name, some in rows.items()}
    most = sorted(
        sample_set.kernels, key=lambda k: -k.count * _mean([s.energy_j for s in runs[k.name]])
    )
    small = [k for k in most[_MOST_KERNELS // 2 :] if k.waited_for == 1.0]
    alike: dict[object, list[Kernel]] = {}
    for kernel in small:
        lacking = sample_set.lacking.get(kernel.name)
        alike.setdefault((kernel.pass_, frozenset(rows[kernel.name]), lacking), []).append(kernel)
    size = -(-2 * len(small) // _MOST_KERNELS)
    gone = {kernel.name for kernel in small}
    kernels = [kernel for kernel in sample_set.kernels if kernel.name not in gone]
    samples = [sample for sample in sample_set.samples if sample.kernel not in gone]
    for some in alike.values():
        some.sort(key=lambda k: _mean([s.energy_j / s.time_s for s in runs[k.name]]))
        for begin in range(0, len(some), size):
            group = some[begin : begin + size]
            kernels.append(msgspec.structs.replace(group[0], count=1))
            samples += [
                _together([(k.count, rows[k.name][clocks]) for k in group])
                for clocks in rows[group[0].name]
            ]
    windows = tuple(window.untimed() for window in (*samples, *sample_set.in_situ))
    return msgspec.structs.replace(sample_set, kernels=tuple(kernels), windows=windows, order=())


def _together(parts: list[tuple[int, list[Window]]]) -> Window:
    """Return samples of several kernels at one setting as one; what is no sum is the longest's."""
    taken_s = [count * _mean([s.time_s for s in some]) for count, some in parts]
    longest = parts[int(np.argmax(taken_s))][1][0]
    energy_j = math.fsum(count * _mean([s.energy_j for s in some]) for count, some in parts)
    name = parts[0][1][0].kernel
    return msgspec.structs.replace(
        longest, kernel=name, repeat=0, time_s=math.fsum(taken_s), energy_j=energy_j
    )


def baseline_runs(
    sample_set: SampleSet, baseline: Clocks, *, mem_mhz: float, limit_w: float
) -> list[BaselineRun]:
    """Return what each kernel did at the baseline, repeats averaged. Length K.

    Args:
        mem_mhz: Memory clock that auto stands for, where nobody read it.

    Raises:
        DataError: A power that no GPU with such a limit draws.
    """
    by_kernel: dict[str, list[Window]] = {kernel.name: [] for kernel in sample_set.kernels}
    for sample in sample_set.samples:
        by_kernel[sample.kernel].append(sample)
    return [
        _checked(name, _run(samples, baseline, mem_mhz, limit_w), limit_w)
        for name, samples in by_kernel.items()
    ]


def _checked(kernel: str, run: BaselineRun, limit_w: float) -> BaselineRun:
    """Refuse a run whose power tells of wrong units: constants that reproduce it mean nothing."""
    if _LEAST_POWER * limit_w <= run.power_w <= _MOST_POWER * limit_w:
        return run
    raise DataError(
        f"{kernel!r} draws {run.power_w:.4g} W in the mean on a GPU limited to {limit_w:.4g} W",
        hint="check the units: times are in seconds of one launch, energies in joules",
    )


def draw_tables(  # noqa: PLR0913 - three of them say only how it is drawn
    sample_set: SampleSet,
    baseline: Clocks,
    prior: Prior,
    runs: Sequence[BaselineRun],
    settings: Sequence[Clocks],
    *,
    draws: int = 200,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> CostTableDraws:
    """Draw the cost tables that samples leave possible.

    Args:
        sample_set: Samples of every kernel at the baseline, and of some at other clocks.

    Raises:
        DataError: The whole step does not agree with its kernels.
    """
    used = at_baseline(sample_set, baseline)
    costs = cost_table(msgspec.structs.replace(used, windows=used.samples), baseline=baseline)
    every = tuple(sorted({*settings, baseline}, key=lambda clocks: clocks.rank))
    place = every.index(baseline)
    ratios = draw_costs(prior, runs, every, draws=draws, seed=seed, progress=progress)
    ratios = given_rows(ratios, sample_set, every, place, gpu=prior.gpu, seed=seed)
    ratios.time[:, :, place] = ratios.energy[:, :, place] = 1.0
    for ratio in (ratios.time, ratios.energy):
        ratio[:, overlapped(costs.kernels)] = 1.0
    measured = dataclasses.replace(
        costs,
        settings=every,
        time_s=np.repeat(costs.time_s, len(every), axis=1),
        energy_j=np.repeat(costs.energy_j, len(every), axis=1),
        baseline=place,
        warnings=(),
    )
    fixed_j = costs.fixed_j[:, None]
    own_j = measured.energy_j - fixed_j
    time_s, energy_j = measured.time_s * ratios.time, own_j * ratios.energy + fixed_j
    if used.in_situ:
        measured = settle_auto(measured, used.in_situ, capped_kernels(used))
        time_s[:, :, place] = measured.time_s[:, place]
        energy_j[:, :, place] = measured.energy_j[:, place]
    for k, kernel in enumerate(costs.kernels):
        never = [every.index(c) for c in sample_set.lacking.get(kernel.name, ()) if c in every]
        time_s[:, k, never] = energy_j[:, k, never] = np.inf
    return CostTableDraws(measured=measured, time_s=time_s, energy_j=energy_j)


def savings_after_measuring(
    tables: CostTableDraws,
    max_slowdown: float,
    confidence: float,
    progress: Callable[[float], None] | None = None,
) -> tuple[PredictedArm, ...]:
    """Predict what each strategy would bring to one who measures and plans.

    Args:
        max_slowdown: Time budget as a fraction above the baseline; not negative, so that the
            baseline keeps it.

    Raises:
        ValueError: A budget that no choice keeps.
    """
    goal = Goal(max_slowdown=max_slowdown)
    costs: dict[Strategy, list[Cost]] = {}
    for d in range(len(tables.time_s)):
        for arm in solve_strategies(tables.draw(d), goal).arms[1:]:
            costs.setdefault(arm.name, []).append(_cost(arm))
        if progress is not None:
            progress((d + 1) / len(tables.time_s))
    return tuple(
        _predicted_arm(
            strategy,
            np.array([cost.time_change for cost in drawn]),
            np.array([cost.energy_change for cost in drawn]),
            confidence,
        )
        for strategy, drawn in costs.items()
    )


def savings_without_measuring(
    tables: CostTableDraws, max_slowdown: float, confidence: float
) -> PredictedArm:
    """Predict what a plan made without measuring would do; it may be slower than the budget.

    Args:
        tables: The drawn ones; the plan is made for their mean.
        max_slowdown: Time budget as a fraction above the baseline.
    """
    strategy = Strategy.KERNEL_GLOBAL
    solved = solve_strategies(tables.mean(), Goal(max_slowdown=max_slowdown))
    setting = solved.settings[strategy]
    time_s, energy_j = (_total(costs, setting) for costs in (tables.time_s, tables.energy_j))
    return _predicted_arm(
        strategy,
        time_s / tables.measured.auto_time_s - 1.0,
        energy_j / tables.measured.auto_energy_j - 1.0,
        confidence,
    )


def _predicted_arm(
    strategy: Strategy, time: Floats, energy: Floats, confidence: float
) -> PredictedArm:
    """Sum up changes over draws. Shapes (D,)."""
    return PredictedArm(
        name=strategy,
        time_change=interval(time, confidence),
        energy_change=interval(energy, confidence),
    )


def interval(draws: Floats, confidence: float) -> Interval:
    """Return the mean of draws, and the quantiles that enclose the middle of them. Shape (D,)."""
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(draws, (tail, 1.0 - tail)).tolist()
    return Interval(expected=float(draws.mean()), low=low, high=high)


def _cost(arm: Arm) -> Cost:
    if arm.cost is None:
        raise ValueError(f"no choice of {arm.name} keeps a budget below the baseline")
    return arm.cost


def _total(costs: Floats, setting: Ints) -> Floats:
    """Return the cost of a choice in every draw. Shape (D,)."""
    total: Floats = costs[:, np.arange(len(setting)), setting].sum(axis=1)
    return total


def _run(samples: list[Window], baseline: Clocks, mem_mhz: float, limit_w: float) -> BaselineRun:
    """Average the samples of one kernel, and the readings of those that have any."""
    power_w = math.fsum(s.energy_j for s in samples) / math.fsum(s.time_s for s in samples)
    observed = [s.observed for s in samples if s.observed is not None]
    said = [word for s in samples if (word := driver_says(s.throttle_reasons)) is not None]
    cores = [c.core_mhz for c in observed if c.core_mhz is not None]
    mems = [c.mem_mhz for c in observed if c.mem_mhz is not None]
    warm = [s.temperature_c for s in samples if s.temperature_c is not None]
    counted = [s.utilisation for s in samples if s.utilisation is not None]
    capped = any(said) if said else power_w >= CapMargin.UNREAD.value * limit_w
    return BaselineRun(
        time_s=math.fsum(s.time_s for s in samples) / len(samples),
        power_w=power_w,
        core_mhz=_mean(cores) if cores else None if capped else baseline.core_mhz,
        mem_mhz=_mean(mems) if mems else float(baseline.mem_mhz or mem_mhz),
        temperature_c=_mean(warm) if warm else None,
        capped=capped,
        locked=baseline.core_mhz is not None,
        utilisation=counted[0] if counted else None,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

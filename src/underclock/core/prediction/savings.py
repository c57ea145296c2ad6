"""What a plan would save, from samples at one pair of clocks.

The question is what measuring at other clocks, and planning on it, would bring. Nobody knows the
table that it would give, so many possible ones are drawn (`possible`), and each is planned on as
if it were the one: the savings make the interval. Besides, `blind` is what locking at once would
bring: one plan, made for the mean of the possible tables, costed on each of them. It saves less
and may be slower than asked.

Shape letters: D draws, K kernels, S settings.
"""

import dataclasses
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.costs.cap import CapMargin, capped_kernels, driver_says
from underclock.core.costs.table import CostTable, cost_table, settle_auto
from underclock.core.planning.strategies import Goal, compare_arms
from underclock.core.prediction.monte_carlo import possible
from underclock.core.prediction.prior import Known, Run
from underclock.errors import DataError
from underclock.records import Arm, Clocks, Sample, SampleSet
from underclock.records.observed import Foreseen, Interval


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The cost tables that are possible.

    Attributes:
        of: One table, whose costs no draw has: kernels, settings and baseline. Its baseline costs
            are as measured.
        time_s: Costs in every draw. Shape (D, K, S).
        energy_j: Likewise.
    """

    of: CostTable
    time_s: Floats
    energy_j: Floats

    def draw(self, d: int) -> CostTable:
        """Return one of them."""
        return dataclasses.replace(self.of, time_s=self.time_s[d], energy_j=self.energy_j[d])

    def mean(self) -> CostTable:
        """Return their mean."""
        return dataclasses.replace(
            self.of, time_s=self.time_s.mean(axis=0), energy_j=self.energy_j.mean(axis=0)
        )


def at_baseline(sample_set: SampleSet, baseline: Clocks) -> SampleSet:
    """Return a sample_set with the samples at one pair of clocks only.

    Raises:
        DataError: There are none, or a kernel has none.
    """
    samples = tuple(sample for sample in sample_set.samples if sample.asked == baseline)
    seen = {sample.kernel for sample in samples}
    lacking = [kernel.name for kernel in sample_set.kernels if kernel.name not in seen]
    if lacking:
        raise DataError(
            f"{lacking[0]!r} has no sample at {baseline}",
            hint="measure at auto clocks, which needs no permission, or name a --baseline that "
            "every kernel has",
        )
    in_situ = sample_set.in_situ if baseline.is_auto else ()
    return msgspec.structs.replace(sample_set, samples=samples, in_situ=in_situ)


def runs_of(
    sample_set: SampleSet, baseline: Clocks, *, mem_mhz: float, limit_w: float
) -> list[Run]:
    """Say what each kernel did at the baseline, repeats averaged. Length K.

    Args:
        sample_set: Samples at the baseline only.
        baseline: Its clocks.
        mem_mhz: Memory clock that auto stands for, where nobody read it.
        limit_w: Power limit.
    """
    return [
        _run(
            [sample for sample in sample_set.samples if sample.kernel == kernel.name],
            baseline,
            mem_mhz,
            limit_w,
        )
        for kernel in sample_set.kernels
    ]


def tables_of(
    sample_set: SampleSet,
    baseline: Clocks,
    known: Known,
    runs: Sequence[Run],
    settings: Sequence[Clocks],
    *,
    draws: int = 200,
    seed: int = 0,
) -> Tables:
    """Draw the cost tables that samples at one pair of clocks leave possible.

    Args:
        sample_set: Samples at the baseline only.
        baseline: Its clocks.
        known: What is known of the GPU.
        runs: What each kernel did.
        settings: Clocks that a plan may hold, beside the baseline.
        draws: How many tables.
        seed: Of the draws.

    Raises:
        DataError: The whole step does not agree with its kernels.
    """
    measured = cost_table(msgspec.structs.replace(sample_set, in_situ=()), baseline=baseline)
    every = tuple(sorted({*settings, baseline}, key=lambda clocks: clocks.rank))
    place = every.index(baseline)
    drawn = possible(
        known,
        runs,
        _clocks([clocks.core_mhz for clocks in every]),
        _clocks([clocks.mem_mhz for clocks in every]),
        draws=draws,
        seed=seed,
    )
    drawn.time[:, :, place] = drawn.energy[:, :, place] = 1.0
    of = dataclasses.replace(
        measured,
        settings=every,
        time_s=np.repeat(measured.time_s, len(every), axis=1),
        energy_j=np.repeat(measured.energy_j, len(every), axis=1),
        baseline=place,
        warnings=(),
    )
    time_s, energy_j = of.time_s * drawn.time, of.energy_j * drawn.energy
    if sample_set.in_situ:
        of = settle_auto(of, sample_set.in_situ, capped_kernels(sample_set))
        time_s[:, :, place], energy_j[:, :, place] = of.time_s[:, place], of.energy_j[:, place]
    return Tables(of=of, time_s=time_s, energy_j=energy_j)


def foresee(tables: Tables, max_slowdown: float, confidence: float) -> tuple[Foreseen, ...]:
    """Say what each way of choosing clocks would bring to one who measures and plans.

    Args:
        tables: The possible ones.
        max_slowdown: Time budget as a fraction above the baseline; not negative, so that the
            baseline keeps it.
        confidence: Of the intervals, 0 to 1.

    Raises:
        ValueError: A budget that no choice keeps.
    """
    goal = Goal(max_slowdown=max_slowdown)
    changes: dict[str, list[tuple[float, float]]] = {}
    for d in range(len(tables.time_s)):
        for arm in compare_arms(tables.draw(d), goal).arms[1:]:
            changes.setdefault(arm.name, []).append(_changes(arm))
    return tuple(
        foreseen(name, np.array([t for t, _ in pairs]), np.array([e for _, e in pairs]), confidence)
        for name, pairs in changes.items()
    )


def blind(tables: Tables, max_slowdown: float, confidence: float) -> Foreseen:
    """Say what a plan made without measuring would do; it may be slower than the budget.

    Args:
        tables: The possible ones; the plan is made for their mean.
        max_slowdown: As above.
        confidence: As above.
    """
    found = compare_arms(tables.mean(), Goal(max_slowdown=max_slowdown))
    setting = found.settings["kernel_global"]
    time_s, energy_j = (_total(costs, setting) for costs in (tables.time_s, tables.energy_j))
    return foreseen(
        "blind",
        time_s / tables.of.auto_time_s - 1.0,
        energy_j / tables.of.auto_energy_j - 1.0,
        confidence,
    )


def foreseen(name: str, time: Floats, energy: Floats, confidence: float) -> Foreseen:
    """Sum up changes over draws. Shapes (D,)."""
    return Foreseen(
        name=name,
        time_change=interval(time, confidence),
        energy_change=interval(energy, confidence),
    )


def interval(values: Floats, confidence: float) -> Interval:
    """Return the mean of draws and where the middle of them lies. Shape (D,)."""
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(values, (tail, 1.0 - tail)).tolist()
    return Interval(expected=float(values.mean()), low=low, high=high)


def _changes(arm: Arm) -> tuple[float, float]:
    """Return the changes of time and energy of an arm.

    Raises:
        ValueError: Nothing keeps the budget, as the baseline does any that is not negative.
    """
    if arm.cost is None:
        raise ValueError(f"no choice of {arm.name} keeps a budget below the baseline")
    return arm.cost.time_change, arm.cost.energy_change


def _total(costs: Floats, setting: Ints) -> Floats:
    """Return the cost of a choice in every draw. Shape (D,)."""
    total: Floats = costs[:, np.arange(len(setting)), setting].sum(axis=1)
    return total


def _clocks(values: Sequence[int | None]) -> Floats:
    """Write auto as ``nan``. Shape (S,)."""
    return np.array([math.nan if value is None else float(value) for value in values])


def _run(samples: list[Sample], baseline: Clocks, mem_mhz: float, limit_w: float) -> Run:
    """Average the samples of one kernel; of readings, those that were taken."""
    power_w = math.fsum(s.energy_j for s in samples) / math.fsum(s.time_s for s in samples)
    seen = [s.observed for s in samples if s.observed is not None]
    said = [word for s in samples if (word := driver_says(s)) is not None]
    cores = [c.core_mhz for c in seen if c.core_mhz is not None]
    mems = [c.mem_mhz for c in seen if c.mem_mhz is not None]
    warm = [s.temperature_c for s in samples if s.temperature_c is not None]
    counted = [s.utilisation for s in samples if s.utilisation is not None]
    capped = any(said) if said else power_w >= CapMargin.UNREAD.value * limit_w
    return Run(
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

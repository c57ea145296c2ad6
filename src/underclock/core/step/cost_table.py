"""From samples to one cost per kernel and setting.

Some launches overlap with work that the step waits for: a collective beneath a product adds nothing
to the step's time and runs at the product's clock. A kernel therefore counts for the launches that
the step waits for; the energy above idle of its overlapped launches is the same at every setting.

Kernels without a sample are imputed from the whole step: their times were read inside it, and their
power is a weighted mean of two estimates, the remainder of the step's energy after all measured
kernels (sharp where they take much of the time), and the power of measured kernels of their kind.

Shape letters: K kernels, S settings, n launches, U kernels without a sample.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.step.power_cap import LaunchCosts, PowerCap
from underclock.errors import DataError
from underclock.physics.constants import Values
from underclock.records import AUTO, Accounting, Clocks, Closure, Kernel, SampleSet, Window
from underclock.units import first_and_more

_LEAST_SPREAD = 0.3  # of the power of a kernel of which nothing but its kind is known
_FEWEST = 3  # kernels of a kind, at least, whose mean is the power of that kind
_CLOSES = 0.05  # of the step's energy, by which kernels alone do not add up to it: 4.5 % on an H200


class Unmeasured(NamedTuple):
    """Time and power at auto imputed for kernels that never ran by themselves."""

    places: Ints  # which kernels they are, (U,)
    time_s: Floats
    power_w: Floats  # as expected, (U,)
    spread: Floats  # standard deviation of its logarithm, (U,)
    warnings: tuple[str, ...] = ()

    def without(self, reached: Ints) -> "Unmeasured":
        """Return what is imputed for the kernels not reached."""
        kept = ~np.isin(self.places, reached)
        time_s, power_w, spread = (each[kept] for each in (self.time_s, self.power_w, self.spread))
        return Unmeasured(self.places[kept], time_s, power_w, spread, self.warnings)


def unmeasured(sample_set: SampleSet) -> Unmeasured:
    """Impute kernels without a sample from the whole step; none where it was not timed."""
    reached = {sample.kernel for sample in sample_set.samples}
    missing = [k for k, one in enumerate(sample_set.kernels) if one.name not in reached]
    launch_s = in_step_s(sample_set) if missing and sample_set.in_situ else None
    # The power of each kernel alone at auto, nan where it was not run. Shape (K,).
    sums = {kernel.name: np.zeros(2) for kernel in sample_set.kernels}
    for sample in sample_set.samples:
        if sample.asked == AUTO and sample.kernel in sums:
            sums[sample.kernel] += sample.energy_j, sample.time_s
    with np.errstate(invalid="ignore"):
        power_w = np.array([energy_j / time_s for energy_j, time_s in sums.values()])
    known = np.flatnonzero(np.isfinite(power_w))
    if launch_s is None or not len(known):
        return Unmeasured(np.zeros(0, dtype=np.int64), *np.zeros((3, 0)))
    places = np.array(missing, dtype=np.int64)
    taken_s = launch_s * [kernel.waited_count for kernel in sample_set.kernels]
    # Every kernel as those of its kind, and then all as what they leave of the step asks.
    kinds = [kernel.kind for kernel in sample_set.kernels]
    means, spreads = list[float](), list[float]()
    for k in missing:
        alike = power_w[np.isfinite(power_w) & np.array([kind is kinds[k] for kind in kinds])]
        alike = alike if len(alike) >= _FEWEST else power_w[known]
        means.append(float(alike.mean()))
        spreads.append(max(float(alike.std()), _LEAST_SPREAD * means[-1]))
    means_w, spreads_w = np.array(means), np.array(spreads)
    whole_j = float(np.mean([sample.energy_j for sample in sample_set.in_situ]))
    left_j = whole_j - float(taken_s[known] @ power_w[known])
    of_sum = spreads_w**2 * taken_s[places]
    gain = of_sum / (float(of_sum @ taken_s[places]) + (_CLOSES * whole_j) ** 2)
    expected_w = means_w + gain * (left_j - float(taken_s[places] @ means_w))
    expected_w = np.clip(expected_w, power_w[known].min(), power_w[known].max())
    variance = spreads_w**2 - gain * of_sum
    share = float(taken_s[places].sum() / taken_s.sum())
    names = first_and_more([sample_set.kernels[k].name for k in missing])
    takes, was = ("take", "were") if len(missing) > 1 else ("takes", "was")
    warning = (
        f"{names} {was} never run alone and {takes} {100.0 * share:.2g} % of the "
        "step's time: times are those inside the step, powers what other kernels leave of the "
        "step's, both less sure at other clocks; `underclock measure` goes on from here"
    )
    spread = np.sqrt(variance) / expected_w
    return Unmeasured(places, launch_s[places], expected_w, spread, (warning,))


def step_mhz(sample_set: SampleSet) -> float | None:
    """Return the core clock in MHz at which the step runs at auto; ``None`` where it is unknown."""
    whole = [sample.at_mhz for sample in _whole_at_auto(sample_set)]
    read = (each.observed.core_mhz for each in sample_set.in_situ if each.observed is not None)
    seen = whole or [mhz for mhz in read if mhz is not None]
    return fmean(seen) if seen else None


def in_step_s(sample_set: SampleSet) -> Floats | None:
    """Return how long a launch of each kernel takes inside the step at auto. Shape (K,).

    Returns:
        ``None`` where the launches of the whole step were not timed.
    """
    timed = [sample for sample in _whole_at_auto(sample_set) if sample.kernel_s]
    return np.mean([sample.kernel_s for sample in timed], axis=0) if timed else None


def _whole_at_auto(sample_set: SampleSet) -> list[Window]:
    """Return samples of the whole step by itself, as it trains."""
    at_auto = (each for each in sample_set.mixed if not each.kernel and each.asked == AUTO)
    return [each for each in at_auto if not (each.mix.hot or each.mix.idle_s)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """How temperature follows the step's mean power, once it is steady, and power temperature.

    A step that draws less runs cooler, and so draws less again: leakage follows temperature.
    """

    c_per_w: float
    w_per_c: Floats  # rise of power with temperature, at each setting, (S,)

    def extra_w(self, mean_w: Values, auto_w: float, w_per_c: Values) -> Values:
        """Return what a step, of a mean power at auto's temperature, draws more at its own."""
        loop = self.c_per_w * w_per_c
        return loop * (mean_w - auto_w) / (1.0 - loop)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """What every kernel costs per step at every setting."""

    kernels: tuple[Kernel, ...]
    settings: tuple[Clocks, ...]  # length S, slowest first; auto counts as fastest
    # Time per step of all invocations of a kernel for which the step waits, (K, S); ``inf`` where
    # not measured.
    time_s: Floats
    energy_j: Floats  # energy per step of all invocations, ``inf`` where not measured, (K, S)
    baseline: int
    # what kernels say of the step, against the step as it ran; ``None`` where it was not run whole
    closure: Closure | None = None
    # what holds the step's power, where costs are those of the step as it runs: then all settings
    # but the baseline are locked clocks, cap apart, and the baseline is the whole step at auto.
    # ``None`` where costs are sums of kernels alone
    power_cap: PowerCap | None = None
    # what another temperature makes of the step's power; ``None`` where nothing is known
    heat: Heat | None = None
    # energy above idle of each kernel's overlapped launches, the same at every setting. Shape (K,);
    # ``None`` where none is overlapped
    beside_j: Floats | None = None
    # kernels without a known response to clocks: with clocks of their own they stay at auto. Shape
    # (K,); ``None`` where there are none
    left: Bools | None = None
    warnings: tuple[str, ...] = ()
    # time and energy where the cap may hold launches, and no plan asks for: (2, K, S); ``None``
    # where these are the costs above
    held: Floats | None = None

    @property
    def fixed_j(self) -> Floats:
        """Part of each kernel's energy that is the same at every setting, 0 where none is. (K,)."""
        return np.zeros(len(self.kernels)) if self.beside_j is None else self.beside_j

    @property
    def missed(self) -> Closure:
        """What kernels say of the step at auto, against the step as it ran; 1 where it did not."""
        return self.closure or Closure(time=1.0, energy=1.0)

    @property
    def accounting(self) -> Accounting:
        """What a number of the whole step is the sum of."""
        return Accounting.ISOLATED if self.power_cap is None else Accounting.STEP

    @property
    def launches(self) -> LaunchCosts:
        """Costs of one launch."""
        counts = np.array([kernel.count for kernel in self.kernels], dtype=np.float64)[:, None]
        time_s, energy_j = self.time_s, self.energy_j
        if self.held is not None:
            time_s, energy_j = np.where(np.isfinite(time_s), (time_s, energy_j), self.held)
        return LaunchCosts(
            settings=self.settings, time_s=time_s / counts, energy_j=energy_j / counts
        )

    def only_at(self, places: Bools) -> "CostTable":
        """Return the same, where kernels are planned at these places only. Shape (K, S)."""
        time_s, energy_j = (np.where(places, of, math.inf) for of in (self.time_s, self.energy_j))
        held = np.stack([self.time_s, self.energy_j])
        return dataclasses.replace(self, time_s=time_s, energy_j=energy_j, held=held)

    @property
    def auto_time_s(self) -> float:
        """Time of one step at the baseline."""
        return math.fsum(self.time_s[:, self.baseline])

    @property
    def auto_energy_j(self) -> float:
        """Energy of one step at the baseline."""
        return math.fsum(self.energy_j[:, self.baseline])

    @property
    def auto_w(self) -> float:
        """Mean power of the step at the baseline."""
        return self.auto_energy_j / self.auto_time_s


def cost_table(
    sample_set: SampleSet, *, baseline: Clocks | None = None, weights: Floats | None = None
) -> CostTable:
    """Average repeats, weigh by count, settle what auto costs.

    Args:
        sample_set: Samples of at least one setting per kernel.
        baseline: The setting to call auto; by default auto/auto, or in a table without it the
            fastest clocks that every kernel has.
        weights: How much each of N samples counts in the mean time and energy of its row; by
            default all alike. Shape (2, N).

    Raises:
        DataError: A kernel has no sample, or no setting can serve all kernels as baseline.
    """
    settings, time_s, energy_j = _means(sample_set, weights)
    imputed = unmeasured(sample_set)
    if AUTO in settings:
        at = imputed.places, settings.index(AUTO)
        time_s[at], energy_j[at] = imputed.time_s, imputed.time_s * imputed.power_w
    if all(kernel.overlapped for kernel in sample_set.kernels):
        raise DataError(
            "the step waits for none of its kernels, so its time is unknown",
            hint="trace it again; a table's waited_for is 1 where a step waits for a kernel",
        )
    lacking = ~np.isfinite(time_s).any(axis=1)
    missing = [sample_set.kernels[k].name for k in np.flatnonzero(lacking).tolist()]
    if missing:
        raise DataError(
            f"no sample of {first_and_more(missing)}", hint="measure it, then plan again"
        )
    chosen, warnings = _baseline(sample_set, settings, time_s, baseline)
    kernels, counts = sample_set.kernels, waited_counts(sample_set.kernels)[:, None]
    # Idle power is unknown here, so all energy of an overlapped launch counts.
    beside_j = overlapped_counts(kernels) * energy_j[:, chosen]
    taken, expected = len(sample_set.samples), sample_set.expected_samples
    partial = f"{taken} of {expected} samples are taken: `underclock measure` goes on from here"
    table = CostTable(
        kernels=kernels,
        settings=settings,
        time_s=at_any_clocks(kernels, time_s * counts, chosen),
        energy_j=at_any_clocks(kernels, energy_j * counts, chosen) + beside_j[:, None],
        baseline=chosen,
        beside_j=beside_j if beside_j.any() else None,
        warnings=(
            *sample_set.warnings,
            *warnings,
            *overlap_notes(kernels, time_s[:, chosen]),
            *_lonely(sample_set, time_s, imputed),
            *imputed.warnings,
            *([] if expected is None or taken >= expected else [partial]),
        ),
    )
    if not sample_set.in_situ or not settings[chosen].is_auto:
        return table
    real_s, real_j = step_means(sample_set.in_situ)
    closure = Closure(time=table.auto_time_s / real_s, energy=table.auto_energy_j / real_j)
    return dataclasses.replace(table, closure=closure)


def share_of_sum(launches: Floats, costs: Floats) -> Floats:
    """Return what part of a sum launches of each kernel at each setting are. Shapes (K, S).

    Costs are of one launch, and not looked at where none is.
    """
    parts = np.where(launches > 0.0, launches * np.where(np.isfinite(costs), costs, 0.0), 0.0)
    return parts / math.fsum(parts.ravel())


def step_means(in_situ: Sequence[Window]) -> tuple[float, float]:
    """Return the mean time in s and energy in J of whole steps as they ran."""
    return (
        math.fsum(sample.time_s for sample in in_situ) / len(in_situ),
        math.fsum(sample.energy_j for sample in in_situ) / len(in_situ),
    )


def _means(
    sample_set: SampleSet, weights: Floats | None
) -> tuple[tuple[Clocks, ...], Floats, Floats]:
    """Return the settings, and mean time and energy of one invocation, ``inf`` without a sample."""
    # Means are those of `math.fsum`; most tables have one row of everything, and need none.
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    columns: dict[Clocks, int] = {}
    for sample in sample_set.samples:
        if sample.kernel not in index:
            raise DataError(f"a sample names {sample.kernel!r}, which is no kernel of the step")
        columns.setdefault(sample.asked, len(columns))
    row = np.array([index[sample.kernel] for sample in sample_set.samples], dtype=np.int64)
    column = np.array([columns[sample.asked] for sample in sample_set.samples], dtype=np.int64)
    costs = np.array(
        [[s.time_s for s in sample_set.samples], [s.energy_j for s in sample_set.samples]]
    )
    counts_for = np.ones_like(costs) if weights is None else weights
    means = np.full((2, len(index), len(columns)), math.inf)
    means[:, row, column] = costs
    cell = row * len(columns) + column
    order = np.argsort(cell, kind="stable")
    begins = np.flatnonzero(np.diff(cell[order], prepend=-1))
    lengths = np.diff(begins, append=len(order))
    for begin, length in zip(begins[lengths > 1], lengths[lengths > 1], strict=True):
        same = order[begin : begin + length]
        means[:, row[same[0]], column[same[0]]] = [
            math.fsum(c * w) / math.fsum(w)
            for c, w in zip(costs[:, same], counts_for[:, same], strict=True)
        ]
    settings = tuple(sorted(columns, key=lambda clocks: clocks.rank))
    time_s, energy_j = means[:, :, [columns[setting] for setting in settings]]
    return settings, time_s, energy_j


def _baseline(
    sample_set: SampleSet, settings: tuple[Clocks, ...], time_s: Floats, wanted: Clocks | None
) -> tuple[int, tuple[str, ...]]:
    """Choose the setting called auto, and say so when it is not auto."""
    everywhere = np.isfinite(time_s).all(axis=0)
    if wanted is None and AUTO in settings:
        wanted = AUTO
    if wanted is not None:
        if wanted not in settings:
            offered = "; ".join(str(settings[s]) for s in np.flatnonzero(everywhere))
            raise DataError(f"no row has the baseline {wanted}", hint=f"rows have: {offered}")
        chosen = settings.index(wanted)
        unknown = np.flatnonzero(~np.isfinite(time_s[:, chosen])).tolist()
        lacking = [sample_set.kernels[k].name for k in unknown]
        if lacking:
            raise DataError(
                f"{first_and_more(lacking)} has no row at {wanted}, so there is nothing "
                "to compare with",
                hint="measure it there, or name a baseline that every kernel has",
            )
    else:
        if not everywhere.any():
            raise DataError(
                "no row is at auto clocks, and no clock pair was measured for every kernel",
                hint="add rows with empty core_mhz and mem_mhz",
            )
        chosen = int(np.flatnonzero(everywhere)[-1])
    if settings[chosen].is_auto:
        return chosen, ()
    sentence = f"no auto row is used: changes are against {settings[chosen]}"
    if wanted is None:
        sentence += ", the fastest clocks every kernel has"
    return chosen, (sentence,)


def _lonely(sample_set: SampleSet, time_s: Floats, imputed: Unmeasured) -> tuple[str, ...]:
    """Say which kernels leave nothing to choose."""
    if any(sample.kernel_s and sample.in_company for sample in sample_set.mixed):
        return ()  # co-load took kernels to other clocks
    at_one = np.isfinite(time_s).sum(axis=1) == 1
    at_one[imputed.places] = False
    names = [sample_set.kernels[k].name for k in np.flatnonzero(at_one).tolist()]
    if not names:
        return ()
    verb = "was" if len(names) == 1 else "were"
    return (f"{first_and_more(names)} {verb} measured at one clock pair only: it stays there",)


def overlapped(kernels: Sequence[Kernel]) -> Bools:
    """Return which kernels a step does not wait for at all. Shape (K,)."""
    return np.array([kernel.overlapped for kernel in kernels], dtype=bool)


def waited_counts(kernels: Sequence[Kernel]) -> Floats:
    """Return how many launches' time a step waits for. Shape (K,)."""
    return np.array([kernel.waited_count for kernel in kernels], dtype=np.float64)


def overlapped_counts(kernels: Sequence[Kernel]) -> Floats:
    """Return how many launches' time is overlapped. Shape (K,)."""
    return np.array([kernel.count - kernel.waited_count for kernel in kernels], dtype=np.float64)


def waited_shares(kernels: Sequence[Kernel]) -> Floats:
    """Return for which share of its launches' time a step waits. Shape (K,)."""
    return np.array([kernel.waited_count / kernel.count for kernel in kernels], dtype=np.float64)


def at_any_clocks(kernels: Sequence[Kernel], costs: Floats, baseline: int) -> Floats:
    """Return costs, (K, S), equal at all settings for a kernel that is overlapped."""
    return np.where(overlapped(kernels)[:, None], costs[:, [baseline]], costs)


def shared_out(kernels: Sequence[Kernel], order: Ints, of_launches: Floats, total: float) -> Floats:
    """Share a step's cost among its kernels; overlapped kernels keep their own. Shape (K,).

    Args:
        order: Kernel of each launch. Shape (n,).
        of_launches: In proportion to what. Shape (n,).
        total: What parts add up to, in s or J.
    """
    hidden = overlapped(kernels)
    of_kernels = np.bincount(order, weights=of_launches, minlength=len(kernels)).astype(np.float64)
    fixed = float(of_kernels[hidden].sum())
    scale = (total - fixed) / (float(of_kernels.sum()) - fixed)
    return np.where(hidden, of_kernels, scale * of_kernels)


def overlap_notes(kernels: Sequence[Kernel], launch_s: Floats) -> tuple[str, ...]:
    """Return a warning about overlapped launches, if any, from what one takes at auto, (K,)."""
    some = np.array([kernel.waited_for < 1.0 for kernel in kernels], dtype=bool)
    if not some.any():
        return ()
    names = [kernels[k].name for k in np.flatnonzero(some).tolist()]
    waited_s = float((waited_counts(kernels) * launch_s)[some].sum())
    all_s = waited_s + float((overlapped_counts(kernels) * launch_s).sum())
    run = "run" if len(names) > 1 else "runs"
    sentence = (
        f"{first_and_more(names)} {run} under other launches: the step waits for "
        f"{waited_s / all_s:.0%} of the time; the rest adds none and runs at the other launches' "
        "clocks, so its energy is counted, and no saving of it"
    )
    return (sentence,)

"""check: plan on one half of a table's repeats, execute on the other, many times."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from underclock.arrays import Floats
from underclock.core.inference.table import as_measured, inferred_costs
from underclock.core.model.row_runs import odd_repeats, run_variances
from underclock.core.planning.goal import Goal
from underclock.core.planning.latency_curve import Progress
from underclock.core.planning.strategies import choose_kernels
from underclock.core.statistics.verdict import Outcomes, halves, mean_of, share_of
from underclock.core.step.table import cost_table
from underclock.core.step.whole import check_kernels_alone
from underclock.errors import DataError, InfeasibleError, UsageError
from underclock.records import Clocks, SampleSet, Window
from underclock.records.measured import renumbered
from underclock.records.outcomes import CheckedPromise, PromiseCheck
from underclock.store import SampleSource, read_samples
from underclock.units import format_percent

BUDGETS = (0.0, 0.01, 0.05)
SPLITS = 25


def check(
    samples: SampleSource,
    *,
    slowdowns: Sequence[float] = BUDGETS,
    splits: int = SPLITS,
    seed: int = 0,
    baseline: Clocks | None = None,
    progress: Progress | None = None,
) -> PromiseCheck:
    """Check on a table's own repeats what promises are worth.

    The repeats of every row are split at random. On one half clocks are planned, on the other half
    these clocks are looked up. Rows without repeats cannot be split and take no part.

    Args:
        samples: A CSV table, a samples file, or what was read of one.
        baseline: The clocks to call auto; as for `plan`.
        progress: Told how many splits are done, of how many, and what is done next.

    Raises:
        UsageError: No splits, or no budgets.
        DataError: The table cannot be read, or no kernel has repeats at auto and elsewhere.
        InfeasibleError: No choice keeps a budget.
    """
    if splits < 1:
        raise UsageError(
            f"cannot check {splits} splits",
            hint="--splits 100 takes some minutes, the usual 25 one",
        )
    budgets = tuple(dict.fromkeys(slowdowns))
    if not budgets:
        raise UsageError("there is no time budget to check", hint="for example --max-slowdown 1%")
    given = read_samples(samples)
    check_kernels_alone(given)
    kept, auto = _repeated_rows(given, baseline)
    table = cost_table(kept, baseline=auto)
    variances, tell = run_variances(kept), progress or (lambda _done, _total, _doing: None)
    rows = []
    for split in range(splits):
        tell(split, splits, "planning on halves")
        random = np.random.default_rng([seed, split])
        rows.append(_split(kept, auto, budgets, variances, random))
    tell(splits, splits, "done")
    came = np.array(rows)
    return PromiseCheck(
        evidence=kept.evidence,
        gpu=kept.gpu,
        workload=kept.workload,
        baseline=auto,
        splits=splits,
        seed=seed,
        kernels=len(kept.kernels),
        rows=int(np.isfinite(table.time_s).sum()),
        runs=len(kept.samples),
        promises=tuple(_summary(each, came[:, b].T) for b, each in enumerate(budgets)),
        warnings=(*given.warnings, *odd_repeats(kept), *_left_out(given, kept)),
    )


def _repeated_rows(sample_set: SampleSet, wanted: Clocks | None) -> tuple[SampleSet, Clocks]:
    """Return what can be split: rows with repeats, of kernels that have them at auto too."""
    whole = cost_table(sample_set, baseline=wanted)
    auto = whole.settings[whole.baseline]
    taken = Counter((sample.kernel, sample.asked) for sample in sample_set.samples)
    repeated = {place for place, runs in taken.items() if runs > 1}
    elsewhere = {kernel for kernel, clocks in repeated if clocks != auto}
    names = {kernel for kernel, clocks in repeated if clocks == auto} & elsewhere
    if not names:
        raise DataError(
            f"{sample_set.workload} has no kernel with repeats both at {auto} and elsewhere: there "
            "is no second half to execute on",
            hint="give each row two runs or more, as lines of their own; "
            "`underclock measure --repeats 3` does",
        )
    samples = [s for s in sample_set.samples if s.kernel in names]
    kept = [sample for sample in samples if (sample.kernel, sample.asked) in repeated]
    kernels = tuple(kernel for kernel in sample_set.kernels if kernel.name in names)
    # Kernels by themselves: a whole step was not run under the plan.
    isolated = msgspec.structs.replace(
        sample_set, kernels=kernels, windows=(), order=(), warnings=()
    )
    return _with(isolated, kept), auto


def _with(sample_set: SampleSet, samples: Sequence[Window]) -> SampleSet:
    """Return a sample set as if these samples were all there is."""
    visited = {_place(sample) for sample in samples}
    settings = tuple(dict.fromkeys(sample.asked for sample in samples))
    lacking = {
        kernel.name: tuple(clocks for clocks in settings if (kernel.name, clocks) not in visited)
        for kernel in sample_set.kernels
    }
    return msgspec.structs.replace(
        sample_set,
        windows=renumbered(samples),
        expected_samples=len(samples),
        settings=settings,
        sampled=True,
        lacking={name: clocks for name, clocks in lacking.items() if clocks},
    )


def _left_out(given: SampleSet, kept: SampleSet) -> tuple[str, ...]:
    """Say what takes no part."""
    rows, splittable = (
        len({(sample.kernel, sample.asked) for sample in each.samples}) for each in (given, kept)
    )
    if rows == splittable:
        return ()
    without = len(given.kernels) - len(kept.kernels)
    words = f"{rows - splittable} of {rows} rows have no repeats or no auto row that has: left out"
    return (f"{words}, and with them {without} kernels" if without else words,)


def _split(
    kept: SampleSet,
    auto: Clocks,
    budgets: Sequence[float],
    variances: Floats,
    random: np.random.Generator,
) -> list[tuple[float, ...]]:
    """Plan on a random half of the repeats, and look up on the other what these clocks cost.

    Returns:
        For each budget change and deviation as promised, and as they came: of time, then energy.
    """
    places = {place: r for r, place in enumerate(dict.fromkeys(map(_place, kept.samples)))}
    first = halves(np.array([places[_place(sample)] for sample in kept.samples]), random)
    mine, theirs = (
        _with(kept, [kept.samples[i] for i in np.flatnonzero(half).tolist()])
        for half in (first, ~first)
    )
    costs = inferred_costs(mine, baseline=auto)
    other = as_measured(theirs, variances[:, ~first], baseline=auto)
    columns = np.array([other.table.settings.index(clocks) for clocks in costs.table.settings])
    rows = []
    for budget in budgets:
        setting = choose_kernels(costs.table, Goal(max_slowdown=budget), costs)
        if setting is None:
            raise InfeasibleError(
                f"on a half, no choice of clocks changes time by {format_percent(budget)} or less",
                hint="raise --max-slowdown",
            )
        both = costs.predicted_change(setting), other.predicted_change(columns[setting])
        time = (number for each in both for number in (each.time_change, each.time_spread))
        energy = (number for each in both for number in (each.energy_change, each.energy_spread))
        rows.append((*time, *energy))
    return rows


def _place(sample: Window) -> tuple[str, Clocks]:
    return sample.kernel, sample.asked


def _summary(budget: float, came: Floats) -> CheckedPromise:
    """Return what became of the plans for a budget: eight numbers a split, shape (8, N)."""
    time, energy = (
        Outcomes(promised=each[0], spread=each[1], executed=each[2], noise=each[3])
        for each in (came[:4], came[4:])
    )
    return CheckedPromise(
        max_slowdown=budget,
        promised_energy=mean_of(energy.promised),
        executed_energy=mean_of(energy.executed),
        energy_bias=mean_of(energy.bias),
        time_bias=mean_of(time.bias),
        energy_coverage=share_of(energy.covered),
        time_coverage=share_of(time.covered),
        over_budget=share_of(time.executed > budget + 1e-9),
        beyond_noise=share_of(time.breaks(budget)),
    )

"""Check what promises are worth, from the repeats of a table: a CSV table or a samples file.

    python studies/check.py sweep.csv --max-slowdown 1% --splits 100 [--json]

Repeats are split at random, clocks are planned on one half and looked up on the other, many times.
Nothing is run, and no clock is set.

Shape letters: N runs of a table; S splits of a table in halves.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from estimates import costs_of
from pages import markdown, run_command
from score import as_measured, check_kernels_alone, run_variances
from underclock.app.options import FRACTION, baseline_option, file_argument, json_option
from underclock.app.output import print_json
from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.sample_sets import odd_repeats
from underclock.core.planning.best_choice import Goal
from underclock.core.planning.strategies import choose_kernels
from underclock.core.statistics.student import student_quantile
from underclock.core.step.cost_table import cost_table
from underclock.errors import DataError, InfeasibleError, UsageError
from underclock.records import Clocks, Record, SampleSet, Step, Window
from underclock.records.samples import renumbered
from underclock.store import SampleSource, read_samples
from underclock.units import format_percent

_BUDGETS = (0.0, 0.01, 0.05)
_WITHIN, _BELOW = 1.960, 1.645  # deviations that 95 % of a normal distribution lie within, or below
_ROUNDING = 1e-9


class CheckedNumber(Record, frozen=True, kw_only=True):
    """A number over all splits, with its 95 % interval of more splits of the same table."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """A change against auto as promised and as executed, each with its deviation. Shapes (S,)."""

    promised: Floats
    spread: Floats
    executed: Floats
    noise: Floats

    @property
    def bias(self) -> Floats:
        """Promise less execution: below zero, the promise was of less than came."""
        return self.promised - self.executed

    @property
    def covered(self) -> Bools:
        """Where execution lies within the promise's interval, its own noise granted."""
        both: Bools = np.abs(self.bias) <= _WITHIN * np.hypot(self.spread, self.noise)
        return both

    def breaks(self, budget: float) -> Bools:
        """Where execution exceeds a budget by more than its noise explains."""
        beyond: Bools = self.executed - _BELOW * self.noise > budget + _ROUNDING
        return beyond


def check(
    table: SampleSource,
    *,
    slowdowns: Sequence[float] = _BUDGETS,
    splits: int = 25,
    seed: int = 0,
    baseline: Clocks | None = None,
) -> dict[str, Any]:
    """Check on a table's own repeats what promises are worth; rows without repeats take no part.

    Returns:
        What was split, as the JSON output has it, and for each budget its ``promises``.

    Raises:
        UsageError: No splits.
        DataError: The table cannot be read, or no kernel has repeats at auto and elsewhere.
        InfeasibleError: No choice keeps a budget.
    """
    if splits < 1:
        raise UsageError(f"cannot check {splits} splits", hint="--splits 25")
    budgets = tuple(dict.fromkeys(slowdowns))
    given = read_samples(table)
    check_kernels_alone(given)
    kept, auto = repeated_rows(given, baseline)
    costs, variances = cost_table(kept, baseline=auto), run_variances(kept)
    came = np.array(
        [
            split_promises(kept, auto, budgets, variances, np.random.default_rng([seed, split]))
            for split in range(splits)
        ]
    )
    return {
        "evidence": kept.evidence,
        "gpu": kept.gpu,
        "workload": kept.workload,
        "baseline": auto,
        "splits": splits,
        "seed": seed,
        "kernels": len(kept.kernels),
        "rows": int(np.isfinite(costs.time_s).sum()),
        "runs": len(kept.samples),
        "promises": [_summary(each, came[:, b].T) for b, each in enumerate(budgets)],
        "warnings": [*given.warnings, *odd_repeats(kept), *_left_out(given, kept)],
    }


def repeated_rows(sample_set: SampleSet, wanted: Clocks | None) -> tuple[SampleSet, Clocks]:
    """Return what can be split: rows with repeats, of kernels that have them at auto too."""
    whole = cost_table(sample_set, baseline=wanted)
    auto = whole.settings[whole.baseline]
    taken = Counter((sample.kernel, sample.asked) for sample in sample_set.samples)
    repeated = {place for place, runs in taken.items() if runs > 1}
    elsewhere = {kernel for kernel, clocks in repeated if clocks != auto}
    names = {kernel for kernel, clocks in repeated if clocks == auto} & elsewhere
    if not names:
        raise DataError(
            f"{sample_set.workload} has no kernel with repeats both at {auto} and elsewhere",
            hint="give each row two runs or more; `underclock measure --repeats 3` does",
        )
    samples = [s for s in sample_set.samples if s.kernel in names]
    kept = [sample for sample in samples if (sample.kernel, sample.asked) in repeated]
    kernels = tuple(kernel for kernel in sample_set.kernels if kernel.name in names)
    # Kernels by themselves: a whole step was not run under the plan.
    step = Step(name=sample_set.workload, kernels=kernels)
    isolated = msgspec.structs.replace(sample_set, step=step, windows=(), warnings=())
    return _with(isolated, kept), auto


def _with(sample_set: SampleSet, samples: Sequence[Window]) -> SampleSet:
    """Return a sample set as if these samples were all there is."""
    visited = {(sample.kernel, sample.asked) for sample in samples}
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
    rows, splittable = (
        len({(sample.kernel, sample.asked) for sample in each.samples}) for each in (given, kept)
    )
    if rows == splittable:
        return ()
    without = len(given.kernels) - len(kept.kernels)
    words = f"{rows - splittable} of {rows} rows have no repeats or no auto row that has: left out"
    return (f"{words}, and with them {without} kernels" if without else words,)


def split_promises(
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
    rows = [(sample.kernel, sample.asked) for sample in kept.samples]
    places = {row: r for r, row in enumerate(dict.fromkeys(rows))}
    first = halves(np.array([places[row] for row in rows]), random)
    mine, theirs = (
        _with(kept, [kept.samples[i] for i in np.flatnonzero(half).tolist()])
        for half in (first, ~first)
    )
    costs = costs_of(mine, auto)
    executed = as_measured(theirs, variances[:, ~first], baseline=auto)
    columns = np.array([executed.table.settings.index(each) for each in costs.table.settings])
    found = []
    for budget in budgets:
        setting = choose_kernels(costs.table, Goal(max_slowdown=budget), costs)
        if setting is None:
            raise InfeasibleError(
                f"on a half, no choice of clocks changes time by {format_percent(budget)} or less",
                hint="raise --max-slowdown",
            )
        both = costs.predicted_change(setting), executed.predicted_change(columns[setting])
        time = (number for each in both for number in (each.time_change, each.time_spread))
        energy = (number for each in both for number in (each.energy_change, each.energy_spread))
        found.append((*time, *energy))
    return found


def halves(row: Ints, random: np.random.Generator) -> Bools:
    """Return which runs of each row go to the first half; each half has one at least.

    A row with an odd number of runs gives the one too many to either half alike.

    Args:
        row: Row of each run; every row has two at least. Shape (N,).
    """
    order = np.lexsort((random.random(len(row)), row))
    taken = np.bincount(row)
    first = np.cumsum(taken) - taken
    rank = np.empty(len(row), dtype=np.int64)
    rank[order] = np.arange(len(row)) - first[row[order]]
    many = taken // 2 + (taken % 2) * random.integers(0, 2, len(taken))
    chosen: Bools = rank < many[row]
    return chosen


def _summary(budget: float, came: Floats) -> dict[str, Any]:
    """Return what became of the plans for a budget: eight numbers a split, shape (8, S).

    A bias is promise less execution. Covered is what lies in the promise's 95 % interval, the noise
    of the other half granted; beyond noise is what took longer by more than that noise explains.
    """
    time, energy = Outcomes(*came[:4]), Outcomes(*came[4:])
    return {
        "max_slowdown": budget,
        "promised_energy": mean_of(energy.promised),
        "executed_energy": mean_of(energy.executed),
        "energy_bias": mean_of(energy.bias),
        "time_bias": mean_of(time.bias),
        "energy_coverage": share_of(energy.covered),
        "time_coverage": share_of(time.covered),
        "over_budget": share_of(time.executed > budget + _ROUNDING),
        "beyond_noise": share_of(time.breaks(budget)),
    }


def mean_of(values: Floats) -> CheckedNumber:
    """Return a mean with Student's interval; a single value has none."""
    mean, count = float(values.mean()), len(values)
    if count == 1:
        return CheckedNumber(value=mean, low=None, high=None)
    reach = student_quantile(count - 1) * float(values.std(ddof=1)) / math.sqrt(count)
    return CheckedNumber(value=mean, low=mean - reach, high=mean + reach)


def share_of(hits: Bools) -> CheckedNumber:
    """Return a share with Wilson's interval."""
    count, share = len(hits), float(hits.mean())
    z2 = _WITHIN**2 / count
    centre = (share + 0.5 * z2) / (1.0 + z2)
    reach = math.sqrt(z2 * (share * (1.0 - share) + 0.25 * z2)) / (1.0 + z2)
    return CheckedNumber(value=share, low=max(0.0, centre - reach), high=min(1.0, centre + reach))


def _cell(number: CheckedNumber, unit: str) -> str:
    """Write fractions as points or percent, with their interval over splits."""
    digits = ".0f" if unit else "+.2f"
    value, *ends = (
        "" if each is None else f"{100.0 * each:{digits}}{unit}"
        for each in (number.value, number.low, number.high)
    )
    return f"{value} ({' to '.join(ends)})" if all(ends) else value


def _table(checked: dict[str, Any]) -> str:
    shares = "energy_coverage", "time_coverage", "over_budget", "beyond_noise"
    header = (
        *("time budget", "promised energy", "executed", "bias", "energy covered", "time covered"),
        *("over budget", "beyond noise", "time bias"),
    )
    lines = [
        (
            f"{100.0 * each['max_slowdown']:g} %",
            format_percent(each["promised_energy"].value),
            format_percent(each["executed_energy"].value),
            _cell(each["energy_bias"], ""),
            *(_cell(each[share], " %") for share in shares),
            _cell(each["time_bias"], ""),
        )
        for each in checked["promises"]
    ]
    warnings = (f"- {warning}" for warning in checked["warnings"])
    return "\n".join((markdown([header, *lines]), "", *warnings))


@click.command()
@file_argument("table")
@click.option("--max-slowdown", "slowdowns", type=FRACTION, multiple=True, default=_BUDGETS)
@click.option("--splits", default=25, show_default=True, help="How often repeats are split.")
@click.option("--seed", default=0, show_default=True, help="Of the splits.")
@baseline_option
@json_option
def command(*, table: Path, as_json: bool, **asked: Any) -> None:  # noqa: ANN401
    """Check what promises are worth, from the repeats of TABLE."""
    checked = check(table, **asked)
    if as_json:
        print_json(checked)
    else:
        said = (
            "{runs} runs of {rows} rows of {kernels} kernels, split {splits} times (seed {seed}), "
            "against {baseline}. Intervals of 95 % are of more splits of this table, not of other "
            "tables."
        )
        print(said.format_map(checked), _table(checked), sep="\n\n")


if __name__ == "__main__":
    run_command(command)

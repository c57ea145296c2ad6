"""Score a plan: what its clocks cost on a full table of measurements, in the plan's own terms.

python studies/score.py plan.json sweep.csv [--json]
"""

import math
from pathlib import Path

import click
import numpy as np
from msgspec.structs import asdict

from pages import markdown, percent, run_command
from underclock.app.options import file_argument, json_option
from underclock.app.output import print_json
from underclock.arrays import Floats
from underclock.core.model.costs import Costs
from underclock.core.model.sample_sets import runs_of
from underclock.core.planning.best_choice import choice_cost, with_intervals
from underclock.core.statistics.repeats import weighed
from underclock.core.step.cost_table import CostTable, at_any_clocks, cost_table
from underclock.core.step.whole_step import is_only_whole
from underclock.errors import DataError
from underclock.records import (
    Arm,
    Clocks,
    Cost,
    Evidence,
    GpuInfo,
    Plan,
    Record,
    SampleSet,
    Status,
    Strategy,
)
from underclock.store import as_record, read_samples

_HINT = "score on the full table that the plan's samples came from"


class Score(Record, frozen=True, kw_only=True, tag_field="kind", tag="score"):
    """What a plan costs on a full table: of a step in s and J, changes against the table's auto.

    Attributes:
        promised_time_change: What the plan said.
        arms: The table's ``auto`` and the plan's chosen arm, costed on the table.
    """

    schema: int = 3
    evidence: Evidence
    gpu: GpuInfo
    plan: Strategy
    time_s: float
    energy_j: float
    time_change: float
    energy_change: float
    promised_time_change: float
    promised_energy_change: float
    arms: tuple[Arm, ...]
    warnings: tuple[str, ...] = ()


def score(plan: Plan | str | Path, table: SampleSet | str | Path) -> Score:
    """Cost a plan's clocks on a table that it may not have seen whole.

    Args:
        table: With a row for every choice of the plan.

    Raises:
        DataError: Another GPU's table, or no row for a kernel at its chosen clocks.
    """
    plan, sample_set = as_record(plan, Plan), read_samples(table)
    check_kernels_alone(sample_set)
    warnings = plan.check_gpu(sample_set.gpu)
    costs = cost_table(sample_set, baseline=plan.baseline)
    cost = _cost(plan, costs)
    auto = Cost(
        time_s=costs.auto_time_s, energy_j=costs.auto_energy_j, time_change=0.0, energy_change=0.0
    )
    arm = Arm(plan.chosen, cost, Status.GIVEN)
    if any(sample.repeat for sample in sample_set.samples):
        measured = as_measured(sample_set, baseline=plan.baseline)
        columns = {clocks: c for c, clocks in enumerate(measured.table.settings)}
        setting = [columns[plan.kernels[kernel.name].clocks] for kernel in measured.table.kernels]
        arm = with_intervals(arm, measured.predicted_change(np.array(setting)))
    return Score(
        evidence=sample_set.evidence,
        gpu=sample_set.gpu,
        plan=plan.chosen,
        **asdict(cost),
        promised_time_change=plan.promise.time_change,
        promised_energy_change=plan.promise.energy_change,
        arms=(Arm(Strategy.AUTO, auto, Status.BASELINE), arm),
        warnings=(*warnings, *costs.warnings),
    )


def check_kernels_alone(sample_set: SampleSet) -> None:
    """Refuse a step that ran whole only, where costs of its kernels are asked for.

    Raises:
        DataError: It is one.
    """
    if is_only_whole(sample_set):
        raise DataError(
            f"{sample_set.workload} ran whole only: what its kernels cost by themselves is not "
            "known",
            hint="`underclock plan` plans one clock for the whole step; a campaign that was cut "
            "off goes on with `underclock measure`",
        )


def cost_at(table: CostTable, wanted: dict[str, Clocks]) -> Cost:
    """Cost given clocks on a table.

    Raises:
        KeyError: A kernel without clocks, or clocks at which it was not measured. The argument is
            the kernel's name.
    """
    columns = []
    for k, kernel in enumerate(table.kernels):
        column = next((s for s, c in enumerate(table.settings) if c == wanted[kernel.name]), None)
        if column is None or not math.isfinite(table.time_s[k, column]):
            raise KeyError(kernel.name)
        columns.append(column)
    return choice_cost(table, np.array(columns))


def run_variances(sample_set: SampleSet) -> Floats:
    """Return how far each sample may be off: as runs of its row usually are, and as it is seen to.

    Returns:
        Variances of the logarithms of time and energy. Shape (2, N).
    """
    settings = tuple(dict.fromkeys(sample.asked for sample in sample_set.samples))
    variances = []
    names = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    for runs in runs_of(sample_set.samples, names, settings):
        each = weighed(runs)
        of_usual = each.weight * each.scatter[runs.row] ** 2
        variances.append(of_usual + (1.0 - each.weight) * each.off**2)
    return np.stack(variances)


def as_measured(
    sample_set: SampleSet, variances: Floats | None = None, *, baseline: Clocks | None = None
) -> Costs:
    """Return a table as it was measured, nothing inferred, each row as unsure as its runs.

    Args:
        variances: Of the logarithms of each sample's time and energy; by default as its own
            repeats tell. Shape (2, N).
    """
    table = cost_table(sample_set, baseline=baseline)
    names = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    columns = {clocks: c for c, clocks in enumerate(table.settings)}
    at = np.array([(names[s.kernel], columns[s.asked]) for s in sample_set.samples]).T
    moves = np.zeros((2, *table.time_s.shape, len(table.settings)))
    each = run_variances(sample_set) if variances is None else variances
    for q, variance in enumerate(each):
        sums, taken = np.zeros((2, *table.time_s.shape))
        np.add.at(sums, tuple(at), variance)
        np.add.at(taken, tuple(at), 1.0)
        own = at_any_clocks(table.kernels, np.sqrt(sums) / np.maximum(taken, 1.0), table.baseline)
        moves[q] = own[..., None] * np.eye(len(table.settings))
    return Costs(table=table, moves=moves, shared=0)


def _cost(plan: Plan, costs: CostTable) -> Cost:
    wanted = {name: choice.clocks for name, choice in plan.kernels.items()}
    known = {kernel.name for kernel in costs.kernels}
    for names, sentence in (
        (known - wanted.keys(), "the table has a kernel {!r} that the plan does not know"),
        (wanted.keys() - known, "the plan has clocks for {!r}, which the table lacks"),
    ):
        if names:
            raise DataError(sentence.format(min(names)), hint=_HINT)
    try:
        return cost_at(costs, wanted)
    except KeyError as exc:
        name = exc.args[0]
        raise DataError(
            f"the table has no row for {name!r} at {wanted[name]}, which the plan chose", hint=_HINT
        ) from exc


@click.command()
@file_argument("plan")
@file_argument("table")
@json_option
def command(*, plan: Path, table: Path, as_json: bool) -> None:
    """Say what PLAN costs on a full TABLE of measurements."""
    found = score(plan, table)
    if as_json:
        print_json(found)
        return
    print(f"{found.plan} on {found.gpu.name}, {found.evidence}", *found.warnings, sep="\n")
    lines: list[tuple[str, ...]] = [("", "promised", "actual", "auto", "plan")]
    for name, unit in (("time", "s"), ("energy", "J")):
        promised, actual = (
            getattr(found, f"promised_{name}_change"),
            getattr(found, f"{name}_change"),
        )
        own = getattr(found, f"{name}_{unit.lower()}")
        lines.append(
            (
                name,
                percent(promised),
                percent(actual),
                *(f"{each:.4g} {unit}" for each in (own / (1.0 + actual), own)),
            )
        )
    print(markdown(lines))


if __name__ == "__main__":
    run_command(command)

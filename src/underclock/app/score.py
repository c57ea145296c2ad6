"""``underclock score``: what a plan really costs on a full table, in the plan's own terms."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import delivered, file_argument
from underclock.app.output import Delivery
from underclock.errors import DataError
from underclock.records import Arm, Cost, Plan, SampleSet, Score, Status, Strategy

if TYPE_CHECKING:
    from underclock.core.step.table import CostTable

_HINT = "score on the full table that the plan's samples came from"


def score(plan: Plan | str | Path, table: SampleSet | str | Path) -> Score:
    """Cost a plan's clocks on a table it may not have seen whole.

    Args:
        plan: A plan, or its file.
        table: A sample_set, a samples file or a CSV table with a row for every choice of the plan.

    Raises:
        DataError: Another GPU's table, or no row for a kernel at its chosen clocks.
    """
    from msgspec.structs import asdict

    from underclock.core.step.table import cost_table
    from underclock.core.step.whole import check_kernels_alone
    from underclock.store import as_record, read_samples

    plan, sample_set = as_record(plan, Plan), read_samples(table)
    check_kernels_alone(sample_set)
    warnings = plan.check_gpu(sample_set.gpu, plan.limit_w)
    costs = cost_table(sample_set, baseline=plan.baseline)
    cost = _cost(plan, costs)
    auto = Cost(
        time_s=costs.auto_time_s, energy_j=costs.auto_energy_j, time_change=0.0, energy_change=0.0
    )
    return Score(
        evidence=sample_set.evidence,
        gpu=sample_set.gpu,
        plan=plan.chosen,
        **asdict(cost),
        promised_time_change=plan.promise.time_change,
        promised_energy_change=plan.promise.energy_change,
        arms=(
            Arm.of(Strategy.AUTO, auto, Status.BASELINE),
            _with_noise(Arm.of(plan.chosen, cost, Status.GIVEN), plan, sample_set),
        ),
        warnings=(*warnings, *costs.warnings),
    )


def _with_noise(arm: Arm, plan: Plan, sample_set: SampleSet) -> Arm:
    """Return an arm with the 95 % intervals that the table's repeats leave, where it has some."""
    import numpy as np

    from underclock.core.inference.table import as_measured
    from underclock.core.planning.choices import with_intervals

    if not any(sample.repeat for sample in sample_set.samples):
        return arm
    measured = as_measured(sample_set, baseline=plan.baseline)
    columns = {clocks: c for c, clocks in enumerate(measured.table.settings)}
    setting = [columns[plan.kernels[kernel.name].clocks] for kernel in measured.table.kernels]
    return with_intervals(arm, measured.predicted_change(np.array(setting)))


def _cost(plan: Plan, costs: "CostTable") -> Cost:
    from underclock.core.planning.choices import cost_at

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


@click.command(name="score")
@file_argument("plan")
@file_argument("table")
@delivered()
def command(*, plan: Path, table: Path, to: Delivery) -> None:
    """Say what PLAN really costs on a full TABLE of measurements.

    Example: underclock score plan.json sweep.csv --json
    """
    from underclock.report import score_table

    cost = score(plan, table)
    to.give(cost, lambda: (score_table(cost),))

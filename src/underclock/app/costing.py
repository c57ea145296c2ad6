"""What everything costs, for a plan: from samples, with how sure that is, under a power limit."""

import dataclasses
from dataclasses import dataclass

from underclock.core.inference.joint import JointCosts
from underclock.core.inference.table import inferred_costs
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.estimate import estimate
from underclock.core.model.limited import LimitedEstimate
from underclock.core.model.row_runs import odd_rows
from underclock.core.model.sample_rows import CannotFitError
from underclock.core.planning.goal import Goal
from underclock.core.step.table import CostTable, cost_table
from underclock.errors import UsageError
from underclock.records import Clocks, Evidence, GpuInfo, Objective, SampleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCosts:
    """What everything costs.

    Attributes:
        table: Expected.
        risk: How sure that is; ``None`` where it is taken as certain.
        known: PlanCosts under the limit that was measured at, where the table is under another.
    """

    table: CostTable
    risk: CostEstimate | LimitedEstimate | JointCosts | None
    known: CostTable


def check_goal(gpu: GpuInfo, goal: Goal, *, alone: bool) -> None:
    """Refuse a power limit that these samples cannot be planned under, before anything is fitted.

    Args:
        gpu: What was measured.
        goal: What to plan for.
        alone: Whether costs are to be those of kernels alone.

    Raises:
        UsageError: Costs are of kernels alone, or the GPU takes no such limit.
    """
    if goal.power_limit_w is None and goal.objective is not Objective.TIME:
        return
    if alone:
        raise _of_kernels_alone()
    if gpu.power_limit_w is None:
        return  # whoever has costs says what these are of first
    limit_w = goal.power_limit_w or gpu.power_limit_w
    least_w, most_w = gpu.power_range_w or (0.0, gpu.power_limit_w)
    if not least_w <= limit_w <= most_w:
        raise UsageError(
            f"{gpu.name} takes no power limit of {limit_w:g} W",
            hint=f"it takes {least_w:g} to {most_w:g} W",
        )


def _of_kernels_alone() -> UsageError:
    return UsageError(
        "a power limit holds the step as it runs, and these costs are of kernels alone",
        hint="plan samples of a step that was run whole, without --raw and --accounting isolated",
    )


def under_goal(sample_set: SampleSet, costs: PlanCosts, goal: Goal) -> PlanCosts:
    """Put costs under the power limit to plan for, which was checked.

    Raises:
        UsageError: Costs are of kernels alone, or the GPU's own limit is not known.
    """
    if goal.power_limit_w is None and goal.objective is not Objective.TIME:
        return costs
    risk, gpu = costs.risk, sample_set.gpu
    if not isinstance(risk, CostEstimate) or risk.table.power_cap is None:
        raise _of_kernels_alone()
    if gpu.power_limit_w is None:
        raise UsageError(
            "the samples do not say at which power limit they were taken", hint="measure again"
        )
    limit_w = goal.power_limit_w or gpu.power_limit_w
    if limit_w == gpu.power_limit_w:
        return costs
    limited = LimitedEstimate.of(risk, limit_w, gpu.power_limit_w)
    return PlanCosts(table=limited.table, risk=limited, known=costs.table)


def costs_of(
    sample_set: SampleSet, baseline: Clocks | None, *, raw: bool | None, isolated: bool
) -> PlanCosts:
    """Return what everything costs."""
    replayed = sample_set.evidence is Evidence.REPLAYED
    # What was queried of a table without repeats is certain, and nothing else of it is planned.
    if raw or (raw is None and replayed and sample_set.is_exact):
        table = cost_table(sample_set, baseline=baseline)
        odd = () if any(sample.repeat for sample in sample_set.samples) else odd_rows(sample_set)
        table = dataclasses.replace(table, warnings=(*table.warnings, *odd))
        return PlanCosts(table=table, risk=None, known=table)
    if replayed:
        told = inferred_costs(sample_set, baseline=baseline)
        return PlanCosts(table=told.table, risk=told, known=told.table)
    try:
        estimated = estimate(sample_set, baseline=baseline, isolated=isolated)
    except CannotFitError as exc:
        if raw is False:
            raise
        table = cost_table(sample_set, baseline=baseline)
        words = f"costs are taken as certain, for no model can be fitted: {exc}"
        table = dataclasses.replace(table, warnings=(*table.warnings, words))
        return PlanCosts(table=table, risk=None, known=table)
    return PlanCosts(table=estimated.table, risk=estimated, known=estimated.table)

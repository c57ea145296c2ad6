"""plan: samples in, clocks out."""

import dataclasses
from pathlib import Path

import msgspec

import underclock
from underclock.arrays import Ints
from underclock.core.costs.table import CostTable, cost_table
from underclock.core.model.estimate import estimate
from underclock.core.model.predicted_change import ONE_SIDED
from underclock.core.model.rows import CannotFitError
from underclock.core.planning.chance_constraint import RiskModel
from underclock.core.planning.goal import Goal
from underclock.core.planning.latency_curve import Progress
from underclock.core.planning.strategies import ComparedStrategies, choices, compare_strategies
from underclock.errors import InfeasibleError, UsageError
from underclock.records import Clocks, Evidence, Objective, Plan, SampleSet, Strategy
from underclock.report.answer import doubt_sentence
from underclock.report.expected import ONE_PAIR, auto_plan_sentence
from underclock.stages.sources import as_samples
from underclock.stages.switching import Achievable, Switching, achievable
from underclock.units import format_percent


def plan(
    samples: SampleSet | str | Path,
    goal: Goal | None = None,
    *,
    baseline: Clocks | None = None,
    switching: Switching | None = None,
    raw: bool | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Choose clocks for every kernel, and compare with simpler ways of choosing.

    Args:
        samples: A sample_set, a samples file or a CSV table.
        goal: What to minimise; by default energy, without being any slower.
        baseline: The clocks to call auto; by default auto itself, or in a table without it the
            fastest clocks that every kernel has.
        switching: What changing clocks takes; by default nothing, as in arXiv 2601.08539. With it
            the plan gains the arm ``achievable``, its schedule and the curve over the latency.
        raw: Whether costs are the means of their own samples, taken as certain, as in arXiv
            2601.08539. By default a model is fitted to all samples together, and the time budget
            holds with 95 % confidence; a table that is replayed whole is taken as it is.
        progress: Told of plans at other latencies: how many are done, of how many, and what is done
            next.

    Raises:
        UsageError: Switching with an objective that has no time budget.
        DataError: The samples cannot be planned on, or the latencies are another GPU's.
        InfeasibleError: No choice meets the time budget.
    """
    goal = goal or Goal()
    sample_set = as_samples(samples)
    table, risk = _costs(sample_set, baseline, raw=raw)
    compared = compare_strategies(table, goal, risk)
    _check_feasible(compared, goal)
    gained = Achievable()
    if switching is not None:
        _check_has_budget(goal)
        surer = _within_confidence(goal, risk, compared)
        gained = achievable(sample_set, table, surer, switching, compared, progress)
    return _plan(sample_set, goal, table, compared, gained)


def _check_feasible(compared: ComparedStrategies, goal: Goal) -> None:
    """Refuse a time budget that no choice meets."""
    if goal.chosen not in compared.settings:
        raise InfeasibleError(
            f"no choice of clocks changes time by {format_percent(goal.max_slowdown)} or less",
            hint=f"the fastest changes it by {format_percent(compared.fastest_change)}: "
            "raise --max-slowdown to that or more",
        )


def _check_has_budget(goal: Goal) -> None:
    """Refuse to plan switching without a time budget."""
    if goal.objective is not Objective.WASTE:
        raise UsageError(
            f"{goal.objective} has no time budget for switching to keep",
            hint="plan for waste, or leave --latency away",
        )


def _within_confidence(goal: Goal, risk: RiskModel | None, compared: ComparedStrategies) -> Goal:
    """Return the goal with a budget that is less by how uncertain the chosen clocks' time is."""
    if risk is None:
        return goal
    spread = risk.predicted_change(compared.settings[goal.chosen]).time_spread
    return dataclasses.replace(goal, max_slowdown=goal.max_slowdown - ONE_SIDED * spread)


def _plan(
    sample_set: SampleSet,
    goal: Goal,
    table: CostTable,
    compared: ComparedStrategies,
    gained: Achievable,
) -> Plan:
    """Write down what was decided."""
    made = Plan(
        evidence=sample_set.evidence,
        gpu=sample_set.gpu,
        workload=sample_set.workload,
        fingerprint=sample_set.fingerprint,
        objective=goal.objective,
        max_slowdown=goal.max_slowdown if goal.objective is Objective.WASTE else None,
        granularity=goal.granularity,
        aggregate=goal.aggregate,
        baseline=table.settings[table.baseline],
        chosen=goal.chosen,
        arms=(*compared.arms, *gained.arms),
        kernels=choices(table, compared.settings[goal.chosen]),
        fixed=_fixed(table, compared.settings),
        frontier=compared.frontier,
        closure=table.closure,
        runs=sample_set.kernels,
        order=sample_set.order,
        source=sample_set.source,
        provenance=sample_set.provenance,
        version=underclock.__version__,
        schedule=gained.schedule,
        latency_curve=gained.curve,
        proposals=gained.proposals,
        warnings=(*table.warnings, *gained.warnings, *_nothing_to_choose(sample_set)),
    )
    doubt = doubt_sentence(made)
    if doubt is None:
        return made
    return msgspec.structs.replace(made, warnings=(*made.warnings, doubt))


def why_auto(plan: Plan) -> str | None:
    """Say why a plan sets nothing; ``None`` where it does, or where its warnings say so."""
    return auto_plan_sentence(plan)


def _costs(
    sample_set: SampleSet, baseline: Clocks | None, *, raw: bool | None
) -> tuple[CostTable, RiskModel | None]:
    """Return costs, and how sure they are; ``None`` where they are taken as certain."""
    asked = raw
    if raw is None:
        raw = _is_whole_table(sample_set)
    if raw:
        return cost_table(sample_set, baseline=baseline), None
    try:
        estimated = estimate(sample_set, baseline=baseline)
    except CannotFitError as exc:
        if asked is False:
            raise
        table = cost_table(sample_set, baseline=baseline)
        words = f"costs are taken as certain, for no model can be fitted: {exc}"
        return dataclasses.replace(table, warnings=(*table.warnings, words)), None
    return estimated.table, estimated


def _nothing_to_choose(sample_set: SampleSet) -> tuple[str, ...]:
    """Say what to do with samples at one clock pair."""
    visited = {sample.asked for sample in sample_set.samples}
    return (ONE_PAIR,) if len(visited) == 1 else ()


def _is_whole_table(sample_set: SampleSet) -> bool:
    """Whether every row of a replayed table is there: then there is nothing to estimate."""
    if sample_set.evidence is not Evidence.REPLAYED:
        return False
    if sample_set.expected_samples is not None:
        return len(sample_set.samples) >= sample_set.expected_samples
    lacking = sum(len(clocks) for clocks in sample_set.lacking.values())
    pairs = len({(sample.kernel, sample.asked) for sample in sample_set.samples})
    return pairs + lacking >= len(sample_set.settings) * len(sample_set.kernels)


def _fixed(table: CostTable, settings: dict[Strategy, Ints]) -> Clocks | None:
    """Return the best clocks for the whole step; ``None`` when infeasible."""
    setting = settings.get(Strategy.BEST_FIXED)
    return None if setting is None else table.settings[int(setting[0])]

"""plan: samples in, clocks out."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import underclock
from underclock.arrays import Ints
from underclock.core.costs.table import CostTable, cost_table
from underclock.core.model.estimate import estimate
from underclock.core.model.predicted_change import ONE_SIDED
from underclock.core.model.rows import CannotFitError
from underclock.core.planning.achievable import (
    Rules,
    achieved,
    as_record,
    fastest_change,
    sequence_problem,
)
from underclock.core.planning.chance_constraint import RiskModel
from underclock.core.planning.goal import Goal
from underclock.core.planning.latency_curve import Progress, latency_curve
from underclock.core.planning.proposals import proposals
from underclock.core.planning.strategies import ComparedStrategies, choices, compare_strategies
from underclock.errors import InfeasibleError, UsageError
from underclock.records import (
    Arm,
    Clocks,
    ClockSchedule,
    Evidence,
    LatencyPoint,
    Objective,
    Plan,
    Proposal,
    SampleSet,
    Strategy,
)
from underclock.records.latencies import LatencyTable
from underclock.report.wording import auto_plan_sentence
from underclock.stages.sources import as_samples
from underclock.store import read_document
from underclock.units import format_percent, parse_duration

ONE_PAIR = (
    "every sample is at one pair of clocks, so there is nothing to choose from: "
    "`underclock predict` says what other clocks would save"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switching:
    """What changing clocks takes, and how often they may be changed."""

    latencies: LatencyTable
    """How long each change takes."""
    max_switches: int | None = None
    """Most changes in a step."""
    min_dwell_s: float = 0.0
    """Least time between changes, whatever the latency."""
    curve: bool = True
    """Whether to plan at other latencies too, and with longer segments."""
    wording: str = "as measured"
    """Which latency it is, in words."""

    def __post_init__(self) -> None:
        """Reject limits that mean nothing."""
        self.rules()

    def rules(self, max_slowdown: float = 0.0) -> Rules:
        """Return what a schedule must keep within a time budget."""
        return Rules(
            latencies=self.latencies,
            max_slowdown=max_slowdown,
            max_switches=self.max_switches,
            min_dwell_s=self.min_dwell_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reality:
    """What a plan gains when switching is not free."""

    arms: tuple[Arm, ...] = ()
    schedule: ClockSchedule | None = None
    curve: tuple[LatencyPoint, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    warnings: tuple[str, ...] = ()


def latencies_of(text: str, samples: Path) -> Switching | None:
    """Read what a user writes after ``--latency``.

    Args:
        text: ``ideal``, ``measured``, a duration such as ``6ms``, or a file that `underclock
            latency` wrote.
        samples: The samples planned on; ``measured`` is looked for beside them.

    Returns:
        ``None`` for ``ideal``.

    Raises:
        UsageError: It is none of these, or nothing was measured.
        DataError: The file cannot be read.
    """
    if text == "ideal":
        return None
    if text == "measured":
        beside = samples.with_suffix(".latency.json")
        if not beside.is_file():
            raise UsageError(
                f"there are no measured latencies beside {samples}",
                hint=f"`underclock latency --gpu GPU -o {beside}` measures them",
            )
        return Switching(latencies=read_document(beside, LatencyTable), wording="as measured")
    path = Path(text)
    if path.is_file():
        return Switching(latencies=read_document(path, LatencyTable), wording=f"of {path.name}")
    duration_s = parse_duration(text)
    return Switching(latencies=LatencyTable.constant(duration_s), wording=f"{text}, assumed")


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
    if goal.chosen not in compared.settings:
        raise InfeasibleError(
            f"no choice of clocks changes time by {format_percent(goal.max_slowdown)} or less",
            hint=f"the fastest changes it by {format_percent(compared.fastest_change)}: "
            "raise --max-slowdown to that or more",
        )
    waste = goal.objective is Objective.WASTE
    if switching is not None and not waste:
        raise UsageError(
            f"{goal.objective} has no time budget for switching to keep",
            hint="plan for waste, or leave --latency away",
        )
    real = Reality()
    if switching is not None:
        setting = compared.settings[goal.chosen]
        unsure = ONE_SIDED * risk.predicted_change(setting).time_spread if risk is not None else 0.0
        sure = dataclasses.replace(goal, max_slowdown=goal.max_slowdown - unsure)
        real = _reality(sample_set, table, sure, switching, compared, progress)
    return Plan(
        evidence=sample_set.evidence,
        gpu=sample_set.gpu,
        workload=sample_set.workload,
        fingerprint=sample_set.fingerprint,
        objective=goal.objective,
        max_slowdown=goal.max_slowdown if waste else None,
        granularity=goal.granularity,
        aggregate=goal.aggregate,
        baseline=table.settings[table.baseline],
        chosen=goal.chosen,
        arms=(*compared.arms, *real.arms),
        kernels=choices(table, compared.settings[goal.chosen]),
        fixed=_fixed(table, compared.settings),
        frontier=compared.frontier,
        closure=table.closure,
        runs=sample_set.kernels,
        order=sample_set.order,
        source=sample_set.source,
        provenance=sample_set.provenance,
        version=underclock.__version__,
        schedule=real.schedule,
        latency_curve=real.curve,
        proposals=real.proposals,
        warnings=(*table.warnings, *real.warnings, *_nothing_to_choose(sample_set)),
    )


def why_auto(plan: Plan) -> str | None:
    """Say why a plan sets nothing; ``None`` where it does, or where its warnings say so."""
    return None if ONE_PAIR in plan.warnings else auto_plan_sentence(plan)


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


def _reality(
    sample_set: SampleSet,
    table: CostTable,
    goal: Goal,
    switching: Switching,
    compared: ComparedStrategies,
    progress: Progress | None,
) -> Reality:
    """Plan again under the GPU's own latency."""
    latencies = switching.latencies
    warnings = (*latencies.check_gpu(sample_set.gpu), *latencies.warnings)
    rules = switching.rules(goal.max_slowdown)
    starts = list(compared.settings.values())
    problem = sequence_problem(table, sample_set.order, rules)
    arm, achievable = achieved(table, problem, starts)
    schedule = None
    if arm.cost is None:
        least = format_percent(fastest_change(table, problem))
        warnings += (
            f"no schedule under this latency keeps the time budget: the fastest takes {least}",
        )
    else:
        schedule = as_record(table, achievable, switching.wording)
    if not switching.curve:
        return Reality(arms=(arm,), schedule=schedule, warnings=warnings)
    return Reality(
        arms=(arm,),
        schedule=schedule,
        curve=latency_curve(table, sample_set.order, rules, starts, progress),
        proposals=proposals(table, sample_set.order, rules, progress),
        warnings=warnings,
    )


def _fixed(table: CostTable, settings: dict[Strategy, Ints]) -> Clocks | None:
    """Return the best clocks for the whole step; ``None`` when infeasible."""
    setting = settings.get(Strategy.BEST_FIXED)
    return None if setting is None else table.settings[int(setting[0])]

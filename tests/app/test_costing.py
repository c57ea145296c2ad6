"""What a plan takes for costs: of the step or of kernels alone, and under which power limit."""

from pathlib import Path

import msgspec
import pytest

from underclock.app.measuring import measure
from underclock.app.planning import PlanCosts, check_goal, costs_of, plan, under_goal
from underclock.app.switching import Switching
from underclock.campaign.survey import Campaign
from underclock.core.model.cost_estimate import CostEstimate, LimitedEstimate
from underclock.core.model.sample_rows import CannotFitError
from underclock.core.planning.goal import Goal
from underclock.errors import DataError, UsageError
from underclock.hw.measurer import BRISK
from underclock.records import AUTO, Accounting, Evidence, Objective, Plan, SampleSet, Strategy
from underclock.records.latencies import LatencyTable
from underclock.workloads import workload
from windows import having

_LOWER_W = 250.0


@pytest.fixture(scope="module")
def sample_set(tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    return measure(
        workload("gpt3-125m", {"layers": 1}),
        gpu="sim:rtx3080ti",
        to=tmp_path_factory.mktemp("costing") / "samples.db",
        campaign=Campaign(core_mhz=(1050, 1470, 1680, 1890, None), mem_mhz=(None,)),
        measuring=BRISK,
    )


@pytest.fixture(scope="module")
def costs(sample_set: SampleSet) -> PlanCosts:
    return costs_of(sample_set, None, raw=None, isolated=False)


@pytest.fixture(scope="module")
def fastest(sample_set: SampleSet) -> Plan:
    return plan(sample_set, Goal(objective=Objective.TIME, power_limit_w=_LOWER_W))


def _with_gpu(sample_set: SampleSet, **changes: object) -> SampleSet:
    return msgspec.structs.replace(
        sample_set, gpu=msgspec.structs.replace(sample_set.gpu, **changes)
    )


@pytest.mark.slow
def test_costs_are_of_the_step_unless_asked_otherwise(
    sample_set: SampleSet, costs: PlanCosts
) -> None:
    raw = costs_of(sample_set, None, raw=True, isolated=False)
    alone = costs_of(sample_set, None, raw=None, isolated=True)

    assert isinstance(costs.risk, CostEstimate)
    assert costs.table is costs.known is costs.risk.table
    assert costs.table.accounting is Accounting.STEP
    assert raw.risk is None
    assert raw.table is raw.known
    assert [each.table.accounting for each in (raw, alone)] == [Accounting.ISOLATED] * 2
    assert isinstance(alone.risk, CostEstimate)


def test_a_goal_without_a_limit_leaves_costs_as_they_are(
    sample_set: SampleSet, costs: PlanCosts
) -> None:
    assert under_goal(sample_set, costs, Goal()) is costs
    assert under_goal(sample_set, costs, Goal(objective=Objective.TIME)) is costs
    assert under_goal(sample_set, costs, Goal(power_limit_w=sample_set.gpu.power_limit_w)) is costs


def test_under_a_lower_limit_the_step_takes_longer(sample_set: SampleSet, costs: PlanCosts) -> None:
    limited = under_goal(sample_set, costs, Goal(power_limit_w=_LOWER_W))

    assert isinstance(limited.risk, LimitedEstimate)
    assert limited.table is limited.risk.table
    assert limited.known is costs.table
    assert limited.table.auto_time_s > costs.table.auto_time_s
    assert limited.table.auto_energy_j < costs.table.auto_energy_j


@pytest.fixture
def unfit(sample_set: SampleSet) -> SampleSet:
    """What cannot be fitted: who plans on it gets as far as that, or is refused before."""
    found = having(sample_set, samples=sample_set.samples[:1])
    with pytest.raises(DataError):
        plan(found, raw=False)
    return found


@pytest.mark.parametrize("limit_w", [99.0, 386.0, 9999.0])
def test_a_limit_outside_the_gpus_range_is_refused_at_once(
    unfit: SampleSet, limit_w: float
) -> None:
    with pytest.raises(UsageError, match=f"takes no power limit of {limit_w:g} W") as caught:
        plan(unfit, Goal(power_limit_w=limit_w))

    assert caught.value.hint == "it takes 100 to 385 W"


def test_of_a_gpu_whose_range_is_unknown_limits_up_to_its_own_are_taken(
    sample_set: SampleSet, costs: PlanCosts
) -> None:
    unknown = _with_gpu(sample_set, power_range_w=None)

    assert under_goal(unknown, costs, Goal(power_limit_w=_LOWER_W)).risk is not costs.risk
    with pytest.raises(UsageError, match="takes no power limit of 351 W"):
        check_goal(unknown.gpu, Goal(power_limit_w=351.0), alone=False)


@pytest.mark.parametrize("goal", [Goal(power_limit_w=300.0), Goal(objective=Objective.TIME)])
def test_a_gpu_whose_limit_is_unknown_cannot_be_planned_under_one(
    sample_set: SampleSet, costs: PlanCosts, goal: Goal
) -> None:
    with pytest.raises(UsageError, match="do not say at which power limit") as caught:
        under_goal(_with_gpu(sample_set, power_limit_w=None), costs, goal)

    assert caught.value.hint == "measure again"


@pytest.mark.parametrize("goal", [Goal(power_limit_w=300.0), Goal(objective=Objective.TIME)])
@pytest.mark.parametrize("raw", [True, False])
def test_kernels_alone_are_held_by_no_limit(unfit: SampleSet, goal: Goal, *, raw: bool) -> None:
    with pytest.raises(UsageError, match="these costs are of kernels alone") as caught:
        plan(unfit, goal, raw=raw, isolated=not raw)

    assert "without --raw and --accounting isolated" in caught.value.hint


def test_a_replayed_table_is_held_by_no_limit() -> None:
    table = Path(__file__).parents[1] / "data/tables/two_kernels.csv"
    with pytest.raises(UsageError, match="these costs are of kernels alone"):
        plan(table, Goal(objective=Objective.TIME))


def test_samples_that_no_model_fits_are_taken_as_certain_unless_a_model_is_asked_for(
    sample_set: SampleSet,
) -> None:
    unread = [
        msgspec.structs.replace(s, observed=None) for s in sample_set.samples if s.asked == AUTO
    ]
    only_auto = having(sample_set, samples=tuple(unread), settings=(AUTO,))
    taken = costs_of(only_auto, None, raw=None, isolated=False)

    assert taken.risk is None
    assert taken.table.accounting is Accounting.ISOLATED
    assert "costs are taken as certain, for no model can be fitted" in taken.table.warnings[-1]
    with pytest.raises(CannotFitError):
        costs_of(only_auto, None, raw=False, isolated=False)


def test_a_replayed_table_that_is_whole_is_taken_as_it_is(sample_set: SampleSet) -> None:
    replayed = having(sample_set, evidence=Evidence.REPLAYED, in_situ=())
    unnumbered = msgspec.structs.replace(replayed, expected_samples=None)

    assert costs_of(replayed, None, raw=None, isolated=False).risk is None
    assert costs_of(unnumbered, None, raw=None, isolated=False).risk is None


@pytest.mark.slow
def test_the_fastest_plan_says_its_limit_and_what_other_limits_bring(
    fastest: Plan, sample_set: SampleSet
) -> None:
    limits = [point.limit_w for point in fastest.power_curve]

    assert (fastest.power_limit_w, fastest.max_slowdown) == (_LOWER_W, None)
    assert fastest.accounting is Accounting.STEP
    assert fastest.promise.time_change <= 0.0
    assert fastest.arm(fastest.chosen).time_interval is not None
    assert limits == sorted(limits)
    assert limits[-1] == sample_set.gpu.power_limit_w
    # Less power, more time, with and without a plan.
    for times in (
        [point.auto_time_s for point in fastest.power_curve],
        [point.time_s for point in fastest.power_curve],
    ):
        assert times == sorted(times, reverse=True)
    assert all(point.time_change <= 0.0 for point in fastest.power_curve)


@pytest.mark.slow
def test_least_energy_under_a_limit_keeps_the_budget_against_what_the_cap_leaves(
    sample_set: SampleSet, fastest: Plan
) -> None:
    made = plan(sample_set, Goal(max_slowdown=0.01, power_limit_w=_LOWER_W))

    assert made.power_curve == ()
    assert made.arm(Strategy.AUTO).cost == fastest.arm(Strategy.AUTO).cost
    assert made.promise.time_change <= 0.0105
    assert made.promise.energy_change <= 0.0


def test_a_step_that_is_only_to_be_fast_has_no_budget_for_switching(unfit: SampleSet) -> None:
    switching = Switching(latencies=LatencyTable.constant(6e-3))

    with pytest.raises(UsageError, match="time has no time budget for switching to keep"):
        plan(unfit, Goal(objective=Objective.TIME), switching=switching)


def test_the_goal_of_a_plan_under_a_limit_names_the_limit(fastest: Plan) -> None:
    assert Goal.of(fastest) == Goal(objective=Objective.TIME, power_limit_w=_LOWER_W)

"""What a plan takes for costs: of the step or of kernels alone."""

import msgspec
import pytest

from underclock.app.measuring import measure
from underclock.app.planning import PlanCosts, costs_of
from underclock.campaign.grid import Campaign
from underclock.core.model.costs import Costs
from underclock.core.model.sample_rows import CannotFitError
from underclock.hw.measurer import BRISK
from underclock.records import AUTO, Accounting, SampleSet
from underclock.workloads import workload
from windows import having


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


@pytest.mark.slow
def test_costs_are_of_the_step_unless_asked_otherwise(
    sample_set: SampleSet, costs: PlanCosts
) -> None:
    raw = costs_of(sample_set, None, raw=True, isolated=False)
    alone = costs_of(sample_set, None, raw=None, isolated=True)

    assert isinstance(costs.risk, Costs)
    assert costs.table is costs.risk.table
    assert costs.table.accounting is Accounting.STEP
    assert raw.risk is None
    assert [each.table.accounting for each in (raw, alone)] == [Accounting.ISOLATED] * 2
    assert isinstance(alone.risk, Costs)


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

"""A step with collectives, from measuring on a simulated GPU to its validation."""

import pytest

from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.validating import validate
from underclock.campaign.grid import Campaign
from underclock.core.planning.best_choice import Goal
from underclock.records import Kind, MeasurementSettings, SampleSet, Verdict
from underclock.workloads import workload

pytestmark = pytest.mark.slow
_QUICK = MeasurementSettings(kernel_warm_s=0.5, window_s=0.5, warm_s=1.0, steady_s=1.0)
_SEEN_MHZ = (840, 1200, 1590, 1830)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    return measure(
        workload("gpt3-xl", {"layers": 1, "tp": 4}),
        gpu="sim:h200",
        to=tmp_path_factory.mktemp("sim") / "samples.db",
        campaign=Campaign(core_mhz=(*_SEEN_MHZ, None), mem_mhz=(None,)),
        measuring=_QUICK,
    )


def test_the_answer_says_that_its_links_are_assumed(samples: SampleSet) -> None:
    made = plan(samples, Goal(max_slowdown=0.02), latency="free")
    verdict = validate(made, gpu="sim:h200", repeats=3, measuring=_QUICK)

    for each in (samples, made, verdict):
        assert any("collectives are assumed" in words for words in each.warnings)
    lowered = [
        kernel.name
        for kernel in samples.kernels
        if kernel.kind is Kind.COLLECTIVE and not made.kernels[kernel.name].clocks.is_auto
    ]
    assert len(lowered) > 10
    assert verdict.verdict is Verdict.KEPT

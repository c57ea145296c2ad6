"""Plans for a power limit: run under it, judged by time where time is promised, else refused."""

from pathlib import Path

import msgspec
import pytest

from score import score
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.validating import validate
from underclock.campaign.survey import Campaign
from underclock.core.planning.goal import Goal
from underclock.errors import DataError, UsageError
from underclock.hw.measurer import BRISK
from underclock.records import Accounting, GpuInfo, Objective, Plan, SampleSet, Strategy, Verdict
from underclock.report import page, verdict_text
from underclock.workloads import workload

pytestmark = pytest.mark.slow

_GPU = "sim:rtx3080ti"
_LOWER_W = 250.0
# What is asked of runs here hangs on no temperature.
_COLD = msgspec.structs.replace(BRISK, warm_s=1.0, steady_s=1.0)


@pytest.fixture(scope="module")
def sample_set(tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    return measure(
        workload("gpt3-125m", {"layers": 1}),
        gpu=_GPU,
        to=tmp_path_factory.mktemp("limited") / "samples.db",
        campaign=Campaign(core_mhz=(1050, 1470, 1680, 1890, None), mem_mhz=(None,)),
        measuring=BRISK,
    )


@pytest.fixture(scope="module")
def fastest(sample_set: SampleSet) -> Plan:
    return plan(sample_set, Goal(objective=Objective.TIME, power_limit_w=_LOWER_W))


@pytest.mark.parametrize("accounting", [Accounting.STEP, Accounting.ISOLATED])
def test_both_arms_run_under_the_limit_and_time_is_judged(
    fastest: Plan, accounting: Accounting
) -> None:
    ran = validate(
        fastest, gpu=_GPU, repeats=2, only_plan=True, measuring=_COLD, accounting=accounting
    )

    assert ran.gpu.power_limit_w == _LOWER_W
    assert ran.objective is Objective.TIME
    assert ran.pairs_keeping_time is not None
    assert ran.max_slowdown is None
    mean_w = [j / s for j, s in zip(ran.auto_energy_j, ran.auto_time_s, strict=True)]
    assert max(mean_w) < 1.02 * _LOWER_W


def test_a_step_that_is_slower_than_promised_breaks_a_promise_of_time(fastest: Plan) -> None:
    auto_s = fastest.arm(Strategy.AUTO).time_s or 0.0
    faster = [
        msgspec.structs.replace(
            arm, time_s=0.5 * auto_s, time_change=-0.5, time_interval=(-0.6, -0.4)
        )
        if arm.name is fastest.chosen
        else arm
        for arm in fastest.arms
    ]
    boast = msgspec.structs.replace(fastest, arms=tuple(faster))
    ran = validate(boast, gpu=_GPU, repeats=2, only_plan=True, measuring=_COLD)

    assert ran.verdict is Verdict.NOT_KEPT
    assert ran.pairs_keeping_time == 0
    assert verdict_text(ran).startswith("not kept: time ")
    assert "against -50.00 % ± 10.00 % promised" in verdict_text(ran)
    assert "are as fast as promised" in page(boast, ran)


@pytest.mark.parametrize("limit_w", [99.0, 400.0, 1e9])
def test_a_limit_that_the_simulated_gpu_does_not_take_is_refused(
    fastest: Plan, limit_w: float
) -> None:
    edited = msgspec.structs.replace(fastest, power_limit_w=limit_w)
    with pytest.raises(UsageError, match=r"takes no power limit of .* W") as refused:
        validate(edited, gpu=_GPU, repeats=1)

    assert refused.value.hint == "it takes 100 to 385 W"


def test_a_gpu_at_another_limit_is_refused_with_what_would_set_it(fastest: Plan) -> None:
    with pytest.raises(DataError, match="limit of 250 W, this GPU is limited to 350 W") as refused:
        fastest.check_gpu(fastest.gpu, fastest.limit_w)

    assert "`sudo nvidia-smi -pl 250`" in str(refused.value.hint)


@pytest.mark.parametrize("found_w", [249.1, 250.0, 250.9])
def test_a_limit_may_be_a_watt_off(fastest: Plan, found_w: float) -> None:
    gpu = msgspec.structs.replace(fastest.gpu, power_limit_w=found_w)

    assert fastest.check_gpu(gpu, fastest.limit_w) == ()


@pytest.mark.parametrize("found_w", [248.5, 251.5])
def test_a_limit_is_not_more_than_a_watt_off(fastest: Plan, found_w: float) -> None:
    gpu = msgspec.structs.replace(fastest.gpu, power_limit_w=found_w)
    with pytest.raises(DataError, match="this GPU is limited to"):
        fastest.check_gpu(gpu, fastest.limit_w)


def test_a_gpu_or_table_that_says_no_limit_is_refused(fastest: Plan) -> None:
    silent = GpuInfo(name=fastest.gpu.name)
    with pytest.raises(DataError, match="this GPU's limit is not known"):
        fastest.check_gpu(silent, fastest.limit_w)
    own = msgspec.structs.replace(fastest, power_limit_w=None)

    assert own.check_gpu(silent, own.limit_w) == ()


def test_a_table_cannot_run_a_plan_for_a_limit(fastest: Plan) -> None:
    table = Path(__file__).parents[1] / "data/tables/two_kernels.csv"
    with pytest.raises(DataError, match="the plan is for"):
        validate(fastest, gpu=f"replay:{table}", repeats=1)


def test_samples_at_another_limit_do_not_score_it(fastest: Plan, sample_set: SampleSet) -> None:
    with pytest.raises(DataError, match="this GPU is limited to 350 W"):
        score(fastest, sample_set)


def test_to_refine_it_the_gpu_has_the_limit_that_was_measured_at(fastest: Plan) -> None:
    assert fastest.check_gpu(fastest.gpu, fastest.gpu.power_limit_w) == ()


def test_a_plan_knows_the_limit_it_belongs_to(fastest: Plan) -> None:
    assert fastest.limit_w == _LOWER_W
    assert msgspec.structs.replace(fastest, power_limit_w=None).limit_w == 350.0

"""A step whose kernels cannot be launched alone, from its samples to its plan."""

from pathlib import Path

import pytest

from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.validating import validate
from underclock.campaign.grid import Campaign, ClockControl
from underclock.core.planning.best_choice import Goal
from underclock.errors import UsageError
from underclock.records import (
    AUTO,
    Accounting,
    Choice,
    Kernel,
    Kind,
    MeasurementSettings,
    Pass,
    Plan,
    SampleSet,
    Step,
    Strategy,
)

_WHY = "the step cannot be captured: aten::item makes the host wait"
_STEP = Step(
    name="train",
    kernels=(
        Kernel(name="mm", count=2, kind=Kind.GEMM, pass_=Pass.FORWARD, flops=6e11, bytes_moved=2e8),
        Kernel(name="adam", kind=Kind.MEMORY, pass_=Pass.OPTIMIZER, flops=1e8, bytes_moved=2e9),
    ),
    order=(0, 0, 1),
    obstacle=_WHY,
    warnings=(_WHY,),
)
_HASTY = MeasurementSettings(
    warm_s=1.0, steady_s=1.0, settle_s=0.1, kernel_warm_s=0.2, window_s=0.5, launches=2
)


def measured(
    path: Path, campaign: Campaign, gpu: str = "sim:h200#smooth", step: Step = _STEP
) -> SampleSet:
    return measure(step, gpu=gpu, to=path, campaign=campaign, measuring=_HASTY)


_CORES = (None, *range(1395, 1995, 75))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    path = tmp_path_factory.mktemp("whole") / "s.db"
    return measured(path, Campaign(core_mhz=_CORES, mem_mhz=(None,), repeats=2))


@pytest.fixture(scope="module")
def made(swept: SampleSet) -> Plan:
    return plan(swept, Goal(max_slowdown=0.05))


class TestMeasuring:
    @pytest.mark.untraced
    def test_whole_steps_are_on_file_with_what_each_kernel_took_inside(
        self, swept: SampleSet
    ) -> None:
        assert swept.samples == ()
        assert (swept.kernels, swept.order) == (_STEP.kernels, _STEP.order)
        assert swept.step.fingerprint == _STEP.fingerprint
        assert _WHY in swept.warnings
        steps = [sample for sample in swept.mixed if sample.is_step]
        assert len({sample.asked for sample in steps}) > 5
        assert all(len(sample.kernel_s) == 2 for sample in steps)
        longest = max(steps, key=lambda sample: sample.time_s)
        inside_s = 2 * longest.kernel_s[0] + longest.kernel_s[1]
        assert inside_s == pytest.approx(longest.time_s, rel=0.01)

    def test_a_table_has_no_step_to_run(self, tmp_path: Path) -> None:
        table = tmp_path / "sweep.csv"
        table.write_text("gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w\nG,a,,,1,100,100\n")
        with pytest.raises(UsageError, match="aten::item makes the host wait"):
            measured(tmp_path / "s.db", Campaign(), gpu=f"replay:{table}")
        assert not (tmp_path / "s.db").exists()


class TestSteering:
    @pytest.mark.untraced
    def test_a_short_step_is_steered_by_coload(self, tmp_path: Path) -> None:
        campaign = Campaign(clocks=ClockControl.STEER, time_limit_s=60.0)
        steered = measured(tmp_path / "s.db", campaign)

        mixed = [s for s in steered.mixed if s.is_step and s.in_company]
        assert mixed
        assert {sample.asked for sample in steered.mixed} == {AUTO}
        assert plan(steered).arm(Strategy.BEST_FIXED)


class TestPlanning:
    def test_one_clock_for_the_whole_step_is_planned_with_its_error(self, made: Plan) -> None:
        assert [arm.name for arm in made.arms] == [Strategy.AUTO, Strategy.BEST_FIXED]
        assert made.accounting is Accounting.STEP
        assert made.promise.energy_change < -0.01
        assert made.arm(Strategy.BEST_FIXED).energy_interval is not None
        assert {choice.clocks for choice in made.kernels.values()} == {made.fixed}
        assert (made.step.kernels, made.step.order) == (_STEP.kernels, _STEP.order)

    def test_it_says_what_each_pass_takes_and_that_energies_are_shares(self, made: Plan) -> None:
        assert any("do not say which pass draws what" in each for each in made.warnings)
        assert any("forward +" in each and "optimizer" in each for each in made.warnings)
        # The core bounds the product, and not the optimizer.
        assert made.kernels["mm"].time_change > made.kernels["adam"].time_change + 0.01
        saved_j = sum(choice.saved_j for choice in made.kernels.values())
        assert saved_j == pytest.approx(-made.promise.energy_change * _auto_j(made.kernels))

    def test_the_promise_is_kept_on_whole_steps(self, made: Plan) -> None:
        ran = validate(made, gpu="sim:h200#smooth", repeats=2, measuring=_HASTY)

        assert ran.energy_change.mean == pytest.approx(made.promise.energy_change, abs=0.01)
        assert ran.time_change.mean == pytest.approx(made.promise.time_change, abs=0.005)


def _auto_j(kernels: dict[str, Choice]) -> float:
    return sum(choice.auto_energy_j for choice in kernels.values())

"""A step whose kernels cannot be launched alone, from its samples to its plan."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from score import check_kernels_alone
from underclock.app.backends import open_measurer
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.switching import Switching
from underclock.app.validating import validate
from underclock.campaign.grid import Campaign, ClockControl
from underclock.campaign.recording import Recorder
from underclock.core.design import Wanted
from underclock.core.planning.best_choice import Goal
from underclock.core.step.whole_step import WHOLE
from underclock.errors import DataError, MeasurementError, NotSupportedError, UsageError
from underclock.hw.base import Durations, Measurer, Reading
from underclock.records import (
    ALONE,
    AUTO,
    Accounting,
    Choice,
    Clocks,
    Kernel,
    Kind,
    MeasurementSettings,
    Mix,
    Pass,
    Plan,
    SampleSet,
    Step,
    Strategy,
)
from underclock.records.latencies import LatencyTable
from underclock.store import SampleFile, read_samples

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
_READING = Reading(
    time_s=4.0,
    energy_j=800.0,
    window_s=8.0,
    core_mhz=1700.0,
    core_spread_mhz=5.0,
    durations=Durations(kernel_s=(1.0, 1.5, 1.5)),
)


class Whole:
    """A measurer that runs nothing but the whole step, and co-load by itself."""

    def __init__(self, inner: Measurer, *, timing: Exception | None = None) -> None:
        self.asked: list[tuple[int, Mix | None, bool]] = []
        self._inner = inner
        self._timing = timing

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def measure(
        self,
        kernels: Sequence[Kernel],
        repeat: int = 0,
        *,
        mix: Mix | None = None,
        timed: bool = False,
        least: int | None = None,
    ) -> Reading:
        del repeat, least
        assert len(kernels) in {0, len(_STEP.order)}
        self.asked.append((len(kernels), mix, timed))
        if timed and self._timing is not None:
            raise self._timing
        return _READING if timed else dataclasses.replace(_READING, durations=None)


def measured(
    path: Path, campaign: Campaign, gpu: str = "sim:h200", step: Step = _STEP
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
        assert swept.fingerprint == _STEP.fingerprint
        assert _WHY in swept.warnings
        steps = [sample for sample in swept.mixed if sample.is_step]
        assert len({sample.asked for sample in steps}) > 5
        assert all(len(sample.kernel_s) == 2 for sample in steps)
        longest = max(steps, key=lambda sample: sample.time_s)
        inside_s = 2 * longest.kernel_s[0] + longest.kernel_s[1]
        assert inside_s == pytest.approx(longest.time_s, rel=0.01)

    @pytest.mark.untraced
    def test_a_grid_is_visited_once_and_goes_on_where_it_stopped(self, tmp_path: Path) -> None:
        campaign = Campaign(core_mhz=(1980, 1605, 1395, None), mem_mhz=(None,), repeats=2)
        first = measured(tmp_path / "s.db", campaign)
        again = measured(tmp_path / "s.db", campaign)

        assert first == again
        locked = [s.asked.core_mhz for s in first.mixed if not s.asked.is_auto]
        assert sorted(mhz for mhz in locked if mhz) == [1395, 1395, 1605, 1605, 1980, 1980]

    def test_nothing_but_the_whole_step_is_asked_for(self, tmp_path: Path) -> None:
        with open_measurer("sim:h200", measuring=_HASTY) as inner:
            only = Whole(inner)
            with SampleFile.create(tmp_path / "s.db", _header(inner)) as file:
                recorder = Recorder(only, file, whole=True)  # type: ignore[arg-type]
                recorder.take(Wanted(WHOLE.name, timed=False))
                recorder.take(Wanted(WHOLE.name))
                recorder.take(Wanted(timed=False))
                one = recorder.samples

        assert only.asked == [(3, ALONE, True)] * 3
        assert [each.kernel for each in one.samples] == [WHOLE.name] * 3
        assert len(one.in_situ) == 3

    @pytest.mark.parametrize("error", [NotSupportedError("no CUPTI"), MeasurementError("no CUPTI")])
    def test_where_launches_cannot_be_timed_the_step_is_still_measured(
        self, error: Exception, tmp_path: Path
    ) -> None:
        with open_measurer("sim:h200", measuring=_HASTY) as inner:
            only = Whole(inner, timing=error)
            with SampleFile.create(tmp_path / "s.db", _header(inner)) as file:
                recorder = Recorder(only, file, whole=True)  # type: ignore[arg-type]
                for _ in range(2):
                    recorder.take(Wanted(WHOLE.name, asked=Clocks(core_mhz=1605), timed=False))
                one = recorder.samples

        assert only.asked == [(3, ALONE, True), (3, ALONE, False), (3, ALONE, False)]
        found = read_samples(tmp_path / "s.db")
        assert found.warnings[-1].startswith("no CUPTI: what launches take inside the step is not")
        assert [window.kernel_s for window in found.windows] == [(), ()]
        assert [each.observed for each in one.samples] == [Clocks(core_mhz=1700)] * 2

    def test_a_table_has_no_step_to_run(self, tmp_path: Path) -> None:
        table = tmp_path / "sweep.csv"
        table.write_text("gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w\nG,a,,,1,100,100\n")
        with pytest.raises(UsageError, match="aten::item makes the host wait"):
            measured(tmp_path / "s.db", Campaign(), gpu=f"replay:{table}")
        assert not (tmp_path / "s.db").exists()


def _header(measurer: Measurer) -> SampleSet:
    return SampleSet(
        evidence=measurer.evidence,
        gpu=measurer.info(),
        workload="train",
        kernels=_STEP.kernels,
        order=_STEP.order,
    )


class TestSteering:
    @pytest.mark.untraced
    def test_a_short_step_is_steered_by_coload(self, tmp_path: Path) -> None:
        campaign = Campaign(clocks=ClockControl.STEER, time_limit_s=60.0)
        steered = measured(tmp_path / "s.db", campaign)

        mixed = [s for s in steered.mixed if s.is_step and s.in_company]
        assert mixed
        assert {sample.asked for sample in steered.mixed} == {AUTO}
        assert plan(steered).arm(Strategy.BEST_FIXED)

    def test_a_long_step_is_not(self, tmp_path: Path) -> None:
        longer = [msgspec.structs.replace(k, flops=6e14) for k in _STEP.kernels[:1]]
        step = msgspec.structs.replace(_STEP, kernels=(*longer, _STEP.kernels[1]))
        campaign = Campaign(clocks=ClockControl.STEER, time_limit_s=600.0)
        with pytest.raises(NotSupportedError, match="cannot be steered: co-load can run after it"):
            measured(tmp_path / "s.db", campaign, step=step)


class TestPlanning:
    def test_one_clock_for_the_whole_step_is_planned_with_its_error(self, made: Plan) -> None:
        assert [arm.name for arm in made.arms] == [Strategy.AUTO, Strategy.BEST_FIXED]
        assert made.accounting is Accounting.STEP
        assert made.promise.energy_change < -0.01
        assert made.arm(Strategy.BEST_FIXED).energy_interval is not None
        assert {choice.clocks for choice in made.kernels.values()} == {made.fixed}
        assert (made.runs, made.order) == (_STEP.kernels, _STEP.order)

    def test_it_says_what_each_pass_takes_and_that_energies_are_shares(self, made: Plan) -> None:
        assert any("do not say which pass draws what" in each for each in made.warnings)
        assert any("forward +" in each and "optimizer" in each for each in made.warnings)
        # The core bounds the product, and not the optimizer.
        assert made.kernels["mm"].time_change > made.kernels["adam"].time_change + 0.01
        saved_j = sum(choice.saved_j for choice in made.kernels.values())
        assert saved_j == pytest.approx(-made.promise.energy_change * _auto_j(made.kernels))

    def test_the_promise_is_kept_on_whole_steps(self, made: Plan) -> None:
        ran = validate(made, gpu="sim:h200", repeats=2, measuring=_HASTY)

        assert ran.energy_change.mean == pytest.approx(made.promise.energy_change, abs=0.01)
        assert ran.time_change.mean == pytest.approx(made.promise.time_change, abs=0.005)

    def test_passes_with_clocks_of_their_own_are_refused(self, swept: SampleSet) -> None:
        with pytest.raises(UsageError, match="do not tell which pass draws what") as caught:
            plan(swept, Goal(granularity="pass"))  # type: ignore[arg-type]
        assert "one clock for the whole step" in caught.value.hint

    def test_one_clock_hangs_on_no_latency(self, swept: SampleSet) -> None:
        slow = Switching(latencies=LatencyTable.constant(6e-3))
        assert plan(swept, switching=slow) == plan(swept)

    def test_at_auto_alone_there_is_nothing_to_choose(self, tmp_path: Path) -> None:
        campaign = Campaign(core_mhz=(None,), mem_mhz=(None,))
        assert plan(measured(tmp_path / "s.db", campaign)).sets_nothing

    def test_what_asks_for_kernels_is_refused(
        self, swept: SampleSet, made: Plan, tmp_path: Path
    ) -> None:
        with pytest.raises(DataError, match="train ran whole only"):
            check_kernels_alone(swept)
        with pytest.raises(DataError, match="no clocks of kernels that can be measured alone"):
            measure(gpu="sim:h200#2", to=tmp_path / "r.db", campaign=Campaign(near=made))

    def test_an_adaptive_campaign_decides_what_to_look_at(self, tmp_path: Path) -> None:
        found = measured(tmp_path / "s.db", Campaign(max_samples=10))
        locked = {s.asked for s in found.mixed if s.is_step and not s.asked.is_auto}
        assert (len(found.in_situ), len(locked)) == (4, 6)


def _auto_j(kernels: dict[str, Choice]) -> float:
    return sum(choice.auto_energy_j for choice in kernels.values())

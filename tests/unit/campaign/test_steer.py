"""Steering campaigns on simulated GPUs: complete, resumable, and honest about what they reach."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from benches import bench
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.campaign.grid import Campaign, ClockControl, Grid, settings_of, survey
from underclock.campaign.loop import CampaignRun, Steering
from underclock.campaign.recording import Recorder
from underclock.core.model.estimate import estimate
from underclock.core.steering import clock_range
from underclock.core.steering.mixing import HEATERS, IDLING, METERED
from underclock.core.step.power_cap import driver_says
from underclock.errors import NoRoomError, UsageError
from underclock.gpus.models import gpu_model
from underclock.hw.base import Launcher, Loop
from underclock.hw.measurer import BRISK, GpuMeasurer
from underclock.hw.simulated.boards import SimulatedCosts
from underclock.hw.simulated.driver import simulated_rig
from underclock.records import (
    ALONE,
    AUTO,
    Clocks,
    Evidence,
    Kernel,
    Kind,
    Mix,
    SampleSet,
    Step,
)
from underclock.store import SampleFile

if TYPE_CHECKING:
    from underclock.campaign.progress import Tally

_STEER = Campaign(clocks=ClockControl.STEER, max_samples=30)
# What is asked here hangs on no temperature, but for how long a campaign took.
_COLD = msgspec.structs.replace(BRISK, warm_s=1.0, steady_s=1.0)


def _step() -> Step:
    """Return a step of a product, two memory-bound kernels and a small one."""
    return Step(
        name="small",
        kernels=(
            Kernel(name="gemm", count=2, kind=Kind.GEMM, flops=6e12, bytes_moved=2e9),
            Kernel(name="softmax", kind=Kind.MEMORY, flops=2e10, bytes_moved=1.2e10),
            Kernel(name="copy", kind=Kind.MEMORY, flops=1e6, bytes_moved=8e9),
        ),
        order=(0, 1, 0, 2),
    )


def _steer(
    path: Path, campaign: Campaign = _STEER, *, gpu: str = "sim:h200", **more: object
) -> SampleSet:
    more = {"measuring": _COLD} | more
    return measure(_step(), gpu=gpu, to=path, campaign=campaign, seed=3, **more)  # type: ignore[arg-type]


def _run(recorder: Recorder, campaign: Campaign = _STEER) -> CampaignRun:
    return CampaignRun(recorder, Steering(recorder, campaign), campaign, lambda _tally: None)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("steered") / "samples.db"
    _steer(path)
    return path


@pytest.fixture(scope="module")
def steered(file: Path) -> SampleSet:
    return SampleFile.read(file)


def test_a_campaign_measures_the_step_coload_and_every_kernel(steered: SampleSet) -> None:
    done = [(s.kernel, s.mix) for s in steered.mixed]
    assert done[:3] == [("", HEATERS), ("", ALONE), ("", IDLING)]
    assert done.count(("", METERED)) == 2
    alone = [s.kernel for s in steered.mixed if s.kernel and s.mix == ALONE]
    first = done.index((alone[0], ALONE))
    assert done[first : first + 3] == [(name, ALONE) for name in alone]
    assert done[:first].count(("", ALONE)) == len(steered.in_situ) == 4
    assert sum(s.is_step and s.in_company for s in steered.mixed[:first]) >= 8
    assert [s.kernel for s in steered.samples] == ["gemm", "softmax", "copy"]
    assert all(s.asked == AUTO for s in steered.samples)
    assert all(s.asked == AUTO for s in steered.mixed)
    assert all(len(s.kernel_s) == 3 for s in steered.mixed if not s.kernel and s.mix.launches)
    reach = clock_range(steered)
    assert reach is not None
    assert reach[0] < 1930.0
    assert reach[1] == 1980.0
    fit = estimate(steered)
    assert fit.can.any(axis=1).all()
    assert {c.mem_mhz for c in fit.posterior.settings} == {None}
    assert min(c.core_mhz or 0 for c in fit.posterior.settings) >= reach[0] - 15.0


def test_a_campaign_that_was_cut_off_goes_on_where_it_stopped(
    tmp_path: Path, steered: SampleSet
) -> None:
    path = tmp_path / "samples.db"
    for most in (3, 9, 30):
        _steer(path, Campaign(clocks="steer", max_samples=most))  # type: ignore[arg-type]
        assert len(SampleFile.read(path).mixed) == most
    resumed = SampleFile.read(path)

    assert [s.kernel for s in resumed.mixed[:15]] == [s.kernel for s in steered.mixed[:15]]
    assert len(resumed.samples) == 3
    assert len(resumed.in_situ) == 4


def test_a_time_limit_ends_a_campaign(tmp_path: Path) -> None:
    seen: list[Tally] = []
    samples = _steer(
        tmp_path / "s.db",
        Campaign(clocks=ClockControl.STEER, time_limit_s=25.0),
        progress=seen.append,
        measuring=BRISK,
    )

    assert 0 < len(samples.mixed) < 20
    assert seen[-1].doing == "done"
    assert seen[-1].time_limit_s == 25.0
    assert 25.0 <= seen[-1].gpu_s < 35.0


def test_a_time_limit_within_which_nothing_is_said_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too short: every sample") as caught:
        _steer(tmp_path / "s.db", Campaign(clocks=ClockControl.STEER, time_limit_s=1.0))

    assert "the step, and its longest kernel" in caught.value.hint


def test_few_looks_at_an_unkind_board_are_planned_by_whole_steps(tmp_path: Path) -> None:
    few = dataclasses.replace(_STEER, max_samples=32)
    made = plan(_steer(tmp_path / "s.db", few, gpu="sim:h200#1"), latency="free")
    bound, auto = made.arm("kernel_global").cost, made.arm("auto").cost

    # The bound was found from kernels, whose auto is another one's.
    assert bound is not None
    assert auto is not None
    assert bound.time_s / auto.time_s - 1.0 == pytest.approx(bound.time_change)
    assert bound.energy_j / auto.energy_j - 1.0 == pytest.approx(bound.energy_change)


@pytest.mark.parametrize("most", [2, 9, 19, 29])
def test_a_campaign_may_end_anywhere_and_is_planned(steered: SampleSet, most: int) -> None:
    cut = msgspec.structs.replace(steered, windows=steered.windows[:most])
    best = plan(cut, latency="free").headline

    assert best.energy_interval is not None
    assert best.energy_change is not None
    assert best.energy_interval[0] <= best.energy_change <= best.energy_interval[1]


class _Refusing:
    """A launcher on which mixes fail as an exception says, and that counts its loops."""

    def __init__(self, launcher: Launcher, error: Exception, *, only_hot: bool) -> None:
        self._launcher = launcher
        self._error = error
        self._only_hot = only_hot
        self.loops = 0
        self.look_s = 0.0

    def loop(
        self, kernels: Sequence[Kernel], mix: Mix | None = None
    ) -> AbstractContextManager[Loop]:
        self.loops += 1
        if mix is not None and (mix.hot or not self._only_hot):
            raise self._error
        return self._launcher.loop(kernels, mix)

    def notes(self) -> tuple[str, ...]:
        return ()


@contextmanager
def _refused(
    path: Path, header: SampleSet, error: Exception, *, only_hot: bool
) -> Iterator[tuple[CampaignRun, _Refusing]]:
    """Yield a campaign on a GPU that does not run some mixes."""
    with simulated_rig("h200") as rig, SampleFile.create(path, header) as made:
        launcher = _Refusing(rig.launcher, error, only_hot=only_hot)
        measurer = GpuMeasurer(
            rig.gpu, launcher, rig.clock, evidence=Evidence.SIMULATED, measuring=_COLD
        )
        recorder = Recorder(measurer, made)
        yield _run(recorder), launcher


@pytest.fixture
def header(file: Path) -> SampleSet:
    empty = dict.fromkeys(("windows", "warnings"), ())
    return msgspec.structs.replace(SampleFile.read(file), **empty)


def test_a_campaign_goes_on_without_a_heater_that_does_not_fit(
    tmp_path: Path, header: SampleSet
) -> None:
    path = tmp_path / "s.db"
    error = NoRoomError("the heater does not fit into memory")
    with _refused(path, header, error, only_hot=True) as (campaign, _):
        campaign.run()
    samples = SampleFile.read(path)

    assert not any(s.mix.hot for s in samples.mixed)
    assert {s.kernel for s in samples.mixed} == {"", "gemm", "softmax", "copy"}
    assert max(s.at_mhz for s in samples.mixed if s.kernel == "gemm") > 1900.0
    (warning,) = samples.warnings
    assert warning.startswith("the heater does not fit into memory: kernels ran with idling")
    fit = estimate(samples)
    assert fit.can.any(axis=1).all()
    assert warning in fit.costs.table.warnings


def test_steering_is_what_is_done_where_clocks_may_not_be_held() -> None:
    with simulated_rig("h200") as rig:
        free, bound = (bench(rig, BRISK, may_lock=may_lock) for may_lock in (True, False))
        assert not Campaign().steers(free)
        assert Campaign(clocks=ClockControl.STEER).steers(free)
        assert Campaign().steers(bound)
        assert Campaign(grid=Grid.ADAPTIVE).steers(bound)
        for other in (
            Campaign(clocks=ClockControl.LOCK),
            Campaign(grid=Grid.COARSE),
            Campaign(core_mhz=(None,)),
        ):
            assert not other.steers(bound)
        settings = settings_of(bound, Campaign())
        assert settings[0] == AUTO
        assert settings[1] == Clocks(core_mhz=1980)
        header, points = survey(bound, _step(), Campaign())
        assert header.settings == settings
        assert points == [(AUTO, list(_step().kernels))]
        Campaign().check_goal(bound)
        with pytest.raises(UsageError, match="does not measure for a time budget"):
            Campaign(slowdowns=(0.02,)).check_goal(bound)


@pytest.mark.parametrize(
    "more",
    [{"grid": "coarse"}, {"grid": "full"}, {"core_mhz": (900,)}, {"mem_mhz": (1,)}, {"repeats": 2}],
)
def test_steering_to_what_only_locks_reach_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"held|sets no clocks"):
        Campaign(clocks=ClockControl.STEER, **more)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clocks"):
        Campaign(clocks="push")  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_the_cap_holds_at_a_lock_is_measured_thinned_out(tmp_path: Path) -> None:
    campaign = Campaign(clocks=ClockControl.LOCK, grid=Grid.ADAPTIVE, max_samples=12)
    samples = _steer(tmp_path / "s.db", campaign)
    capped = {
        (s.kernel, s.asked)
        for s in samples.samples
        if not s.asked.is_auto and driver_says(s.throttle_reasons)
    }
    thinned_out = [s for s in samples.mixed if s.kernel]

    assert capped
    assert {(s.kernel, s.asked) for s in thinned_out} == capped
    assert all(s.mix.idle_s for s in thinned_out)
    assert {s.core_mhz for s in thinned_out} == {s.asked.core_mhz for s in thinned_out}
    idle = Counter(s.asked for s in samples.mixed if not s.kernel and not s.mix.launches)
    assert idle == dict.fromkeys({clocks for _, clocks in capped}, 1)
    truth = gpu_model("h200")
    fit = estimate(samples)
    kernel = samples.kernels[0]
    for clocks in {asked for name, asked in capped if name == kernel.name}:
        c = fit.posterior.settings.index(clocks)
        at = float(clocks.core_mhz or 0), truth.mem_mhz[-1]
        costs = SimulatedCosts(truth.constants, truth.core_mhz, truth.peak_w)
        time_s = costs.at(truth.kernel(kernel), *at).duration_s
        assert fit.posterior.log_s[0, c] == pytest.approx(math.log(time_s), abs=0.005)

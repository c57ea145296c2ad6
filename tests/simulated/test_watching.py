"""Launches that must get on, and steps that a GPU cannot run."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest

from underclock.app.backends import open_gpu
from underclock.errors import MeasurementError, UsageError
from underclock.hw.base import Durations, Progress
from underclock.hw.gpu_names import parse_gpu
from underclock.hw.measurer import GpuMeasurer
from underclock.hw.simulated.rig import Rig, simulated_rig
from underclock.hw.watching import LONGEST_STILL_S, WatchedLoop
from underclock.records import Clocks, Evidence, Kernel, Kind, MeasurementSettings, Step
from underclock.testing import Fault, FaultKind, FaultScript

_COPY = Kernel(name="copy", kind=Kind.MEMORY, flops=0.0, bytes_moved=9e9)
_STEP = Step(name="s", kernels=(_COPY,), order=(0,))


def test_a_kernel_that_says_nothing_of_its_work_cannot_be_run() -> None:
    mute = msgspec.structs.replace(_STEP, kernels=(Kernel(name="copy"),))
    with open_gpu(parse_gpu("sim:rtx3080ti"), runs=True, step=mute) as opened:
        assert opened.launcher is not None
        with (
            pytest.raises(UsageError, match="cannot simulate 'copy'"),
            opened.launcher.loop(mute.kernels),
        ):
            pass


def _bench(rig: Rig) -> GpuMeasurer:
    measuring = MeasurementSettings(warm_s=100.0, kernel_warm_s=2.0, window_s=1.0)
    return GpuMeasurer(
        rig.gpu, rig.launcher, rig.clock, evidence=Evidence.SIMULATED, measuring=measuring
    )


def _measure(rig: Rig) -> None:
    with _bench(rig).hold(Clocks(core_mhz=1050)):
        _bench(rig).measure([_COPY])


def _warm(rig: Rig) -> None:
    _bench(rig).warm([_COPY])


@pytest.mark.parametrize(
    ("use", "doing"), [(_measure, "measuring"), (_warm, "warming the GPU")], ids=["measure", "warm"]
)
def test_a_gpu_lost_for_a_moment_does_not_hang_the_wait(
    use: Callable[[Rig], None], doing: str
) -> None:
    faults = FaultScript([Fault(at_s=1.5, kind=FaultKind.GPU_LOST, for_s=0.01)])
    with simulated_rig("rtx3080ti", faults=faults) as rig:
        with pytest.raises(MeasurementError, match=rf"no launch ended in \d+ s while {doing}"):
            use(rig)
        assert rig.clock.now_s() < 4 * LONGEST_STILL_S
        assert rig.device.core_lock is None


@dataclass
class _Clock:
    t_s: float = 0.0

    def now_s(self) -> float:
        return self.t_s

    def sleep_s(self, duration_s: float) -> None:
        self.t_s += duration_s


@dataclass
class _Loop:
    launches: int = 0
    work: float = 0.0

    def progress(self) -> Progress:
        return Progress(launches=self.launches, elapsed_s=0.0, work=self.work)

    def durations(self, for_s: float) -> Durations:
        raise AssertionError(f"nobody asks for {for_s} s of durations")


def test_a_round_may_take_as_long_as_it_likes_where_work_inside_it_is_seen() -> None:
    clock, loop = _Clock(), _Loop()
    watched = WatchedLoop(loop, clock, "waiting")
    for _ in range(10):
        clock.sleep_s(LONGEST_STILL_S)
        loop.work += 0.1
        assert watched.progress().launches == 0
    clock.sleep_s(LONGEST_STILL_S + 0.1)
    with pytest.raises(MeasurementError, match="no launch ended"):
        watched.progress()

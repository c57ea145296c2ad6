"""A log of what clocks do, and launches that must get on."""

import csv
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from underclock import Tally
from underclock.app.watching import COLUMNS, watch
from underclock.core.step.following import fit_period, launch_at
from underclock.errors import DataError, MeasurementError, NotSupportedError, UsageError
from underclock.hw.base import Durations, Progress
from underclock.hw.measurer import GpuMeasurer
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.rig import Rig, simulated_rig
from underclock.hw.watching import LONGEST_STILL_S, Entry, Sampler, WatchedLoop
from underclock.records import Clocks, Evidence, Kernel, Kind, MeasurementSettings, Step
from underclock.testing import Fault, FaultKind, FaultScript, simulated_driver
from underclock.workloads import workload

_PERIOD_S = 0.001


@pytest.fixture(scope="module")
def long() -> Step:
    """Three kernels of about 11, 22 and 33 ms; the first runs again at the end."""
    return Step(
        name="a long step",
        kernels=(
            Kernel(name="copy", kind=Kind.MEMORY, flops=0.0, bytes_moved=9e9, count=2),
            Kernel(name="gemm", kind=Kind.GEMM, flops=1.4e12, bytes_moved=1e8),
            Kernel(name="scale", kind=Kind.MEMORY, flops=1e9, bytes_moved=2.6e10),
        ),
        order=(0, 1, 2, 0),
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _alone_s(rig: Rig, kernel: Kernel) -> float:
    with rig.launcher.loop([kernel]) as loop:
        rig.clock.sleep_s(1.0)
        seen = loop.progress()
    return seen.elapsed_s / seen.launches


def test_an_idle_gpu_is_read_a_thousand_times_a_second_and_left_alone(tmp_path: Path) -> None:
    log = watch("sim:rtx3080ti", duration_s=0.5, to=tmp_path / "log.csv")
    rows = _rows(tmp_path / "log.csv")

    assert (log.evidence, log.gpu.name) == (Evidence.SIMULATED, "RTX 3080 Ti")
    assert log.entries == len(rows) == 500
    assert log.rate_hz == pytest.approx(1000.0)
    assert log.core_mhz == (210.0, 210.0, 210.0)
    assert log.throttle_reasons == 0x1  # idle
    assert (log.step_s, log.kernels) == (None, ())
    assert tuple(rows[0]) == COLUMNS
    assert {(row["steps"], row["kernel"]) for row in rows} == {("", "")}
    gaps_s = np.diff([float(row["at_s"]) for row in rows])
    assert gaps_s == pytest.approx(_PERIOD_S, abs=2e-6)


@pytest.mark.untraced
def test_the_summary_says_what_the_file_says(tmp_path: Path, long: Step) -> None:
    log = watch("sim:rtx3080ti", duration_s=1.0, step=long, to=tmp_path / "log.csv")
    rows = _rows(tmp_path / "log.csv")

    for column, (least, mean, most) in (("core_mhz", log.core_mhz), ("power_w", log.power_w)):
        values = [float(row[column]) for row in rows]
        assert (min(values), max(values)) == pytest.approx((least, most), abs=1e-3)
        assert sum(values) / len(values) == pytest.approx(mean, abs=1e-3)
    assert [kernel.kernel for kernel in log.kernels] == [kernel.name for kernel in long.kernels]
    for kernel in log.kernels:
        mine = [row for row in rows if row["kernel"] == kernel.kernel]
        assert kernel.entries == len(mine)
        mean_mhz = sum(float(row["core_mhz"]) for row in mine) / len(mine)
        assert kernel.core_mhz == pytest.approx(mean_mhz)
        mean_w = sum(float(row["power_w"]) for row in mine) / len(mine)
        assert kernel.power_w == pytest.approx(mean_w, abs=1e-3)


def _told(step: Step, duration_s: float) -> list[Tally]:
    told: list[Tally] = []
    watch("sim:rtx3080ti", duration_s=duration_s, step=step, progress=told.append)
    return told


@pytest.mark.untraced
def test_a_log_says_how_far_it_is_now_and_then(long: Step) -> None:
    seen = _told(long, 1.2)

    timing = [tally for tally in seen if tally.phase == "timing kernels"]
    assert [tally.share for tally in timing] == [0.0, 1 / 3, 2 / 3]
    log = seen[len(timing) :]
    assert {tally.phase for tally in log} == {"log"}
    assert [tally.share for tally in log] == pytest.approx([0.0, 0.5 / 1.2, 1.0 / 1.2], abs=0.01)


@pytest.mark.untraced
def test_kernels_follow_one_another_as_in_the_step_which_begins_as_one_ends(
    tmp_path: Path, long: Step
) -> None:
    log = watch("sim:rtx3080ti", duration_s=1.0, step=long, to=tmp_path / "log.csv")
    rows = _rows(tmp_path / "log.csv")

    runs = [name for name, _ in itertools.groupby(row["kernel"] for row in rows)]
    assert len(runs) > 30
    # The last launch of a step and the first of the next are of one kernel.
    follows = {"copy": "gemm", "gemm": "scale", "scale": "copy"}
    assert runs[1:] == [follows[name] for name in runs[:-1]]
    ends = [
        place
        for place, (before, row) in enumerate(itertools.pairwise(rows), start=1)
        if before["steps"] != row["steps"]
    ]
    around = {row["kernel"] for end in ends[1:-1] for row in rows[end - 8 : end + 8]}
    assert around == {"copy"}
    ends_s = [float(rows[end]["at_s"]) for end in ends]
    assert log.step_s == pytest.approx(float(np.diff(ends_s).mean()), abs=_PERIOD_S / 5)


@pytest.mark.slow
def test_the_log_lies_over_the_kernel_that_truly_ran(rig: Rig, long: Step) -> None:
    truth: list[int] = []
    launches = [long.kernels[index] for index in long.order]
    alone_s = np.array([_alone_s(rig, kernel) for kernel in launches])
    with rig.launcher.loop(launches) as loop:

        def steps() -> int:
            assert rig.device.running is not None
            truth.append(rig.device.running.position)
            return loop.progress().launches

        rig.clock.sleep_s(2.0)
        entries = Sampler(rig.gpu, rig.clock, steps=steps).run(2.0)

    at_s = np.array([entry.at_s for entry in entries])
    period = fit_period(at_s, np.array([entry.steps for entry in entries]))
    right = launch_at(at_s, period, alone_s) == np.array(truth)

    # Readings are 1 ms apart and launches 11 ms or more: only those next to a border may be wrong.
    assert set(truth) == {0, 1, 2, 3}
    assert right.mean() > 0.93
    border = np.flatnonzero(np.diff(truth))
    near = np.abs(np.arange(len(truth))[:, None] - border[None, :]).min(axis=1) <= 3
    assert right[~near].all()


def test_a_late_reading_delays_none_after_it() -> None:
    with simulated_rig("rtx3080ti") as rig:
        due_s = [0.0, 0.010, 0.020]

        def steps() -> int:
            if len(sampler.entries) == 2:
                rig.clock.sleep_s(0.0255)  # the host was busy
            return 0

        sampler = Sampler(rig.gpu, rig.clock, rate_hz=100.0, steps=steps)
        entries = sampler.run(0.1)

    due_s += [0.0455, 0.050, 0.060, 0.070, 0.080, 0.090]
    assert [entry.at_s for entry in entries] == pytest.approx(due_s, abs=1e-5)  # a read takes time


def test_watching_never_writes_to_the_gpu(long: Step) -> None:
    with (
        simulated_rig("rtx3080ti", read_only=True) as rig,
        rig.launcher.loop([long.kernels[index] for index in long.order]),
    ):
        assert len(Sampler(rig.gpu, rig.clock).run(0.5)) == 500


@pytest.mark.slow
def test_a_gpu_slowed_against_heat_shows_it_in_its_log() -> None:
    faults = FaultScript([Fault(at_s=1.0, kind=FaultKind.SOFT_SLOWDOWN)])
    with simulated_driver("rtx3080ti", faults=faults) as machine, nvml_session():
        kernel = Kernel(name="copy", kind=Kind.MEMORY, flops=0.0, bytes_moved=9e9)
        with machine.run(kernel):
            entries = Sampler(NvmlGpu(), machine.clock).run(2.0)

    def most_mhz(some: list[Entry]) -> int:
        return max(entry.core_mhz or 0 for entry in some)

    early = [entry for entry in entries if 0.5 < entry.at_s < 1.0]
    late = [entry for entry in entries if entry.at_s > 1.5]
    assert not any(entry.throttle_reasons & 0x20 for entry in early)
    assert all(entry.throttle_reasons & 0x20 for entry in late)
    assert most_mhz(late) < most_mhz(early)


@pytest.mark.parametrize(
    ("duration_s", "rate_hz"),
    [(0.0, 1000.0), (-1.0, 1000.0), (math.nan, 1000.0), (math.inf, 1000.0), (1.0, 0.0)],
)
def test_a_log_of_no_or_endless_time_is_refused(duration_s: float, rate_hz: float) -> None:
    with pytest.raises(UsageError, match="cannot log for"):
        watch("sim:rtx3080ti", duration_s=duration_s, rate_hz=rate_hz)


@pytest.mark.parametrize(
    ("gpu", "sentence"),
    [
        ("replay:sweep.csv", "cannot show what its clocks do"),
        ("sim:rtx9999", "no simulated GPU"),
        ("cpu", "unknown GPU"),
        ("nvml:first", "cannot read 'first'"),
    ],
)
def test_what_has_no_clocks_is_refused(gpu: str, sentence: str, tmp_path: Path) -> None:
    with simulated_driver("rtx3080ti"), pytest.raises(UsageError, match=sentence):
        watch(gpu, duration_s=0.1, to=tmp_path / "log.csv")

    assert list(tmp_path.iterdir()) == []


def test_without_a_driver_there_is_no_real_gpu_to_watch() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    with pytest.raises(NotSupportedError, match="could not start NVML"):
        watch("nvml:0", duration_s=0.1)


def test_a_real_gpu_runs_traced_steps_only(long: Step) -> None:
    with (
        simulated_driver("rtx3080ti"),
        pytest.raises(UsageError, match="a step that was traced on one"),
    ):
        watch("nvml:0", duration_s=0.1, step=long)


def test_too_short_a_log_of_a_step_says_to_log_for_longer(long: Step, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too few steps ended") as caught:
        watch("sim:rtx3080ti", duration_s=0.05, step=long, to=tmp_path / "log.csv")

    assert "--for" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_says_nothing_of_its_work_cannot_be_run(long: Step) -> None:
    mute = msgspec.structs.replace(
        long, kernels=tuple(Kernel(name=k.name, count=k.count) for k in long.kernels)
    )

    with pytest.raises(UsageError, match="cannot simulate 'copy'"):
        watch("sim:rtx3080ti", duration_s=0.1, step=mute)


def test_a_file_that_exists_is_replaced_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("precious")

    for force in (False, True):
        with pytest.raises(UsageError, match="will not overwrite"):
            watch("sim:rtx3080ti", duration_s=0.1, to=path, force=force)
    assert path.read_text() == "precious"
    path.unlink()
    watch("sim:rtx3080ti", duration_s=0.05, to=path)
    watch("sim:rtx3080ti", duration_s=0.1, to=path, force=True)

    assert len(_rows(path)) == 100


_COPY = Kernel(name="copy", kind=Kind.MEMORY, flops=0.0, bytes_moved=9e9)


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


def test_watching_a_step_does_not_hang_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches are lost before the first of them ends."""
    run = VirtualGpu.run

    def lost(gpu: VirtualGpu, *loop: Any, **more: Any) -> None:
        run(gpu, *loop, **more)
        gpu.fail(FaultKind.GPU_LOST)
        gpu.mend(FaultKind.GPU_LOST)

    monkeypatch.setattr(VirtualGpu, "run", lost)
    step = workload("gpt3-125m", {"layers": 1, "batch": 1})

    with pytest.raises(
        MeasurementError, match=r"no launch ended in \d+ s while timing '\w+' alone"
    ):
        watch("sim:rtx3080ti", step=step)


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


def test_a_loop_that_gets_on_may_take_as_long_as_it_likes() -> None:
    clock, loop = _Clock(), _Loop()
    watched = WatchedLoop(loop, clock, "waiting")
    for _ in range(10):
        clock.sleep_s(LONGEST_STILL_S)
        loop.launches += 1
        assert watched.progress().launches == loop.launches
    clock.sleep_s(LONGEST_STILL_S)
    watched.progress()
    clock.sleep_s(0.1)
    with pytest.raises(MeasurementError, match="no launch ended in 120 s while waiting") as caught:
        watched.progress()
    assert "nvidia-smi" in caught.value.hint

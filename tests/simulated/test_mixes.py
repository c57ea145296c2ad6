"""Kernels with co-load on a simulated GPU, timed inside."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from underclock.errors import MeasurementError
from underclock.hw.base import Durations, Progress
from underclock.hw.rounds import Round
from underclock.hw.simulated.costs import Costs, heater
from underclock.hw.simulated.faults import FaultKind
from underclock.hw.simulated.rig import Rig, simulated_rig
from underclock.physics.costs import duration_s
from underclock.records import Clocks, Kernel, Kind, Mix, Step


def _rate_s(before: Progress, after: Progress) -> float:
    return (after.elapsed_s - before.elapsed_s) / (after.launches - before.launches)


def _timed(
    rig: Rig, kernels: list[Kernel], mix: Mix | None, for_s: float = 1.0
) -> tuple[float, Durations, float]:
    """Return the time of a round, what launches took, and the clock."""
    with rig.launcher.loop(kernels, mix) as loop:
        rig.clock.sleep_s(3.0)
        before = loop.progress()
        durations = loop.durations(for_s)
        rig.clock.sleep_s(0.5)
        return _rate_s(before, loop.progress()), durations, rig.device.core_mhz


def test_durations_of_a_step_are_those_of_its_launches_at_the_clock_it_runs_at(
    rig: Rig, step: Step
) -> None:
    launches = [step.kernels[i] for i in step.order]
    device, model = rig.device, rig.device.model
    rig.gpu.lock(Clocks(core_mhz=1200))
    with rig.launcher.loop(launches) as loop:
        rig.clock.sleep_s(3.0)
        durations = loop.durations(1.0)
        mem_mhz = float(device.mem_mhz)
        assert device.core_mhz == 1200
    rig.gpu.unlock()

    for kernel, took_s in zip(launches, durations.kernel_s, strict=True):
        true_s = duration_s(model.constants, model.kernel(kernel), 1200.0, mem_mhz)
        assert took_s == pytest.approx(true_s, rel=2e-3)


@pytest.mark.parametrize("hot", [0, 40])
def test_coload_between_launches_leaves_a_long_step_at_one_clock(
    rig: Rig, gemm: Kernel, elementwise: Kernel, hot: int
) -> None:
    """Co-load after a step changes the clock only then; between its launches, all through."""
    rig.device.limit_power(280.0)
    launches = [gemm, elementwise] * 40
    idle_s = 1e-2 if hot else 0.1
    apart_mhz, period_s = [], []
    for after in ((), tuple(range(2, 81, 2))):
        with rig.launcher.loop(launches, Mix(hot=hot, idle_s=idle_s, after=after)) as loop:
            rig.clock.sleep_s(3.0)
            before = loop.progress()
            begun_s, clocks = rig.clock.now_s(), []
            while rig.clock.now_s() < begun_s + 3.0:
                rig.clock.sleep_s(5e-3)
                clocks.append(rig.device.core_mhz)
            round_s = _rate_s(before, loop.progress())
            durations = loop.durations(1.0)
        apart_mhz.append(max(clocks) - min(clocks))
        period_s.append(round_s / max(1, len(after)))
        inside_s = [
            sum(durations.kernel_s),
            hot * (durations.hot_s or 0.0),
            durations.idle_s or 0.0,
        ]
        assert sum(inside_s) == pytest.approx(round_s, rel=5e-3)
        assert len(durations.pieces_s) == max(1, len(after))

    assert period_s[0] > 0.1 > 2 * period_s[1]
    assert apart_mhz[1] < 0.6 * apart_mhz[0]


def test_a_gpu_that_was_lost_for_a_moment_is_not_waited_for_for_ever(
    rig: Rig, gemm: Kernel
) -> None:
    with rig.launcher.loop([gemm], Mix(idle_s=0.01)) as loop:
        rig.device.agenda.add(0.5, lambda: rig.device.fail(FaultKind.GPU_LOST))
        rig.device.agenda.add(0.6, lambda: rig.device.mend(FaultKind.GPU_LOST))
        with pytest.raises(MeasurementError, match="no launch ended"):
            loop.durations(1.0)


def test_a_thousand_short_launches_a_round_are_simulated_fast(rig: Rig) -> None:
    """Much faster than launch by launch, which takes 10 µs each at the least."""
    short = Kernel(name="short", flops=1e3, bytes_moved=1e5)
    begun_s = time.perf_counter()
    with rig.launcher.loop([short], Mix(launches=1000, hot=1, idle_s=1e-3)) as loop:
        rig.clock.sleep_s(2.0)
        launched = 1000 * loop.progress().launches
    assert time.perf_counter() - begun_s < 2e-6 * launched


@pytest.mark.untraced
@pytest.mark.parametrize("launches", [3, 417])
@pytest.mark.parametrize("coload", [Mix(launches=0, hot=1), Mix(launches=0, idle_s=2e-4), Mix()])
def test_short_rounds_run_in_rows_and_are_the_same_rounds(
    rig: Rig, launches: int, coload: Mix
) -> None:
    pair = [
        Kernel(name="a", kind=Kind.GEMM, flops=1e8, bytes_moved=1e6),
        Kernel(name="b", kind=Kind.MEMORY, flops=1e6, bytes_moved=2e6),
    ]
    mix = Mix(launches=launches, hot=coload.hot, idle_s=coload.idle_s)
    with rig.launcher.loop(pair, mix) as loop:
        running = rig.device.running
        assert running is not None
        counted: Counter[int] = Counter()
        for turn in running.turns:
            counted[turn.place] += turn.times
        assert counted == {
            place: times * running.rounds
            for place, times in Round.of(len(pair), mix).launches().items()
        }
        assert len(running.turns) <= 2 * launches + 2
        rig.clock.sleep_s(1.0)
        before = loop.progress()
        durations = loop.durations(0.5)
        round_s = _rate_s(before, loop.progress())
    inside_s = (
        launches * sum(durations.kernel_s)
        + mix.hot * (durations.hot_s or 0.0)
        + (durations.idle_s or 0.0)
    )
    assert inside_s == pytest.approx(round_s, rel=2e-3)


@pytest.fixture
def hot_rig() -> Iterator[Rig]:
    with simulated_rig("h200") as made:
        yield made


def test_no_kernel_exceeds_the_peak_of_power_though_the_clock_reads_boost(hot_rig: Rig) -> None:
    model = hot_rig.device.model
    assert model.peak_w is not None
    held, free = (
        Costs(model.constants, model.core_mhz, peak_w).at(heater(model), 1980.0, 3201)
        for peak_w in (model.peak_w, None)
    )
    product = Kernel(name="product", kind=Kind.GEMM, flops=2.0 * 8192**3, bytes_moved=6.0 * 8192**2)
    _, durations, core_mhz = _timed(hot_rig, [product], Mix(launches=4, idle_s=0.01))

    assert free.power_w(60.0) > 1.02 * model.peak_w
    assert held.power_w(60.0) == pytest.approx(model.peak_w, rel=1e-3)
    assert core_mhz == 1980.0
    assert durations.kernel_s[0] == pytest.approx(held.duration_s, rel=2e-3)
    assert durations.kernel_s[0] > 1.01 * free.duration_s
    assert durations.idle_s == pytest.approx(0.01, rel=2e-3)

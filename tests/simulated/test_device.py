"""A virtual GPU's clocks, power and heat, under its cap and alone."""

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.gpus.models import gpu_model
from underclock.hw.simulated.clocks import CAP_TICK_S, PowerLoop
from underclock.hw.simulated.device import VirtualGpu
from underclock.physics.constants import KernelConstants
from underclock.records import Kernel, Kind, Step

_MODEL = gpu_model("rtx3080ti")


def _busy(kernels: list[Kernel], *, seed: int = 0) -> VirtualGpu:
    gpu = VirtualGpu(_MODEL, seed=seed)
    gpu.begin([_MODEL.kernel(kernel) for kernel in kernels])
    return gpu


@settings(max_examples=25)
@given(st.lists(st.floats(1e-4, 3.0), min_size=1, max_size=12))
def test_how_time_is_cut_up_barely_changes_energy(steps_s: list[float]) -> None:
    copy = Kernel(name="copy", flops=1e9, bytes_moved=1e9)
    cut, whole = _busy([copy]), _busy([copy])

    for step_s in steps_s:
        cut.advance(step_s)
    whole.advance(sum(steps_s))

    assert cut.now_s == pytest.approx(whole.now_s)
    # Clocks follow temperature stride by stride, so the cut matters a little.
    assert cut.energy_j == pytest.approx(whole.energy_j, rel=0.02)


def test_the_same_seed_gives_the_same_run(gemm: Kernel) -> None:
    first, again, other = (_busy([gemm], seed=seed) for seed in (1, 1, 2))
    for gpu in (first, again, other):
        gpu.advance(60.0)

    def outcome(gpu: VirtualGpu) -> tuple[float, float]:
        assert gpu.running is not None
        return gpu.energy_j, gpu.running.completed_s

    assert outcome(first) == outcome(again)
    assert outcome(first) != outcome(other)


def test_a_busy_gpu_warms_to_a_steady_temperature(gemm: Kernel) -> None:
    gpu = _busy([gemm])
    gpu.advance(200.0)
    warm_c = gpu.temperature_c
    gpu.advance(60.0)

    assert warm_c == pytest.approx(77.0, abs=3.0)
    assert gpu.temperature_c == pytest.approx(warm_c, abs=0.5)


@pytest.mark.untraced
def test_a_repeated_kernel_settles_at_the_power_limit_as_a_mixed_step_does(
    step: Step, gemm: Kernel
) -> None:
    for kernels in ([gemm], [gemm, gemm], [step.kernels[i] for i in step.order]):
        gpu = _busy(kernels)
        gpu.limit_power(280.0)
        gpu.advance(60.0)
        before_j = gpu.energy_j
        gpu.advance(30.0)
        settled_w = 280.0 - _MODEL.cap_margin_w
        assert (gpu.energy_j - before_j) / 30.0 == pytest.approx(settled_w, abs=4.0)


def test_what_the_power_loop_took_is_given_back_when_the_step_ends(step: Step) -> None:
    gpu = _busy([step.kernels[i] for i in step.order])
    gpu.limit_power(200.0)
    gpu.lock_core((1800, 1800))
    gpu.advance(30.0)
    assert gpu.core_mhz < 1800
    gpu.end()
    gpu.advance(1.0)

    assert gpu.core_mhz == 1800
    assert not gpu.capped


def test_power_is_noisy_from_loop_to_loop_except_at_the_cap(gemm: Kernel) -> None:
    def spread_w(limit_w: float) -> float:
        gpu = _busy([gemm])
        gpu.limit_power(limit_w)
        gpu.lock_core((1500, 1500))
        gpu.advance(200.0)
        seen_w = []
        for _ in range(20):
            gpu.begin([_MODEL.kernel(gemm)])
            gpu.advance(5.0)
            seen_w.append(gpu.power_w)
        return statistics.stdev(seen_w)

    assert spread_w(350.0) > 0.3
    assert spread_w(150.0) < 0.1


@pytest.mark.untraced
def test_kernels_borrow_power_from_their_neighbours_within_the_averaging_time() -> None:
    # A product that alone sits at the cap, and a pause as long as it: both well under the 100 ms
    # over which the cap averages, so in turn with the pause the product runs at full clock.
    product = _MODEL.kernel(Kernel(name="product", kind=Kind.GEMM, flops=4e11, bytes_moved=1e8))
    pause = KernelConstants(fixed_s=0.015)

    def launch_s(*kernels: KernelConstants) -> float:
        gpu = VirtualGpu(_MODEL, seed=0)
        gpu.limit_power(250.0)
        gpu.begin(kernels)
        gpu.advance(120.0)
        assert gpu.running is not None
        return gpu.running.completed_s / gpu.running.launches

    assert launch_s(product, pause) < 0.99 * launch_s(product) + launch_s(pause)


def test_launches_are_counted_when_they_complete(elementwise: Kernel) -> None:
    gpu = _busy([elementwise])
    assert gpu.running is not None
    gpu.advance(CAP_TICK_S)
    running = gpu.running

    assert running.launches >= 1
    assert running.completed_s <= running.elapsed_s
    each_s = running.completed_s / running.launches
    assert running.elapsed_s - running.completed_s < each_s


def test_an_idle_gpu_rests_at_its_least_clocks() -> None:
    gpu = VirtualGpu(_MODEL, seed=0)
    gpu.advance(60.0)

    assert gpu.core_mhz == _MODEL.core_mhz[0]
    assert gpu.mem_mhz == _MODEL.mem_mhz[0]
    assert gpu.power_w < 60.0


_LIMIT_W, _MARGIN_W, _BIN_MHZ, _LEAST_MHZ, _BOOST_MHZ = 350.0, 2.0, 15.0, 210.0, 1905.0


def _loop() -> PowerLoop:
    return PowerLoop(margin_w=_MARGIN_W, bin_mhz=_BIN_MHZ, least_mhz=_LEAST_MHZ)


def _watch(loop: PowerLoop, now_s: float, stride_s: float, power_w: float, core_mhz: float) -> None:
    loop.average(stride_s, power_w, core_mhz)
    loop.act(now_s, stride_s, _LIMIT_W)


def test_a_kernel_locked_low_does_not_pull_the_others_down() -> None:
    loop = _loop()
    now_s = 0.0
    for _ in range(10):  # 20 ms at boost, then 20 ms at a low lock, always above the limit
        for clock_mhz in (_BOOST_MHZ, 900.0):
            now_s += CAP_TICK_S
            _watch(loop, now_s, CAP_TICK_S, 360.0, min(clock_mhz, loop.ceiling_mhz))
    # It settles step by step from boost, rather than from 900 MHz at once.
    assert _BOOST_MHZ - 20 * 4 * _BIN_MHZ <= loop.ceiling_mhz < _BOOST_MHZ
    assert loop.ceiling_mhz > 900.0


def test_a_lock_on_everything_is_lowered_at_once() -> None:
    loop = _loop()
    for tick in range(1, 7):
        _watch(loop, tick * CAP_TICK_S, CAP_TICK_S, 100.0, 1200.0)
    _watch(loop, 7 * CAP_TICK_S, CAP_TICK_S, 3000.0, 1200.0)

    assert loop.ceiling_mhz == 1200.0 - 4 * _BIN_MHZ


@given(st.lists(st.tuples(st.floats(1e-3, 0.05), st.floats(100.0, 600.0)), max_size=120))
def test_at_auto_it_lowers_the_clock_that_runs(strides: list[tuple[float, float]]) -> None:
    """As it did when it looked only at that."""
    loop = _loop()
    now_s, average_w, ceiling_mhz = 0.0, 0.0, math.inf
    for stride_s, power_w in strides:
        # Strides end at a tick at the latest, as on a virtual GPU.
        length_s = min(stride_s, loop.to_tick_s(now_s))
        core_mhz = min(_BOOST_MHZ, loop.ceiling_mhz)
        now_s += length_s
        _watch(loop, now_s, length_s, power_w, core_mhz)
        fade = math.exp(-length_s / 0.1)
        average_w = average_w * fade + power_w * (1.0 - fade)
        if math.floor(now_s / CAP_TICK_S + 1e-9) != math.floor(
            (now_s - length_s) / CAP_TICK_S + 1e-9
        ):
            room_w = _LIMIT_W - _MARGIN_W - average_w
            if room_w < 0:
                bins = min(4, 1 + int(-room_w / 10.0))
                ceiling_mhz = max(_LEAST_MHZ, core_mhz - bins * _BIN_MHZ)
            elif room_w > 2.0:
                ceiling_mhz += _BIN_MHZ
        assert loop.ceiling_mhz == ceiling_mhz


def test_under_a_schedule_the_hot_kernel_keeps_the_clock_that_the_cap_leaves_it() -> None:
    model = gpu_model("rtx3080ti")
    gpu = VirtualGpu(model, seed=0)
    hot = KernelConstants(fixed_s=0.03, work_j_per_v2=14.0)
    cool = KernelConstants(fixed_s=0.03, work_j_per_v2=6.5)
    gpu.begin([hot, cool])
    seen_mhz = []
    for _ in range(100):
        for lock in (None, (900, 900)):
            gpu.lock_core(lock)  # followed within the launch
            gpu.advance(0.03)
            if lock is None:
                seen_mhz.append(gpu.core_mhz)

    assert gpu.capped or min(seen_mhz) < 1905  # the cap acts at all
    assert min(seen_mhz) > 1200

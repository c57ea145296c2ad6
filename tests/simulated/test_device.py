"""The virtual GPU's physics over virtual time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.hw.simulated.device import CAP_TICK_S, COUNTER_TICK_S, VirtualGpu
from underclock.hw.simulated.models import MODELS
from underclock.physics.constants import KernelConstants
from underclock.records import Kernel, Kind, Step

_MODEL = MODELS["rtx3080ti"]


def _busy(kernels: list[Kernel], *, seed: int = 0) -> VirtualGpu:
    gpu = VirtualGpu(_MODEL, seed=seed)
    gpu.begin([_MODEL.kernel(kernel) for kernel in kernels])
    return gpu


@settings(max_examples=25, deadline=None)
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


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(1e-4, 0.5), min_size=1, max_size=30))
def test_the_counter_lags_the_truth_by_less_than_a_tick(steps_s: list[float]) -> None:
    gpu = _busy([Kernel(name="copy", flops=1e9, bytes_moved=1e9)])
    for step_s in steps_s:
        before_mj = gpu.counter_mj
        gpu.advance(step_s)

        assert gpu.counter_mj >= before_mj
        lag_j = gpu.energy_j - gpu.counter_mj / 1e3
        assert -1e-3 <= lag_j <= COUNTER_TICK_S * 500.0


def test_the_same_seed_gives_the_same_run(gemm: Kernel) -> None:
    first, again, other = (_busy([gemm], seed=seed) for seed in (1, 1, 2))
    for gpu in (first, again, other):
        gpu.advance(60.0)

    def outcome(gpu: VirtualGpu) -> tuple[float, float]:
        assert gpu.activity is not None
        return gpu.energy_j, gpu.activity.completed_s

    assert outcome(first) == outcome(again)
    assert outcome(first) != outcome(other)


def test_a_busy_gpu_warms_to_a_steady_temperature(gemm: Kernel) -> None:
    gpu = _busy([gemm])
    gpu.advance(200.0)
    warm_c = gpu.temperature_c
    gpu.advance(60.0)

    assert warm_c == pytest.approx(77.0, abs=3.0)
    assert gpu.temperature_c == pytest.approx(warm_c, abs=0.5)


def test_a_mixed_step_averages_to_the_power_limit(step: Step) -> None:
    gpu = _busy([step.kernels[i] for i in step.order])
    gpu.advance(60.0)
    before_j = gpu.energy_j
    gpu.advance(30.0)

    assert (gpu.energy_j - before_j) / 30.0 == pytest.approx(350.0, abs=8.0)


def test_kernels_borrow_power_from_their_neighbours_within_the_averaging_time() -> None:
    # A product that alone sits at the cap, and a pause as long as it: both well under the 100 ms
    # over which the cap averages, so in turn with the pause the product runs at full clock.
    product = _MODEL.kernel(Kernel(name="product", kind=Kind.GEMM, flops=4e11, bytes_moved=1e8))
    pause = KernelConstants(fixed_s=0.015)

    def launch_s(*kernels: KernelConstants) -> float:
        gpu = VirtualGpu(_MODEL, seed=0)
        gpu.begin(kernels)
        gpu.advance(120.0)
        assert gpu.activity is not None
        return gpu.activity.completed_s / gpu.activity.launches

    assert launch_s(product, pause) < 0.99 * launch_s(product) + launch_s(pause)


def test_launches_are_counted_when_they_complete(elementwise: Kernel) -> None:
    gpu = _busy([elementwise])
    assert gpu.activity is not None
    gpu.advance(CAP_TICK_S)
    activity = gpu.activity

    assert activity.launches >= 1
    assert activity.completed_s <= activity.elapsed_s
    each_s = activity.completed_s / activity.launches
    assert activity.elapsed_s - activity.completed_s < each_s


def test_an_idle_gpu_rests_at_its_least_clocks() -> None:
    gpu = VirtualGpu(_MODEL, seed=0)
    gpu.advance(60.0)

    assert gpu.core_mhz == _MODEL.core_mhz[0]
    assert gpu.mem_mhz == _MODEL.mem_mhz[0]
    assert gpu.power_w < 60.0

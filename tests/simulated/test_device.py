"""A virtual GPU's clocks, power and heat, under its cap and alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.gpus.models import gpu_model
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


_LIMIT_W, _MARGIN_W, _BIN_MHZ, _LEAST_MHZ, _BOOST_MHZ = 350.0, 2.0, 15.0, 210.0, 1905.0

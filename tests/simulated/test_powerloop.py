"""The driver's loop that keeps power under its limit: whose clock it lowers."""

import math

from hypothesis import given
from hypothesis import strategies as st

from underclock.gpus.models import gpu_model
from underclock.hw.simulated.clocks import CAP_TICK_S, PowerLoop
from underclock.hw.simulated.device import VirtualGpu
from underclock.physics.constants import KernelConstants

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

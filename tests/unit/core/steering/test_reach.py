"""How far steering reached, whether the cap held a measurement, and what readers are told."""

import msgspec

from made_up_mixes import STEP_KERNELS, made_mix, made_step
from steered_gpu import Synthetic, campaign
from underclock.core.design.wanted import COMPANIONS, Wanted
from underclock.core.steering.reach import at_cap, reach_mhz, told
from underclock.records import Evidence, GpuInfo, SampleSet, ThrottleReason
from windows import gathered


def test_a_step_timed_by_itself_steers_nothing() -> None:
    samples = SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G"),
        workload="w",
        kernels=STEP_KERNELS,
        windows=gathered(mixed=(made_step(),)),
    )

    assert reach_mhz(samples) is None
    steered = msgspec.structs.replace(samples, windows=(made_step(), made_mix()))
    assert reach_mhz(steered) == (1600.0, 2000.0)


def test_the_cap_is_what_the_driver_says_or_else_the_limit() -> None:
    sample = Synthetic().run(Wanted("", COMPANIONS))
    unread = msgspec.structs.replace(sample, throttle_reasons=None)

    assert at_cap(sample, 700.0)
    assert not at_cap(msgspec.structs.replace(sample, throttle_reasons=ThrottleReason.NONE), 700.0)
    assert at_cap(unread, 700.0)
    assert not at_cap(unread, 800.0)
    assert not at_cap(unread, None)


def test_a_gpu_without_a_power_limit_is_measured_at_boost() -> None:
    samples = campaign(Synthetic(limit_w=None))

    assert "power limit (unknown)" in told(samples)[0]


def test_readers_are_told_what_steering_cannot_see(steered: SampleSet) -> None:
    lowest = min(s.at_mhz for s in steered.mixed if s.kernel_s)
    (sentence,) = told(steered)

    assert f"from {lowest:.0f} to 1980 MHz" in sentence
    assert "memory clocks" in sentence
    assert told(msgspec.structs.replace(steered, windows=())) == ()

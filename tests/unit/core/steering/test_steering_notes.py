"""How far steering reached, and what readers of it are told."""

import msgspec

from made_up_mixes import STEP_KERNELS, made_mix, made_step
from steered_gpu import Synthetic, campaign
from underclock.core.steering import clock_range, steering_notes
from underclock.records import Evidence, GpuInfo, SampleSet
from windows import gathered


def test_a_step_timed_by_itself_steers_nothing() -> None:
    samples = SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G"),
        workload="w",
        kernels=STEP_KERNELS,
        windows=gathered(mixed=(made_step(),)),
    )

    assert clock_range(samples) is None
    steered = msgspec.structs.replace(samples, windows=(made_step(), made_mix()))
    assert clock_range(steered) == (1600.0, 2000.0)


def test_a_gpu_without_a_power_limit_is_measured_at_boost() -> None:
    samples = campaign(Synthetic(limit_w=None))

    assert "power limit (unknown)" in steering_notes(samples)[0]


def test_readers_are_told_what_steering_cannot_see(steered: SampleSet) -> None:
    lowest = min(s.at_mhz for s in steered.mixed if s.kernel_s)
    (sentence,) = steering_notes(steered)

    assert f"from {lowest:.0f} to 1980 MHz" in sentence
    assert "memory clocks" in sentence
    assert steering_notes(msgspec.structs.replace(steered, windows=())) == ()

"""The time and energy of a script's steps, and what a server's pace allows."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.driver import SimulatedMachine, simulated_driver
from underclock.hw.simulated.work import Fault, FaultKind
from underclock.hw.watching import StepMeter
from underclock.records import Kernel, Kind
from underclock.runtime.trainer.notes import Pace

_PRODUCT = Kernel(name="gemm", kind=Kind.GEMM, flops=6e12, bytes_moved=2e9)


def torch_on(uuid: str) -> SimpleNamespace:
    """Return what is asked of PyTorch, whose current GPU has this UUID, as PyTorch writes it."""
    return SimpleNamespace(
        cuda=SimpleNamespace(
            current_device=lambda: 0,
            synchronize=lambda _device: None,
            get_device_properties=lambda _device: SimpleNamespace(uuid=uuid.removeprefix("GPU-")),
        )
    )


@pytest.fixture
def machine() -> Iterator[SimulatedMachine]:
    with simulated_driver("h200", count=2) as machine:
        yield machine


def meter_of(machine: SimulatedMachine, gpu: int) -> StepMeter:
    with nvml_session():
        return StepMeter(torch_on(NvmlGpu(gpu).uuid()), machine.clock)


def test_steps_have_the_mean_of_the_time_and_energy_of_their_own_gpu(
    machine: SimulatedMachine,
) -> None:
    with machine.run(_PRODUCT, gpu=1):
        machine.clock.sleep_s(2.0)
        meters = [meter_of(machine, gpu) for gpu in (0, 1)]
        machine.clock.sleep_s(4.0)
        idle, busy = (meter.window(20) for meter in meters)

    assert idle is not None
    assert busy is not None
    assert busy.is_step
    for window in (idle, busy):
        assert window.time_s == pytest.approx(0.2, rel=0.02)
    assert idle.power_w < 200.0
    assert busy.power_w > 500.0
    assert busy.core_mhz is not None
    assert busy.core_mhz > 1000.0


@pytest.mark.parametrize("kind", [FaultKind.COUNTER_RESTARTS, FaultKind.COUNTER_STUCK])
def test_a_counter_that_falls_or_stands_still_tells_no_energy(kind: FaultKind) -> None:
    fault = Fault(at_s=3.0 if kind is FaultKind.COUNTER_RESTARTS else 0.5, kind=kind)
    with simulated_driver("h200", faults=[fault]) as machine:
        machine.clock.sleep_s(2.0)
        meter = meter_of(machine, 0)
        machine.clock.sleep_s(2.0)
        assert meter.window(20) is None


def test_a_gpu_that_the_driver_does_not_list_has_no_energy(machine: SimulatedMachine) -> None:
    meter = StepMeter(torch_on("GPU-none"), machine.clock)
    machine.clock.sleep_s(4.0)
    assert meter.window(20) is None


def test_a_step_may_take_what_the_request_with_least_slack_has_left() -> None:
    pace = Pace(0.1)
    pace.began("one", 0.0)
    for _ in range(4):
        pace.stepped()
    pace.began("two", 0.05)

    # Less than the target is aimed at, 0.07 s a token, and two tokens ahead: the first request,
    # which makes its fifth, has until the third would be due, the second has no slack yet.
    assert pace.within_s(0.05) < 0.0
    pace.ended("two", 0.06)  # it made no token, so that nothing is told of it
    assert pace.within_s(0.15) == pytest.approx(3 * 0.07 - 0.15)
    assert pace.within_s(0.05) == pytest.approx(0.1)  # no step is slower than the target
    assert pace.within_s(0.3) < 0.0


def test_a_prompt_may_take_what_waiting_left_unless_others_wait() -> None:
    pace = Pace(0.1, 1.0)

    assert pace.rise_s() == pytest.approx(0.7)
    assert Pace(0.1).rise_s() == 0.0
    assert pace.first_within_s(0.0, 0.3, 0) == pytest.approx(0.4)
    assert pace.first_within_s(0.0, 0.3, 1) == 0.0
    assert Pace(0.1).first_within_s(0.0, 0.0, 0) == 0.0


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.sampled_from([0.9, 0.99]))
def test_as_many_are_in_time_as_are_to_be(seed: int, quantile: float) -> None:
    draw, pace, late, count = (
        np.random.default_rng(seed),
        Pace(1.0, 1.0, quantile=quantile),
        0,
        2000,
    )
    now_s = 0.0
    for number in range(count):
        pace.began(number, now_s, pace.rise_s() * draw.lognormal(0.0, 0.2))
        pace.stepped()
        took_s = pace.within_s(now_s) * draw.lognormal(0.0, 0.2)
        now_s += took_s
        pace.ended(number, now_s)
        late += took_s > 1.0 and number >= count // 2

    assert late / (count / 2) < 2.0 * (1.0 - quantile)
    assert pace.rise_s() > 0.4  # and no more is given away than that asks for


def test_what_is_no_pace_is_refused() -> None:
    for target_s, quantile in ((0.0, 0.5), (1.0, 1.0), (float("inf"), 0.5)):
        with pytest.raises(ValueError, match="no pace"):
            Pace(target_s, quantile=quantile)

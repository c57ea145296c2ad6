"""Measured latencies against what the simulator drew, and clocks that are not reached."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from underclock.campaign.switches import Bench, measure_moves, measure_switches
from underclock.errors import NotPermittedError
from underclock.gpus.models import Bounds, GpuModel, Latency, SwitchingModel, gpu_model
from underclock.hw.base import SMALL_S
from underclock.hw.simulated.driver import Rig, simulated_rig
from underclock.hw.simulated.launcher import VirtualSmallKernels
from underclock.records.latencies import Reader, Switch
from underclock.testing import Fault, FaultKind
from underclock.units import Domain

_CALL_S = 4e-3
_STEADY = Latency(shares=(0.0, 1.0), points_s=(_CALL_S, _CALL_S))


def _model(name: str, switching: SwitchingModel, **changes: object) -> GpuModel:
    return dataclasses.replace(gpu_model(name), switching=switching, **changes)  # type: ignore[arg-type]


@contextmanager
def _rig(model: GpuModel, *faults: Fault, seed: int = 0) -> Iterator[tuple[Rig, Bench]]:
    with simulated_rig(model, faults=faults, seed=seed) as rig:
        kernels = VirtualSmallKernels(rig.device, seed=seed)
        yield rig, Bench(gpu=rig.gpu, kernels=kernels, clock=rig.clock)
        assert (rig.device.core_lock, rig.device.mem_lock) == (None, None)


def _nothing(_done: int, _of: int, _next: str) -> None: ...


def _measured(bench: Bench, *targets: int, repeats: int = 2) -> tuple[Switch, ...]:
    return measure_switches(bench, targets, repeats, _nothing)[0]


@pytest.mark.parametrize(
    ("name", "switching"),
    [
        ("rtx3080ti", SwitchingModel(setter=_STEADY, jitter=0.0)),
        ("rtx3080ti", SwitchingModel(setter=_STEADY, jitter=0.0, core_s=3e-4, mem_s=1e-3)),
        ("a100", SwitchingModel(setter=_STEADY, jitter=0.0, core_s=0.15)),
        ("h200", SwitchingModel(setter=_STEADY, jitter=0.0, core_s=6e-3)),
    ],
    ids=["as assumed", "fast", "slow", "H200"],
)
def test_what_the_simulator_drew_comes_out(name: str, switching: SwitchingModel) -> None:
    model = _model(name, switching)
    with _rig(model) as (rig, bench):
        switches = _measured(bench, 1200)
        assert rig.clock.now_s() < 60

    pairs = {(s.domain, s.from_mhz, s.to_mhz) for s in switches}
    assert {(domain, to, of) for domain, of, to in pairs} == pairs  # both directions of each
    assert {(Domain.CORE, 1200, None), (Domain.CORE, None, 1200)} <= pairs
    assert (Domain.MEMORY in {s.domain for s in switches}) == (name == "rtx3080ti")
    for switch in switches:
        bounds = None if switch.to_mhz is None else (switch.to_mhz, switch.to_mhz)
        usual_s = switching.usual_s(model.name, switch.domain, bounds)
        stall_s = switching.mem_stall_s if switch.domain is Domain.MEMORY else 0.0
        slowest_s = 30 * SMALL_S if switch.domain is Domain.MEMORY else 3 * SMALL_S
        assert switch.call_s == pytest.approx(_CALL_S)
        assert switch.delay_s == pytest.approx(usual_s, abs=slowest_s)
        assert switch.stall_s == pytest.approx(stall_s, abs=slowest_s)
        assert switch.call is not None
        assert switch.call.p99_s == pytest.approx(_CALL_S)
        assert switch.call.n == switch.repeats == 2
        kernels, nvml = switch.readings
        assert (kernels.by, nvml.by) == (Reader.KERNELS, Reader.NVML)
        assert kernels.switching is not None
        assert nvml.switching is not None
        assert kernels.switching.median_s == pytest.approx(_CALL_S + usual_s, abs=slowest_s)
        assert kernels.transition.median_s == pytest.approx(stall_s, abs=slowest_s)
        assert nvml.switching.median_s == pytest.approx(_CALL_S + usual_s, abs=2e-3)


def test_every_delay_that_was_drawn_is_in_the_distribution() -> None:
    with _rig(_model("a100", SwitchingModel(jitter=0.3))) as (rig, bench):
        asked_s: list[float] = []
        drawn_s: list[float] = []
        lock_core = rig.device.lock_core

        def note(bounds: Bounds | None) -> None:
            asked_s.append(rig.device.now_s)
            lock_core(bounds)

        setattr(rig.device, "lock_core", note)  # noqa: B010
        rig.device.on_follow = lambda _: drawn_s.append(rig.device.now_s - asked_s[-1])
        switches = _measured(bench, 900, repeats=20)

    # The lease asks first; then it goes there and back, and at the end the lease gives back.
    for start, switch in enumerate(switches, 1):
        truth_s = drawn_s[start:41:2]
        assert switch.repeats == len(truth_s) == 20
        wanted = np.quantile(truth_s, (0.05, 0.5, 0.95))
        found = (switch.delay_p05_s, switch.delay_s, switch.delay_p95_s)
        assert found == pytest.approx(wanted, abs=3 * SMALL_S)
        reading = switch.readings[0].switching
        assert reading is not None
        assert switch.delay_s < reading.median_s < reading.p95_s <= reading.p99_s


def test_a_clock_that_the_driver_accepts_and_does_not_follow_is_said_not_to_be_reached() -> None:
    model = _model("rtx3080ti", SwitchingModel(), ignored_locks=(Domain.MEMORY,))
    with _rig(model) as (_, bench):
        switches, warnings = measure_switches(bench, (1200,), 2, _nothing)

    assert {switch.domain for switch in switches} == {Domain.CORE}
    assert {warning.partition(":")[0] for warning in warnings} == {
        "memory 810 MHz was not reached",
        "memory 5001 MHz was not reached",
    }
    assert all("accepted it, NVML reports 9251 MHz, and small" in warning for warning in warnings)


def test_a_memory_that_cannot_be_locked_leaves_the_core_and_a_warning() -> None:
    with _rig(_model("h200", SwitchingModel())) as (_, bench):
        switches, warnings = measure_switches(bench, (900, 1500), 1, _nothing)

    assert {s.to_mhz for s in switches} == {900, 1500, None}
    assert warnings == ("could not lock the memory at 2201 MHz: Not Supported",)


def test_a_permission_that_ends_meanwhile_is_an_error_and_says_what_stays() -> None:
    revoked = Fault(at_s=2.0, kind=FaultKind.PERMISSION_REVOKED, for_s=10.0)
    with _rig(_model("a100", SwitchingModel()), revoked) as (rig, bench):
        with pytest.raises(NotPermittedError, match=r"could not (un)?lock the core") as caught:
            _measured(bench, 900, repeats=20)
        assert "STAY locked" in "".join((str(caught.value), *caught.value.__notes__))
        rig.clock.sleep_s(20.0)
        rig.gpu.unlock()


def test_the_drivers_own_moves_are_as_sudden_as_the_simulators() -> None:
    with simulated_rig("h200", read_only=True) as rig:
        bench = Bench(gpu=rig.gpu, kernels=VirtualSmallKernels(rig.device), clock=rig.clock)
        ups, downs = measure_moves(bench, 4.0, _nothing)
        assert rig.clock.now_s() == pytest.approx(4.0, abs=0.1)

    for by, up, down in zip(Reader, ups, downs, strict=True):
        assert (up.by, down.by) == (by, by)
        for seen in (up, down):
            assert seen.switching is None
            assert seen.transition.n > 20
            assert seen.transition.median_s <= seen.every_s
            assert seen.transition.p95_s < 2e-3
            assert seen.every_s < 1e-3
    kernels, nvml = (seen.transition.n for seen in ups)
    assert kernels == pytest.approx(nvml, rel=0.25)

"""Measured switching against the simulator's hidden truth, and what happens when it goes wrong."""

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from contracts import TickerContract
from underclock.app.latency import measure_latency
from underclock.arrays import Floats
from underclock.campaign.switches import Stand, Watch, choose_pairs, groups_of, sample_switches
from underclock.core.statistics.change_point import Level
from underclock.errors import (
    DeviceError,
    MeasurementError,
    NotAppliedError,
    NotPermittedError,
    NotSupportedError,
)
from underclock.gpus.models import Bounds, GpuModel, SwitchingModel, gpu_model
from underclock.hw.lease import ClockLeases
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import READ_ONLY
from underclock.hw.simulated.launcher import VirtualClock
from underclock.hw.simulated.rig import Rig, simulated_rig
from underclock.hw.simulated.ticker import TickNoise, VirtualTicker
from underclock.hw.simulated.work import Neighbour
from underclock.physics.constants import KernelConstants
from underclock.records import Clocks, Evidence, Kernel
from underclock.records.latencies import Domain, LatencyTable
from underclock.testing import Fault, FaultKind, FaultScript

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from underclock.campaign.progress import Tally

_FAST, _USUAL, _SLOW = (
    SwitchingModel(core_s=25e-6, mem_s=150e-6),
    SwitchingModel(),
    SwitchingModel(core_s=0.15, mem_s=0.15),
)
_EVEN = SwitchingModel(core_s=1e-3, mem_s=1e-3)


def _model(name: str, switching: SwitchingModel = _USUAL) -> GpuModel:
    return dataclasses.replace(gpu_model(name), switching=switching)


def _stand(rig: Rig, seed: int = 0) -> Stand:
    return Stand(
        gpu=rig.gpu,
        leases=ClockLeases(rig.gpu),
        ticker=VirtualTicker(rig.device, rig.clock, seed=seed),
        clock=rig.clock,
        random=np.random.default_rng(seed),
    )


def _measured(rig: Rig, *, targets: int = 6, repeats: int = 20, seed: int = 0) -> LatencyTable:
    return sample_switches(
        _stand(rig, seed), targets=targets, repeats=repeats, evidence=Evidence.SIMULATED
    )


def _locks(rig: Rig) -> list[Bounds]:
    return [lock for lock in (rig.device.core_lock, rig.device.mem_lock) if lock is not None]


def _truth_s(model: GpuModel, domain: Domain, to_mhz: int | None) -> float:
    """Return the hidden median delay of a target."""
    bounds = None if to_mhz is None else (to_mhz, to_mhz)
    return (model.switching or SwitchingModel()).usual_s(model.name, domain, bounds)


@contextmanager
def _rig(model: GpuModel, *faults: Fault, root: bool = True) -> Iterator[Rig]:
    with simulated_rig(model, faults=FaultScript(faults), root=root) as rig:
        yield rig


class TestVirtualTicker(TickerContract):
    @pytest.fixture
    def gpu(self, rig: Rig) -> NvmlGpu:
        return rig.gpu

    @pytest.fixture
    def clock(self, rig: Rig) -> VirtualClock:
        return rig.clock

    @pytest.fixture
    def ticker(self, rig: Rig) -> VirtualTicker:
        return VirtualTicker(rig.device, rig.clock)


@pytest.mark.parametrize(
    ("name", "switching", "targets"),
    [
        ("rtx3080ti", _USUAL, 4),
        ("a100", _USUAL, 4),
        ("h200", _USUAL, 4),
        ("rtx3080ti", _FAST, 3),
        ("rtx3080ti", _EVEN, 3),
        ("rtx3080ti", _SLOW, 3),
        ("a100", _FAST, 3),
        ("a100", _SLOW, 3),
        ("h200", _FAST, 3),
        ("h200", _EVEN, 3),
    ],
)
def test_the_hidden_delay_of_every_target_comes_out(
    name: str, switching: SwitchingModel, targets: int
) -> None:
    model = _model(name, switching)
    with simulated_rig(model) as rig:
        table = _measured(rig, targets=targets)
        assert _locks(rig) == []
        assert rig.clock.now_s() < 15 * 60

    delays_s = defaultdict(list)
    for switch in table.switches:
        delays_s[switch.domain, switch.to_mhz].append(switch.delay_s)
        truth_s = _truth_s(model, switch.domain, switch.to_mhz)
        assert switch.delay_s == pytest.approx(truth_s, rel=0.1)
        assert 3.5e-3 < switch.call_s < 7e-3
        assert switch.repeats + switch.outliers == 20
        stall_s = switching.mem_stall_s if switch.domain is Domain.MEMORY else 0.0
        assert switch.stall_s == pytest.approx(stall_s, rel=0.02)
    assert all(len(some) >= 2 for some in delays_s.values())
    sampled = {mhz for domain, mhz in delays_s if domain is Domain.MEMORY}
    assert sampled == ({*model.mem_mhz, None} if model.memory_lockable else set())


def test_the_spread_of_the_delay_comes_out() -> None:
    model = _model("a100", SwitchingModel(jitter=0.2))
    with simulated_rig(model) as rig:
        switches = _measured(rig, targets=3, repeats=60).switches

    relative = [switch.jitter_s / switch.delay_s for switch in switches]
    assert statistics.median(relative) == pytest.approx(0.2, rel=0.2)
    for switch in switches:
        truth_s = _truth_s(model, Domain.CORE, switch.to_mhz)
        assert switch.delay_p05_s == pytest.approx(0.72 * truth_s, rel=0.15)
        assert switch.delay_p95_s == pytest.approx(1.39 * truth_s, rel=0.15)


def test_changes_that_take_no_time_are_seen_as_such() -> None:
    with simulated_rig(
        _model("rtx3080ti", SwitchingModel(core_s=0, mem_s=0, mem_stall_s=0))
    ) as rig:
        table = _measured(rig, targets=3, repeats=7)

    assert max(switch.delay_s for switch in table.switches) < 20e-6
    assert {switch.stall_s for switch in table.switches} == {0.0}


def test_the_same_seed_gives_the_same_table() -> None:
    def run(seed: int) -> LatencyTable:
        return measure_latency("sim:a100", targets=3, repeats=2, seed=seed)

    first = run(1)
    assert first == run(1)
    assert first.switches != run(2).switches


def test_it_says_how_far_it_is_and_ends_at_the_end() -> None:
    told: list[Tally] = []
    table = measure_latency("sim:rtx3080ti", targets=2, repeats=2, progress=told.append)

    assert [tally.done for tally in told] == sorted(tally.done for tally in told)
    assert told[-1].done == told[-1].total == 2 * len(table.switches)
    assert {tally.doing for tally in told} >= {
        "settling at memory 405 MHz",
        "memory 9501 to 405 MHz",
        "core auto to 210 MHz",
        "done",
    }


@pytest.mark.parametrize(
    ("name", "sentence"), [("a100", "one memory clock"), ("h200", "could not lock the memory")]
)
def test_a_memory_that_cannot_be_locked_leaves_the_core_and_a_warning(
    name: str, sentence: str
) -> None:
    table = measure_latency(f"sim:{name}", targets=2, repeats=1)

    assert {switch.domain for switch in table.switches} == {Domain.CORE}
    assert any(sentence in warning for warning in table.warnings)
    assert any("nobody measured" in warning for warning in table.warnings)


def test_a_program_beside_us_is_noticed_and_no_stall_of_the_core() -> None:
    with simulated_rig(_model("a100")) as rig:
        rig.device.join(Neighbour(pid=3, kernel=KernelConstants(fixed_s=1e-3), share=0.5))
        table = _measured(rig, targets=3, repeats=10)

    assert any("something else computes" in warning for warning in table.warnings)
    for switch in table.switches:
        truth_s = _truth_s(rig.device.model, Domain.CORE, switch.to_mhz)
        assert switch.delay_s == pytest.approx(truth_s, abs=3e-3, rel=0.1)  # a turn of theirs: 2 ms
        assert switch.stall_s == 0.0


def test_changes_before_the_call_returns_count_as_none_and_are_told() -> None:
    class EagerGpu(NvmlGpu):
        """Its calls return long after the clock changed."""

        def lock(self, clocks: Clocks) -> None:
            super().lock(clocks)
            rig.clock.sleep_s(0.2)

    with simulated_rig(_model("a100")) as rig:
        stand = dataclasses.replace(_stand(rig), gpu=EagerGpu())
        table = sample_switches(stand, targets=2, repeats=2, evidence=Evidence.MEASURED)

    assert {switch.delay_s for switch in table.switches if switch.to_mhz} == {0.0}
    assert table.evidence is Evidence.MEASURED
    assert table.warnings[-1].startswith("changes of the core clock came before their call")


# What goes wrong.


def test_without_permission_nothing_is_locked() -> None:
    with _rig(_model("rtx3080ti"), root=False) as rig:
        with pytest.raises(NotPermittedError, match="could not lock"):
            _measured(rig)
        assert _locks(rig) == []


def test_read_only_mode_closes_the_gate() -> None:
    with simulated_rig("rtx3080ti", read_only=True) as rig:
        with pytest.raises(NotPermittedError, match=f"{READ_ONLY} is set"):
            _measured(rig)
        assert _locks(rig) == []


def test_permission_revoked_half_way_is_told() -> None:
    revoked = Fault(at_s=30.0, kind=FaultKind.PERMISSION_REVOKED, for_s=5.0)
    with _rig(_model("rtx3080ti"), revoked) as rig:
        with pytest.raises(NotPermittedError):
            _measured(rig)
        rig.clock.sleep_s(10.0)
        rig.gpu.unlock()
        assert _locks(rig) == []


@pytest.mark.parametrize("at_s", [0.5, 5.0, 12.0, 30.003])
def test_a_gpu_lost_on_the_way_is_a_device_error(at_s: float) -> None:
    with _rig(_model("rtx3080ti"), Fault(at_s=at_s, kind=FaultKind.GPU_LOST)) as rig:
        with pytest.raises(DeviceError) as caught:
            _measured(rig)
        assert "reboot" in caught.value.hint
        assert rig.device.running is None


@pytest.mark.parametrize("domain", Domain)
def test_locks_that_the_gpu_does_not_follow_are_told_and_given_back(domain: Domain) -> None:
    model = dataclasses.replace(_model("rtx3080ti"), ignored_locks=(domain,))
    with _rig(model) as rig:
        with pytest.raises(NotAppliedError, match=f"{domain} asked"):
            _measured(rig, targets=3, repeats=1)
        assert _locks(rig) == []


def test_a_memory_lock_that_fails_gives_the_core_back() -> None:
    failing = Fault(at_s=0.0, kind=FaultKind.MEMORY_REFUSED)
    with _rig(_model("rtx3080ti"), failing) as rig:
        with pytest.raises(DeviceError, match="could not lock the memory"):
            _measured(rig, targets=3, repeats=1)
        assert _locks(rig) == []


def test_a_slowdown_for_heat_on_the_way_is_no_latency() -> None:
    hot = Fault(at_s=15.0, kind=FaultKind.HARD_SLOWDOWN)
    with _rig(_model("a100"), hot) as rig:
        with pytest.raises(MeasurementError, match=r"core .* to .* MHz: the ") as caught:
            _measured(rig)
        assert "measure when nothing else runs" in caught.value.hint
        assert _locks(rig) == []


@pytest.mark.parametrize("at_s", [6.0, 10.0])
def test_a_short_slowdown_is_waited_for(at_s: float) -> None:
    hot = Fault(at_s=at_s, kind=FaultKind.HARD_SLOWDOWN, for_s=1.5)
    with _rig(_model("a100"), hot) as rig:
        table = _measured(rig, targets=3, repeats=20)

    for switch in table.switches:
        truth_s = _truth_s(rig.device.model, Domain.CORE, switch.to_mhz)
        assert switch.delay_s == pytest.approx(truth_s, rel=0.1)


def test_a_core_that_cannot_be_locked_leaves_nothing_to_measure() -> None:
    class OldGpu(NvmlGpu):
        """Older than locks."""

        def lock(self, clocks: Clocks) -> None:
            raise NotSupportedError(f"cannot lock {clocks}")

    with simulated_rig(_model("a100")) as rig:
        stand = dataclasses.replace(_stand(rig), gpu=OldGpu())
        with pytest.raises(NotSupportedError, match="cannot lock core 210 MHz"):
            sample_switches(stand, targets=6, repeats=20, evidence=Evidence.SIMULATED)


def test_a_clock_that_never_settles_is_no_level() -> None:
    class RestlessTicker(VirtualTicker):
        """Its ticks grow all the time."""

        def trace(
            self,
            during: Callable[[], None],
            *,
            domain: Domain,
            tick_s: float,
            lead_s: float,
            tail_s: float,
        ) -> Floats:
            edges_s = super().trace(
                during, domain=domain, tick_s=tick_s, lead_s=lead_s, tail_s=tail_s
            )
            return np.asarray((edges_s - edges_s[0]) ** 1.1)

    with simulated_rig(_model("a100")) as rig:
        stand = dataclasses.replace(_stand(rig), ticker=RestlessTicker(rig.device, rig.clock))
        with pytest.raises(MeasurementError, match="core clock does not settle at 900 MHz"):
            Watch(stand, Domain.CORE).learn(900)
        assert _locks(rig) == []


def test_clocks_that_cannot_be_told_apart_are_named() -> None:
    # Above its boost clock the GPU runs no faster, whatever is asked for.
    model = _model("a100")
    slow = dataclasses.replace(model.constants, boost_mhz=float(model.core_mhz[0]))
    with simulated_rig(dataclasses.replace(model, constants=slow)) as rig:
        with pytest.raises(MeasurementError, match="no change of a clock could be told"):
            _measured(rig, targets=2, repeats=1)
        assert _locks(rig) == []


# Its parts.


def test_ticks_are_not_so_fine_that_they_cannot_tell_the_clocks_apart() -> None:
    model = _model("a100", SwitchingModel(core_s=100e-6, jitter=0.0))
    with simulated_rig(model) as rig:
        watch = Watch(_stand(rig), Domain.CORE)
        for mhz in (1395, 1410):  # 1 % apart; in ticks of 0.5 µs the timer's steps are 6 %
            watch.learn(mhz)
        with watch.between(1395, 1410):
            found = watch.switch(1395, 1410)

    assert found.delay_s == pytest.approx(_truth_s(model, Domain.CORE, 1410), abs=20e-6)


def test_memory_clocks_that_bound_the_core_are_sampled_with_the_core_held_there() -> None:
    with simulated_rig(_model("rtx3080ti")) as rig:
        core, free, bound = groups_of(rig.gpu, 3)

    assert core.clocks == (210, 1170, 2115, None)
    assert free.clocks == (810, 5001, 9251, 9501, None)
    assert (bound.clocks, bound.only, bound.core_mhz) == ((405, 810, 9501), 405, 420)


def test_every_clock_has_two_partners_that_differ_from_it() -> None:
    levels: dict[int | None, Level] = {
        mhz: Level(mean_s=tick_s, sigma_s=0.005 * tick_s, interrupted=0.0)
        for mhz, tick_s in ((500, 4e-6), (1000, 2e-6), (1500, 1.33e-6), (2000, 1e-6), (None, 1e-6))
    }
    pairs = [frozenset(pair) for pair in choose_pairs(levels)]

    assert len(set(pairs)) == len(pairs)
    assert frozenset((2000, None)) not in pairs
    assert all(sum(mhz in pair for pair in pairs) >= 2 for mhz in levels)
    assert all(None in pair for pair in choose_pairs(levels, only=None)) is False
    assert all(500 in pair for pair in choose_pairs(levels, only=500))
    assert choose_pairs({2000: levels[2000], None: levels[None]}) == []


@pytest.mark.parametrize(("domain", "mhz"), [(Domain.CORE, 1050), (Domain.MEMORY, 5001)])
def test_ticks_are_as_long_as_their_clock_is_slow(domain: Domain, mhz: int) -> None:
    quiet = TickNoise(relative=0.0, trace=0.0, interrupted=0.0, timer_s=1e-12)
    gpu = _model("rtx3080ti").constants
    efficiency = float(np.interp(mhz, gpu.mem_points_mhz, gpu.mem_points_efficiency))
    fastest, done = (2115, mhz) if domain is Domain.CORE else (9501, mhz * efficiency)
    with simulated_rig(_model("rtx3080ti")) as rig:
        rig.gpu.lock(Clocks(core_mhz=1050, mem_mhz=5001))
        rig.clock.sleep_s(2.0)
        ticker = VirtualTicker(rig.device, rig.clock, noise=quiet)
        edges_s = ticker.trace(lambda: None, domain=domain, tick_s=2e-6, lead_s=1e-3, tail_s=1e-3)

    assert np.diff(edges_s) == pytest.approx(2e-6 * fastest / done, rel=1e-3)
    assert edges_s[0] == pytest.approx(rig.clock.now_s() - 2e-3, abs=1e-9)


def test_a_gpu_that_stands_still_ticks_not_once(elementwise: Kernel) -> None:
    with simulated_rig(_model("rtx3080ti", SwitchingModel(mem_s=0.0, mem_stall_s=1.0))) as rig:
        with rig.launcher.loop([elementwise]):
            rig.gpu.lock(Clocks(mem_mhz=5001))
        edges_s = VirtualTicker(rig.device, rig.clock).trace(
            lambda: None, domain=Domain.CORE, tick_s=2e-6, lead_s=1e-3, tail_s=1e-3
        )

    assert len(edges_s) == 1


def test_one_clock_can_be_given_back_without_the_other() -> None:
    with simulated_rig(_model("rtx3080ti")) as rig:
        gpu = rig.gpu
        for domain, left in ((Domain.CORE, [(5001, 5001)]), (Domain.MEMORY, [(1050, 1050)])):
            gpu.lock(Clocks(core_mhz=1050, mem_mhz=5001))
            gpu.give_back(domain)
            assert _locks(rig) == left
        gpu.unlock()
        assert _locks(rig) == []

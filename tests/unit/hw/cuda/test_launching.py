"""Launching a step's kernels, from a graph or as it is written, on a GPU that is made up."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fake_gpu import SteadyGpu
from underclock.errors import DeviceError, MeasurementError, NotSupportedError, UsageError
from underclock.hw.base import Durations, Gpu, Loop, Progress, SystemClock
from underclock.hw.cuda.launcher import EagerLauncher
from underclock.hw.cuda.round_graphs import GraphNode, cleared_before
from underclock.hw.measurer import GpuMeasurer
from underclock.records import Clocks, Evidence, Kernel, MeasurementSettings, Mix, Step
from underclock.records.work import Node, NodeKind

_PRODUCT_S = 2e-3  # of the heater on this GPU
_STEP = {"norm": 1e-4, "mm": 3e-3, "gelu": 4e-4}


def _launched(loop: Loop) -> Progress:
    while not (progress := loop.progress()).launches:
        SystemClock().sleep_s(1e-3)
    return progress


@pytest.mark.parametrize(
    ("names", "mix", "expected"),
    [
        (["mm"], None, Durations(kernel_s=(3e-3,))),
        (["norm"], Mix(launches=4, hot=2), Durations(kernel_s=(1e-4,), hot_s=_PRODUCT_S)),
        (
            ["mm", "gelu"],
            Mix(launches=2, idle_s=1e-3),
            Durations(kernel_s=(3e-3, 4e-4), idle_s=1e-3),
        ),
        ([*_STEP], None, Durations(kernel_s=(1e-4, 3e-3, 4e-4))),
        (
            [*_STEP],
            Mix(launches=3, hot=1, idle_s=5e-3),
            Durations(kernel_s=(1e-4, 3e-3, 4e-4), hot_s=_PRODUCT_S, idle_s=5e-3),
        ),
        (
            [*_STEP],
            Mix(launches=1, hot=4, idle_s=2e-3, after=(1, 3)),
            Durations(kernel_s=(1e-4, 3e-3, 4e-4), hot_s=_PRODUCT_S, idle_s=2e-3),
        ),
        (
            ["mm", "gelu"],
            Mix(launches=2, idle_s=2e-3, after=(1, 2)),
            Durations(kernel_s=(3e-3, 4e-4), idle_s=2e-3),
        ),
        ([], Mix(hot=1, idle_s=1e-3), Durations(kernel_s=(), hot_s=_PRODUCT_S, idle_s=1e-3)),
    ],
    ids=["alone", "hot", "some", "step", "step with co-load", "between", "some between", "co-load"],
)
def test_rounds_take_what_is_launched_in_them_and_launches_are_told_apart(
    machine: Any, names: list[str], mix: Mix | None, expected: Durations
) -> None:
    launcher = machine.launcher(**_STEP)
    with launcher.loop([Kernel(name=name) for name in names], mix) as loop:
        progress = _launched(loop)
        durations = loop.durations(1e-3)

    mix = mix or Mix()
    round_s = mix.launches * sum(expected.kernel_s) if names else 0.0
    round_s += mix.hot * (expected.hot_s or 0.0) + (expected.idle_s or 0.0)
    assert progress.elapsed_s / progress.launches == pytest.approx(round_s)
    assert durations.kernel_s == pytest.approx(expected.kernel_s)
    assert (durations.hot_s, durations.idle_s) == pytest.approx((expected.hot_s, expected.idle_s))


def test_a_launch_takes_long_enough_however_short_the_round(machine: Any) -> None:
    launcher = machine.launcher(norm=1e-4)
    with launcher.loop([Kernel(name="norm")], Mix(idle_s=1e-4)) as loop:
        _launched(loop)
    _, nodes = machine.launched[-1]

    assert sum(node.takes_s for node in nodes) == pytest.approx(20e-3, rel=0.02)
    assert [node.name for node in nodes[:3]] == ["norm", "spin", "norm"]


def test_coload_runs_between_the_launches_of_a_step_in_one_graph(machine: Any) -> None:
    launcher = machine.launcher(**_STEP)
    kernels = [Kernel(name=name) for name in _STEP]
    with launcher.loop(kernels, Mix(launches=2, hot=2, idle_s=1e-3, after=(2, 4))) as loop:
        _launched(loop)
        durations = loop.durations(1e-3)
    _, nodes = machine.launched[-1]

    assert [node.name for node in nodes] == [
        *("norm", "mm", "product", "spin"),
        *("gelu", "norm", "product", "spin"),
        *("mm", "gelu"),
    ]
    assert durations.pieces_s == pytest.approx((5e-4, 5e-4))


def test_where_no_heater_fits_idling_still_runs(machine: Any) -> None:
    machine.free = 2**20
    launcher = machine.launcher(**_STEP)
    with (
        pytest.raises(MeasurementError, match="heater does not fit"),
        launcher.loop([], Mix(hot=1)),
    ):
        pytest.fail("the block must not run")
    with launcher.loop([], Mix(idle_s=1e-3)) as loop:
        _launched(loop)


def test_what_is_not_of_the_step_or_nothing_at_all_is_refused(machine: Any) -> None:
    launcher = machine.launcher(**_STEP)
    with pytest.raises(UsageError, match="no kernel 'softmax'"):
        launcher.loop([Kernel(name="softmax")], Mix()).__enter__()
    with pytest.raises(ValueError, match="no co-load"):
        launcher.loop([]).__enter__()


def test_of_a_kernel_whose_launches_are_unlike_the_one_that_stands_for_it_is_run(
    machine: Any,
) -> None:
    launcher = machine.launcher(small=1e-4, large=3e-3, middle=4e-4)
    kernel = Kernel(name="experts", count=3)
    launcher.traced = dataclasses.replace(
        launcher.traced,
        step=Step(name="step", kernels=(kernel,), order=(0, 0, 0)),
        medians={0: 2},
    )
    with launcher.loop([kernel]) as loop:
        assert _per_launch_s(loop) == pytest.approx(4e-4)


def _per_launch_s(loop: Loop) -> float:
    progress = _launched(loop)
    return progress.elapsed_s / progress.launches


def kernel(*words: int) -> GraphNode:
    return GraphNode(Node(kind=NodeKind.KERNEL, function="k"), None, words)


def memset(start: int, size: int) -> GraphNode:
    return GraphNode(Node(kind=NodeKind.MEMSET, bytes=size), None, (start,))


def test_a_kernel_finds_the_memsets_of_memory_it_is_given() -> None:
    nodes = [memset(100, 32), kernel(5, 131), kernel(132), memset(500, 8), kernel(100, 507)]
    assert cleared_before(nodes) == ((), (0,), (), (), (0, 3))


_KERNEL, _MEMSET, _EVENT = (
    Node(kind=kind) for kind in (NodeKind.KERNEL, NodeKind.MEMSET, NodeKind.OTHER)
)


_KERNELS = [Kernel(name=name) for name in _STEP]
_MARK_S = 3e-6


def plain(machine: Any, *, host_s: float = 0.0) -> Callable[[], None]:
    """Return a step that launches its kernels one by one, its host working in between."""

    def step() -> None:
        for name, takes_s in _STEP.items():
            machine.launch_kernel(name, takes_s)
            if name == "mm":
                machine.wait(host_s)

    return step


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        (None, Durations(kernel_s=(1e-4, 3e-3, 4e-4))),
        (Mix(launches=3), Durations(kernel_s=(1e-4, 3e-3, 4e-4))),
        (
            Mix(launches=2, hot=2, idle_s=5e-3),
            Durations(kernel_s=(1e-4, 3e-3, 4e-4), hot_s=2e-3, idle_s=5e-3),
        ),
    ],
    ids=["alone", "several", "with co-load"],
)
def test_the_step_runs_over_and_over_and_its_launches_are_timed(
    machine: Any, mix: Mix | None, expected: Durations
) -> None:
    launcher = machine.eager(plain(machine), *_STEP)
    with launcher.loop(_KERNELS, mix) as loop:
        progress = _launched(loop)
        durations = loop.durations(1e-3)

    mix = mix or Mix()
    round_s = mix.launches * sum(expected.kernel_s) + _MARK_S
    round_s += mix.hot * (expected.hot_s or 0.0) + (expected.idle_s or 0.0)
    assert progress.elapsed_s / progress.launches == pytest.approx(round_s)
    assert durations.kernel_s == pytest.approx(expected.kernel_s)
    assert (durations.hot_s, durations.idle_s) == pytest.approx((expected.hot_s, expected.idle_s))
    assert launcher.notes() == ()


def test_the_profiler_slows_no_launch_of_a_later_loop(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    launcher = machine.eager(plain(machine), *_STEP)
    with launcher.loop(_KERNELS) as loop:
        _launched(loop)
    assert machine.looks == []  # it was never there

    with launcher.loop(_KERNELS) as loop:
        _launched(loop)
        loop.durations(1e-3)
        loop.durations(1e-3)
    assert machine.looks == [False, False, True]


def test_everything_is_put_back_before_each_loop(machine: Any) -> None:
    launcher = machine.eager(plain(machine), *_STEP)
    for times in (1, 2):
        with launcher.loop(_KERNELS) as loop:
            _launched(loop)
        assert machine.restored == times


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_step_finds_its_default_device_on_the_thread_that_launches_it(
    machine: Any, device: str
) -> None:
    machine.default_device.type = device
    with machine.eager(plain(machine), *_STEP).loop(_KERNELS) as loop:
        _launched(loop)

    threads = machine.default_device.entered
    assert len(threads) == (device != "cpu")
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("kernels", "mix", "words"),
    [
        (_KERNELS[1:2], None, "only the whole step can run: the host waits in it"),
        (_KERNELS[::-1], None, "only the whole step can run"),
        (_KERNELS, Mix(hot=2, after=(1, 2)), "co-load cannot run between the launches"),
    ],
    ids=["alone", "in another order", "between"],
)
def test_what_only_a_graph_can_do_is_refused(
    machine: Any, kernels: list[Kernel], mix: Mix | None, words: str
) -> None:
    launcher = machine.eager(plain(machine), *_STEP)
    with pytest.raises(NotSupportedError, match=words), launcher.loop(kernels, mix):
        pass
    assert machine.restored == 0


@pytest.mark.untraced
def test_a_step_that_raises_ends_the_loop_with_its_words(machine: Any) -> None:
    ran: list[None] = []
    step = plain(machine)

    def fails_later() -> None:
        ran.append(None)
        if len(ran) > 50:
            raise ValueError("no more batches")
        step()

    launcher = machine.eager(fails_later, *_STEP)
    with pytest.raises(DeviceError, match="a launch failed: no more batches"):
        _until_it_ends(launcher)


def _until_it_ends(launcher: EagerLauncher) -> None:
    with launcher.loop(_KERNELS) as loop:
        while True:
            loop.progress()


_MEASURED_STEP = {"norm": 1e-3, "mm": 6e-3, "gelu": 1e-3}
_HOST_S = 2e-3
_TICK_S, _POWER_W = 0.1, 400.0
_BRIEF = MeasurementSettings(
    warm_s=0.1, steady_s=0.1, settle_s=0.0, kernel_warm_s=0.1, window_s=0.3, launches=3
)


class Board(SteadyGpu):
    """A counter that climbs in steps, at one power."""

    mems_mhz, cores_mhz = (2619,), (1500, 1980)
    seen = Clocks(core_mhz=1980, mem_mhz=2619)
    watts, celsius = _POWER_W, 50.0

    def __init__(self, machine: Any) -> None:
        self._machine = machine

    def energy_j(self) -> float:
        ticks = int(self._machine.now_s / _TICK_S)
        return float(_POWER_W * _TICK_S * ticks)


@pytest.fixture
def measurer(machine: Any) -> GpuMeasurer:
    def step() -> None:
        for name, takes_s in _MEASURED_STEP.items():
            machine.launch_kernel(name, takes_s)
        machine.wait(_HOST_S)

    launcher = machine.eager(step, *_MEASURED_STEP)
    board: Gpu = Board(machine)
    return GpuMeasurer(board, launcher, machine.clock, evidence=Evidence.MEASURED, measuring=_BRIEF)


@pytest.mark.untraced
def test_a_whole_step_is_measured_with_what_its_launches_take_inside(measurer: GpuMeasurer) -> None:
    reading = measurer.measure(_KERNELS, mix=Mix(), timed=True)

    step_s = sum(_MEASURED_STEP.values()) + _HOST_S
    assert reading.time_s == pytest.approx(step_s, rel=1e-3)  # a mark takes 3 µs
    assert reading.energy_j / reading.time_s == pytest.approx(_POWER_W, rel=0.1)
    assert reading.core_mhz == 1980.0
    assert reading.durations is not None
    assert reading.durations.kernel_s == pytest.approx((1e-3, 6e-3, 1e-3 + _HOST_S))
    assert any("waits for the host in 20% of the step" in note for note in measurer.notes())

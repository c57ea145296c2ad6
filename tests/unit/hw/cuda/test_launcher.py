"""Launching kernels of a captured step with co-load, on a GPU that is made up."""

import dataclasses
from typing import Any

import pytest

from underclock.errors import MeasurementError, UsageError
from underclock.hw.base import Durations, Loop, Progress
from underclock.hw.clock import SystemClock
from underclock.records import Kernel, Mix, Step

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


def test_a_smaller_heater_is_noted(machine: Any) -> None:
    machine.free = 100 * 2**20
    launcher = machine.launcher(**_STEP)
    with launcher.loop([], Mix(hot=1)) as loop:
        _launched(loop)

    (note,) = launcher.notes()
    assert "a product of 4096x4096" in note


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

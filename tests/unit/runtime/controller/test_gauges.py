"""The energy counter, read as it climbs: what that costs, and how well a block's energy is told."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.errors import NotSupportedError
from underclock.hw.clock import SystemClock
from underclock.records import AUTO, ThrottleReason
from underclock.runtime.controller.gauges import (
    EnergyCounterSampler,
    Gauge,
    Gauges,
    TelemetryBuffer,
)
from underclock.runtime.machine.steps import PassedStep, State

_WAIT_S = 0.36  # as a controller that compares arms waits between readings
_STEP_S, _BLOCK, _SETTLING = 0.02, 250, 50


class Board:
    """A counter that climbs now and then, and blocks whoever reads it; and the clock it goes by."""

    def __init__(
        self, every_s: float, blocks_s: float, power_w: tuple[float, ...], off_s: float = 0.0
    ) -> None:
        self.now, self.reads = 1000.0, 0
        self.every_s, self.blocks_s, self.power_w = every_s, blocks_s, power_w
        self.is_stuck, self.off_s = False, off_s

    def now_s(self) -> float:
        return self.now

    def sleep_s(self, duration_s: float) -> None:
        self.now += duration_s

    def energy_j(self) -> float:
        self.reads += 1
        self.now += self.blocks_s
        tick = 0 if self.is_stuck else math.floor(self.now / self.every_s)
        if tick and self.climbs_s(tick) > self.now:
            tick -= 1
        return self.drawn_j(self.climbs_s(tick))

    def climbs_s(self, tick: int) -> float:
        """Return when it climbs: as uneven as was seen on an H200, or even."""
        return tick * self.every_s + self.off_s * (tick * 0.6180339887 % 1.0)

    def drawn_j(self, at_s: float) -> float:
        """Return what was drawn: blocks of 5 s draw one power, those between them another."""
        whole, part_s = divmod(max(0.0, at_s - 1000.0), _STEP_S * _BLOCK)
        whole = int(whole)
        drawn_w = sum(self.power_w[at % 2] for at in range(whole))
        return drawn_w * _STEP_S * _BLOCK + self.power_w[whole % 2] * part_s


@given(
    every_s=st.floats(0.0983, 0.1017),
    blocks_s=st.sampled_from([0.0, 5e-6, 1e-3, 4.8e-3]),
    other_w=st.floats(400.0, 600.0),
    off_s=st.sampled_from([0.0, 5e-3, 18e-3]),
)
def test_few_questions_tell_the_energy_of_a_block(
    every_s: float, blocks_s: float, other_w: float, off_s: float
) -> None:
    board = Board(every_s, blocks_s, (500.0, other_w), off_s)
    climbs, shown = EnergyCounterSampler(board.energy_j, board), TelemetryBuffer()
    climbs.next()  # the first learns how often the counter climbs
    learned_s, learned = board.now, board.reads

    while board.now < 1062.0:
        board.sleep_s(_WAIT_S)
        energy_s, energy_j = climbs.next()
        shown.add([gauge(board.now, energy_s, energy_j)])

    reads_hz = (board.reads - learned) / (board.now - learned_s)
    assert reads_hz < (16.0 if off_s else 8.0)  # many only where they take no time
    assert reads_hz * blocks_s < 0.05  # of the processor; 0.08 to 0.18 where each climb is sought
    for block in range(1, 12):
        began_s = 1000.0 + _STEP_S * (block * _BLOCK + _SETTLING)
        ended_s = 1000.0 + _STEP_S * (block + 1) * _BLOCK
        told_j = shown.line(0, passed(began_s, ended_s), "").energy_j
        assert told_j is not None
        true_j = board.drawn_j(ended_s) - board.drawn_j(began_s)
        off_j = 9e-3 * 600.0 + 0.5 / 4 * abs(other_w - 500.0)
        assert told_j == pytest.approx(true_j, abs=off_j)


def test_a_counter_that_stands_still_is_given_up_soon_and_found_again() -> None:
    board = Board(0.1, 4.8e-3, (500.0, 500.0))
    climbs = EnergyCounterSampler(board.energy_j, board)
    climbs.next()
    shown = climbs.next()[1]
    stuck_s, board.is_stuck = board.now, True

    assert climbs.next()[1] == climbs.next()[1] < shown
    assert board.now - stuck_s < 0.6

    board.is_stuck = False
    climbs.next()
    at_s, _ = climbs.next()
    assert abs(at_s / 0.1 - round(at_s / 0.1)) * 0.1 < 5e-3


def gauge(at_s: float, energy_s: float, energy_j: float) -> Gauge:
    return Gauge(
        at_s=at_s,
        clocks=AUTO,
        reasons=ThrottleReason(0),
        power_w=0.0,
        energy_s=energy_s,
        energy_j=energy_j,
    )


def passed(began_s: float, ended_s: float) -> PassedStep:
    return PassedStep(
        number=0,
        began_s=began_s,
        time_s=ended_s - began_s,
        state=State.HELD,
        planned=0,
        asked=0,
    )


@pytest.mark.parametrize(("powers_w", "is_known"), [([100.0, 140.0, None], True), ([None], False)])
def test_power_is_integrated_where_there_is_no_counter(
    powers_w: list[float | None], *, is_known: bool
) -> None:
    clock, shown = SystemClock(), TelemetryBuffer()
    unknown = dict.fromkeys(("throttle_reasons", "temperature_c", "power_limit_w"), lambda: None)
    powers = itertools.cycle(powers_w)

    def energy_j() -> float:
        raise NotSupportedError("boards before 2017 have none")

    gpu: Any = SimpleNamespace(energy_j=energy_j, power_w=lambda: next(powers), **unknown)
    gpu.observed = lambda: AUTO
    gauges = Gauges(gpu, clock, exactly=True)
    clock.sleep_s(0.7)
    gauges.close()
    some = gauges.taken()
    words = shown.add(some)
    known = [(gauge.at_s, gauge.power_w) for gauge in some if gauge.power_w is not None]
    drawn_j = sum(
        0.5 * (one_w + other_w) * (other_s - one_s)
        for (one_s, one_w), (other_s, other_w) in itertools.pairwise(known)
    )

    assert (shown.energy_j is not None) == is_known
    assert "the GPU has no energy counter" in words[0]
    assert shown.energy_j == pytest.approx(drawn_j if is_known else None)

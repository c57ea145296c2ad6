"""How much more kernels draw inside the step than by themselves, on made-up posteriors."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_rows import every_clock, made_rows
from underclock.core.model.adjusted import StepRatio, step_ratio, with_ratio
from underclock.core.model.parameters import Rows
from underclock.core.model.posterior import Posterior
from underclock.core.step.whole_step import StepDraw
from underclock.records import Clocks

_CORES = (1500, 1800, 2000)
_COUNTS = np.array([2.0, 1.0])


def _posterior(
    spread: tuple[float, ...] = (0.0, 0.0, 0.0), mems: tuple[int, ...] = ()
) -> Posterior:
    """Return two kernels that draw 0.2 W per MHz, as sure as ``spread`` says at each clock."""
    settings = tuple(Clocks(core_mhz=mhz, mem_mhz=mem) for mem in mems or (None,) for mhz in _CORES)
    core = np.array([float(clocks.core_mhz or 0) for clocks in settings])
    shape = 2, len(settings)
    slow = np.array([1.0 if clocks.mem_mhz in (None, *mems[-1:]) else 0.5 for clocks in settings])
    moves = np.zeros((2, *shape, 3))
    moves[1, :, :, 0] = np.resize(spread, len(settings))
    log_s = np.log(np.array([[1e-3], [2e-3]]) * 2000.0 / core)
    return Posterior(
        settings=settings,
        log=np.stack([log_s, np.log(np.broadcast_to(0.2 * core * slow, shape))]),
        moves=moves,
        shared=1,
        noise=np.zeros((2, 2)),
        parameters=np.zeros((2, 1)),
        parameter_moves=np.zeros((2, 1, 3)),
        gpu=np.zeros(1),
        gpu_moves=np.ones((1, 1)),
    )


def _rows(*draws: tuple[float, float], spread_w: float = 1.0) -> Rows:
    rows = made_rows(every_clock(2, np.ones(1), [1.0], 55.0), np.zeros((2, 2)), [1.0])
    step = (StepDraw(core_mhz=mhz, power_w=power_w, spread_w=spread_w) for mhz, power_w in draws)
    return dataclasses.replace(rows, step=tuple(step))


@given(st.floats(0.95, 1.05))
def test_the_ratio_is_what_the_step_drew_over_what_kernels_draw(ratio: float) -> None:
    rows = _rows(*((mhz, 0.2 * mhz * ratio) for mhz in (1500.0, 1650.0, 1900.0, 2000.0)))
    found = step_ratio(rows, _posterior(), _COUNTS)

    # Interpolating between clocks, and what was expected before, cost a little.
    assert found.ratio == pytest.approx(ratio, abs=0.002)
    assert 0.0 < found.spread < 0.01


def test_what_launches_beside_others_draw_is_in_what_the_step_drew() -> None:
    posterior, beside_j = _posterior(), 0.1
    time_s, energy_j = (costs.sum(axis=0) for costs in posterior.costs(_COUNTS))
    drawn_w = (energy_j + beside_j) / time_s
    found = step_ratio(
        _rows(*zip(map(float, _CORES), drawn_w.tolist(), strict=True)), posterior, _COUNTS, beside_j
    )

    assert found.ratio == pytest.approx(1.0, abs=1e-6)


def test_a_step_that_never_ran_with_coload_tells_no_ratio() -> None:
    assert step_ratio(_rows(), _posterior(), _COUNTS) == StepRatio()
    nothing = dataclasses.replace(_posterior(), settings=())
    assert step_ratio(_rows((1800.0, 400.0)), nothing, _COUNTS) == StepRatio()


def test_steps_at_clocks_that_no_kernel_is_known_at_tell_nothing() -> None:
    found = step_ratio(_rows((1200.0, 500.0), (2100.0, 900.0)), _posterior(), _COUNTS)

    assert (found.ratio, found.spread) == pytest.approx((1.0, 0.03))


def test_where_kernels_are_hardly_known_the_step_tells_little() -> None:
    # At 2000 MHz kernels are 10 % off, and known to be no better.
    rows = _rows((1500.0, 300.0), (1800.0, 360.0), (2000.0, 440.0))

    unsure = step_ratio(rows, _posterior((0.001, 0.001, 0.1)), _COUNTS)
    assert unsure.ratio == pytest.approx(1.0, abs=0.001)
    assert step_ratio(rows, _posterior(), _COUNTS).ratio > 1.02


def test_steps_that_disagree_leave_the_ratio_unsure() -> None:
    alike, apart = (
        step_ratio(
            _rows((1500.0, 300.0 * (1 - off)), (1800.0, 360.0 * (1 + off))), _posterior(), _COUNTS
        )
        for off in (0.0, 0.03)
    )

    assert apart.spread > 3 * alike.spread


def test_the_step_is_compared_at_the_memory_clock_of_a_gpu_left_to_itself() -> None:
    rows = _rows((1800.0, 360.0))

    assert step_ratio(rows, _posterior(mems=(800, 3200)), _COUNTS).ratio == pytest.approx(1.0)


def test_the_ratios_error_is_one_that_all_kernels_share() -> None:
    alone = _posterior((0.01, 0.02, 0.03))
    inside = with_ratio(alone, 1.05, 0.04)

    assert inside.log_w == pytest.approx(alone.log_w + math.log(1.05))
    assert (inside.log_s == alone.log_s).all()
    assert inside.variance(0.0, 1.0) == pytest.approx(alone.variance(0.0, 1.0) + 0.04**2)
    assert inside.variance(1.0, 0.0) == pytest.approx(alone.variance(1.0, 0.0))
    assert inside.shared == alone.shared + 1
    assert (inside.moves[1, :, :, 0] == 0.04).all()
    # Parameters, of kernels and of the GPU, have no part in it.
    assert not inside.parameter_moves[..., 0].any()
    assert inside.gpu_moves.tolist() == [[0.0, 1.0]]

"""How much more kernels draw inside the step than by themselves, on made-up posteriors."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_rows import every_clock, made_rows
from underclock.core.model.adjusted import given_step, step_ratio, with_ratio
from underclock.core.model.parameters import Rows
from underclock.core.model.posterior import Posterior
from underclock.core.step.whole_step import StepDraw
from underclock.records import Clocks

_CORES = (1500, 1800, 2000)
_COUNTS = np.array([2.0, 1.0])


def _posterior(spread: tuple[float, ...] = (0.0, 0.0, 0.0)) -> Posterior:
    """Return two kernels that draw 0.2 W per MHz, as sure as ``spread`` says at each clock."""
    core = np.array(_CORES, dtype=np.float64)
    moves = np.zeros((2, 2, 3, 3))
    moves[1, :, :, 0] = spread
    log_s = np.log(np.array([[1e-3], [2e-3]]) * 2000.0 / core)
    return Posterior(
        settings=tuple(Clocks(core_mhz=mhz) for mhz in _CORES),
        log=np.stack([log_s, np.log(np.broadcast_to(0.2 * core, log_s.shape))]),
        moves=moves,
        shared=1,
        noise=np.zeros((2, 2)),
        parameters=np.zeros((2, 1)),
        parameter_moves=np.zeros((2, 1, 3)),
        gpu=np.zeros(1),
        of_setting=np.zeros((2, 3)),
        gpu_moves=np.ones((1, 1)),
    )


def _rows(*draws: tuple[float, float]) -> Rows:
    rows = made_rows(every_clock(2, np.ones(1), [1.0], 55.0), np.zeros((2, 2)), [1.0])
    step = (StepDraw(core_mhz=mhz, power_w=power_w, spread_w=1.0) for mhz, power_w in draws)
    return dataclasses.replace(rows, step=tuple(step))


@given(st.floats(0.95, 1.05))
def test_the_ratio_is_what_the_step_drew_over_what_kernels_draw(ratio: float) -> None:
    rows = _rows(*((mhz, 0.2 * mhz * ratio) for mhz in (1500.0, 1650.0, 1900.0, 2000.0)))
    found = step_ratio(rows, _posterior(), _COUNTS)

    # Interpolating between clocks, and what was expected before, cost a little.
    assert found.ratio == pytest.approx(ratio, abs=0.002)
    assert 0.0 < found.spread < 0.01


def test_the_ratios_error_is_one_that_all_kernels_share() -> None:
    alone = _posterior((0.01, 0.02, 0.03))
    inside = with_ratio(alone, 1.05, (0.02, 0.04))

    assert inside.log_w == pytest.approx(alone.log_w + math.log(1.05))
    assert (inside.log_s == alone.log_s).all()
    assert inside.variance(0.0, 1.0) == pytest.approx(alone.variance(0.0, 1.0) + 0.04**2)
    assert inside.variance(1.0, 0.0) == pytest.approx(alone.variance(1.0, 0.0) + 0.02**2)
    assert inside.shared == alone.shared + 2
    # Parameters, of kernels and of the GPU, have no part in it.
    assert not inside.parameter_moves[..., :2].any()
    assert inside.gpu_moves.tolist() == [[0.0, 0.0, 1.0]]


def test_a_step_at_a_lock_is_a_ratio_as_far_as_kernels_are_sure_there() -> None:
    inside = with_ratio(_posterior((0.0, 0.0, 0.0)), 1.0, (0.003, 0.01))
    counts, off = np.ones(inside.log.shape[1]), np.array([0.0, 0.02])
    sure, unsure = (
        given_step(inside, counts, 0, off, np.array([1e-4, wander])) for wander in (1e-4, 0.01)
    )
    moved = [(after.log_w - inside.log_w).mean() for after in (sure, unsure)]
    assert 0.0 < moved[1] < moved[0] <= 0.02 + 1e-9
    assert (sure.variance(1.0, 1.0) <= inside.variance(1.0, 1.0) + 1e-12).all()

"""What rows have in common besides the GPU: errors of their co-load, and of a clock in the step."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_rows import every_clock, made_rows
from underclock.core.model.adjusted import with_ratio
from underclock.core.model.estimate import at_locked_clocks
from underclock.core.model.fitting import clocks_of
from underclock.core.model.in_step import step_ratio
from underclock.core.model.most_likely import FittedModel, fit_all
from underclock.core.model.parameters import Parameters, Shared, predicted_rows, unknown_gpu
from underclock.core.model.posterior import Posterior
from underclock.core.model.rows import PER_KERNEL, Rows
from underclock.core.step.whole_step import StepDraw
from underclock.records import Clocks

_FAMILY = Shared(unknown_gpu([3000.0], fastest_mhz=2000.0, most_w=700.0))
_KERNELS, _CLOCKS = 6, 7
_ERROR = 1.5  # of co-load, in its standard deviations
_SETTINGS = (Clocks(core_mhz=1300), Clocks(core_mhz=1700))


def _rows() -> Rows:
    """Return rows of which every other was measured beside co-load that is off."""
    random = np.random.default_rng(1)
    own = np.log(random.uniform(0.1, 1.0, (_KERNELS, PER_KERNEL))) - 7.0
    own[:, :2] += math.log(2000.0)
    own[:, 2] -= 4.0
    own[:, 3] += math.log(400.0)
    at = every_clock(_KERNELS, np.linspace(1000.0, 2000.0, _CLOCKS), [3000.0], 55.0)
    truth = Parameters(family=_FAMILY, shared=_FAMILY.start(), kernels=own)
    common = np.zeros((2, len(at.kernel), 1))
    common[1, ::2] = 0.03
    log = predicted_rows(truth, at).log + random.normal(0.0, 0.001, (2, len(at.kernel)))
    log[1] += _ERROR * common[1, :, 0]
    return dataclasses.replace(made_rows(at, log, [3000.0]), common=common)


@pytest.fixture(scope="module")
def model() -> FittedModel:
    return fit_all(_rows(), _FAMILY)


def _posterior(model: FittedModel, settings: tuple[Clocks, ...] = _SETTINGS) -> Posterior:
    return at_locked_clocks(model, clocks_of(model.rows, settings), settings, 55.0)[0]


def test_an_error_of_coload_is_told_from_all_that_share_it(model: FittedModel) -> None:
    assert model.parameters.shared[-1] == pytest.approx(_ERROR, abs=0.2)
    known = _posterior(model)
    assert model.parameters.shared[-1] + known.gpu[-1] == pytest.approx(_ERROR, abs=0.2)
    assert np.linalg.norm(known.gpu_moves[-1]) < 0.3


def test_costs_do_not_have_the_error_that_coload_had(model: FittedModel) -> None:
    ignored = fit_all(dataclasses.replace(_rows(), common=None), _FAMILY)
    rows = _rows()
    alone = np.flatnonzero(rows.core_mhz == rows.core_mhz[1])  # rows that nothing was beside
    alone = alone[rows.by_common[1, alone, 0] == 0.0]
    at = (Clocks(core_mhz=round(rows.core_mhz[1])),)
    off, off_ignored = (
        _posterior(one, at).log_w[rows.kernel[alone], 0] - rows.log_w[alone]
        for one in (model, ignored)
    )

    assert np.abs(off).max() < 0.005 < np.abs(off_ignored).max()


_CORES = (1500, 1800, 2000)
_COUNTS = np.array([2.0, 1.0])


def _at_clocks(
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


def _drawn(*draws: tuple[float, float], spread_w: float = 1.0) -> Rows:
    rows = made_rows(every_clock(2, np.ones(1), [1.0], 55.0), np.zeros((2, 2)), [1.0])
    step = (StepDraw(core_mhz=mhz, power_w=power_w, spread_w=spread_w) for mhz, power_w in draws)
    return dataclasses.replace(rows, step=tuple(step))


@given(st.floats(0.95, 1.05))
def test_the_ratio_is_what_the_step_drew_over_what_kernels_draw(ratio: float) -> None:
    rows = _drawn(*((mhz, 0.2 * mhz * ratio) for mhz in (1500.0, 1650.0, 1900.0, 2000.0)))
    found = step_ratio(rows, _at_clocks(), _COUNTS)

    # Interpolating between clocks, and what was expected before, cost a little.
    assert found.ratio == pytest.approx(ratio, abs=0.002)
    assert 0.0 < found.spread < 0.01


def test_the_ratios_error_is_one_that_all_kernels_share() -> None:
    alone = _at_clocks((0.01, 0.02, 0.03))
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

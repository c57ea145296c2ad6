"""A prior that knows when it is off: a GPU unlike the usual widens it, and is said to be so."""

import math

import numpy as np
import pytest

from made_rows import every_clock, made_rows
from underclock.arrays import Floats
from underclock.core.model.diagnostics import prior_doubt
from underclock.core.model.fitting import fitted
from underclock.core.model.hierarchical_prior import widening
from underclock.core.model.most_likely import FittedModel, fit_all
from underclock.core.model.parameters import Parameters, Shared, predicted_rows, unknown_gpu
from underclock.core.model.rows import PER_KERNEL, Rows

_MEMS = (5001.0, 9501.0)
_FAMILY = Shared(unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0))
_UNITS = np.array([math.log(2100.0), math.log(9501.0), 0.0, math.log(150.0)])
_CORES = np.linspace(450.0, 2100.0, 6).round()
_KERNELS = 8


def _rows(off: Floats) -> Rows:
    """Return noisy rows of kernels on a GPU that is off the prior by so many deviations."""
    random = np.random.default_rng(5)
    own = np.log(random.uniform(0.1, 1.0, (_KERNELS, PER_KERNEL))) + _UNITS
    own[:, 2] -= 3.0
    parameters = Parameters(
        family=_FAMILY,
        shared=_FAMILY.start() + off * _FAMILY.spread(),
        kernels=own - 7.0,
    )
    at = every_clock(_KERNELS, _CORES, _MEMS, 55.0)
    log = predicted_rows(parameters, at).log
    return made_rows(at, log + random.normal(0.0, 0.004, log.shape), _MEMS)


def _off(size: float) -> Floats:
    signs = np.where(np.arange(len(_FAMILY.start())) % 2, 1.0, -1.0)
    off = size * signs
    off[0] = 0.5  # an exponent below 1 is no norm
    return off


@pytest.fixture(scope="module")
def strange() -> FittedModel:
    """Fit a GPU whose constants lie three deviations off."""
    return fit_all(_rows(_off(3.0)), _FAMILY)


def test_a_gpu_far_from_the_usual_widens_the_prior_and_is_said_to_be_so(
    strange: FittedModel,
) -> None:
    (sentence,) = prior_doubt(strange)

    assert 1.5 < strange.shared_scale < 4.0
    assert f"{strange.shared_scale:.1f} times further" in sentence
    assert "usually about" in sentence


def test_what_rows_do_not_tell_of_a_strange_gpu_is_less_sure(strange: FittedModel) -> None:
    usual = fit_all(_rows(_off(0.7)), _FAMILY)

    assert usual.shared_scale == 1.0
    assert prior_doubt(usual) == ()
    spread = [np.diag(model.prior.shared_root) for model in (usual, strange)]
    assert spread[1] == pytest.approx(strange.shared_scale * spread[0])


def test_kernels_fitted_to_a_known_gpu_know_how_strange_it_is() -> None:
    rows = _rows(_off(3.0))

    model = fitted(rows, _FAMILY, most_kernels=6)

    assert len(model.rows.names) == _KERNELS
    assert model.shared_scale > 1.5


@pytest.mark.parametrize(
    ("away2", "left", "expected"),
    [
        ([0.0] * 12, [1.0] * 12, 1.0),  # nothing is told
        ([0.5] * 12, [0.0] * 12, 1.0),  # all is told, and as usual
        ([9.0] * 12, [0.0] * 12, math.sqrt((4 + 108) / 16)),
        ([9.0] * 6 + [0.0] * 6, [0.0] * 6 + [1.0] * 6, math.sqrt((4 + 54) / 10)),
        ([1e6] * 12, [0.0] * 12, 10.0),
    ],
)
def test_a_prior_is_widened_by_what_is_told(
    away2: list[float], left: list[float], expected: float
) -> None:
    assert widening(np.array(away2), np.array(left)) == pytest.approx(expected)

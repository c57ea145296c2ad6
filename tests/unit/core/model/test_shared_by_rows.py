"""What rows have in common besides the GPU: errors of their co-load, and of a clock in the step."""

import dataclasses
import math

import numpy as np
import pytest

from made_rows import every_clock, made_rows
from underclock.core.model.estimate import at_locked_clocks
from underclock.core.model.most_likely import FittedModel, clocks_of, fit_all, fitted
from underclock.core.model.parameters import (
    PER_KERNEL,
    Parameters,
    Rows,
    Shared,
    predicted_rows,
    unknown_gpu,
)
from underclock.core.model.posterior import Posterior
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


def test_the_heater_is_left_out_once_it_told(model: FittedModel) -> None:
    every = _posterior(model)
    fewer = every.of_first(_KERNELS - 1)

    assert (fewer.log == every.log[:, :-1]).all()
    assert (fewer.variance(1.0, 1.0) == every.variance(1.0, 1.0)[:-1]).all()
    assert len(fewer.parameters) == len(fewer.parameter_moves) == fewer.noise.shape[1]


def test_a_clock_that_rows_have_in_common_leaves_times_unsure(model: FittedModel) -> None:
    apart = np.full(len(model.rows.kernel), 0.01)
    unsure = dataclasses.replace(model, rows=dataclasses.replace(model.rows, apart=apart))
    here, there = _posterior(model), _posterior(unsure)

    assert (np.abs(there.log_s - here.log_s) < 2.0 * np.sqrt(there.variance(1.0, 0.0))).all()
    # What all rows are off by, the prediction is off by: times as far as they follow the clock.
    more = np.sqrt(there.variance(1.0, 0.0)) - np.sqrt(here.variance(1.0, 0.0))
    assert (more > 0.0).all()
    assert (more < 0.015).all()


def test_of_no_settings_nothing_is_said(model: FittedModel) -> None:
    assert _posterior(model, ()).log.shape == (2, _KERNELS, 0)


def test_some_rows_keep_what_they_share() -> None:
    rows = _rows()
    rows = dataclasses.replace(rows, apart=np.linspace(0.0, 0.01, len(rows.kernel)))
    few = fitted(rows, _FAMILY, most_rows=4).rows

    assert few.apart is not None
    assert len(few.apart) == few.by_common.shape[1] == len(few.kernel) == 4 * _KERNELS


def test_dram_is_expected_to_draw_as_its_cycles_carry() -> None:
    gddr = Shared(unknown_gpu([9500.0], fastest_mhz=1900.0, most_w=350.0)).start()
    hbm = Shared(unknown_gpu([1215.0], fastest_mhz=1410.0, most_w=400.0)).start()

    assert np.exp(gddr[8]) == pytest.approx(0.0055, rel=0.05)
    assert np.exp(hbm[8]) == pytest.approx(0.05, rel=0.05)

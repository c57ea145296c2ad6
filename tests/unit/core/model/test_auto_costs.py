"""Auto of a table with repeats: drawn to the fastest lock as far as kernels are like it there."""

import math

import numpy as np
import pytest

from underclock.core.model.auto_costs import AutoRuns, auto_costs, drawn_to_locks, fastest_locks
from underclock.core.statistics.repeats import Runs, weighed
from underclock.records import AUTO, Clocks

_KERNELS = 30
_EVERY = np.ones(_KERNELS)


def test_kernels_that_are_alike_at_auto_are_not_believed_where_they_were_lucky() -> None:
    random = np.random.default_rng(0)
    lock = random.standard_normal(_KERNELS)
    truth = lock - 0.02 + 0.002 * random.standard_normal(_KERNELS)
    measured = truth + 0.03 * random.standard_normal(_KERNELS)

    mean, variance = drawn_to_locks(
        measured, 0.03**2 * _EVERY, lock, 0.001**2 * _EVERY, 0.03**2 * _EVERY
    )

    assert np.std(mean - truth) < 0.5 * np.std(measured - truth)
    assert (variance < 0.03**2).all()
    z = (mean - truth) / np.sqrt(variance)
    assert 0.3 < np.sqrt(np.mean(z**2)) < 1.5


def test_kernels_that_are_unlike_at_auto_stay_as_measured() -> None:
    random = np.random.default_rng(1)
    lock = random.standard_normal(_KERNELS)
    truth = lock + 0.3 * random.standard_normal(_KERNELS)
    variance = 0.01**2 * _EVERY

    mean, _ = drawn_to_locks(truth, variance, lock, variance, variance)

    assert mean == pytest.approx(truth, abs=0.01)


@pytest.mark.parametrize("locks", [_KERNELS, 3, 1, 0])
def test_the_sum_is_what_was_measured(locks: int) -> None:
    random = np.random.default_rng(2)
    log = random.standard_normal(_KERNELS)
    runs = AutoRuns(
        log=log,
        variance=0.02**2 * _EVERY,
        run_variance=0.03**2 * _EVERY,
        counts=np.arange(1.0, _KERNELS + 1.0),
        spread=0.01,
    )
    lock = np.where(np.arange(_KERNELS) < locks, log + 0.05, np.nan)
    auto = auto_costs(runs, lock, 0.001**2 * _EVERY)

    assert auto.cost.sum() == pytest.approx((np.exp(log) * runs.counts).sum())
    assert (auto.variance[locks:] == 0.02**2).all()
    assert (auto.variance > 0).all()
    assert 0.0 <= auto.common < auto.spread**2


def _at_auto(repeats: int, run_variance: float | None) -> AutoRuns:
    """Return what one run at auto says of two kernels, beside repeats of a lock."""
    random = np.random.default_rng(4)
    row = np.array([0, 1, *np.repeat([2, 3], repeats)])
    runs = Runs(
        log=0.01 * random.standard_normal(len(row)),
        row=row,
        kernel=np.array([0, 1, 0, 1]),
        log_mhz=np.array([np.nan, np.nan, 7.0, 7.0]),
    )
    of_run = None if run_variance is None else run_variance * np.ones(2)
    is_auto = np.array([True, True, False, False])
    return AutoRuns.of(runs, weighed(runs), is_auto, np.ones(2), of_run)


def test_auto_that_was_not_repeated_is_no_surer_than_repeats_beside_it_tell() -> None:
    few, many = _at_auto(2, None), _at_auto(40, None)

    # The same scatter, known badly or well: Student's t is wider than it by this much.
    assert few.spread / math.sqrt(few.run_variance.mean() / 2) > 1.07
    assert many.spread / math.sqrt(many.run_variance.mean() / 2) == pytest.approx(1.0, abs=0.03)


def test_auto_scatters_at_least_as_others_than_repeats_tell() -> None:
    calm, wild = _at_auto(2, 1e-9), _at_auto(2, 0.05**2)

    assert calm.spread == pytest.approx(_at_auto(2, None).spread)
    assert wild.run_variance == pytest.approx(0.05**2)
    assert wild.spread > 0.05 / math.sqrt(2)


def test_the_fastest_lock_of_each_kernel() -> None:
    settings = (Clocks(core_mhz=900), Clocks(core_mhz=1200), Clocks(mem_mhz=5000), AUTO)
    known = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 1, 1]], dtype=bool)

    assert fastest_locks(known, settings).tolist() == [1, 0, -1]

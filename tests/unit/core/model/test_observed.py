"""Runs as rows: joined where clocks are alike, each kernel with noise of its own."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_rows import every_clock, made_rows
from underclock.core.model.estimate import bounded
from underclock.core.model.most_likely import FittedModel, fitted
from underclock.core.model.observed import Observed, Runs, Targets, is_at
from underclock.core.model.parameters import Points, Shared, predicted_rows, unknown_gpu

_MEMS, _CORES = (5001.0, 9501.0), np.linspace(600.0, 2100.0, 6)
_KERNELS, _WARM = 3, 55.0


@pytest.fixture(scope="module")
def model() -> FittedModel:
    at, random = every_clock(_KERNELS, _CORES, _MEMS, _WARM), np.random.default_rng(0)
    log_s = -6.0 - 0.7 * np.log(at.core_mhz / 2100.0) - 0.2 * np.log(at.mem_mhz / 9501.0)
    log = np.stack([log_s + 0.2 * at.kernel, 5.0 + 1.2 * np.log(at.core_mhz / 2100.0)])
    rows = made_rows(at, log + random.normal(0.0, 0.002, log.shape), _MEMS)
    return fitted(rows, Shared(unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0)))


def _runs(model: FittedModel, scatter: tuple[float, ...], repeats: int = 5) -> Runs:
    """Return the rows of the fit as runs, several times, each kernel with a scatter of its own."""
    once = Runs.of(model.rows)
    many = np.repeat(np.arange(len(once.kernel)), repeats)
    noise = np.random.default_rng(1).standard_normal((2, len(many)))
    return dataclasses.replace(
        once,
        **{
            name: getattr(once, name)[..., many]
            for name in ("kernel", "core_mhz", "mem_mhz", "free", "temperature_c", "apart")
        },
        windows=once.windows[:, many],
        common=once.common[:, many],
        log=once.log[:, many] + noise * np.array(scatter)[once.kernel[many]],
    )


def test_each_kernel_is_as_noisy_as_its_own_runs_and_without_any_as_others(
    model: FittedModel,
) -> None:
    once = Observed.of(model, Runs.of(model.rows), _KERNELS)
    assert (once.noise(np.array([0.003, 0.004])) == [[0.003] * 3, [0.004] * 3]).all()
    scatter = (0.0003, 0.0003, 0.015)
    observed = Observed.of(model, _runs(model, scatter), _KERNELS)

    assert observed.log.shape == (2, _KERNELS, 12)
    assert (observed.windows == 5.0).all()
    assert (observed.freedom == 4.0 * 12).all()
    noise = observed.noise(np.array([0.0005, 0.0005]))
    assert noise == pytest.approx(np.tile(scatter, (2, 1)), rel=0.3)
    # Scatter is likeliest where kernels' own are spread about the usual one.
    worth = [observed.scatter_evidence(np.full(2, usual)) for usual in (1e-6, 5e-4, 1.0)]
    assert worth[1] == max(worth)


def test_runs_that_were_not_all_as_warm_do_not_scatter_by_that(model: FittedModel) -> None:
    runs = _runs(model, (0.0, 0.0, 0.0), repeats=2)
    warm = runs.temperature_c + np.tile([-15.0, 15.0], len(runs.kernel) // 2)
    parameters, place = model.parameters, (runs.kernel, runs.core_mhz, runs.mem_mhz)
    cold, hot = (
        predicted_rows(
            parameters,
            Points(kernel=place[0], core_mhz=place[1], mem_mhz=place[2], temperature_c=c),
        ).log
        for c in (runs.temperature_c, warm)
    )
    runs = dataclasses.replace(runs, temperature_c=warm, log=runs.log + hot - cold)
    observed = Observed.of(model, runs, _KERNELS)

    assert np.abs(hot - cold).max() > 5e-4
    assert observed.squares == pytest.approx(0.0, abs=1e-12)
    alike = Observed.of(model, Runs.of(model.rows), _KERNELS)
    assert observed.residual == pytest.approx(alike.residual, abs=1e-9)


def test_runs_that_hardly_count_and_rows_that_say_nothing_of_power(model: FittedModel) -> None:
    runs = _runs(model, (0.0, 0.0, 0.0))
    windows, log = runs.windows.copy(), runs.log.copy()
    log[0, 0], windows[0, 0] = 9.0, 1e-6  # an odd repeat
    windows[1, 5:10] = 0.0  # a row inside the step
    observed = Observed.of(model, dataclasses.replace(runs, windows=windows, log=log), _KERNELS)

    assert observed.log[0, 0, 0] == pytest.approx(runs.log[0, 1], abs=1e-4)
    assert observed.real[:, 0, 2].tolist() == [True, False]  # rows are sorted by core clock first
    assert observed.residual[1, 0, 2] == 0.0
    assert observed.freedom[1, 0] == pytest.approx(4.0 * 11)
    less = observed.without(np.ones((_KERNELS, 12), dtype=bool))
    assert less.windows == pytest.approx(1e-4 * observed.windows)


def test_kernels_without_rows_have_padding(model: FittedModel) -> None:
    once = Runs.of(model.rows)
    some = once.kernel != 1
    runs = Runs.alone(
        np.stack([once.kernel[some], np.tile(np.arange(12), 2)]),
        (once.core_mhz[:12], once.mem_mhz[:12], np.arange(12) == 11),
        once.log[:, some],
        np.ones((2, 24)),
        np.full(24, _WARM),
    )
    observed = Observed.of(model, runs, _KERNELS)

    assert observed.real.any(axis=(0, 2)).tolist() == [True, False, True]
    assert observed.free.sum() == 2
    assert not observed.residual[:, 1].any()
    free = np.arange(12) == 11
    targets = Targets.of(model, (once.core_mhz[:12], once.mem_mhz[:12]), free, _WARM)
    order = np.lexsort((free, once.mem_mhz[:12], once.core_mhz[:12]))
    assert is_at(observed, targets, 0)[:, order].tolist() == np.eye(12, dtype=bool).tolist()
    assert not is_at(observed, targets, 1).any()
    # A lock at the clock that the driver chose is another place.
    locked = dataclasses.replace(targets, free=np.zeros(12, dtype=bool))
    assert is_at(observed, locked, 0).sum() == 11


def test_kernels_are_chosen_by_their_length_however_they_are_listed(model: FittedModel) -> None:
    observed = Observed.of(model, Runs.of(model.rows), _KERNELS)
    columns = np.arange(12)
    turned = observed.some(np.array([2, 0, 1]), columns)

    assert observed.spread(2).tolist() == [0, 2]
    assert turned.spread(2).tolist() == [0, 1]
    assert observed.spread(9).tolist() == [0, 1, 2]


@given(st.floats(0.0, 1.0), st.sampled_from([0.72, 3.0]))
def test_a_time_that_no_clock_gives_is_brought_to_one_that_it_may(core: float, off: float) -> None:
    core_mhz, mem_mhz = np.array([600.0, 1200.0, 1900.0, 2000.0, 2100.0] * 2), np.repeat(_MEMS, 5)
    log_s = -6.0 - core * np.log(core_mhz / 2100.0) - (1.0 - core) * np.log(mem_mhz / 9501.0)
    assert bounded(log_s[None], core_mhz, mem_mhz)[0] == pytest.approx(log_s)
    for at in (6, 9):  # a slow clock, and the fastest
        wrong = log_s + np.where(np.arange(10) == at, np.log(off), 0.0)
        found = bounded(wrong[None], core_mhz, mem_mhz)[0]
        # No slower clock makes it faster; one disturbed row at the fastest clocks moves no other.
        assert found.min() >= np.median(log_s[7:]) + np.log(0.95 * 1900.0 / 2100.0)
        assert found.max() <= log_s.max() + np.log(3.0)
        assert np.delete(found, at) == pytest.approx(np.delete(log_s, at), abs=0.05)


def test_clocks_far_apart_bound_the_fastest_by_their_ratio() -> None:
    core, mem = np.array([700.0, 1000.0, 1400.0, 2000.0]), np.full(4, 9501.0)
    log_s = np.log([[2000.0 / 700.0, 2.0, 2000.0 / 1400.0, 1.0]])

    assert bounded(log_s, core, mem) == pytest.approx(log_s)
    one = np.array([2000.0])
    assert bounded(np.zeros((1, 1)), one, one).tolist() == [[0.0]]

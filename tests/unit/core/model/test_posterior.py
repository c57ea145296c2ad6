"""What a fit says of settings nobody measured: how often it is right, and what moves together."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_rows import every_clock, made_rows
from underclock.arrays import Floats
from underclock.core.model.most_likely import FittedModel, fit_all
from underclock.core.model.parameters import Parameters, Shared, predicted_rows, unknown_gpu
from underclock.core.model.posterior import Posterior, as_at_boost, capped, held, with_means
from underclock.core.model.predictive import clocks_of, posterior_of
from underclock.core.model.rows import PER_KERNEL, Rows
from underclock.records import AUTO, Clocks

_MEMS = (810.0, 5001.0, 9501.0)
_CORES = np.linspace(450.0, 2100.0, 12).round()
_FAMILY = Shared(unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0))
_KERNELS, _WARM = 10, 55.0
_ALL = tuple(
    Clocks(core_mhz=int(core), mem_mhz=int(mem)) for mem in _MEMS for core in _CORES.tolist()
)


def _drawn(seed: int, each: int) -> tuple[Rows, Floats]:
    """Return some noisy rows of each kernel, and the true logarithms at all settings."""
    random = np.random.default_rng(seed)
    start = _FAMILY.start()
    shared = start + np.clip(random.normal(0.0, 0.5, len(start)), -1, 1) * _FAMILY.spread()
    units = np.array([math.log(2100.0), math.log(9501.0), 0.0, math.log(150.0)])
    own = np.log(random.uniform(0.05, 1.0, (_KERNELS, PER_KERNEL))) + units
    own += random.normal(-7.0, 1.0, (_KERNELS, 1))
    own[:, 2] -= 3.0
    at = every_clock(_KERNELS, _CORES, _MEMS, _WARM)
    parameters = Parameters(family=_FAMILY, shared=shared, kernels=own)
    log = predicted_rows(parameters, at).log
    noisy = log + random.normal(0.0, 1.0, log.shape) * np.array([[0.003], [0.008]])
    taken = np.concatenate(
        [
            k * len(_ALL) + np.sort(random.choice(len(_ALL), each, replace=False))
            for k in range(_KERNELS)
        ]
    )
    return made_rows(at, noisy, _MEMS).some(taken), log.reshape(2, _KERNELS, len(_ALL))


@pytest.fixture(scope="module")
def model() -> FittedModel:
    return fit_all(_drawn(0, 8)[0], _FAMILY)


@pytest.fixture(scope="module")
def posterior(model: FittedModel) -> Posterior:
    return posterior_of(model, _ALL, temperature_c=_WARM, limit_w=model.rows.limit_w)


@pytest.mark.untraced
@pytest.mark.parametrize("each", [5, 12])
def test_intervals_at_settings_nobody_measured_hold_the_truth(each: int) -> None:
    inside: list[Floats] = []
    for seed in range(3):
        rows, truth = _drawn(seed, each)
        predicted = posterior_of(
            fit_all(rows, _FAMILY), _ALL, temperature_c=_WARM, limit_w=rows.limit_w
        )
        for log, true, powers in (
            (predicted.log_s, truth[0], (1.0, 0.0)),
            (predicted.log_w, truth[1], (0.0, 1.0)),
            (predicted.log_s + predicted.log_w, truth.sum(axis=0), (1.0, 1.0)),
        ):
            inside.append(np.abs(log - true) <= 1.96 * np.sqrt(predicted.variance(*powers)))

    assert np.mean(inside) >= 0.9


def test_of_no_settings_nothing_is_said(model: FittedModel) -> None:
    nothing = posterior_of(model, (), temperature_c=_WARM, limit_w=math.inf)

    assert nothing.log_s.shape == nothing.variance(1.0, 1.0).shape == (_KERNELS, 0)


def test_variances_are_those_of_draws(posterior: Posterior) -> None:
    random = np.random.default_rng(0)
    kernels, columns = np.array([1, 4, 7]), np.array([0, 20, 35])
    weights = np.array([[0.3, 0.5, 0.2], [0.1, 0.0, 0.7]])
    draws = 20_000
    shared = random.multivariate_normal(
        np.zeros(len(posterior.shared_cov)), posterior.shared_cov, draws
    )
    total = np.zeros(draws)
    for i, (k, c) in enumerate(zip(kernels, columns, strict=True)):
        own = random.multivariate_normal(np.zeros(PER_KERNEL), posterior.kernel_cov[k], draws)
        for q in range(2):
            off = random.normal(0.0, math.sqrt(posterior.discrepancy[q, k, c]), draws)
            moved = shared @ posterior.by_shared[q, k, c] + own @ posterior.by_kernel[q, k, c] + off
            total += weights[q, i] * moved

    of_sum = posterior.sum_variance(kernels, columns, weights)
    assert of_sum.variance == pytest.approx(float(total.var()), rel=0.05)


@settings(max_examples=30)
@given(st.integers(0, _KERNELS - 1), st.integers(0, len(_ALL) - 1), st.floats(-2, 2))
def test_a_total_of_one_entry_is_that_entry(
    posterior: Posterior, kernel: int, column: int, power: float
) -> None:
    one = posterior.sum_variance(np.array([kernel]), np.array([column]), np.array([[1.0], [power]]))

    assert one.variance == pytest.approx(float(posterior.variance(1.0, power)[kernel, column]))


def test_what_is_measured_is_surer_than_what_is_not(
    model: FittedModel, posterior: Posterior
) -> None:
    rows = model.rows
    core, mem = clocks_of(rows, _ALL)
    measured = np.zeros((_KERNELS, len(_ALL)), dtype=bool)
    for k, at_core, at_mem in zip(rows.kernel, rows.core_mhz, rows.mem_mhz, strict=True):
        measured[k] |= (core == at_core) & (mem == at_mem)
    variance = posterior.variance(1.0, 1.0)

    assert variance[measured].mean() < variance[~measured].mean()


def test_kernels_without_rows_cost_what_was_measured_as_sure_as_its_repeats(
    posterior: Posterior,
) -> None:
    log_s = np.full(posterior.log_s.shape, math.nan)
    log_s[3] = -1.0
    log_s[3, 6] = math.nan
    known = with_means(posterior, log_s, log_s + 5.0, np.full(log_s.shape, 4.0))

    assert (known.log_s[3, 5], known.log_w[3, 5]) == (-1.0, 4.0)
    assert known.variance(1.0, 0.0)[3, 5] == pytest.approx(posterior.noise[0, 3] ** 2 / 4.0)
    assert known.log_s[3, 6] == posterior.log_s[3, 6]
    assert known.variance(1.0, 1.0)[3, 6] == pytest.approx(posterior.variance(1.0, 1.0)[3, 6])
    others = np.arange(_KERNELS) != 3
    assert (known.log_s[others] == posterior.log_s[others]).all()
    assert (known.discrepancy[:, others] == posterior.discrepancy[:, others]).all()


def test_auto_runs_at_the_fastest_clocks_seen_and_a_lock_no_higher(model: FittedModel) -> None:
    seen = float(model.rows.core_mhz.max())
    free = clocks_of(model.rows, [AUTO, Clocks(core_mhz=900, mem_mhz=5001)])
    boosts = dataclasses.replace(model.rows, ceiling_mhz=1800.0)
    held = clocks_of(boosts, [AUTO, Clocks(core_mhz=2100)])

    assert [clock.tolist() for clock in free] == [[seen, 900.0], [9501.0, 5001.0]]
    assert held[0].tolist() == [1800.0, 1800.0]


def test_no_kernel_is_expected_to_draw_more_than_the_cap(
    model: FittedModel, posterior: Posterior
) -> None:
    limit_w = float(np.exp(np.median(posterior.log_w[:, -1])))
    capped = dataclasses.replace(model, rows=dataclasses.replace(model.rows, limit_w=limit_w))
    held = posterior_of(capped, _ALL, temperature_c=_WARM, limit_w=capped.rows.limit_w)

    assert np.exp(posterior.log_w).max() > 1.02 * limit_w
    # The residual of a row that lay above the cap is still added.
    assert np.exp(held.log_w).max() < 1.02 * limit_w
    assert (held.log_s >= posterior.log_s - 0.02).all()


def test_draws_scatter_as_sums_of_entries_are_unsure(posterior: Posterior) -> None:
    normals = np.random.default_rng(1).standard_normal((4000, posterior.unknowns))
    off = posterior.drawn(normals)
    kernels, columns = np.array([0, 0, 3]), np.array([2, 30, 7])
    weights = np.array([[1.0, -1.0, 0.5], [0.0, 0.3, 0.5]])
    sums = np.einsum("qn,dqn->d", weights, off[:, :, kernels, columns])
    variance = posterior.sum_variance(kernels, columns, weights).variance
    assert sums.var() == pytest.approx(variance, rel=0.1)  # of 4000 draws: ± 2.2 %
    assert abs(sums.mean()) < 4 * math.sqrt(variance / len(sums))


@given(seed=st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_draws_are_held_by_a_limit_as_what_is_expected_is(posterior: Posterior, seed: int) -> None:
    clocks = (np.tile(_CORES, len(_MEMS)), np.repeat(_MEMS, len(_CORES)))
    random = np.random.default_rng(seed)
    moved = random.normal(0.0, 0.1, (1, _KERNELS, 1)) + np.stack([posterior.log_s, posterior.log_w])
    other = dataclasses.replace(posterior, log_s=moved[0], log_w=moved[1])
    limit_w = float(np.exp(np.quantile(moved[1], 0.8)))
    expected = capped(other, *clocks, limit_w)
    logs = held(moved, *clocks, limit_w)
    # What draws more at the slowest clock already is left as it is by both.
    assert logs == pytest.approx(np.stack([expected.log_s, expected.log_w]))
    assert (held(moved, *clocks, math.inf) == moved).all()
    assert held(np.stack([moved, moved]), *clocks, limit_w)[1] == pytest.approx(logs)


def test_what_a_peak_holds_takes_at_boost_what_it_was_seen_to_take(posterior: Posterior) -> None:
    core_mhz, mem_mhz = np.tile(_CORES, len(_MEMS)), np.repeat(_MEMS, len(_CORES))
    fastest = mem_mhz == _MEMS[-1]
    boost = int(np.flatnonzero(fastest)[-1])
    peak_w = float(np.exp(np.median(posterior.log_w[:, boost])))
    held_there = capped(posterior, core_mhz, mem_mhz, peak_w)
    hot = held_there.log_w[:, boost] == math.log(peak_w)
    assert hot.any()
    assert not hot.all()
    seen = held_there.log_s[:, boost] - 0.05

    found = as_at_boost(held_there, seen, core_mhz, fastest, peak_w)

    assert found.log_s[hot, boost] == pytest.approx(seen[hot])
    assert found.variance(1.0, 0.0)[hot, boost] == pytest.approx(posterior.noise[0, hot] ** 2)
    below = held_there.log_w < math.log(peak_w)
    assert (found.log_s[below | ~fastest] == held_there.log_s[below | ~fastest]).all()
    # Where the peak begins to hold a kernel it is as it was; from there it follows the clock.
    k = int(np.flatnonzero(hot)[0])
    ladder = np.flatnonzero(fastest & ~below[k])
    assert (np.diff(found.log_s[k, ladder]) <= 0.0).all()
    unseen = as_at_boost(held_there, np.full(_KERNELS, math.nan), core_mhz, fastest, peak_w)
    assert (unseen.log_s == held_there.log_s).all()

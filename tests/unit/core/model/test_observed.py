"""Runs as rows: joined where clocks are alike, each kernel with noise of its own."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_posteriors import CORES, MEMS, made_model, made_posterior, places_of
from made_rows import every_clock, made_rows
from underclock.arrays import Floats
from underclock.core.model import conditioning
from underclock.core.model.conditioning import (
    SCALES,
    Conditioned,
    Features,
    Model,
    Sizes,
    likeliest_sizes,
)
from underclock.core.model.estimate import bounded
from underclock.core.model.left_out import LeftOut
from underclock.core.model.most_likely import FittedModel, fitted
from underclock.core.model.observed import Observed
from underclock.core.model.parameters import Runs, Shared, unknown_gpu
from underclock.core.model.posterior import posterior_of
from underclock.records import Clocks

_MEMS, _CORES = (5001.0, 9501.0), np.linspace(600.0, 2100.0, 6)
_KERNELS, _WARM = 3, 55.0


@pytest.fixture(scope="module")
def model() -> FittedModel:
    at, random = every_clock(_KERNELS, _CORES, _MEMS, _WARM), np.random.default_rng(0)
    log_s = -6.0 - 0.7 * np.log(at.core_mhz / 2100.0) - 0.2 * np.log(at.mem_mhz / 9501.0)
    log = np.stack([log_s + 0.2 * at.kernel, 5.0 + 1.2 * np.log(at.core_mhz / 2100.0)])
    rows = made_rows(at, log + random.normal(0.0, 0.002, log.shape), _MEMS)
    return fitted(rows, Shared(unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0)))


def _runs(model: FittedModel, scatter: tuple[float, ...]) -> Runs:
    """Return the rows of the fit as runs, five times, each kernel with a scatter of its own."""
    once = model.rows
    many = np.repeat(np.arange(len(once.kernel)), 5)
    noise = np.random.default_rng(1).standard_normal((2, len(many)))
    some = once.some(many)
    return dataclasses.replace(some, log=some.log + noise * np.array(scatter)[some.kernel])


def test_each_kernel_is_as_noisy_as_its_own_runs_and_without_any_as_others(
    model: FittedModel,
) -> None:
    once = Observed.of(model, model.rows, _KERNELS)
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


_K, _N = 8, 6


def _left_out(error: Floats, variance: float = 1e-4) -> LeftOut:
    """Return rows that are so far off, of time and energy. Shape (2, K, n)."""
    there = np.ones(error.shape, dtype=bool)
    return LeftOut(there=there, error=error, variance=np.full(error.shape, variance))


@given(st.integers(0, 100), st.floats(0.2, 5.0))
def test_errors_are_widened_until_rows_left_out_hold_as_they_should(seed: int, size: float) -> None:
    off = size * np.random.default_rng(seed).standard_t(3, (2, 40, 25))
    left_out = _left_out(off, 1.0)

    for q in (0, 1):
        factor = left_out.factor(q)
        inside = np.mean(np.abs(off[q]) <= 1.96 * factor)
        assert factor >= 1.0
        assert inside == pytest.approx(0.97, abs=2e-3) or (factor == 1.0 and inside > 0.97)


@pytest.mark.parametrize(("time", "energy"), [(0.5, 0.5), (-0.33, 0.0), (0.0, 0.8)])
def test_a_row_that_was_disturbed_is_odd_and_no_other(time: float, energy: float) -> None:
    error = np.random.default_rng(1).normal(0.0, 0.01, (2, _K, _N))
    error[:, 2, 3] += time, energy
    odd = _left_out(error).odd

    assert np.argwhere(odd).tolist() == [[2, 3]]
    rest = _left_out(error).without(odd)
    assert not rest.there[:, 2, 3].any()
    assert not rest.odd.any()


_CALM = float(SCALES[0])  # of a kernel that deviates least


def _drawn(model: Model, scale: float = _CALM) -> Model:
    """Return the same with rows drawn of it."""
    features = Features.of(model.observed, model.targets, model.sizes.length)
    places, spot, _ = places_of(model, features)
    cov = places.covariance(model.prior, model.sizes, scale, 1.0)
    normal = np.random.default_rng(8).standard_normal(len(cov))
    off = places.expected(model.prior) + np.linalg.cholesky(cov + 1e-12 * np.eye(len(cov))) @ normal
    residual = off.reshape(2, -1)[:, : spot.size].reshape(model.observed.residual.shape)
    observed = dataclasses.replace(
        model.observed, residual=residual, log=model.observed.log + residual
    )
    return dataclasses.replace(model, observed=observed)


def _noise(model: Model) -> Floats:
    """Return the variance of each row's noise where kernels deviate least. Shape (2, K n)."""
    observed, runs = model.observed, np.square(model.sizes.run)[:, None, None]
    runs = runs * np.where(observed.unknown, _CALM**2, 1.0)[..., None]
    noise: Floats = runs / np.maximum(observed.windows, 1e-9)
    return noise.reshape(2, -1)


def _conditioned(model: Model) -> tuple[Floats, Floats]:
    """Return mean and covariance of entries after rows, from the whole covariance."""
    features = Features.of(model.observed, model.targets, model.sizes.length)
    places, spot, real = places_of(model, features)
    cov, mean = (
        places.covariance(model.prior, model.sizes, _CALM, 1.0),
        places.expected(model.prior),
    )
    told = np.concatenate([np.arange(spot.size)[real], len(mean) // 2 + np.arange(spot.size)[real]])
    asked = np.concatenate(
        [np.arange(spot.size, len(mean) // 2), np.arange(len(mean) // 2 + spot.size, len(mean))]
    )
    of_rows = cov[np.ix_(told, told)] + np.diag(_noise(model)[:, real].ravel())
    gain = np.linalg.solve(of_rows, cov[np.ix_(told, asked)]).T
    residual = model.observed.residual.reshape(2, -1)[:, real].ravel()
    after = mean[asked] + gain @ (residual - mean[told])
    return after, cov[np.ix_(asked, asked)] - gain @ cov[np.ix_(told, asked)]


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all kernels deviate least, so that one covariance is that of rows and entries."""
    monkeypatch.setattr(conditioning, "LOG_ODDS", np.where(np.arange(len(SCALES)), -1e6, 0.0))


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("seed", range(3))
def test_rows_say_of_entries_what_the_whole_covariance_says(seed: int) -> None:
    model = _drawn(made_model(seed))
    given_, _, _ = model.telling()
    shared = given_.shared, given_.shared_cov
    at = (Clocks(core_mhz=1),) * len(model.targets.core_mhz)
    known, wide = (posterior_of(model, shared, at, by) for by in ((1.0, 1.0), (2.0, 3.0)))
    assert wide.variance(1.0, 0.0) == pytest.approx(4.0 * known.variance(1.0, 0.0))
    assert wide.variance(1.0, 1.0) == pytest.approx(9.0 * known.variance(1.0, 1.0))
    mean, cov = _conditioned(model)
    shape = known.log.shape

    off = (known.log - model.targets.log) - mean.reshape(shape)
    spread = np.sqrt(np.diag(cov)).reshape(shape)
    assert np.abs(off / spread).max() < 0.02
    variance = np.stack([known.variance(1.0, 0.0), known.variance(0.0, 1.0)])
    assert (np.sqrt(variance) / spread).mean(axis=(1, 2)) == pytest.approx(1.0, abs=0.05)
    # Entries of two kernels move together as far as all kernels do.
    every = cov.reshape(*shape, *shape)
    of_shared = known.moves[..., : known.shared]
    both = np.einsum("qce,rde->qcrd", of_shared[:, 0], of_shared[:, 1])
    # But for what more directions than are kept would say.
    assert both == pytest.approx(every[:, 0][:, :, :, 1], abs=0.06 * float(spread.max()) ** 2)


@pytest.mark.usefixtures("calm")
def test_rows_left_out_are_off_as_when_they_are_not_there() -> None:
    model = _drawn(made_model(1, rows=12))
    features = Features.of(model.observed, model.targets, model.sizes.length)
    places, spot, real = places_of(model, features)
    given_ = Conditioned.of(model.observed, features, model.prior, model.sizes)
    # What all kernels share is taken to be as it was before rows.
    given_ = given_.about(np.zeros(given_.by_shared.shape[-1]), np.eye(1))
    left_out = LeftOut.of(given_)
    cov = places.covariance(model.prior, model.sizes, _CALM, 0.0)
    cov = cov.reshape(2, len(places.kernel), 2, -1)[:, : spot.size, :, : spot.size].copy()
    cov[[0, 1], :, [0, 1], :] += _noise(model)[:, :, None] * np.eye(spot.size)
    off = (
        model.observed.residual.reshape(2, -1)
        - places.expected(model.prior).reshape(2, -1)[:, : spot.size]
    )
    for at in np.flatnonzero(real).tolist():
        rest = np.flatnonzero(real & (np.arange(spot.size) != at))
        others = cov[:, rest][:, :, :, rest].reshape(2 * len(rest), -1)
        across = cov[:, [at]][:, :, :, rest].reshape(2, -1)
        gain = np.linalg.solve(others, across.T).T
        error = off[:, at] - gain @ off[:, rest].ravel()
        spread = cov[:, at, :, at] - gain @ across.T
        k, n = divmod(at, spot.shape[1])
        assert left_out.there[:, k, n].all()
        found = left_out.error[:, k, n], left_out.variance[:, k, n]
        assert found[0] == pytest.approx([error[0], error.sum()], abs=0.02 * spread[0, 0] ** 0.5)
        assert found[1] == pytest.approx([spread[0, 0], spread.sum()], rel=0.05)
    assert not left_out.there[:, 0, -1].any()
    assert (left_out.variance[:, 0, -1] == 1.0).all()


@pytest.mark.parametrize("repeated", [False, True])
def test_sizes_are_found_within_a_factor_of_three(*, repeated: bool) -> None:
    true = Sizes(
        smooth=(0.01, 0.02), shared=(0.02, 0.04), row=(0.004, 0.008), run=(0.002, 0.004), length=0.3
    )
    model = _drawn(made_model(5, kernels=20, sizes=true), scale=1.0)
    observed, noise = model.observed, np.random.default_rng(1)
    if repeated:
        freedom = np.full((2, 20), 20.0)
        squares = np.square(true.run)[:, None] * noise.chisquare(20.0, (2, 20))
        observed = dataclasses.replace(observed, freedom=freedom, squares=squares)
    found = likeliest_sizes(observed, model.targets, model.prior)

    for name in ("smooth", "shared", "row", "length"):
        ratio = np.divide(getattr(found, name), getattr(true, name))
        assert (np.abs(np.log(ratio)) < math.log(3.0)).all(), name
    if repeated:
        assert found.run == pytest.approx(true.run, rel=0.7)
    else:  # then it is no size of its own
        assert np.divide(found.run, found.row) == pytest.approx(1.0)


@settings(max_examples=10)
@given(st.integers(0, 100), st.integers(8, 100))
def test_draws_come_in_opposites_and_scatter_as_entries_are_unsure(seed: int, most: int) -> None:
    posterior = made_posterior(seed)
    off = posterior.drawn(most, seed)

    assert len(off) == min(most, 64) // 2 * 2
    assert off.shape[1:] == (2, 4, len(CORES) * len(MEMS))
    spread = np.sqrt(np.square(posterior.drawn(64, seed)).mean(axis=0)[0].mean())
    assert spread == pytest.approx(np.sqrt(posterior.variance(1.0, 0.0).mean()), rel=0.25)
    shared = dataclasses.replace(posterior, moves=posterior.moves * (np.arange(67) < 3))
    assert shared.drawn(most, seed).mean(axis=0) == pytest.approx(0.0, abs=1e-12)

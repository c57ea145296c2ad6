"""The linear model against its covariance written out, and errors against draws of them."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_posteriors import CORES, MEMS, SIZES, made_model, made_posterior, places_of
from underclock.arrays import Floats
from underclock.core.model.conditioning import (
    SCALES,
    Conditioned,
    Features,
    Model,
    Sizes,
    likeliest_sizes,
    likeness,
)
from underclock.core.model.left_out import LeftOut
from underclock.core.model.posterior import posterior_of
from underclock.records import Clocks

_CALM = float(SCALES[0])  # of a kernel that deviates least


def _drawn(model: Model, scale: float = _CALM, size: float = 1.0) -> Model:
    """Return the same with rows drawn of it; drawn smaller, they say that kernels deviate least."""
    features = Features.of(model.observed, model.targets, model.sizes.length)
    places, spot, _ = places_of(model, features)
    cov = places.covariance(model.prior, model.sizes, scale, 1.0)
    normal = np.random.default_rng(8).standard_normal(len(cov))
    off = (
        places.expected(model.prior)
        + size * np.linalg.cholesky(cov + 1e-12 * np.eye(len(cov))) @ normal
    )
    residual = off.reshape(2, -1)[:, : spot.size].reshape(model.observed.residual.shape)
    observed = dataclasses.replace(
        model.observed, residual=residual, log=model.observed.log + residual
    )
    return dataclasses.replace(model, observed=observed)


def _noise(model: Model) -> Floats:
    """Return the variance of each row's noise. Shape (2, K n)."""
    windows = model.observed.windows.reshape(2, -1)
    return np.square(model.sizes.run)[:, None] / np.maximum(windows, 1e-9)


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


@given(st.floats(0.1, 1.0))
def test_features_of_clocks_are_as_alike_as_clocks_are(length: float) -> None:
    model = made_model(0)
    features, targets = Features.of(model.observed, model.targets, length), model.targets
    points = targets.core_mhz, targets.mem_mhz
    rows = model.observed.core_mhz[1], model.observed.mem_mhz[1]

    found = features.settings @ features.settings.T
    assert found == pytest.approx(likeness(points, points, length), abs=2e-3)
    across = features.rows[1] @ features.settings.T
    assert across == pytest.approx(likeness(rows, points, length), abs=0.04)
    assert np.linalg.eigvalsh(likeness(points, points, length)).min() > -1e-9


@pytest.mark.parametrize("seed", range(3))
def test_rows_say_of_entries_what_the_whole_covariance_says(seed: int) -> None:
    model = _drawn(made_model(seed), size=0.2)
    given_, _, _ = model.telling()
    shared = given_.shared, given_.shared_cov
    count = len(model.targets.core_mhz)
    known = posterior_of(model, shared, (Clocks(core_mhz=1),) * count)
    mean, cov = _conditioned(model)
    shape = known.log.shape

    assert given_.odds[:, 0] == pytest.approx(1.0, abs=0.02)
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


def test_of_many_kernels_each_is_known_as_by_itself() -> None:
    model = made_model(6, kernels=520, rows=5)
    some = np.arange(3)
    few = Model(
        observed=model.observed.some(some, np.arange(5)),
        targets=dataclasses.replace(
            model.targets,
            log=model.targets.log[:, some],
            by_kernel=model.targets.by_kernel[:, some],
            by_shared=model.targets.by_shared[:, some],
        ),
        prior=model.prior.of(some),
        sizes=model.sizes,
    )
    given_, _, _ = model.telling()
    shared, clocks = (given_.shared, given_.shared_cov), (Clocks(core_mhz=1),) * 13

    every, alone = (posterior_of(each, shared, clocks).log for each in (model, few))
    assert every[:, some] == pytest.approx(alone)


def test_parameters_are_known_with_the_entries_that_they_move() -> None:
    """Of a kernel that deviates by nothing of its own, entries are physics and what is shared."""
    sizes = dataclasses.replace(SIZES, smooth=(1e-9, 1e-9), shared=(1e-9, 1e-9), row=(1e-9, 1e-9))
    model = _drawn(made_model(4, sizes=sizes))
    given_, _, _ = model.telling()
    locked = ~model.targets.free
    clocks = (Clocks(core_mhz=1),) * len(locked)
    known = posterior_of(model, (given_.shared, given_.shared_cov), clocks)
    moved = np.einsum("qkcp,kp->qkc", model.targets.by_kernel, known.parameters)
    moved = moved + model.targets.by_shared @ known.gpu
    columns = np.einsum("qkcp,kpe->qkce", model.targets.by_kernel, known.parameter_moves)
    columns[..., : known.shared] += model.targets.by_shared @ known.gpu_moves

    assert (known.log - model.targets.log)[..., locked] == pytest.approx(
        moved[..., locked], abs=1e-6
    )
    assert known.moves[:, :, locked] == pytest.approx(columns[:, :, locked], abs=1e-6)


def test_rows_left_out_are_off_as_when_they_are_not_there() -> None:
    model = _drawn(made_model(1, rows=12), size=0.05)
    features = Features.of(model.observed, model.targets, model.sizes.length)
    places, spot, real = places_of(model, features)
    given_ = Conditioned.of(model.observed, features, model.prior, model.sizes)
    # What all kernels share is taken to be as it was before rows.
    given_ = given_.about(np.zeros(given_.loadings.shared.shape[-1]), np.eye(1))
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

    for name in ("smooth", "shared", "row", "run", "length"):
        ratio = np.divide(getattr(found, name), getattr(true, name))
        assert (np.abs(np.log(ratio)) < math.log(3.0)).all(), name
    if repeated:
        assert found.run == pytest.approx(true.run, rel=0.7)
    else:  # then it is no size of its own
        assert np.divide(found.run, found.row) == pytest.approx(1.0)


def test_one_kernel_does_not_say_what_kernels_share() -> None:
    model = made_model(5, kernels=1)
    found = likeliest_sizes(model.observed, model.targets, model.prior)

    assert max(found.shared) < 1e-5 < min(found.row)


@settings(max_examples=10)
@given(st.integers(0, 100), st.integers(8, 100))
def test_draws_come_in_opposites_and_scatter_as_entries_are_unsure(seed: int, most: int) -> None:
    posterior = made_posterior(seed)
    wide = posterior.widened(2.0, 3.0)
    assert wide.variance(1.0, 0.0) == pytest.approx(4.0 * posterior.variance(1.0, 0.0))
    assert wide.variance(1.0, 1.0) == pytest.approx(9.0 * posterior.variance(1.0, 1.0))
    off = posterior.drawn(most, seed)

    assert len(off) == min(most, 64) // 2 * 2
    assert off.shape[1:] == (2, 4, len(CORES) * len(MEMS))
    spread = np.sqrt(np.square(posterior.drawn(64, seed)).mean(axis=0)[0].mean())
    assert spread == pytest.approx(np.sqrt(posterior.variance(1.0, 0.0).mean()), rel=0.25)
    shared = dataclasses.replace(posterior, moves=posterior.moves * (np.arange(67) < 3))
    assert shared.drawn(most, seed).mean(axis=0) == pytest.approx(0.0, abs=1e-12)

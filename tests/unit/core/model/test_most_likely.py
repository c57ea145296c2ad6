"""The model's derivatives, and the fit: what it recovers and what leaves it unchanged."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from underclock.arrays import Bools, Floats
from underclock.core.model.most_likely import Fit, FittedModel
from underclock.core.model.parameters import Points, Shared, predict, slopes
from underclock.core.model.rows import PER_KERNEL, Rows
from underclock.core.model.start import unknown_gpu
from underclock.core.model.subsample import fitted
from underclock.core.model.whitening import ErrorModel, Whitening, alike
from underclock.physics.constants import KernelConstants
from underclock.physics.power import busy_w
from underclock.physics.timing import duration_s

_MEMS = (810.0, 5001.0, 9501.0)
_FAMILY = Shared(unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0))
_UNITS = np.array([math.log(2100.0), math.log(9501.0), 0.0, math.log(150.0)])


@dataclasses.dataclass(frozen=True)
class _Truth:
    shared: Floats
    kernels: Floats
    serial: Bools
    rows: Rows


def _truth(
    kernels: int, seed: int, *, cores: int = 8, noise: tuple[float, float] = (0.003, 0.008)
) -> _Truth:
    """Draw a GPU, kernels, and noisy rows of them on a grid of clocks."""
    random = np.random.default_rng(seed)
    start = _FAMILY.start()
    shared = start + np.clip(random.normal(0.0, 0.5, len(start)), -1, 1) * _FAMILY.spread()
    own = np.log(random.uniform(0.05, 1.0, (kernels, PER_KERNEL))) + _UNITS
    own += random.normal(-7.0, 1.0, (kernels, 1))
    own[:, 2] -= 3.0
    serial = np.arange(kernels) % 5 == 4
    core, mem = (
        grid.ravel() for grid in np.meshgrid(np.linspace(450.0, 2100.0, cores).round(), _MEMS)
    )
    at = Points(
        kernel=np.repeat(np.arange(kernels), len(core)),
        core_mhz=np.tile(core, kernels),
        mem_mhz=np.tile(mem, kernels),
        temperature_c=random.uniform(45.0, 65.0, kernels * len(core)),
    )
    log, _ = predict(_FAMILY, shared, own, serial, at)
    log_s, log_w = log + random.normal(0.0, 1.0, log.shape) * np.array(noise)[:, None]
    return _Truth(
        shared,
        own,
        serial,
        Rows(
            names=tuple(f"k{k}" for k in range(kernels)),
            kinds=(np.arange(kernels) % 2).astype(np.int64),
            kernel=at.kernel,
            core_mhz=at.core_mhz,
            mem_mhz=at.mem_mhz,
            log_s=log_s,
            log_w=log_w,
            temperature_c=at.temperature_c,
            windows=np.ones(len(at.kernel)),
            mem_points_mhz=np.array(_MEMS),
            limit_w=math.inf,
            ceiling_mhz=math.inf,
        ),
    )


def _some(rows: Rows, chosen: NDArray[np.signedinteger]) -> Rows:
    names = ("kernel", "core_mhz", "mem_mhz", "log_s", "log_w", "temperature_c", "windows")
    return dataclasses.replace(rows, **{name: getattr(rows, name)[chosen] for name in names})


@pytest.fixture(scope="module")
def truth() -> _Truth:
    return _truth(12, 0)


@pytest.fixture(scope="module")
def solution(truth: _Truth) -> FittedModel:
    return Fit(truth.rows, _FAMILY).run()


def test_the_model_is_that_of_the_simulator(truth: _Truth) -> None:
    log, _ = predict(_FAMILY, truth.shared, truth.kernels, truth.serial, Points.of(truth.rows))
    gpu = _FAMILY.gpu(truth.shared)
    dram_j, per_dram = np.exp(truth.shared[[8, 9]])
    for k, (core, dram, fixed, work) in enumerate(np.exp(truth.kernels).tolist()):
        mine = truth.rows.kernel == k
        kernel = KernelConstants(
            core_mcycles=core,
            dram_mcycles=dram,
            xbar_mcycles=per_dram * dram,
            fixed_s=fixed,
            work_j_per_v2=work,
            dram_j=dram_j * dram,
            serial=bool(truth.serial[k]),
        )
        where = truth.rows.core_mhz[mine], truth.rows.mem_mhz[mine]
        warm = truth.rows.temperature_c[mine]
        assert np.exp(log[0, mine]) == pytest.approx(duration_s(gpu, kernel, *where))
        assert np.exp(log[1, mine]) == pytest.approx(busy_w(gpu, kernel, *where, warm))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_derivatives_are_those_of_finite_differences(seed: int) -> None:
    truth = _truth(3, seed, cores=4)
    at = Points.of(truth.rows)
    how = truth.serial, at
    _, by_kernel = predict(_FAMILY, truth.shared, truth.kernels, *how)
    by_shared = slopes(_FAMILY, truth.shared, truth.kernels, *how)
    step = 1e-5
    for p in range(PER_KERNEL):
        ends = []
        for sign in (1.0, -1.0):
            moved = truth.kernels.copy()
            moved[:, p] += sign * step
            ends.append(predict(_FAMILY, truth.shared, moved, *how)[0])
        assert by_kernel[:, :, p] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-5)
    for s in range(len(truth.shared)):
        ends = []
        for sign in (1.0, -1.0):
            other = truth.shared.copy()
            other[s] += sign * step
            ends.append(predict(_FAMILY, other, truth.kernels, *how)[0])
        # A clock just at a knee has two slopes; the difference is of the second order elsewhere.
        assert by_shared[:, :, s] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=5e-3)


def test_shares_of_time_add_up_to_one(truth: _Truth) -> None:
    _, by = predict(_FAMILY, truth.shared, truth.kernels, truth.serial, Points.of(truth.rows))

    assert by[0].sum(axis=-1) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(100, 3000), st.sampled_from(_MEMS)), min_size=1, max_size=9))
def test_alike_is_a_correlation(points: list[tuple[float, float]]) -> None:
    core, mem = np.array(points).T
    found = alike(core, mem, core, mem)

    assert np.diag(found) == pytest.approx(1.0)
    assert found == pytest.approx(found.T)
    assert np.linalg.eigvalsh(found).min() > -1e-9


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(1e-4, 0.1), st.floats(1e-4, 0.1))
def test_along_the_axes_rows_weigh_as_their_covariance_says(
    seed: int, noise: float, discrepancy: float
) -> None:
    random = np.random.default_rng(seed)
    drawn = _truth(3, seed, cores=4).rows
    chosen = np.sort(random.choice(len(drawn.kernel), 14, replace=False))
    rows = dataclasses.replace(_some(drawn, chosen), windows=random.uniform(0.01, 3.0, 14))
    errors = ErrorModel(noise=np.array([noise, 0.01]), discrepancy=np.array([discrepancy, 0.02]))
    scale = random.uniform(0.5, 2.0, 3)
    residuals = random.normal(0.0, 1.0, (2, 14))

    axes = Whitening(rows)
    found = (axes.weights(errors, scale) * axes.whitened(residuals) ** 2).sum(axis=2)

    for k in range(3):
        mine = rows.kernel == k
        where = rows.core_mhz[mine], rows.mem_mhz[mine]
        for q in range(2):
            shared = errors.discrepancy[q] ** 2 * alike(*where, *where)
            own = np.diag(errors.noise[q] ** 2 / rows.windows[mine])
            expected = residuals[q, mine] @ np.linalg.solve(shared + own, residuals[q, mine])
            assert found[q, k] == pytest.approx(expected / scale[k] ** 2, rel=1e-6)


def test_two_rows_of_a_kernel_leave_it_open_what_bounds_it(truth: _Truth) -> None:
    # Of the first kernel a row at the fastest clocks and one at a slower core clock.
    first = np.flatnonzero(truth.rows.kernel == 0)[[20, 23]]
    rest = np.flatnonzero(truth.rows.kernel != 0)
    found = Fit(_some(truth.rows, np.concatenate([first, rest])), _FAMILY).run()

    assert found.others.shape == (6, 12, PER_KERNEL)
    assert found.likely.shape == (6, 12)
    assert ((found.likely >= 0) & (found.likely <= 0.5)).all()
    away = np.abs(found.others[:, 0] - found.kernels[0]).max(axis=1)
    assert (found.likely[away > 0.5, 0] > 0.05).any()  # something else explains it nearly as well
    sure = np.abs(found.others - found.kernels).max(axis=2) > 0.5
    assert found.likely[:, 1:][sure[:, 1:]].max() < found.likely[:, 0][away > 0.5].max()


def test_enough_rows_leave_no_doubt(solution: FittedModel) -> None:
    assert solution.others.shape == (0, 12, PER_KERNEL)


def test_kernels_whose_rows_tell_nothing_are_not_taken_for_alike() -> None:
    truth = _truth(12, 0)
    fastest = np.flatnonzero(np.arange(len(truth.rows.kernel)) % 24 == 23)
    told = np.flatnonzero(truth.rows.kernel >= 6)
    rows = _some(truth.rows, np.unique(np.concatenate([fastest, told])))
    alike_kinds = dataclasses.replace(rows, kinds=(np.arange(12) >= 6).astype(np.int64))
    found = Fit(alike_kinds, _FAMILY).run()
    sizes = np.sqrt(np.diagonal(found.kernel_cov, axis1=1, axis2=2))

    # Six kernels with a single row each: each part of theirs may still be a fraction or a multiple.
    assert (sizes[:6, 1] > 0.7).all()


def test_a_fit_finds_the_noise_and_what_lies_behind(truth: _Truth, solution: FittedModel) -> None:
    log, _ = predict(_FAMILY, truth.shared, truth.kernels, truth.serial, Points.of(truth.rows))
    found, _ = predict(
        _FAMILY, solution.shared, solution.kernels, solution.serial, Points.of(truth.rows)
    )

    assert solution.errors.noise == pytest.approx([0.003, 0.008], rel=0.3)
    assert (np.abs(found - log).mean(axis=1) < [0.002, 0.005]).all()


def test_the_order_of_rows_within_a_kernel_changes_nothing(
    truth: _Truth, solution: FittedModel
) -> None:
    random = np.random.default_rng(1)
    order = np.lexsort((random.random(len(truth.rows.kernel)), truth.rows.kernel))
    again = Fit(_some(truth.rows, order), _FAMILY).run()

    assert again.shared == pytest.approx(solution.shared, abs=0.02)
    assert again.residuals == pytest.approx(solution.residuals[:, order], abs=1e-3)


def test_longer_kernels_are_longer_by_as_much_and_nothing_else(
    truth: _Truth, solution: FittedModel
) -> None:
    longer = dataclasses.replace(truth.rows, log_s=truth.rows.log_s + math.log(10.0))
    again = Fit(longer, _FAMILY).run()

    assert again.residuals == pytest.approx(solution.residuals, abs=1e-3)
    assert again.kernels - solution.kernels == pytest.approx(math.log(10.0), abs=0.05)


@settings(deadline=None, max_examples=10)
@given(st.sets(st.integers(0, 23), min_size=4, max_size=20))
def test_more_rows_never_make_a_shared_constant_less_sure(
    truth: _Truth, solution: FittedModel, columns: set[int]
) -> None:
    def covariance(rows: Rows) -> Floats:
        fit = Fit(rows, _FAMILY)
        fit.shared, fit.kernels, fit.serial = solution.shared, solution.kernels, solution.serial
        fit.errors, fit.scale = solution.errors, solution.scale
        return fit.solution().shared_cov

    # The fastest row is in both: the prior leans on it.
    chosen = np.flatnonzero(np.isin(np.arange(len(truth.rows.kernel)) % 24, [*columns, 23]))
    some, every = covariance(_some(truth.rows, chosen)), covariance(truth.rows)

    assert np.linalg.eigvalsh(some - every).min() > -1e-9


def test_a_kernel_without_rows_stays_as_unsure_as_nothing_known() -> None:
    truth = _truth(6, 3)
    rows = _some(truth.rows, np.flatnonzero(truth.rows.kernel != 2))
    found = Fit(rows, _FAMILY).run()
    sizes = np.trace(found.kernel_cov, axis1=1, axis2=2)

    assert sizes[2] == sizes.max()
    assert found.scale[2] == 1.0


def test_few_rows_can_be_fitted_too() -> None:
    truth = _truth(2, 4, cores=3)
    found = Fit(_some(truth.rows, np.arange(0, 18, 2)), _FAMILY).run()

    assert np.isfinite(found.shared_cov).all()
    assert (np.linalg.eigvalsh(found.shared_cov) > 0).all()


def test_many_rows_and_kernels_are_known_by_some_of_them() -> None:
    truth = _truth(40, 5, cores=12)
    rows = _some(truth.rows, np.flatnonzero(truth.rows.kernel != 7))
    found = fitted(rows, _FAMILY, most_rows=20, most_kernels=25)
    log, _ = predict(_FAMILY, truth.shared, truth.kernels, truth.serial, Points.of(rows))
    seen, _ = predict(_FAMILY, found.shared, found.kernels, found.serial, Points.of(rows))

    assert np.diff(found.rows.bounds).max() == 20
    assert len(found.rows.names) == len(truth.rows.names)
    assert (np.abs(seen - log).mean(axis=1) < [0.003, 0.005]).all()
    assert found.errors.noise == pytest.approx([0.003, 0.008], rel=0.25)


def test_few_rows_are_all_used(truth: _Truth, solution: FittedModel) -> None:
    assert fitted(truth.rows, _FAMILY).shared == pytest.approx(solution.shared)

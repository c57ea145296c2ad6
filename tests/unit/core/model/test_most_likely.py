"""The model's derivatives, and the fit: what it recovers and what leaves it unchanged."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_rows import every_clock, made_rows
from underclock.arrays import Floats
from underclock.core.model import hierarchical_prior
from underclock.core.model.damped_steps import (
    FitProblem,
    FitState,
    Linear,
    converge,
    converge_starts,
    cost,
    kernel_costs,
)
from underclock.core.model.most_likely import FittedModel, fit_all, fitted
from underclock.core.model.parameters import (
    COLLECTIVE,
    PER_KERNEL,
    Parameters,
    Points,
    Rows,
    Shared,
    predicted_rows,
    unknown_gpu,
)
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s

_MEMS = (810.0, 5001.0, 9501.0)
_FAMILY = Shared(unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0))
_UNITS = np.array([math.log(2100.0), math.log(9501.0), 0.0, math.log(150.0)])


@dataclasses.dataclass(frozen=True)
class _Truth:
    parameters: Parameters
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
    at = every_clock(kernels, np.linspace(450.0, 2100.0, cores).round(), _MEMS, 0.0)
    at = dataclasses.replace(at, temperature_c=random.uniform(45.0, 65.0, len(at.kernel)))
    parameters = Parameters(family=_FAMILY, shared=shared, kernels=own)
    log = predicted_rows(parameters, at).log
    rows = made_rows(at, log + random.normal(0.0, 1.0, log.shape) * np.array(noise)[:, None], _MEMS)
    return _Truth(
        parameters, dataclasses.replace(rows, kinds=(np.arange(kernels) % 2).astype(np.int64))
    )


@pytest.fixture(scope="module")
def truth() -> _Truth:
    return _truth(12, 0)


@pytest.fixture(scope="module")
def model(truth: _Truth) -> FittedModel:
    return fit_all(truth.rows, _FAMILY)


def test_the_model_is_that_of_the_simulator(truth: _Truth) -> None:
    log = predicted_rows(truth.parameters, Points.of(truth.rows)).log
    gpu = _FAMILY.gpu(truth.parameters.shared)
    dram_j, per_dram = np.exp(truth.parameters.shared[[8, 9]])
    for k, (core, dram, fixed, work) in enumerate(np.exp(truth.parameters.kernels).tolist()):
        mine = truth.rows.kernel == k
        kernel = KernelConstants(
            core_mcycles=core,
            dram_mcycles=dram,
            xbar_mcycles=per_dram * dram,
            fixed_s=fixed,
            work_j_per_v2=work,
            dram_j=dram_j * dram,
        )
        where = truth.rows.core_mhz[mine], truth.rows.mem_mhz[mine]
        warm = truth.rows.temperature_c[mine]
        assert np.exp(log[0, mine]) == pytest.approx(duration_s(gpu, kernel, *where))
        assert np.exp(log[1, mine]) == pytest.approx(busy_w(gpu, kernel, *where, warm))


@pytest.mark.untraced
@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_derivatives_are_those_of_finite_differences(seed: int) -> None:
    truth = _truth(3, seed, cores=4)
    at = Points.of(truth.rows)
    prediction = predicted_rows(truth.parameters, at)
    step = 1e-5
    for name, by in (("kernels", prediction.by_kernel()), ("shared", prediction.by_shared())):
        vectors = getattr(truth.parameters, name)
        for p in range(vectors.shape[-1]):
            ends = []
            for sign in (1.0, -1.0):
                moved = vectors.copy()
                moved[..., p] += sign * step
                ends.append(
                    predicted_rows(dataclasses.replace(truth.parameters, **{name: moved}), at).log
                )
            # A clock just at a knee has two slopes; differences to one side see one of them.
            off = 1e-5 if name == "kernels" else 5e-3
            assert by[:, :, p] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=off)


def test_several_starts_at_once_lead_where_each_does_alone(truth: _Truth) -> None:
    problem = FitProblem.of(truth.rows.some(np.arange(0, 60, 5)), _FAMILY)
    state = problem.begin()
    near = converge_starts(problem, state, [state.parameters.kernels])[0][0]
    far = state.parameters.kernels + np.random.default_rng(0).normal(0.0, 0.5, near.shape)
    starts = [near, state.parameters.kernels, far]  # the first is done long before the others are

    ends = converge_starts(problem, state, starts)

    for start, kernels, costs in zip(starts, *ends, strict=True):
        alone = converge_starts(problem, state, [start])
        assert (kernels == alone[0][0]).all()
        assert (costs == alone[1][0]).all()
        assert costs == pytest.approx(
            kernel_costs(problem, state.moved(kernels=kernels)), rel=1e-12
        )


def test_a_fit_ends_where_no_step_leads_further_down(truth: _Truth) -> None:
    problem = FitProblem.of(truth.rows.some(np.arange(0, 60, 5)), _FAMILY)
    state, costs = problem.begin(), []
    while (further := converge(problem, state)) is not state:
        costs.append(cost(problem, state))
        state = further

    assert (np.diff(costs) <= 0.0).all()
    assert cost(problem, state) <= min(costs)


@pytest.mark.untraced
def test_kernels_whose_rows_tell_nothing_are_not_taken_for_alike() -> None:
    truth = _truth(12, 0)
    fastest = np.flatnonzero(np.arange(len(truth.rows.kernel)) % 24 == 23)
    told = np.flatnonzero(truth.rows.kernel >= 6)
    rows = truth.rows.some(np.unique(np.concatenate([fastest, told])))
    alike_kinds = dataclasses.replace(rows, kinds=(np.arange(12) >= 6).astype(np.int64))
    model = fit_all(alike_kinds, _FAMILY)

    # Six kernels with a single row each: each part of theirs may still be a fraction or a multiple.
    assert (model.prior.spread[:6, 1] > 0.7).all()


def _log(parameters: Parameters, truth: _Truth) -> Floats:
    """Return what parameters say of the rows. Shape (2, R)."""
    return predicted_rows(parameters, Points.of(truth.rows)).log


def test_a_fit_finds_what_lies_behind_the_noise(truth: _Truth, model: FittedModel) -> None:
    log, fitted_log = _log(truth.parameters, truth), _log(model.parameters, truth)

    assert (np.abs(fitted_log - log).mean(axis=1) < [0.002, 0.005]).all()


@pytest.mark.untraced
def test_the_order_of_rows_within_a_kernel_changes_nothing(
    truth: _Truth, model: FittedModel
) -> None:
    random = np.random.default_rng(1)
    order = np.lexsort((random.random(len(truth.rows.kernel)), truth.rows.kernel))
    again = fit_all(truth.rows.some(order), _FAMILY)

    assert again.parameters.shared == pytest.approx(model.parameters.shared, abs=0.02)
    assert _log(again.parameters, truth) == pytest.approx(_log(model.parameters, truth), abs=1e-3)


def test_a_launch_is_no_share_of_its_kernel_and_a_wait_for_a_link_is(truth: _Truth) -> None:
    kernels, variance = truth.parameters.kernels, np.full((12, PER_KERNEL), 0.01)
    fixed = 2
    for kind, is_share in ((0, False), (COLLECTIVE, True)):
        rows = dataclasses.replace(truth.rows, kinds=np.full(12, kind, dtype=np.int64))
        before = hierarchical_prior.typical(rows, _FAMILY.base)
        after = hierarchical_prior.learned(before, rows, kernels, variance)
        for prior in (before, after):
            means = prior.mean[:, fixed]
            assert (np.ptp(means) > 0.5) == is_share
            assert (means == hierarchical_prior.LAUNCH[0]).all() == (not is_share)


@settings(max_examples=10)
@given(st.sets(st.integers(0, 23), min_size=4, max_size=20))
def test_more_rows_never_make_a_shared_constant_less_sure(
    truth: _Truth, model: FittedModel, columns: set[int]
) -> None:
    def covariance(rows: Rows) -> Floats:
        problem = FitProblem.of(rows, _FAMILY)
        state = FitState(parameters=model.parameters, prior=problem.begin().prior)
        return Linear.of(problem, state).curvature(problem.precision).shared_covariance()

    # The fastest row is in both: the prior leans on it.
    chosen = np.flatnonzero(np.isin(np.arange(len(truth.rows.kernel)) % 24, [*columns, 23]))
    some, every = covariance(truth.rows.some(chosen)), covariance(truth.rows)

    assert np.linalg.eigvalsh(some - every).min() > -1e-9


def test_a_kernel_without_rows_stays_as_unsure_as_nothing_known() -> None:
    truth = _truth(6, 3)
    rows = truth.rows.some(np.flatnonzero(truth.rows.kernel != 2))
    model = fit_all(rows, _FAMILY)
    before = hierarchical_prior.typical(rows, _FAMILY.base)

    assert model.parameters.kernels[2] == pytest.approx(before.mean[2])
    assert model.prior.kernels[2] == pytest.approx(0.0)
    assert model.prior.spread[2] == pytest.approx(before.spread[2])


@pytest.mark.slow
def test_many_rows_and_kernels_are_known_by_some_of_them() -> None:
    truth = _truth(40, 5, cores=12)
    rows = truth.rows.some(np.flatnonzero(truth.rows.kernel != 7))
    model = fitted(rows, _FAMILY, most_rows=20, most_kernels=25)
    log = predicted_rows(truth.parameters, Points.of(rows)).log
    fitted_log = predicted_rows(model.parameters, Points.of(rows)).log

    assert np.diff(model.rows.bounds).max() == 20
    assert len(model.rows.names) == len(truth.rows.names)
    assert (np.abs(fitted_log - log).mean(axis=1) < [0.003, 0.005]).all()

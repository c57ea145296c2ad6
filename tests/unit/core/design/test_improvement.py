"""What a look at an entry of a table is expected to gain."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.design.sample_value import (
    Candidates,
    TableEntries,
    expected_improvement_within,
)
from underclock.core.model.posterior import Posterior
from underclock.core.model.rows import PER_KERNEL
from underclock.records import Clocks


def _candidates(
    time_s: Floats, power_w: Floats, spread: Floats, *, measurable: Floats | None = None
) -> Candidates:
    """Return entries of kernels that take 1 s and 1 J at auto.

    Args:
        time_s: Expected, or known. Shape (K, C).
        power_w: Likewise.
        spread: Standard deviation of both logarithms; 0 for what is known. Shape (K, C).
        measurable: By default all of them.
    """
    shape = time_s.shape
    posterior = Posterior(
        settings=tuple(Clocks(core_mhz=500 + 100 * c) for c in range(shape[1])),
        log_s=np.log(time_s),
        log_w=np.log(power_w),
        by_shared=np.zeros((2, *shape, 1)),
        by_kernel=np.zeros((2, *shape, PER_KERNEL)),
        discrepancy=np.tile(spread**2, (2, 1, 1)),
        shared_cov=np.eye(1),
        kernel_cov=np.tile(np.eye(PER_KERNEL), (shape[0], 1, 1)),
        noise=np.zeros((2, shape[0])),
    )
    return Candidates(
        posterior=posterior,
        counts=np.ones(shape[0]),
        auto_s=np.ones(shape[0]),
        auto_j=np.ones(shape[0]),
        measurable=np.ones(shape, dtype=bool) if measurable is None else measurable > 0,
        looks=np.zeros(shape),
    )


def _random(seed: int, *, known: float = 0.3) -> Candidates:
    random = np.random.default_rng(seed)
    shape = (4, 5)
    spread = np.where(random.uniform(size=shape) < known, 0.0, random.uniform(0.01, 0.1, shape))
    return _candidates(
        random.uniform(0.9, 1.3, shape),
        random.uniform(0.6, 1.1, shape),
        spread,
        measurable=np.where(np.arange(5) == 0, 0.0, np.ones(shape)),
    )


@given(st.integers(0, 500), st.floats(-0.05, 0.2))
def test_it_is_never_negative_and_only_where_one_can_look(seed: int, budget: float) -> None:
    candidates = _random(seed)
    unknown = candidates.posterior.discrepancy[0] > 0

    for value in (
        expected_improvement_within(candidates, budget),
        TableEntries.of(candidates).improvement(1.0 + budget),
    ):
        assert np.isfinite(value).all()
        assert (value >= 0).all()
        assert (value[:, 0] == 0).all()
        assert (value[~unknown] == 0).all()


@pytest.mark.untraced
@given(st.integers(0, 500), st.floats(0.0, 0.2))
def test_within_a_budget_it_is_no_more_than_at_the_multiplier_of_that_budget(
    seed: int, budget: float
) -> None:
    candidates = _random(seed)
    within = expected_improvement_within(candidates, budget)

    # With all the time in the world, a second is worth nothing.
    assert (
        expected_improvement_within(candidates, 0.9)
        <= TableEntries.of(candidates).improvement(0.0) + 1e-12
    ).all()
    assert (within <= candidates.auto_j.sum()).all()


def test_it_is_the_mean_of_what_a_row_may_save() -> None:
    spread = np.array([[0.0, 0.02, 0.0]])
    candidates = _candidates(np.ones((1, 3)), np.ones((1, 3)), spread)
    drawn_j = np.exp(0.02 * math.sqrt(2) * np.random.default_rng(0).normal(size=400_000))
    expected_j = np.maximum(1.0 - drawn_j, 0.0).mean()

    gain = TableEntries.of(candidates).improvement(0.0)

    assert gain[0, 1] == pytest.approx(expected_j, rel=0.03)
    assert (np.delete(gain, 1, axis=1) == 0).all()


# One kernel is known to save 0.2 J if somebody lends it 0.02 s; another may lend or save.
_BORROWER = [1.02, 1.5]
_BORROWER_W = [0.8 / 1.02, 1.5]
_SURE = [0.0, 0.0]


def _beside(time_s: float, energy_j: float, *, borrower: bool = True) -> Candidates:
    """Return what is known beside a row that is not, of another kernel."""
    slow = _BORROWER if borrower else [1.5, 1.5]
    power = _BORROWER_W if borrower else [1.5, 1.5]
    return _candidates(
        np.array([slow, [time_s, 1.5]]),
        np.array([power, [energy_j / time_s, 1.5]]),
        np.array([_SURE, [1e-3, 0.0]]),
    )


def test_a_loan_of_time_is_worth_what_others_make_of_it() -> None:
    lent = expected_improvement_within(_beside(0.98, 1.01), 0.0)[1, 0]

    assert lent == pytest.approx(0.2 - 0.01, abs=0.02)  # the whole saving of the other
    assert expected_improvement_within(_beside(0.98, 1.01, borrower=False), 0.0)[1, 0] < 1e-3
    assert expected_improvement_within(_beside(0.98, 1.01), 0.1)[1, 0] < 1e-3  # time enough


def test_more_time_than_anybody_borrows_is_worth_no_more() -> None:
    enough, more = (
        expected_improvement_within(_beside(time_s, 1.0), 0.0)[1, 0] for time_s in (0.98, 0.90)
    )

    assert more == pytest.approx(enough, abs=0.01)


def test_a_saving_that_takes_time_is_worth_what_is_left_of_it_at_the_price_of_time() -> None:
    # Of 0.01 s that the budget leaves, the known borrower makes 10 J a second.
    steep, flat = (
        expected_improvement_within(_beside(1.01, energy_j), 0.005)[1, 0]
        for energy_j in (0.5, 0.95)
    )

    assert steep == pytest.approx(0.5 - 0.1, abs=0.02)
    assert flat < 1e-3


def test_where_nothing_known_keeps_a_budget_it_is_time_that_counts() -> None:
    candidates = _candidates(
        np.array([[0.9, 1.2]]), np.array([[2.0, 0.4]]), np.array([[0.01, 0.01]])
    )
    gain = expected_improvement_within(candidates, -0.08)

    assert gain[0, 0] > 100 * gain[0, 1]


def test_a_better_row_known_leaves_less_to_improve() -> None:
    for seed in range(20):
        candidates = _random(seed)
        told = dataclasses.replace(
            candidates.posterior,
            discrepancy=candidates.posterior.discrepancy * (np.arange(5) != 2),
        )
        better = dataclasses.replace(
            told, log_w=np.where(np.arange(5) == 2, told.log_w - 1.0, told.log_w)
        )
        before, after = (
            TableEntries.of(dataclasses.replace(candidates, posterior=each)).improvement(1.0)
            for each in (told, better)
        )

        assert (after <= before + 1e-12).all()

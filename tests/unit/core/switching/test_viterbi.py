"""Cheapest laps: forward and backward agree, with each other and with what a lap costs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.core.switching import SequenceProblem, viterbi
from underclock.core.switching.cycle import Lap, lap_of
from underclock.core.switching.viterbi import backward, cheapest, forward, priced

seeds = st.integers(0, 2**32 - 1)


def laps(seed: int) -> Lap:
    """Draw a lap with holes, dwell and blocked boundaries, or without."""
    random = np.random.default_rng(seed)
    n, count = int(random.integers(2, 9)), int(random.integers(1, 6))
    time, energy = random.uniform(0.1, 5.0, (2, n, count))
    holes = (random.random(time.shape) < 0.2) & bool(random.random() < 0.5)
    holes[:, 0] = False
    time[holes], energy[holes] = np.inf, np.inf
    off = 1.0 - np.eye(count)
    dwell = random.choice([0.0, 3.0, 6.0], (count, count)) * off * int(random.random() < 0.5)
    lap = lap_of(
        SequenceProblem(
            time_s=time,
            energy_j=energy,
            order=np.arange(n),
            switch_time_s=random.uniform(0.0, 2.0, (count, count)) * off,
            switch_energy_j=random.uniform(0.0, 2.0, (count, count)) * off,
            dwell_s=dwell,
            blocked=random.random(n) < 0.2,
        ),
        int(random.integers(0, n)),
    )
    assert lap is not None
    return lap


@settings(deadline=None, max_examples=150)
@given(seeds, st.floats(0.0, 3.0), st.floats(0.0, 2.0))
def test_forward_backward_and_the_lap_itself_cost_the_same(
    seed: int, time: float, switch: float
) -> None:
    lap = laps(seed)
    prices = priced(lap, time, switch)
    ahead = forward(lap, prices, np.zeros(len(prices.half)))
    least, choice = cheapest(lap, prices, ahead, prices.half)

    assert backward(lap, prices, prices.half).any[0].min() == pytest.approx(least)
    items = np.arange(len(choice)) % len(lap.time)
    weight = np.where(np.isin(np.arange(len(choice)), [0, len(choice) - 1]), 0.5, 1.0)
    changes = choice[:-1], choice[1:]
    cost = weight @ (lap.energy + time * lap.time)[items, choice]
    cost += (lap.switch_energy + time * lap.switch_time)[changes].sum()
    cost += switch * (changes[0] != changes[1]).sum()
    assert cost == pytest.approx(least)


@settings(deadline=None, max_examples=60)
@given(seeds, st.floats(0.0, 3.0))
def test_leaving_sources_out_changes_no_cost(seed: int, time: float) -> None:
    lap = laps(seed)
    prices = priced(lap, time)
    start = np.zeros(len(prices.half))
    dense = forward(lap, prices, start), backward(lap, prices, prices.half)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(viterbi, "_DENSE", 0)
        sparse = forward(lap, prices, start), backward(lap, prices, prices.half)

    assert np.allclose(sparse[0], dense[0])
    assert np.allclose(sparse[1].any, dense[1].any)
    assert np.allclose(sparse[1].fresh, dense[1].fresh)


@settings(deadline=None, max_examples=60)
@given(seeds)
def test_every_invocation_gets_the_setting_of_its_item(seed: int) -> None:
    lap = laps(seed)
    whole = lap.expanded(np.arange(len(lap.first)) % len(lap.settings))

    assert len(whole) == lap.invocations
    assert (whole[lap.first] == lap.settings[np.arange(len(lap.first)) % len(lap.settings)]).all()


def test_no_lap_costs_infinitely_much() -> None:
    lap = laps(0)
    prices = priced(lap, 1.0)
    ahead = forward(lap, prices, np.full(len(prices.half), np.inf))

    assert cheapest(lap, prices, ahead, prices.half)[0] == np.inf

"""Which repeats are odd, and how much each counts."""

import math

import msgspec
import numpy as np
import pytest

from noisy_tables import noisy_samples, run_table
from underclock.core.model.row_runs import odd_repeats, run_variances, sample_weights


def test_odd_repeats_are_told_and_weighed() -> None:
    samples = noisy_samples("a", 0.005, 0)
    set_ = run_table(samples)
    assert odd_repeats(set_) == ()
    assert (sample_weights(set_) == 1.0).all()
    place = 7
    odd = samples[place]
    samples[place] = msgspec.structs.replace(odd, energy_j=2.0 * odd.energy_j)

    (sentence,) = odd_repeats(run_table(samples))
    assert "1 of 45 repeats is odd, most of all 'a'" in sentence
    assert str(odd.asked) in sentence
    assert "% energy" in sentence
    assert np.flatnonzero(sample_weights(run_table(samples))[1] < 1.0).tolist() == [place]
    off = run_variances(run_table(samples))[1]
    assert np.median(off) < 0.01**2  # that of an ordinary run is as runs usually scatter
    assert math.sqrt(off[place]) == pytest.approx(math.log(2.0), rel=0.05)

    samples[place + 1] = msgspec.structs.replace(
        samples[place + 1], time_s=0.1 * samples[place + 1].time_s
    )
    samples[20] = msgspec.structs.replace(samples[20], time_s=2.0 * samples[20].time_s)
    assert "repeats are odd" in odd_repeats(run_table(samples))[0]


def test_nothing_repeated_is_nothing_odd() -> None:
    set_ = run_table(noisy_samples("a", 0.3, 0, repeats=1))

    assert odd_repeats(set_) == ()
    assert (sample_weights(set_) == 1.0).all()
    assert set_.is_exact
    assert not msgspec.structs.replace(set_, sampled=True).is_exact
    assert not run_table(noisy_samples("a", 0.3, 0)).is_exact

"""Rings of launches are turned as NumPy turns them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import turned


@given(st.lists(st.integers(-9, 9), max_size=9), st.integers(-20, 20))
def test_a_ring_is_turned_as_numpy_rolls_it(values: list[int], by: int) -> None:
    ring = np.array(values, dtype=np.int64)
    once = turned(ring, by)

    assert once.tolist() == np.roll(ring, by).tolist()
    assert once.dtype == ring.dtype
    assert not np.shares_memory(once, ring)

"""A handful of random tables: what is in them, and that they can be planned."""

from pathlib import Path

import numpy as np
import pytest

from known_tables import made_table
from underclock.records import AUTO
from underclock.store import read_table


@pytest.mark.parametrize("seed", range(12))
def test_a_table_is_of_its_truth(seed: int, tmp_path: Path) -> None:
    made = made_table(seed, most_kernels=4)
    made.write(tmp_path / "t.csv")

    table = read_table(tmp_path / "t.csv")

    assert len(table.samples) == len(made.rows)
    apart = [abs(np.log(s.time_s / made.truth[s.kernel, s.asked][0])) for s in table.samples]
    assert float(np.median(apart)) < 4.0 * made.scatter.time
    # At auto nothing is slower than at lower clocks, but for what a row has of its own.
    auto = (
        AUTO
        if AUTO in made.pairs
        else max(made.pairs, key=lambda c: (c.mem_mhz or 0, c.core_mhz or 0))
    )
    lowest = min(made.pairs, key=lambda c: (c.core_mhz or 9e9, c.mem_mhz or 0))
    for name in made.counts:
        assert made.truth[name, auto][0] < 1.05 * made.truth[name, lowest][0]

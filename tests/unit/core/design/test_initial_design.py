"""Where a campaign begins: settings that tell most."""

import numpy as np
import pytest

from underclock.arrays import Floats
from underclock.core.design.initial_design import greedy_d_optimal, initial_design
from underclock.core.model.parameters import unknown_gpu


def _grid() -> tuple[Floats, Floats]:
    core, mem = np.meshgrid(np.linspace(300.0, 2100.0, 13), np.array([405.0, 5001.0, 9501.0]))
    return core.ravel(), mem.ravel()


_MEMS = [405.0, 5001.0, 9501.0]


@pytest.mark.parametrize("points", [1, 3, 5, 8])
def test_the_initial_design_is_distinct_and_over_all_memory_clocks(points: int) -> None:
    core, mem = _grid()
    chosen = initial_design(unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0), core, mem, points)

    assert len(set(chosen.tolist())) == len(chosen) == points
    assert (core[chosen] >= 0.4 * 2100.0).all()
    assert 405.0 in mem[chosen]  # whether slow memory pays is told at once
    if points > 1:
        assert (mem[chosen] > 405.0).sum() >= 0.5 * points
        assert len(set(core[chosen].tolist())) > 1


def test_a_longer_design_begins_as_a_shorter_one() -> None:
    core, mem = _grid()
    base = unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0)
    short, long = (initial_design(base, core, mem, points).tolist() for points in (3, 6))

    assert long[:3] == short


def test_there_is_no_more_of_it_than_there_are_settings() -> None:
    base = unknown_gpu([9501.0], fastest_mhz=2100.0, most_w=350.0)
    chosen = initial_design(base, np.array([300.0, 1800.0, 2100.0]), np.full(3, 9501.0), 5)

    assert sorted(chosen.tolist()) == [1, 2]  # the first is far below the knee


def test_a_design_of_independent_quantities_takes_the_loudest_of_each() -> None:
    derivatives = np.zeros((1, 1, 4, 2))
    derivatives[0, 0, :, 0] = [3.0, 2.9, 0.0, 0.0]
    derivatives[0, 0, :, 1] = [0.0, 0.0, 1.0, 0.9]

    assert greedy_d_optimal(derivatives, np.eye(2), 2).tolist() == [0, 2]
    allowed = np.array([False, True, True, True])
    assert greedy_d_optimal(derivatives, np.eye(2), 9, allowed=allowed).tolist() == [1, 2, 3]

"""A handful of random tables: what is in them, and that they can be planned."""

from pathlib import Path

import numpy as np
import pytest

from known_tables import made_table
from score import score
from underclock import Campaign, Goal, Grid, measure, plan
from underclock.records import AUTO
from underclock.store import read_table


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 6, 8])
def test_random_tables_are_planned_as_rows_as_samples_and_after_a_campaign(
    seed: int, tmp_path: Path
) -> None:
    made = made_table(seed, most_kernels=3)
    made.write(tmp_path / "t.csv")
    campaign = Campaign(grid=Grid.ADAPTIVE, max_samples=len(made.rows) // 2, slowdowns=(0.01,))
    taken = measure(gpu=f"replay:{tmp_path / 't.csv'}", to=tmp_path / "s.db", campaign=campaign)
    goal = Goal(max_slowdown=0.01)

    plans = [plan(tmp_path / "t.csv", goal), plan(tmp_path / "t.csv", goal, raw=False)]
    plans.append(plan(taken, goal))

    for planned in plans:
        assert planned.promise.time_change <= goal.max_slowdown + 1e-9
        if planned.arm(planned.chosen).energy_interval is None:
            said = score(planned, read_table(tmp_path / "t.csv"))
            assert planned.promise.energy_change == pytest.approx(said.energy_change, abs=1e-9)


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

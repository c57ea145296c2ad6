"""At which clocks samples ran, and which the power cap held."""

import math

import pytest

from made_up_samples import CORES, made_grid, made_sample, made_set
from underclock.core.model.most_likely import clocks_of
from underclock.core.model.sample_rows import rows_of
from underclock.core.model.sample_sets import ceiling_mhz, seen_cap
from underclock.records import Clocks, GpuInfo, ThrottleReason


def test_auto_ran_at_the_fastest_clocks_listed_where_nobody_looked() -> None:
    sample_set = made_set(
        [*made_grid("a"), made_sample("b", 900), made_sample("b", None, None)],
        settings=(Clocks(core_mhz=2010, mem_mhz=9251),),
    )
    rows = rows_of(sample_set)

    assert rows.core_mhz[rows.kernel == 1].tolist() == [900.0, 2010.0]
    assert rows.mem_mhz[rows.kernel == 1].tolist() == [9251.0, 9251.0]


def test_without_samples_nothing_shows_the_cap() -> None:
    unlimited = made_set([], gpu=GpuInfo(name="G"))
    assert seen_cap(unlimited) == (math.inf, [])


def test_a_memory_left_to_itself_runs_where_it_was_seen_to_not_at_the_fastest() -> None:
    """Under compute a GPU may run its memory slower than it could be locked to."""
    grid = [*made_grid("a"), made_sample("a", 1500, 9501)]
    left = made_sample("a", 1500, None, observed=Clocks(core_mhz=1500, mem_mhz=9251))
    seen, unseen = rows_of(made_set([*grid, left])), rows_of(made_set(grid))
    mems = [clocks_of(rows, [Clocks(core_mhz=1500)])[1].tolist() for rows in (seen, unseen)]
    assert mems == [[9251.0], [9501.0]]
    assert 9501.0 in seen.mem_points_mhz


def test_rows_whose_clock_is_not_known_are_left_out() -> None:
    lower = Clocks(core_mhz=1725, mem_mhz=9251)
    as_read = Clocks(core_mhz=1200, mem_mhz=5001)
    samples = [
        *made_grid("a"),
        made_sample("a", None, None),
        made_sample("a", 1900, observed=lower),
        made_sample("a", 1200, repeat=1, observed=as_read),
    ]
    rows = rows_of(made_set(samples))

    assert len(rows.kernel) == 11
    assert 1900 not in rows.core_mhz
    assert rows.mem_mhz[-1] == 5001
    assert rows.ceiling_mhz == 1725


def test_memory_clocks_are_those_read_back_where_none_was_asked() -> None:
    seen = [
        made_sample("a", core, None, observed=Clocks(core_mhz=core, mem_mhz=77)) for core in CORES
    ]
    more = [
        made_sample("b", core, None, observed=Clocks(core_mhz=core, mem_mhz=77)) for core in CORES
    ]
    unread = [made_sample(name, core, None) for name in "ab" for core in CORES]

    assert rows_of(made_set([*seen, *more])).mem_points_mhz.tolist() == [77]
    assert rows_of(made_set(unread)).mem_points_mhz.tolist() == [1]


def test_what_the_driver_calls_capped_is_left_out_and_tells_the_cap() -> None:
    hot = [
        made_sample(
            "a",
            core,
            energy_j=190.0,
            repeat=1,
            throttle_reasons=ThrottleReason.SW_POWER_CAP,
            time_s=1.0,
        )
        for core in (2000, 2100)
    ]
    rows = rows_of(made_set([*made_grid("a", throttle_reasons=ThrottleReason.NONE), *hot]))

    assert len(rows.kernel) == 10
    assert rows.limit_w == 190.0


@pytest.mark.parametrize(("kernels", "left"), [("ab", 12), ("abc", 15)])
def test_without_throttle_reasons_a_cap_is_many_kernels_at_the_limit(
    kernels: str, left: int
) -> None:
    samples = []
    for name in kernels:
        samples += [made_sample(name, core) for core in CORES]
        samples.append(made_sample(name, 2100, energy_j=199.0))
    rows = rows_of(made_set(samples))

    assert len(rows.kernel) == left
    assert rows.limit_w == (199.0 if len(kernels) == 3 else math.inf)


def test_the_ceiling_is_the_least_clock_seen_away_from_the_cap() -> None:
    free = [
        made_sample("a", None, observed=Clocks(core_mhz=core), throttle_reasons=reasons)
        for core, reasons in ((1900, None), (1880, 0), (1700, ThrottleReason.SW_POWER_CAP))
    ]

    assert ceiling_mhz(free) == 1880
    assert math.isinf(ceiling_mhz([made_sample("a", 900, observed=Clocks(core_mhz=900))]))

"""Samples as rows: which are left out, and which cannot be fitted at all."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up_samples import CORES, MEMS, made_grid, made_sample, made_set
from underclock.core.model.most_likely import spread_kernels, spread_rows
from underclock.core.model.parameters import unknown_gpu
from underclock.core.model.sample_rows import CannotFitError, rows_of
from underclock.errors import DataError
from underclock.records import Clocks, SampleSet, ThrottleReason, Window
from windows import having


def test_auto_counts_a_little_for_kernels_with_few_rows_only() -> None:
    few, none = (
        [made_sample("few", 900), made_sample("few", 1500, 5001)],
        [made_sample("none", None, None)],
    )
    autos = [
        made_sample("many", None, None, observed=Clocks(core_mhz=1725, mem_mhz=9251)),
        made_sample("few", None, None, observed=Clocks(core_mhz=1740, mem_mhz=9251)),
        made_sample("capped", None, None, throttle_reasons=ThrottleReason.SW_POWER_CAP),
    ]
    rows = rows_of(made_set([*made_grid("many"), *few, *none, made_sample("capped", 600), *autos]))

    assert rows.names == ("many", "few", "none", "capped")
    assert np.diff(rows.bounds).tolist() == [10, 3, 0, 1]
    assert sorted(rows.core_mhz[10:13].tolist()) == [900.0, 1500.0, 1740.0]
    assert [sorted(each) for each in rows.windows[:, 10:13].tolist()] == [[0.04, 1.0, 1.0]] * 2
    assert (rows.windows[:, :10] == 1.0).all()


def test_every_row_keeps_its_clocks_and_its_costs() -> None:
    samples = [*made_grid("b", temperature_c=70.0), *made_grid("a", time_s=2.0)]
    rows = rows_of(made_set(samples))

    assert rows.names == ("b", "a")
    assert rows.bounds.tolist() == [0, 10, 20]
    assert rows.mem_points_mhz.tolist() == list(MEMS)
    assert sorted(rows.core_mhz[:10].tolist()) == sorted(CORES * 2)
    assert np.exp(rows.log_s).tolist() == pytest.approx([1.0] * 10 + [2.0] * 10)
    assert np.exp(rows.log_w).tolist() == pytest.approx([100.0] * 10 + [50.0] * 10)
    assert rows.temperature_c.tolist() == [70.0] * 10 + [55.0] * 10
    assert math.isinf(rows.limit_w)
    assert math.isinf(rows.ceiling_mhz)


def test_without_samples_the_reader_is_told_to_measure() -> None:
    with pytest.raises(DataError, match="no samples to fit"):
        rows_of(made_set([]))


def test_samples_that_all_ran_at_the_cap_cannot_be_fitted() -> None:
    with pytest.raises(CannotFitError, match="all 10 samples ran at the power cap") as raised:
        rows_of(made_set(made_grid("a", throttle_reasons=ThrottleReason.SW_POWER_CAP)))
    assert "lower core clocks" in raised.value.hint


@pytest.mark.slow
@given(st.floats(1.5, 100.0), st.sampled_from(["time_s", "energy_j"]))
def test_an_odd_repeat_hardly_counts_and_refuses_nothing(factor: float, what: str) -> None:
    grid = [*made_grid("a"), *made_grid("a", repeat=1), *made_grid("a", repeat=2)]
    usual = getattr(grid[0], what)
    odd = msgspec.structs.replace(grid[0], repeat=3, **{what: factor * usual})

    rows = rows_of(made_set([*grid, odd]))

    place = int(np.argmax(rows.log_s if what == "time_s" else rows.log_w))
    others = np.delete(rows.windows, place, axis=1)
    assert len(rows.kernel) == len(grid) + 1
    assert others.min() == pytest.approx(1.0, abs=0.1)
    assert rows.windows[1, place] < 0.25
    assert (rows.windows[0, place] < 0.25) == (what == "time_s")


def test_two_repeats_that_contradict_each_other_count_little_both() -> None:
    grid = made_grid("a")
    rows = rows_of(made_set([*grid, msgspec.structs.replace(grid[0], repeat=1, time_s=2.0)]))

    assert rows.windows[0].tolist().count(1.0) == len(grid) - 1
    assert sorted(rows.windows[0])[1] < 0.25


@given(st.floats(1.0, 1.05))
def test_repeats_that_differ_a_little_count_fully(factor: float) -> None:
    grid = made_grid("a")
    rows = rows_of(made_set([*grid, msgspec.structs.replace(grid[0], repeat=1, time_s=factor)]))

    assert (rows.windows == 1.0).all()


def _many(kernels: int, each: int) -> SampleSet:
    samples = [
        made_sample(f"k{k}", 300 + 10 * i, MEMS[i % 2], time_s=1.0 + k)
        for k in range(kernels)
        for i in range(each)
    ]
    return made_set(samples)


@pytest.mark.untraced
@given(st.integers(1, 40), st.integers(2, 20))
def test_a_thinned_kernel_keeps_its_fastest_row_and_rows_all_over(each: int, most: int) -> None:
    rows = rows_of(_many(12, each))
    chosen = spread_rows(rows, most)

    assert len(set(chosen.tolist())) == len(chosen) == 12 * min(each, most)
    for k in range(12):
        mine = np.flatnonzero(rows.kernel == k)
        order = mine[np.lexsort((rows.core_mhz[mine], rows.mem_mhz[mine]))]
        places = np.flatnonzero(np.isin(order, chosen))
        assert order[-1] in chosen
        assert np.diff(places, prepend=-1).max() <= 2 * max(1.0, each / most) + 1


@pytest.mark.untraced
@given(st.integers(1, 30), st.integers(2, 30))
def test_kernels_chosen_for_all_are_short_and_long(kernels: int, most: int) -> None:
    rows = rows_of(_many(kernels, 12))
    chosen = spread_kernels(rows, most).tolist()

    assert len(set(chosen)) == len(chosen) == min(kernels, most)
    assert {0, kernels - 1} <= set(chosen)


def test_a_gpu_of_which_only_clocks_are_known_has_all_constants() -> None:
    gpu = unknown_gpu([405.0, 9251.0], fastest_mhz=2000.0, most_w=350.0)

    assert gpu.mem_points_mhz == (405.0, 9251.0)
    assert gpu.mem_points_w[0] < gpu.mem_points_w[1] < 350.0
    assert gpu.boost_mhz == 2000.0


@pytest.mark.parametrize(
    ("damaged", "sentence"),
    [
        (made_sample("a", 900, 1), "a memory clock of 1 MHz is none that a GPU has"),
        (made_sample("a", 1_905_000_000), "a core clock of 1905000000 MHz is none"),
        (made_sample("a", 900, observed=Clocks(core_mhz=2)), "a core clock of 2 MHz is none"),
        (made_sample("a", 900, energy_j=1e24), r"'a' at .* drew 1e\+24 W: 1e\+24 J in 1 s"),
        (made_sample("a", 900, time_s=1e6), "drew 0.0001 W"),
    ],
)
def test_values_that_no_gpu_can_have_given_are_refused(damaged: Window, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        rows_of(made_set([*made_grid("a"), damaged]))


def test_a_sample_of_no_kernel_of_the_step_is_refused() -> None:
    sample_set = made_set(made_grid("a"))
    stray = having(sample_set, samples=(*sample_set.samples, made_sample("b", 900)))

    with pytest.raises(DataError, match="names 'b', which is no kernel of the step"):
        rows_of(stray)


def test_a_setting_that_no_gpu_has_is_refused_though_nobody_visited_it() -> None:
    odd = (Clocks(core_mhz=900, mem_mhz=2),)

    with pytest.raises(DataError, match="a memory clock of 2 MHz"):
        rows_of(made_set(made_grid("a"), settings=odd))

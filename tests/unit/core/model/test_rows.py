"""Samples as rows: which are left out, and which cannot be fitted at all."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.model.predictive import clocks_of
from underclock.core.model.rows import CannotFitError, ceiling_mhz, rows_of
from underclock.core.model.start import unknown_gpu
from underclock.core.model.subsample import spread_kernels, spread_rows
from underclock.errors import DataError
from underclock.records import (
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Kind,
    Mix,
    MixSample,
    Sample,
    SampleSet,
    ThrottleReason,
)

_CORES = (600, 900, 1200, 1500, 1800)
_MEMS = (5001, 9251)


def _sample(kernel: str, core: int | None, mem: int | None = 9251, **more: object) -> Sample:
    fields: dict[str, object] = {"time_s": 1.0, "energy_j": 100.0, "repeat": 0, **more}
    return Sample(kernel=kernel, asked=Clocks(core_mhz=core, mem_mhz=mem), **fields)  # type: ignore[arg-type]


def _profile(samples: list[Sample], **more: object) -> SampleSet:
    names = dict.fromkeys(sample.kernel for sample in samples)
    fields: dict[str, object] = {
        "gpu": GpuInfo(name="G", power_limit_w=200.0),
        "kernels": tuple(Kernel(name=name, kind=Kind.GEMM) for name in names),
        **more,
    }
    return SampleSet(
        evidence=Evidence.MEASURED,
        workload="w",
        samples=tuple(samples),
        **fields,  # type: ignore[arg-type]
    )


def _grid(kernel: str, **more: object) -> list[Sample]:
    return [_sample(kernel, core, mem, **more) for mem in _MEMS for core in _CORES]


def test_auto_counts_a_little_for_kernels_with_few_rows_only() -> None:
    few, none = [_sample("few", 900), _sample("few", 1500, 5001)], [_sample("none", None, None)]
    autos = [
        _sample("many", None, None, observed=Clocks(core_mhz=1725, mem_mhz=9251)),
        _sample("few", None, None, observed=Clocks(core_mhz=1740, mem_mhz=9251)),
        _sample("capped", None, None, throttle_reasons=ThrottleReason.SW_POWER_CAP),
    ]
    rows = rows_of(_profile([*_grid("many"), *few, *none, _sample("capped", 600), *autos]))

    assert rows.names == ("many", "few", "none", "capped")
    assert np.diff(rows.bounds).tolist() == [10, 3, 0, 1]
    assert sorted(rows.core_mhz[10:13].tolist()) == [900.0, 1500.0, 1740.0]
    assert [sorted(each) for each in rows.windows[:, 10:13].tolist()] == [[0.04, 1.0, 1.0]] * 2
    assert (rows.windows[:, :10] == 1.0).all()


def test_auto_ran_at_the_fastest_clocks_listed_where_nobody_looked() -> None:
    sample_set = _profile(
        [*_grid("a"), _sample("b", 900), _sample("b", None, None)],
        settings=(Clocks(core_mhz=2010, mem_mhz=9251),),
    )
    rows = rows_of(sample_set)

    assert rows.core_mhz[rows.kernel == 1].tolist() == [900.0, 2010.0]
    assert rows.mem_mhz[rows.kernel == 1].tolist() == [9251.0, 9251.0]


def test_a_memory_left_to_itself_runs_where_it_was_seen_to_not_at_the_fastest() -> None:
    """Under compute a GPU may run its memory slower than it could be locked to."""
    grid = [*_grid("a"), _sample("a", 1500, 9501)]
    left = _sample("a", 1500, None, observed=Clocks(core_mhz=1500, mem_mhz=9251))
    seen, unseen = rows_of(_profile([*grid, left])), rows_of(_profile(grid))
    mems = [clocks_of(rows, [Clocks(core_mhz=1500)])[1].tolist() for rows in (seen, unseen)]
    assert mems == [[9251.0], [9501.0]]
    assert 9501.0 in seen.mem_points_mhz


def test_every_row_keeps_its_clocks_and_its_costs() -> None:
    samples = [*_grid("b", temperature_c=70.0), *_grid("a", time_s=2.0)]
    rows = rows_of(_profile(samples))

    assert rows.names == ("b", "a")
    assert rows.bounds.tolist() == [0, 10, 20]
    assert rows.mem_points_mhz.tolist() == list(_MEMS)
    assert sorted(rows.core_mhz[:10].tolist()) == sorted(_CORES * 2)
    assert np.exp(rows.log_s).tolist() == pytest.approx([1.0] * 10 + [2.0] * 10)
    assert np.exp(rows.log_w).tolist() == pytest.approx([100.0] * 10 + [50.0] * 10)
    assert rows.temperature_c.tolist() == [70.0] * 10 + [55.0] * 10
    assert math.isinf(rows.limit_w)
    assert math.isinf(rows.ceiling_mhz)


def test_rows_whose_clock_is_not_known_are_left_out() -> None:
    lower = Clocks(core_mhz=1725, mem_mhz=9251)
    as_read = Clocks(core_mhz=1200, mem_mhz=5001)
    samples = [
        *_grid("a"),
        _sample("a", None, None),
        _sample("a", 1900, observed=lower),
        _sample("a", 1200, repeat=1, observed=as_read),
    ]
    rows = rows_of(_profile(samples))

    assert len(rows.kernel) == 11
    assert 1900 not in rows.core_mhz
    assert rows.mem_mhz[-1] == 5001
    assert rows.ceiling_mhz == 1725


def test_memory_clocks_are_those_read_back_where_none_was_asked() -> None:
    seen = [_sample("a", core, None, observed=Clocks(core_mhz=core, mem_mhz=77)) for core in _CORES]
    more = [_sample("b", core, None, observed=Clocks(core_mhz=core, mem_mhz=77)) for core in _CORES]
    unread = [_sample(name, core, None) for name in "ab" for core in _CORES]

    assert rows_of(_profile([*seen, *more])).mem_points_mhz.tolist() == [77]
    assert rows_of(_profile(unread)).mem_points_mhz.tolist() == [1]


def test_what_the_driver_calls_capped_is_left_out_and_tells_the_cap() -> None:
    hot = [
        _sample(
            "a",
            core,
            energy_j=190.0,
            repeat=1,
            throttle_reasons=ThrottleReason.SW_POWER_CAP,
            time_s=1.0,
        )
        for core in (2000, 2100)
    ]
    rows = rows_of(_profile([*_grid("a", throttle_reasons=ThrottleReason.NONE), *hot]))

    assert len(rows.kernel) == 10
    assert rows.limit_w == 190.0


@pytest.mark.parametrize(("kernels", "left"), [("ab", 12), ("abc", 15)])
def test_without_throttle_reasons_a_cap_is_many_kernels_at_the_limit(
    kernels: str, left: int
) -> None:
    samples = []
    for name in kernels:
        samples += [_sample(name, core) for core in _CORES]
        samples.append(_sample(name, 2100, energy_j=199.0))
    rows = rows_of(_profile(samples))

    assert len(rows.kernel) == left
    assert rows.limit_w == (199.0 if len(kernels) == 3 else math.inf)


def test_without_samples_the_reader_is_told_to_measure() -> None:
    with pytest.raises(DataError, match="no samples to fit"):
        rows_of(_profile([]))


def test_samples_that_all_ran_at_the_cap_cannot_be_fitted() -> None:
    with pytest.raises(CannotFitError, match="all 10 samples ran at the power cap") as raised:
        rows_of(_profile(_grid("a", throttle_reasons=ThrottleReason.SW_POWER_CAP)))
    assert "lower core clocks" in raised.value.hint


def test_one_sample_at_a_known_clock_is_a_row() -> None:
    assert len(rows_of(_profile(_grid("a")[:1])).kernel) == 1


@pytest.mark.slow
@given(st.floats(1.5, 100.0), st.sampled_from(["time_s", "energy_j"]))
def test_an_odd_repeat_hardly_counts_and_refuses_nothing(factor: float, what: str) -> None:
    grid = [*_grid("a"), *_grid("a", repeat=1), *_grid("a", repeat=2)]
    usual = getattr(grid[0], what)
    odd = msgspec.structs.replace(grid[0], repeat=3, **{what: factor * usual})

    rows = rows_of(_profile([*grid, odd]))

    assert len(rows.kernel) == len(_grid("a"))  # runs of one row are one row
    assert rows.windows[:, 1:].min() == pytest.approx(3.0, abs=0.2)
    assert rows.windows[1, 0] < 3.25
    assert (rows.windows[0, 0] < 3.25) == (what == "time_s")
    assert rows.log_s[0] == pytest.approx(0.0, abs=0.05)


def test_two_repeats_that_contradict_each_other_count_little_both() -> None:
    grid = _grid("a")
    rows = rows_of(_profile([*grid, msgspec.structs.replace(grid[0], repeat=1, time_s=2.0)]))

    assert rows.windows[0].tolist().count(1.0) == len(grid) - 1
    assert sorted(rows.windows[0])[1] < 0.25


@given(st.floats(1.0, 1.05))
def test_repeats_that_differ_a_little_count_fully(factor: float) -> None:
    grid = _grid("a")
    rows = rows_of(_profile([*grid, msgspec.structs.replace(grid[0], repeat=1, time_s=factor)]))

    assert (rows.windows == 1.0).all()


def test_the_ceiling_is_the_least_clock_seen_away_from_the_cap() -> None:
    free = [
        _sample("a", None, observed=Clocks(core_mhz=core), throttle_reasons=reasons)
        for core, reasons in ((1900, None), (1880, 0), (1700, ThrottleReason.SW_POWER_CAP))
    ]

    assert ceiling_mhz(free) == 1880
    assert math.isinf(ceiling_mhz([_sample("a", 900, observed=Clocks(core_mhz=900))]))


def _many(kernels: int, each: int) -> SampleSet:
    samples = [
        _sample(f"k{k}", 300 + 10 * i, _MEMS[i % 2], time_s=1.0 + k)
        for k in range(kernels)
        for i in range(each)
    ]
    return _profile(samples)


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
        (_sample("a", 900, 1), "a memory clock of 1 MHz is none that a GPU has"),
        (_sample("a", 1_905_000_000), "a core clock of 1905000000 MHz is none"),
        (_sample("a", 900, observed=Clocks(core_mhz=2)), "a core clock of 2 MHz is none"),
        (_sample("a", 900, energy_j=1e24), r"'a' at .* drew 1e\+24 W: 1e\+24 J in 1 s"),
        (_sample("a", 900, time_s=1e6), "drew 0.0001 W"),
        (_sample("a", 900, temperature_c=math.nan), "'a' at .* ran at nan °C"),
        (_sample("a", 900, temperature_c=1e9), "ran at 1e\\+09 °C"),
    ],
)
def test_values_that_no_gpu_can_have_given_are_refused(damaged: Sample, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        rows_of(_profile([*_grid("a"), damaged]))


def test_a_sample_of_no_kernel_of_the_step_is_refused() -> None:
    sample_set = _profile(_grid("a"))
    stray = msgspec.structs.replace(sample_set, samples=(*sample_set.samples, _sample("b", 900)))

    with pytest.raises(DataError, match="names 'b', which is no kernel of the step"):
        rows_of(stray)


def test_a_setting_that_no_gpu_has_is_refused_though_nobody_visited_it() -> None:
    odd = (Clocks(core_mhz=900, mem_mhz=2),)

    with pytest.raises(DataError, match="a memory clock of 2 MHz"):
        rows_of(_profile(_grid("a"), settings=odd))


def _in_step(**changed: object) -> MixSample:
    """Return a run of a step of two kernels at auto, its launches timed."""
    fields: dict[str, object] = {
        "kernel": "",
        "mix": Mix(),
        "core_mhz": 1740.0,
        "core_spread_mhz": 0.0,
        "round_s": 3.0,
        "round_j": 300.0,
        "kernel_s": (0.9, 1.9),
        "window_s": 10.0,
        **changed,
    }
    return MixSample(**fields)  # type: ignore[arg-type]


def test_launches_inside_the_step_tell_times_at_its_clock() -> None:
    step = _sample("w", None, None, observed=Clocks(core_mhz=1740, mem_mhz=5001))
    rows = rows_of(
        _profile([*_grid("a"), *_grid("b", energy_j=200.0)], mixed=(_in_step(),), in_situ=(step,))
    )
    inside = rows.windows[1] == 0.0

    assert rows.kernel[inside].tolist() == [0, 1]
    assert rows.core_mhz[inside].tolist() == [1740.0, 1740.0]
    assert rows.mem_mhz[inside].tolist() == [5001.0, 5001.0]  # as read in the step
    assert np.exp(rows.log_s[inside]) == pytest.approx([0.9, 1.9])
    assert np.exp(rows.log_w[inside]) == pytest.approx([100.0, 200.0])
    assert rows.windows[0, inside].tolist() == [1.0, 1.0]
    # By itself it says nothing of what kernels draw more in the step.
    assert rows.step == ()


def test_a_kernel_whose_power_nobody_knows_gets_no_row_of_the_step() -> None:
    rows = rows_of(_profile([*_grid("a"), _sample("b", None, None)], mixed=(_in_step(),)))

    assert np.diff(rows.bounds).tolist() == [11, 0]


def test_times_inside_the_step_do_not_stand_in_for_power_at_auto() -> None:
    auto = _sample("b", None, None, observed=Clocks(core_mhz=1740, mem_mhz=9251))
    rows = rows_of(_profile([*_grid("a"), _sample("b", 900), auto], mixed=(_in_step(),)))

    assert sorted(rows.windows[1, rows.kernel == 1].tolist()) == [0.0, 0.04, 1.0]

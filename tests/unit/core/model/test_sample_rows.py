"""Samples as rows: which are left out, and which cannot be fitted at all."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up_samples import CORES, MEMS, made_grid, made_sample, made_set
from underclock.core.model.sample_rows import rows_of
from underclock.core.model.sample_sets import joined_sets, power_wander, visited
from underclock.errors import DataError
from underclock.records import Clocks, GpuInfo, Launch, Mix, ThrottleReason, Window
from windows import with_step


def test_every_row_keeps_its_clocks_and_its_costs() -> None:
    samples = [*made_grid("b", temperature_c=70.0), *made_grid("a", time_s=2.0)]
    rows = rows_of(made_set(samples))

    assert rows.names == ("b", "a")
    assert rows.bounds.tolist() == [0, 10, 20]
    assert rows.mem_points_mhz.tolist() == list(MEMS)
    assert sorted(rows.core_mhz[:10].tolist()) == sorted(CORES * 2)
    assert np.exp(rows.log[0]).tolist() == pytest.approx([1.0] * 10 + [2.0] * 10)
    assert np.exp(rows.log[1]).tolist() == pytest.approx([100.0] * 10 + [50.0] * 10)
    assert rows.temperature_c.tolist() == [70.0] * 10 + [55.0] * 10
    assert math.isinf(rows.limit_w)
    assert math.isinf(rows.ceiling_mhz)


@pytest.mark.slow
@given(st.floats(1.5, 100.0), st.sampled_from(["time_s", "energy_j"]))
def test_an_odd_repeat_hardly_counts_and_refuses_nothing(factor: float, what: str) -> None:
    grid = [*made_grid("a"), *made_grid("a", repeat=1), *made_grid("a", repeat=2)]
    usual = getattr(grid[0], what)
    odd = msgspec.structs.replace(grid[0], repeat=3, **{what: factor * usual})

    rows = rows_of(made_set([*grid, odd]))

    place = int(np.argmax(rows.log[0] if what == "time_s" else rows.log[1]))
    others = np.delete(rows.windows, place, axis=1)
    assert len(rows.kernel) == len(grid) + 1
    assert others.min() == pytest.approx(1.0, abs=0.1)
    assert rows.windows[1, place] < 0.25
    assert (rows.windows[0, place] < 0.25) == (what == "time_s")


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


def test_rows_whose_clock_is_not_known_are_left_out() -> None:
    lower, as_read = (Clocks(core_mhz=c, mem_mhz=m) for c, m in ((1725, 9251), (1200, 5001)))
    read = (
        made_sample("a", 1900, observed=lower),
        made_sample("a", 1200, repeat=1, observed=as_read),
    )
    samples = [*made_grid("a"), made_sample("a", None, None), *read]
    rows = rows_of(made_set(samples))

    assert len(rows.kernel) == 11
    assert 1900 not in rows.core_mhz
    assert rows.mem_mhz[-1] == 5001
    assert rows.ceiling_mhz == 1725


def test_what_the_driver_calls_capped_is_left_out_and_tells_the_cap() -> None:
    capped = ThrottleReason.SW_POWER_CAP
    hot = [
        made_sample("a", core, energy_j=190.0, repeat=1, throttle_reasons=capped, time_s=1.0)
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


def _in_step(**changed: object) -> Window:
    """Return a run of a step of two kernels at auto, its launches timed."""
    fields: dict[str, object] = {
        "kernel": "",
        "mix": Mix(),
        "core_mhz": 1740.0,
        "core_spread_mhz": 0.0,
        "time_s": 3.0,
        "energy_j": 300.0,
        "kernel_s": (0.9, 1.9),
        "window_s": 10.0,
        **changed,
    }
    return Window(**fields)  # type: ignore[arg-type]


def test_launches_inside_the_step_tell_times_at_its_clock() -> None:
    step = made_sample("w", None, None, observed=Clocks(core_mhz=1740, mem_mhz=5001))
    rows = rows_of(
        made_set(
            [*made_grid("a"), *made_grid("b", energy_j=200.0)], mixed=(_in_step(),), in_situ=(step,)
        )
    )
    inside = rows.windows[1] == 0.0

    assert rows.kernel[inside].tolist() == [0, 1]
    assert rows.core_mhz[inside].tolist() == [1740.0, 1740.0]
    assert rows.mem_mhz[inside].tolist() == [5001.0, 5001.0]  # as read in the step
    assert np.exp(rows.log[0][inside]) == pytest.approx([0.9, 1.9])
    assert np.exp(rows.log[1][inside]) == pytest.approx([100.0, 200.0])
    assert rows.windows[0, inside].tolist() == [1.0, 1.0]
    # By itself it says nothing of what kernels draw more in the step.
    assert rows.step == ()


def test_equal_kernels_of_two_files_are_one_and_others_are_kept_apart() -> None:
    one = made_set([*made_grid("a"), *made_grid("b")], warnings=("hot",))
    launch = Launch(function="f", identity="other")
    kernels = (msgspec.structs.replace(one.kernels[0], launch=launch), one.kernels[1])
    both = joined_sets([one, with_step(one, name="v", kernels=kernels)])

    assert (both.workload, both.warnings) == ("w and v", ("hot",))
    assert [k.name for k in both.kernels] == ["a", "b", "a of file 2"]
    assert np.diff(rows_of(both).bounds).tolist() == [10, 20, 10]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (GpuInfo(name="H", power_limit_w=200.0), "H (driver unknown, 200 W)"),
        (GpuInfo(name="G", driver="2", power_limit_w=200.0), "G (driver 2, 200 W)"),
        (GpuInfo(name="G"), "G (driver unknown, unknown limit)"),
    ],
)
def test_two_gpus_drivers_or_limits_are_not_one_fit(other: GpuInfo, words: str) -> None:
    grid = made_grid("a")
    with pytest.raises(DataError, match="samples from two GPUs or drivers") as raised:
        joined_sets([made_set(grid), made_set(grid, gpu=other)])
    assert words in str(raised.value)
    assert "by themselves" in raised.value.hint


@pytest.mark.parametrize("in_common", [True, False])
def test_repeats_that_are_off_alike_in_a_visit_show_how_power_wanders(*, in_common: bool) -> None:
    random, samples = np.random.default_rng(0), []
    for repeat in range(8):
        for mhz in (900, 1200):
            off = 0.02 * random.standard_normal(1 if in_common else 6)
            samples += [
                made_sample(name, mhz, repeat=repeat, energy_j=100.0 * math.exp(each))
                for name, each in zip("abcdef", np.broadcast_to(off, 6).tolist(), strict=True)
            ]
    settings = (Clocks(core_mhz=1500, mem_mhz=samples[0].asked.mem_mhz), samples[0].asked)
    once, (never, often) = power_wander(made_set(samples), settings)

    assert once == pytest.approx(0.02, rel=0.4) if in_common else once < 0.008
    assert not never.any()
    assert np.linalg.norm(often) == pytest.approx(
        once / math.sqrt(8.0), rel=0.01
    )  # of eight visits
    assert power_wander(made_set(made_grid("a")), settings)[0] == pytest.approx(0.008)  # no repeat


def test_a_kernel_is_known_where_it_ran_or_three_did() -> None:
    samples = [made_sample(*place) for place in zip("abcdab", [900] * 4 + [1200] * 2, strict=True)]
    settings = (samples[0].asked, samples[-1].asked, Clocks(core_mhz=1500))
    known = visited(made_set(samples), settings).T.tolist()
    assert known == [[True] * 4, [True, True, False, False], [False] * 4]

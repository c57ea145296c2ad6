"""How kernels' times follow the core clock: exponents, their errors, and the step's own clock."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.step.following import exponents, follows_core, in_step_s, step_clock
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Mix,
    SampleSet,
    ThrottleReason,
    Window,
)
from underclock.records.observed import Exponent, Follows
from windows import gathered

# FACTS of an H200: mean clock of a mix, and µs of kernels in it.
H200_MHZ = (1980, 1717, 1601, 1525, 1498)
H200_US = {
    "layer norm": (148.5, 162.9, 172.7, 183.1, 189.3),
    "softmax": (501.9, 551.8, 581.9, 616.8, 635.4),
    "gelu": (439.1, 487.4, 513.1, 541.7, 557.0),
    "product": (1720, 1802, 1916, 2047, 2080),
    "gather": (86.7, 88.0, 88.7, 89.6, 90.1),
    "sum": (187.4, 189.2, 190.8, 192.2, 193.5),
    "copy": (546.7, 548.4, 548.3, 549.0, 562.3),
}


def in_mix(
    kernel: str, core_mhz: float, *kernel_s: float, mix: Mix | None = None, **more: Any
) -> Window:
    usual: dict[str, Any] = {
        "kernel": kernel,
        "mix": mix or Mix(hot=1),
        "core_mhz": core_mhz,
        "core_spread_mhz": 10.0,
        "time_s": max(1.0, (mix or Mix()).launches * math.fsum(kernel_s)),
        "energy_j": 1.0,
        "kernel_s": kernel_s,
        "window_s": 1.0,
    }
    return Window(**usual | more)


def locked(core_mhz: int, time_s: float, **more: Any) -> Window:
    asked = more.pop("asked", None) or Clocks(core_mhz=core_mhz)
    return Window(kernel="a", asked=asked, time_s=time_s, energy_j=1.0, **more)


def samples_of(
    samples: Sequence[Window] = (),
    mixed: Sequence[Window] = (),
    *,
    kernels: Sequence[str] = ("a",),
    in_situ: Sequence[Window] = (),
    limit_w: float | None = None,
) -> SampleSet:
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="a GPU", power_limit_w=limit_w),
        workload="a step",
        kernels=tuple(Kernel(name=name) for name in kernels),
        windows=gathered(tuple(samples), in_situ=tuple(in_situ), mixed=tuple(mixed)),
    )


def exponent(value: float, error: float = 0.01) -> Exponent:
    return Exponent(value=value, error=error, points=3, least_mhz=1500, most_mhz=1980)


def of_a(*samples: Window, **more: Any) -> Exponent | None:
    return exponents(samples_of(samples, **more)).get("a")


def test_kernels_that_dram_seems_to_bound_follow_the_core_of_an_h200() -> None:
    mixed = [
        in_mix(name, mhz, us * 1e-6)
        for name, times in H200_US.items()
        for mhz, us in zip(H200_MHZ, times, strict=True)
    ]
    found = exponents(samples_of(mixed=mixed, kernels=tuple(H200_US)))

    words = {name: follows_core(exponent) for name, exponent in found.items()}
    assert {name for name, word in words.items() if word is Follows.CORE} == {
        *("layer norm", "softmax", "gelu", "product"),
    }
    assert {words[name] for name in ("gather", "sum", "copy")} == {Follows.NOT_CORE}
    assert found["gelu"].value == pytest.approx(0.84, abs=0.03)
    assert found["gather"].value == pytest.approx(0.13, abs=0.02)
    assert found["copy"].error > found["gather"].error
    assert (found["sum"].least_mhz, found["sum"].most_mhz) == (1498, 1980)


@given(st.floats(-0.2, 1.2), st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_an_exponent_is_found_whatever_a_source_adds_to_every_time(
    value: float, alone_s: float, company_s: float
) -> None:
    def taken_s(scale_s: float, mhz: int) -> float:
        return scale_s * math.pow(1500.0 / mhz, value)

    samples = [locked(mhz, taken_s(alone_s, mhz)) for mhz in (1500, 1800)]
    mixed = [in_mix("a", mhz, taken_s(company_s, mhz)) for mhz in (1600, 1700)]
    found = exponents(samples_of(samples, mixed))["a"]

    assert found.value == pytest.approx(value, abs=1e-6)
    assert found.points == 4


def test_more_clocks_further_apart_make_an_exponent_surer() -> None:
    near = of_a(locked(1800, 1.0), locked(1815, 0.99))
    far = of_a(locked(1500, 1.2), locked(1800, 1.0))
    many = of_a(*(locked(mhz, 1800 / mhz) for mhz in (1500, 1600, 1700, 1800)))

    assert near is not None
    assert far is not None
    assert many is not None
    assert near.error > 0.5 > far.error > many.error > 0.0
    assert follows_core(near) is Follows.UNDECIDED


def test_times_that_scatter_make_an_exponent_less_sure() -> None:
    smooth = of_a(*(locked(mhz, 1800 / mhz) for mhz in (1500, 1600, 1700, 1800)))
    rough = of_a(locked(1500, 1.2), locked(1600, 1.3), locked(1700, 1.0), locked(1800, 1.0))

    assert smooth is not None
    assert rough is not None
    assert rough.error > 3 * smooth.error


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (exponent(0.86), Follows.CORE),
        (exponent(0.61), Follows.CORE),
        (exponent(0.6), Follows.SHARED),
        (exponent(0.25), Follows.SHARED),
        (exponent(0.24), Follows.NOT_CORE),
        (exponent(-0.02), Follows.NOT_CORE),
        (exponent(0.86, 0.16), Follows.UNDECIDED),
        (None, Follows.UNMEASURED),
    ],
)
def test_an_exponent_is_one_word(given: Exponent | None, word: Follows) -> None:
    assert follows_core(given) is word


def test_one_clock_tells_no_exponent() -> None:
    assert of_a(locked(1500, 1.0), locked(1500, 1.1, repeat=1)) is None
    assert exponents(samples_of()) == {}


def test_clocks_of_two_sources_are_not_compared_with_each_other() -> None:
    found = exponents(samples_of([locked(1500, 1.0)], [in_mix("a", 1800, 0.5)]))

    assert found == {}


def test_only_clocks_near_the_steps_own_count() -> None:
    samples = [locked(mhz, time_s) for mhz, time_s in ((600, 9.0), (1500, 1.0), (1800, 1.0))]
    whole = [in_mix("", 800.0, 1.0, mix=Mix())]

    top, low = of_a(*samples), of_a(*samples, mixed=whole)

    assert top is not None
    assert top.value == pytest.approx(0.0, abs=1e-9)
    assert top.least_mhz == 1500
    assert low is None  # 600 MHz alone lies near the 800 of the step


def test_a_kernel_seen_far_from_the_step_only_has_no_exponent() -> None:
    far = [in_mix("b", mhz, 1.0) for mhz in (600, 700)]
    near = [in_mix("a", mhz, 1.0) for mhz in (1500, 1800)]

    assert exponents(samples_of(mixed=[*far, *near], kernels=("a", "b"))).keys() == {"a"}


def test_clocks_that_the_power_cap_held_do_not_count() -> None:
    held = locked(1800, 1.0, throttle_reasons=ThrottleReason.SW_POWER_CAP)
    free = [locked(mhz, 1.0, throttle_reasons=ThrottleReason.NONE) for mhz in (1500, 1600)]
    found = of_a(*free, held)

    assert found is not None
    assert found.most_mhz == 1600
    # Where the driver was not asked, drawing the limit tells.
    assert of_a(locked(1500, 1.0), locked(1800, 0.01), limit_w=100.0) is None


def test_a_clock_glimpsed_at_auto_counts_only_where_the_driver_says_it_was_not_held() -> None:
    seen: dict[str, Any] = {"asked": AUTO, "observed": Clocks(core_mhz=1800)}
    slow = locked(1500, 1.2)

    assert of_a(slow, locked(1800, 1.0, **seen)) is None
    assert of_a(slow, locked(1800, 1.0, **seen, throttle_reasons=ThrottleReason.NONE)) is not None


def test_the_clock_that_was_read_counts_not_the_one_asked_for() -> None:
    found = of_a(
        locked(1500, 1.2), locked(1800, 1.0), locked(1995, 0.95, observed=Clocks(core_mhz=1900))
    )

    assert found is not None
    assert found.most_mhz == 1900


def test_only_the_memory_clock_of_auto_counts() -> None:
    auto = locked(
        1900,
        1.0,
        asked=AUTO,
        observed=Clocks(core_mhz=1900, mem_mhz=9251),
        throttle_reasons=ThrottleReason.NONE,
    )
    slow = [locked(mhz, 5.0, asked=Clocks(core_mhz=mhz, mem_mhz=5001)) for mhz in (1500, 1600)]
    same = [locked(1500, 1.1, asked=Clocks(core_mhz=1500, mem_mhz=9251)), locked(1600, 1.1)]
    mixes = [in_mix("a", 1400, 9.9, asked=Clocks(mem_mhz=5001))]

    found = of_a(auto, *slow, *same, mixed=mixes)

    assert found is not None
    assert found.points == 3


def test_a_table_without_readings_goes_by_its_highest_memory_clock() -> None:
    pairs = ((1500, 5001, 9.0), (1800, 5001, 1.0), (1500, 9501, 1.0), (1800, 9501, 1.0))
    rows = [
        locked(core, time_s, asked=Clocks(core_mhz=core, mem_mhz=mem))
        for core, mem, time_s in pairs
    ]
    found = of_a(*rows)

    assert found is not None
    assert found.value == pytest.approx(0.0, abs=1e-9)
    assert found.points == 2


def test_whole_steps_in_company_tell_of_every_kernel() -> None:
    whole = [in_mix("", mhz, 0.02 * 1500 / mhz, 0.02, time_s=0.05) for mhz in (1500, 1600, 1700)]
    found = exponents(samples_of(mixed=whole, kernels=("a", "b")))

    assert found["a"].value == pytest.approx(1.0)
    assert found["b"].value == pytest.approx(0.0, abs=1e-9)


def test_company_after_a_step_longer_than_the_cap_averages_over_tells_nothing() -> None:
    whole = [in_mix("", mhz, 0.2 * 1500 / mhz, 0.2, time_s=0.5) for mhz in (1500, 1600, 1700)]

    assert exponents(samples_of(mixed=whole, kernels=("a", "b"))) == {}


def test_the_step_runs_at_the_mean_clock_of_its_windows() -> None:
    whole = [
        in_mix("", 1740.0, 1.0, mix=Mix(), core_spread_mhz=30.0),
        in_mix("", 1750.0, 1.0, mix=Mix(launches=3), core_spread_mhz=40.0),
        in_mix("", 1500.0, 1.0, mix=Mix(hot=2)),
        in_mix("", 1980.0, 1.0, mix=Mix(idle_s=0.1)),
        in_mix("", 1200.0, 1.0, mix=Mix(), asked=Clocks(core_mhz=1200)),
        in_mix("a", 1300.0, 1.0, mix=Mix()),
        in_mix("", 1400.0, mix=Mix(launches=0, hot=1)),
    ]
    found = step_clock(samples_of(mixed=whole))

    assert found is not None
    assert found.core_mhz == 1745.0
    assert found.spread_mhz == pytest.approx(35.36, abs=0.01)


def test_without_windows_the_clocks_seen_at_their_end_stand_in() -> None:
    def run(observed: Clocks | None) -> Window:
        return Window(kernel="a step", asked=AUTO, time_s=1.0, energy_j=1.0, observed=observed)

    runs = [run(Clocks(core_mhz=1700)), run(Clocks(core_mhz=1800)), run(AUTO), run(None)]
    found = step_clock(samples_of(in_situ=runs))

    assert found is not None
    assert (found.core_mhz, found.spread_mhz) == (1750.0, None)
    assert step_clock(samples_of(in_situ=runs[2:])) is None


def test_durations_in_the_step_are_means_over_its_runs_at_auto() -> None:
    whole = [
        in_mix("", 1740.0, 1.0, 2.0, mix=Mix()),
        in_mix("", 1740.0, 3.0, 4.0, mix=Mix()),
        in_mix("", 1740.0, mix=Mix()),
        in_mix("", 1500.0, 9.0, 9.0, mix=Mix(hot=2)),
    ]
    found = in_step_s(samples_of(mixed=whole, kernels=("a", "b")))

    assert found is not None
    assert found.tolist() == [2.0, 3.0]
    assert in_step_s(samples_of(mixed=whole[2:], kernels=("a", "b"))) is None

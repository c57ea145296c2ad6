"""Where a step's energy goes: parts that add up to the whole, and what is called waste."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.core.costs.breakdown import bound_of, breakdown
from underclock.core.costs.table import cost_table
from underclock.errors import DataError
from underclock.records import (
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Launch,
    Pass,
    Sample,
    SampleSet,
    ThrottleReason,
    Utilisation,
)
from underclock.records.observed import Bound, Breakdown, Share

IDLE = Utilisation(sm=1.0, tensor=0.1, fp32=0.1, dram=0.1)
DRAM = Utilisation(sm=1.0, tensor=0.2, fp32=0.1, dram=0.9)
TENSOR = Utilisation(sm=1.0, tensor=0.9, fp32=0.1, dram=0.4)

fractions = st.floats(0.0, 1.1)
utilisations = st.builds(
    Utilisation, sm=fractions, tensor=fractions, fp32=fractions, dram=fractions
)
amounts = st.floats(1e-6, 1e3)


@st.composite
def sample_sets(draw: st.DrawFn) -> SampleSet:
    kernels, samples = [], []
    for number in range(draw(st.integers(1, 8))):
        operator = draw(st.sampled_from(["", "aten::mm", "aten::add"]))
        launch = Launch(function="f", operator=operator, identity=str(number))
        kernel = Kernel(
            name=f"k{number} of a step",
            pass_=draw(st.sampled_from(Pass)),
            count=draw(st.integers(1, 50)),
            launch=draw(st.none() | st.just(launch)),
        )
        kernels.append(kernel)
        clocks = st.builds(Clocks, core_mhz=st.integers(900, 1000), mem_mhz=st.just(5001))
        samples += [
            Sample(
                kernel=kernel.name,
                repeat=repeat,
                time_s=draw(amounts),
                energy_j=draw(amounts),
                observed=draw(st.none() | clocks),
                throttle_reasons=draw(st.none() | st.sampled_from(list(ThrottleReason))),
                utilisation=draw(st.none() | utilisations),
            )
            for repeat in range(draw(st.integers(1, 2)))
        ]
    return profile_of(kernels, samples)


def profile_of(kernels: list[Kernel], samples: list[Sample], **more: object) -> SampleSet:
    made = SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="a GPU"),
        workload="a step",
        kernels=tuple(kernels),
        samples=tuple(samples),
    )
    return msgspec.structs.replace(made, **more)


def sample(
    kernel: str,
    core_mhz: int | None = None,
    utilisation: Utilisation | None = None,
    *,
    energy_j: float = 1.0,
    throttle_reasons: ThrottleReason | None = None,
) -> Sample:
    return Sample(
        kernel=kernel,
        time_s=1.0,
        energy_j=energy_j,
        observed=Clocks(core_mhz=core_mhz) if core_mhz else None,
        utilisation=utilisation,
        throttle_reasons=throttle_reasons,
    )


def views(broken_down: Breakdown) -> tuple[tuple[Share, ...], ...]:
    return broken_down.by_pass, broken_down.by_operator, broken_down.by_bound, broken_down.by_clock


def names(parts: tuple[Share, ...]) -> list[str]:
    return [part.name for part in parts]


@settings(max_examples=40)
@given(sample_sets())
def test_every_view_adds_up_to_the_step(sample_set: SampleSet) -> None:
    broken_down = breakdown(sample_set)
    table = cost_table(sample_set)

    assert broken_down.time_s == pytest.approx(table.auto_time_s)
    assert broken_down.energy_j == pytest.approx(table.auto_energy_j)
    for parts in views(broken_down):
        assert sum(part.time_s for part in parts) == pytest.approx(broken_down.time_s)
        assert sum(part.energy_j for part in parts) == pytest.approx(broken_down.energy_j)
        assert sum(part.time_share for part in parts) == pytest.approx(1.0)
        assert sum(part.energy_share for part in parts) == pytest.approx(1.0)
        assert sum(part.launches for part in parts) == sum(k.count for k in sample_set.kernels)


@settings(max_examples=40)
@given(sample_sets())
def test_the_most_energy_comes_first_and_no_name_twice(sample_set: SampleSet) -> None:
    for parts in views(breakdown(sample_set)):
        energies = [part.energy_j for part in parts]
        assert energies == sorted(energies, reverse=True)
        assert len(set(names(parts))) == len(parts)


@settings(max_examples=40)
@given(sample_sets(), st.randoms(use_true_random=False))
def test_the_order_of_kernels_changes_nothing(sample_set: SampleSet, chance: random.Random) -> None:
    kernels = list(sample_set.kernels)
    chance.shuffle(kernels)

    one, other = (
        breakdown(profile_of(some, [*sample_set.samples]))
        for some in (
            list(sample_set.kernels),
            kernels,
        )
    )

    assert other.energy_j == pytest.approx(one.energy_j)
    assert other.capped_share == pytest.approx(one.capped_share)
    assert other.reachable_j == pytest.approx(one.reachable_j)
    for ours, theirs in zip(views(one), views(other), strict=True):
        assert {part.name: part.launches for part in ours} == {
            part.name: part.launches for part in theirs
        }


@settings(max_examples=40)
@given(sample_sets())
def test_what_is_reachable_is_a_part_of_the_energy_at_full_clock(sample_set: SampleSet) -> None:
    broken_down = breakdown(sample_set)
    full = {
        part.name: part.energy_j for part in broken_down.by_clock if part.name.startswith("full")
    }

    if broken_down.reachable_j is None:
        assert broken_down.full_core_mhz is None or names(broken_down.by_bound) == [Bound.UNKNOWN]
    else:
        wasted = (full.get("full clock, dram", 0.0), full.get("full clock, latency", 0.0))
        assert broken_down.reachable_j == pytest.approx(sum(wasted))
    assert 0.0 <= broken_down.capped_share <= 1.0 + 1e-9


@given(utilisations)
def test_a_kernel_is_bound_by_its_busiest_part_or_by_latency(utilisation: Utilisation) -> None:
    busy = {name: getattr(utilisation, name) for name in ("tensor", "fp32", "dram")}
    bound = bound_of(utilisation)

    if bound is Bound.LATENCY:
        assert max(busy.values()) < 0.5
    else:
        assert busy[bound.value] == max(busy.values()) >= 0.5


def test_without_counters_nothing_is_said_of_what_bounds_a_kernel() -> None:
    assert bound_of(None) is Bound.UNKNOWN


def test_a_clock_within_one_step_of_the_highest_is_full() -> None:
    kernels = [Kernel(name=name) for name in ("a", "b", "c", "d")]
    samples = [sample("a", 1980, DRAM), sample("b", 1965, IDLE, energy_j=2.0)]
    samples += [sample("c", 1964, DRAM, energy_j=4.0), sample("d", None, DRAM, energy_j=8.0)]

    broken_down = breakdown(profile_of(kernels, samples))

    assert broken_down.full_core_mhz == 1980
    assert names(broken_down.by_clock) == [
        "clock not read",
        "below full clock",
        "full clock, latency",
        "full clock, dram",
    ]
    assert broken_down.reachable_j == 3.0


def test_a_kernel_that_the_core_bounds_is_out_of_reach() -> None:
    kernels = [Kernel(name="gemm"), Kernel(name="copy")]

    broken_down = breakdown(
        profile_of(
            kernels, [sample("gemm", 1980, TENSOR, energy_j=9.0), sample("copy", 1980, DRAM)]
        )
    )

    assert broken_down.reachable_j == 1.0
    assert names(broken_down.by_bound) == ["tensor", "dram"]


@pytest.mark.parametrize(("core_mhz", "utilisation"), [(None, DRAM), (1980, None), (None, None)])
def test_what_cannot_be_known_is_not_called_nothing(
    core_mhz: int | None, utilisation: Utilisation | None
) -> None:
    broken_down = breakdown(profile_of([Kernel(name="a")], [sample("a", core_mhz, utilisation)]))

    assert broken_down.reachable_j is None
    assert broken_down.full_core_mhz == core_mhz


def test_the_capped_share_is_one_of_isolated_time_with_every_launch_counted() -> None:
    kernels = [Kernel(name="a", count=3), Kernel(name="b")]
    samples = [
        sample("a", throttle_reasons=ThrottleReason.SW_POWER_CAP | 1),
        sample("b", throttle_reasons=ThrottleReason.HW_SLOWDOWN),
    ]

    assert breakdown(profile_of(kernels, samples)).capped_share == 0.75


def test_the_whole_step_as_it_ran_is_what_is_broken_down() -> None:
    whole = Sample(kernel="a step", time_s=3.0, energy_j=30.0)
    kernels = [Kernel(name="a"), Kernel(name="b")]
    samples = [sample("a", energy_j=15.0), sample("b", energy_j=5.0)]

    broken_down = breakdown(profile_of(kernels, samples, in_situ=(whole,), warnings=("take care",)))

    assert broken_down.time_s == pytest.approx(3.0)
    assert broken_down.energy_j == pytest.approx(30.0)
    assert broken_down.closure is not None
    assert broken_down.closure.energy == pytest.approx(20.0 / 30.0)
    assert broken_down.warnings[0] == "take care"


def test_a_kernel_without_an_operator_goes_by_the_first_word_of_its_name() -> None:
    traced = Launch(function="f", operator="aten::mm", identity="1")
    kernels = [
        Kernel(name="gemm 128x128", launch=traced),
        Kernel(name="fill of zeros", launch=msgspec.structs.replace(traced, operator="")),
        Kernel(name="fill of ones"),
    ]

    broken_down = breakdown(profile_of(kernels, [sample(k.name) for k in kernels]))

    assert {part.name: part.launches for part in broken_down.by_operator} == {
        "aten::mm": 1,
        "fill": 2,
    }


def test_a_step_without_auto_clocks_cannot_be_broken_down() -> None:
    locked = Sample(kernel="b", asked=Clocks(core_mhz=900), time_s=1.0, energy_j=1.0)
    sample_set = profile_of([Kernel(name="a"), Kernel(name="b")], [sample("a"), locked])

    with pytest.raises(DataError, match="'b' was not measured at auto clocks") as caught:
        breakdown(sample_set)

    assert "auto" in caught.value.hint

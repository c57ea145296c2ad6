"""Where a step's energy goes: parts that add up to the whole, and what is within reach."""

import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Bools
from underclock.core.step.breakdown import bound_of, breakdown, settle_auto
from underclock.core.step.table import CostTable, cost_table
from underclock.errors import DataError
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Launch,
    Mix,
    Pass,
    SampleSet,
    ThrottleReason,
    Utilisation,
    Window,
)
from underclock.records.observed import Bound, Breakdown, Follows, Share, StepClock
from windows import having

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
            Window(
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


def profile_of(kernels: list[Kernel], samples: list[Window], **more: object) -> SampleSet:
    made = SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="a GPU"),
        workload="a step",
        kernels=tuple(kernels),
        windows=tuple(samples),
    )
    return having(made, **more)  # type: ignore[arg-type]


def sample(
    kernel: str,
    core_mhz: int | None = None,
    utilisation: Utilisation | None = None,
    *,
    energy_j: float = 1.0,
    throttle_reasons: ThrottleReason | None = None,
) -> Window:
    return Window(
        kernel=kernel,
        time_s=1.0,
        energy_j=energy_j,
        observed=Clocks(core_mhz=core_mhz) if core_mhz else None,
        utilisation=utilisation,
        throttle_reasons=throttle_reasons,
    )


def views(broken_down: Breakdown) -> tuple[tuple[Share, ...], ...]:
    return broken_down.by_pass, broken_down.by_operator, broken_down.by_bound


def names(parts: tuple[Share, ...]) -> list[str]:
    return [part.name for part in parts]


@pytest.mark.slow
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


@pytest.mark.slow
@settings(max_examples=40)
@given(sample_sets())
def test_the_most_energy_comes_first_and_no_name_twice(sample_set: SampleSet) -> None:
    for parts in views(breakdown(sample_set)):
        energies = [part.energy_j for part in parts]
        assert energies == sorted(energies, reverse=True)
        assert len(set(names(parts))) == len(parts)


@pytest.mark.slow
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
    for ours, theirs in zip(views(one), views(other), strict=True):
        assert {part.name: part.launches for part in ours} == {
            part.name: part.launches for part in theirs
        }


@pytest.mark.slow
@settings(max_examples=40)
@given(sample_sets())
def test_what_is_known_and_what_is_undecided_add_up_to_the_step(sample_set: SampleSet) -> None:
    broken_down = breakdown(sample_set)

    known = [
        part for part in broken_down.kernels if part.follows not in {"undecided", "not measured"}
    ]
    assert (broken_down.reachable_j is None) == (not known)
    assert broken_down.undecided_j + sum(part.energy_j for part in known) == pytest.approx(
        broken_down.energy_j
    )
    assert sum(part.energy_j for part in broken_down.kernels) == pytest.approx(broken_down.energy_j)
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


def swept(kernel: str, slower: float, energy_j: float, busy: Utilisation) -> list[Window]:
    """Return a kernel at 1500 and 1800 MHz, and by how much it is slower at the former."""
    not_capped = ThrottleReason.NONE
    fast = sample(kernel, 1800, busy, energy_j=energy_j, throttle_reasons=not_capped)
    asked = Clocks(core_mhz=1500)
    return [fast, msgspec.structs.replace(fast, asked=asked, observed=asked, time_s=slower)]


def test_energy_of_kernels_that_do_not_follow_the_core_clock_is_within_reach() -> None:
    kernels = [Kernel(name=name) for name in ("norm", "copy", "mixed", "gather", "lone")]
    samples = [
        *swept("norm", 1.17, 1.0, DRAM),
        *swept("copy", 1.02, 2.0, DRAM),
        *swept("mixed", 1.08, 4.0, TENSOR),
        sample("gather", 1800, IDLE, energy_j=8.0),
        sample("lone", energy_j=16.0),
    ]

    broken_down = breakdown(profile_of(kernels, samples))

    assert broken_down.reachable_j == 2.0
    assert broken_down.undecided_j == 24.0
    assert names(broken_down.by_bound) == [
        "not measured",
        "latency, by utilisation",
        "shared",
        "not core",
        "core",
    ]
    found = {part.kernel: part for part in broken_down.kernels}
    assert [part.kernel for part in broken_down.kernels] == [
        *("lone", "gather", "mixed", "copy", "norm"),
    ]
    assert found["norm"].bound is Bound.DRAM
    assert found["norm"].follows is Follows.CORE
    assert found["norm"].exponent is not None
    assert found["lone"].exponent is None
    assert found["copy"].in_step_change is None


def test_clocks_too_near_each_other_leave_utilisation_to_tell() -> None:
    fast = sample("a", 1800, DRAM, throttle_reasons=ThrottleReason.NONE)
    near = Clocks(core_mhz=1785)
    slow = msgspec.structs.replace(fast, asked=near, observed=near)

    broken_down = breakdown(profile_of([Kernel(name="a")], [fast, slow]))

    assert names(broken_down.by_bound) == ["dram, by utilisation"]
    assert broken_down.kernels[0].follows is Follows.UNDECIDED
    assert broken_down.reachable_j is None


def test_launches_timed_inside_the_step_split_its_time() -> None:
    kernels = [Kernel(name="product", count=3), Kernel(name="softmax")]
    samples = [sample("product", energy_j=9.0), sample("softmax", energy_j=2.0)]
    whole = Window(
        kernel="",
        mix=Mix(),
        core_mhz=1749.0,
        core_spread_mhz=40.0,
        time_s=3.9,
        energy_j=11.0,
        kernel_s=(0.85, 1.14),
        window_s=5.0,
    )

    broken_down = breakdown(profile_of(kernels, samples, mixed=(whole,)))

    found = {part.kernel: part.in_step_change for part in broken_down.kernels}
    assert found["product"] == pytest.approx(-0.15)
    assert found["softmax"] == pytest.approx(0.14)
    shares = {part.name: part.time_share for part in broken_down.by_operator}
    assert shares["product"] == pytest.approx(3 * 0.85 / (3 * 0.85 + 1.14))
    assert broken_down.time_s == pytest.approx(3.9)
    assert broken_down.step_clock == StepClock(core_mhz=1749.0, spread_mhz=40.0)


def test_what_is_overlapped_others_takes_no_time_and_no_clock_reaches_its_energy() -> None:
    kernels = [Kernel(name="product", count=3), Kernel(name="sum", count=2, waited_for=0.0)]
    samples = [sample("product", energy_j=9.0), sample("sum", energy_j=2.0)]

    broken_down = breakdown(profile_of(kernels, samples))

    shares = {part.name: part for part in broken_down.by_operator}
    assert (broken_down.time_s, shares["sum"].time_s) == (3.0, 0.0)
    assert shares["sum"].energy_j == pytest.approx(4.0)
    assert shares["sum"].launches == 2
    assert broken_down.undecided_j == pytest.approx(27.0, rel=1e-5)
    assert broken_down.warnings[0].startswith("'sum' runs beside other launches: the step waits")


def test_the_capped_share_is_one_of_isolated_time_with_every_launch_counted() -> None:
    kernels = [Kernel(name="a", count=3), Kernel(name="b")]
    samples = [
        sample("a", throttle_reasons=ThrottleReason.SW_POWER_CAP | 1),
        sample("b", throttle_reasons=ThrottleReason.HW_SLOWDOWN),
    ]

    assert breakdown(profile_of(kernels, samples)).capped_share == 0.75


def test_the_whole_step_as_it_ran_is_what_is_broken_down() -> None:
    whole = Window(kernel="a step", time_s=3.0, energy_j=30.0)
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
    locked = Window(kernel="b", asked=Clocks(core_mhz=900), time_s=1.0, energy_j=1.0)
    sample_set = profile_of([Kernel(name="a"), Kernel(name="b")], [sample("a"), locked])

    with pytest.raises(DataError, match="'b' was not measured at auto clocks") as caught:
        breakdown(sample_set)

    assert "auto" in caught.value.hint


LOW = Clocks(core_mhz=600, mem_mhz=5001)
quantities = st.floats(1e-6, 1e3)


def step(time_s: float, energy_j: float) -> Window:
    return Window(kernel="step", time_s=time_s, energy_j=energy_j)


def table_of(*costs: tuple[float, float]) -> CostTable:
    """Return a table of kernels with these times and energies, at a low clock and at auto."""
    both = np.array(costs)
    return CostTable(
        kernels=tuple(Kernel(name=f"k{k}") for k in range(len(costs))),
        settings=(LOW, AUTO),
        time_s=both[:, [0, 0]],
        energy_j=both[:, [1, 1]],
        baseline=1,
    )


@st.composite
def settled(draw: st.DrawFn) -> tuple[CostTable, CostTable, tuple[Window, ...], Bools]:
    """Draw kernels alone and the step, and settle: alone, settled, runs, which were at the cap."""
    costs = draw(st.lists(st.tuples(quantities, quantities), min_size=1, max_size=6))
    alone = table_of(*costs)
    capped = np.array(draw(st.lists(st.booleans(), min_size=len(costs), max_size=len(costs))))
    # A step that took longer than all its kernels is always possible, whichever were at the cap.
    factor = draw(st.floats(1.0, 1.5))
    whole_s, whole_j = factor * alone.auto_time_s, factor * alone.auto_energy_j
    runs = (step(0.99 * whole_s, 0.98 * whole_j), step(1.03 * whole_s, 1.04 * whole_j))
    return alone, settle_auto(alone, runs, capped), runs, capped


@given(settled())
def test_auto_adds_up_to_the_step_as_it_ran(
    drawn: tuple[CostTable, CostTable, tuple[Window, ...], Bools],
) -> None:
    alone, table, runs, _ = drawn

    assert table.auto_time_s == pytest.approx(math.fsum(run.time_s for run in runs) / 2)
    assert table.auto_energy_j == pytest.approx(math.fsum(run.energy_j for run in runs) / 2)
    assert table.closure is not None
    assert table.closure.time * table.auto_time_s == pytest.approx(alone.auto_time_s)
    assert table.closure.energy * table.auto_energy_j == pytest.approx(alone.auto_energy_j)


@given(settled())
def test_only_kernels_at_the_cap_move_and_all_by_one_factor(
    drawn: tuple[CostTable, CostTable, tuple[Window, ...], Bools],
) -> None:
    alone, table, _, capped = drawn
    movable = capped if capped.any() else ~capped

    for after, before in ((table.time_s, alone.time_s), (table.energy_j, alone.energy_j)):
        factor = after[:, 1] / before[:, 1]
        assert factor[movable] == pytest.approx(factor[movable][0])
        assert (factor[~movable] == 1.0).all()
        assert (after[:, 0] == before[:, 0]).all()


@pytest.mark.parametrize(("time_s", "energy_j"), [(3.0, 900.0), (9.0, 300.0)])
def test_a_step_cheaper_than_its_kernels_away_from_the_cap_is_an_error(
    time_s: float, energy_j: float
) -> None:
    alone = table_of((4.0, 400.0), (4.0, 440.0))

    with pytest.raises(DataError, match="less than its kernels did one by one") as caught:
        settle_auto(alone, (step(time_s, energy_j),), np.array([False, True]))

    assert "measure again" in caught.value.hint


def test_where_none_was_at_the_cap_all_move() -> None:
    alone = table_of((1.0, 100.0), (3.0, 100.0))

    table = settle_auto(alone, (step(8.0, 100.0),), np.array([False, False]))

    assert table.time_s[:, 1].tolist() == [2.0, 6.0]

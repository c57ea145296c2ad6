"""What instructions cost, from what their kernels cost: sums, errors, clocks inside, bad steps."""

import dataclasses
import itertools
import math

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from small_jobs import small_job
from underclock.arrays import Ints
from underclock.core.job.stage_profiles import stage_profiles, with_profiles
from underclock.core.model.costs import Costs
from underclock.core.planning.clock_changes import Rules
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_cap import PowerCap, settle
from underclock.core.step.power_capped_step import at_scale_of_auto
from underclock.errors import DataError
from underclock.records import AUTO, Clocks, Closure, Kernel, Pass, Segment
from underclock.records.job import InstructionKind, Job, Profile, ProfileRow
from underclock.records.latencies import LatencyTable

FORWARD, BACKWARD, OPTIMIZER = (
    InstructionKind.FORWARD,
    InstructionKind.BACKWARD,
    InstructionKind.OPTIMIZER,
)
CORES = (900, 1200, 1500, 1800)
PASSES = {"a": Pass.FORWARD, "b": Pass.FORWARD, "c": Pass.BACKWARD, "d": Pass.BACKWARD}
BOUND = {"a": 0.0, "b": 1.0, "c": 0.2, "d": 0.9, "o": 0.3}
"""Share of each kernel's time that follows the core clock."""


def table_of(counts: dict[str, int], passes: dict[str, Pass] | None = None) -> CostTable:
    """Return costs by a formula; auto is what the highest clock is."""
    speed = np.array([*CORES, CORES[-1]]) / CORES[-1]
    each_s = {name: 4e-3 * (BOUND[name] / speed + 1.0 - BOUND[name]) for name in counts}
    time_s = np.array([counts[name] * each_s[name] for name in counts])
    return CostTable(
        kernels=tuple(
            Kernel(name=name, pass_=(passes or PASSES)[name], count=count)
            for name, count in counts.items()
        ),
        settings=(*(Clocks(core_mhz=core) for core in CORES), AUTO),
        time_s=time_s,
        energy_j=time_s * (100.0 + 250.0 * speed**3),
        baseline=len(CORES),
    )


def order_of(table: CostTable) -> list[int]:
    """Launch kernel after kernel, those of a pass in turns of one."""
    order: list[int] = []
    for pass_ in dict.fromkeys(kernel.pass_ for kernel in table.kernels):
        own = [k for k, kernel in enumerate(table.kernels) if kernel.pass_ is pass_]
        turns = itertools.zip_longest(*([k] * table.kernels[k].count for k in own))
        order += [k for turn in turns for k in turn if k is not None]
    return order


def under_cap(table: CostTable, limit_w: float, closure: float = 1.0) -> CostTable:
    """Put a step under a cap; its kernels miss what it takes by a factor."""
    order = np.array(order_of(table))
    cap = PowerCap(limit_w=limit_w, order=order, boost=len(CORES) - 1)
    settled = settle(cap, table.launches, np.full(len(order), cap.boost))
    time_s, energy_j = table.time_s.copy(), table.energy_j.copy()
    for costs, each in ((time_s, settled.time_s), (energy_j, settled.energy_j)):
        costs[:, -1] = np.bincount(order, each) / closure
    missed = Closure(time=closure, energy=closure)
    under = dataclasses.replace(
        table, time_s=time_s, energy_j=energy_j, power_cap=cap, closure=missed
    )
    return at_scale_of_auto(under, missed)


def rules(latency_s: float) -> Rules:
    return Rules(latencies=LatencyTable.constant(latency_s))


def auto(profile: Profile) -> ProfileRow:
    return profile.rows[profile.auto]


def mixed_j(profile: Profile, time_s: float) -> float:
    """Return the least energy of two plain rows, one after the other, in a time; by hand."""
    plain = [(row.time_s, row.energy_j or 0.0) for row in profile.rows if not row.inside]
    least = min((energy for each, energy in plain if each <= time_s), default=math.inf)
    for (fast_s, fast_j), (slow_s, slow_j) in itertools.permutations(plain, 2):
        if fast_s < time_s < slow_s:
            share = (time_s - fast_s) / (slow_s - fast_s)
            least = min(least, fast_j + share * (slow_j - fast_j))
    return least


STEP = {"a": 6, "b": 3, "c": 9, "d": 6}


def test_an_instruction_costs_what_its_launches_do() -> None:
    table = table_of({**STEP, "o": 2}, {**PASSES, "o": Pass.OPTIMIZER})
    profiles, warnings = stage_profiles(table, ())
    assert list(profiles) == [FORWARD, BACKWARD, OPTIMIZER]
    for kind, kernels in ((FORWARD, [0, 1]), (BACKWARD, [2, 3]), (OPTIMIZER, [4])):
        profile = profiles[kind]
        assert [row.clocks for row in profile.rows] == list(table.settings)
        assert [row.time_s for row in profile.rows] == pytest.approx(table.time_s[kernels].sum(0))
        assert [row.energy_j for row in profile.rows] == pytest.approx(
            table.energy_j[kernels].sum(0)
        )
        assert auto(profile).clocks == AUTO
        assert {row.time_error_s for row in profile.rows} == {0.0}
    assert any("measured alone" in each for each in warnings)


def drawn(risk: Costs, kernels: Ints, at: Ints) -> float:
    """Return the deviation of a sum's logarithm against auto's, all logarithms drawn together."""
    random, (k, _, columns) = np.random.default_rng(1), risk.moves[0].shape
    shared = np.arange(columns) < risk.shared
    normal = random.standard_normal((4000, k, columns))
    normal = np.where(shared, normal[:, :1], normal)
    off = np.einsum("kse,dke->dks", risk.moves[0], normal)
    each, auto = risk.table.launches.time_s * np.exp(off), np.full_like(at, risk.table.baseline)
    sums = [each[:, kernels, s].sum(axis=1) for s in (at, auto)]
    return float(np.log(sums[0] / sums[1]).std())


def risk_of(table: CostTable, wider: float = 1.0) -> Costs:
    """Return costs whose errors of energy are as much wider."""
    random = np.random.default_rng(0)
    shared, own = random.normal(0.005, 0.005, (4, 5, 2)), random.normal(0.0, 0.01, (4, 5, 3))
    moves = np.concatenate([shared, own], axis=-1)
    return Costs(table=table, moves=np.stack([moves, wider * moves]), shared=2)


def test_errors_of_kernels_are_those_of_their_sum_drawn_together() -> None:
    table = table_of(STEP)
    order = order_of(table)
    launched = np.array([k for k in order if k in {0, 1}])
    risk = risk_of(table, 2.0)
    found = stage_profiles(table, order, risk, rules(8e-3))[0][FORWARD]
    assert (auto(found).time_error_s, auto(found).energy_error_j) == (0.0, 0.0)
    inside = next(row for row in found.rows if row.inside)
    for row in (found.rows[1], inside):
        lasts = [(each.clocks, each.launches) for each in row.inside]
        clocks = [at for at, count in lasts or [(row.clocks, len(launched))] for _ in range(count)]
        at = np.array([table.settings.index(each) for each in clocks])
        deviation = drawn(risk, launched, at)
        assert row.time_error_s == pytest.approx(deviation * row.time_s, rel=0.05)
    narrow = stage_profiles(table, order, risk_of(table))[0][FORWARD].rows[1]
    assert found.rows[1].energy_error_j == pytest.approx(2.0 * narrow.energy_error_j)


@pytest.mark.parametrize("latency_s", [0.0, 5e-3, 1.0])
@pytest.mark.parametrize("limit_w", [math.inf, 250.0])
def test_clocks_inside_save_more_than_mixing_and_every_stretch_lasts(
    latency_s: float, limit_w: float
) -> None:
    table = table_of(STEP)
    if math.isfinite(limit_w):
        table = under_cap(table, limit_w)
    order = order_of(table)
    profiles, warnings = stage_profiles(table, order, None, rules(latency_s))
    assert any("a bound" in each for each in warnings) == (latency_s == 0.0)
    many = 0
    for kind, own in ((FORWARD, {0, 1}), (BACKWARD, {2, 3})):
        profile = profiles[kind]
        launched = [k for k in order if k in own]
        for row in profile.rows:
            if not row.inside:
                continue
            many += 1
            assert row.energy_j is not None
            assert row.energy_j < 0.999 * mixed_j(profile, row.time_s)
            assert sum(each.launches for each in row.inside) == len(launched)
            at = 0
            for each in row.inside:
                kernels = launched[at : at + each.launches]
                s = table.settings.index(each.clocks)
                assert table.launches.time_s[kernels, s].sum() >= latency_s * (1 - 1e-6)
                at += each.launches
    assert (many > 0) == (latency_s < 1.0)


def test_auto_is_the_step_as_measured_and_the_highest_clock_saves_nothing_against_it() -> None:
    table = under_cap(table_of(STEP), 250.0, closure=0.98)
    found, _ = stage_profiles(table, order_of(table))
    for kind, kernels in ((FORWARD, [0, 1]), (BACKWARD, [2, 3])):
        row, highest = auto(found[kind]), found[kind].rows[-2]
        assert highest.core_mhz == CORES[-1]
        assert row.time_s == pytest.approx(table.time_s[kernels, -1].sum())
        assert (highest.time_s, highest.energy_j) == pytest.approx((row.time_s, row.energy_j))
        # A clock below the ceiling is as fast as its lock, and draws less than the limit.
        lowest = found[kind].rows[0]
        assert lowest.time_s == pytest.approx(table.time_s[kernels, 0].sum())
        assert lowest.energy_j is not None
        assert lowest.energy_j / lowest.time_s < 250.0


@pytest.mark.parametrize("lacking", [Pass.FORWARD, Pass.BACKWARD])
def test_a_step_without_forward_or_backward_is_refused(lacking: Pass) -> None:
    table = table_of(STEP)
    kernels = tuple(
        msgspec.structs.replace(kernel, pass_=Pass.OTHER) if kernel.pass_ is lacking else kernel
        for kernel in table.kernels
    )
    with pytest.raises(DataError, match=f"no {lacking} pass"):
        stage_profiles(dataclasses.replace(table, kernels=kernels), order_of(table))


def test_several_microbatches_in_a_step_are_refused() -> None:
    table = table_of({"a": 4, "c": 4})
    with pytest.raises(DataError, match="4 stretches of forward") as refused:
        stage_profiles(table, [0, 1] * 4)
    assert "one microbatch" in refused.value.hint


def timed(time_s: float) -> Profile:
    return Profile(rows=(ProfileRow(time_s=time_s, energy_j=None),), auto=0)


def costed(time_s: float) -> Profile:
    """Return a profile with a slower clock, and with clocks that change inside."""
    inside = tuple(Segment(launches=1, clocks=Clocks(core_mhz=core)) for core in (900, 1200))
    slow = ProfileRow(
        core_mhz=900,
        time_s=1.5 * time_s,
        energy_j=20.0,
        time_error_s=0.1,
        energy_error_j=2.0,
    )
    return Profile(
        rows=(slow, ProfileRow(time_s=time_s, energy_j=30.0), replace(slow, inside=inside)), auto=1
    )


def traced(**more: Profile) -> Job:
    names = {"forward": timed(1.0), "backward": timed(2.0), **more}
    given = {f"stage {at} {name}": each for at in range(2) for name, each in names.items()}
    return small_job(microbatches=2, given=given)


def stages(forward_s: float = 1.0) -> dict[str, Profile]:
    return {
        f"stage {at} {name}": costed(time_s)
        for at in range(2)
        for name, time_s in (("forward", forward_s), ("backward", 2.0))
    }


def test_at_auto_an_instruction_takes_what_was_traced() -> None:
    job = with_profiles(traced(), stages(forward_s=0.8))
    assert job.has_energy
    slow, auto, inside = job.profiles["stage 1 forward"].rows
    assert (slow.time_s, auto.time_s, inside.time_s) == pytest.approx((1.5, 1.0, 1.5))
    assert slow.energy_j == inside.energy_j == pytest.approx(25.0)
    assert (slow.time_error_s, slow.energy_error_j) == pytest.approx((0.125, 2.5))
    assert inside.inside
    assert job.profiles["stage 0 backward"] == costed(2.0)
    assert [words.split(" takes")[0] for words in job.warnings] == [
        "stage 0 forward",
        "stage 1 forward",
    ]


def test_a_microbatch_of_no_profile_is_refused() -> None:
    profiles = {name: each for name, each in stages().items() if name != "stage 1 backward"}
    with pytest.raises(DataError, match="no profile of 'stage 1 backward', which was traced"):
        with_profiles(traced(), profiles)

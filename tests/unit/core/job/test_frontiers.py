"""What instructions cost, from what their kernels cost: sums, errors, clocks inside, bad steps."""

import dataclasses
import itertools
import math

import msgspec
import numpy as np
import pytest

from underclock.arrays import Ints
from underclock.core.job.stage_profiles import stage_profiles
from underclock.core.model.costs import Costs
from underclock.core.planning.clock_changes import Rules
from underclock.core.step.cost_table import CostTable, Heat
from underclock.core.step.power_cap import PowerCap, settle
from underclock.core.step.power_capped_step import at_scale_of_auto
from underclock.errors import DataError
from underclock.records import AUTO, Clocks, Closure, Kernel, Pass
from underclock.records.job import InstructionKind, Profile, ProfileRow
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


def table_of(
    counts: dict[str, int], passes: dict[str, Pass] | None = None, launch_s: float = 4e-3
) -> CostTable:
    """Return costs by a formula; auto is what the highest clock is."""
    speed = np.array([*CORES, CORES[-1]]) / CORES[-1]
    each_s = {name: launch_s * (BOUND[name] / speed + 1.0 - BOUND[name]) for name in counts}
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
    found = stage_profiles(table, ())
    assert list(found.profiles) == [FORWARD, BACKWARD, OPTIMIZER]
    for kind, kernels in ((FORWARD, [0, 1]), (BACKWARD, [2, 3]), (OPTIMIZER, [4])):
        profile = found.profiles[kind]
        assert [row.clocks for row in profile.rows] == list(table.settings)
        assert [row.time_s for row in profile.rows] == pytest.approx(table.time_s[kernels].sum(0))
        assert [row.energy_j for row in profile.rows] == pytest.approx(
            table.energy_j[kernels].sum(0)
        )
        assert auto(profile).clocks == AUTO
        assert {row.time_error_s for row in profile.rows} == {0.0}
    assert any("measured alone" in each for each in found.warnings)


def test_a_clock_that_a_kernel_lacks_is_no_row_of_its_instruction_only() -> None:
    table = table_of(STEP)
    table.time_s[0, 1] = table.energy_j[0, 1] = math.inf
    found = stage_profiles(table, order_of(table)).profiles
    assert [row.core_mhz for row in found[FORWARD].rows] == [900, 1500, 1800, None]
    assert len(found[BACKWARD].rows) == 5
    assert auto(found[FORWARD]).core_mhz is None


def test_what_belongs_to_no_pass_counts_where_it_runs() -> None:
    passes = {**PASSES, "o": Pass.COMMUNICATION}
    table = table_of({**STEP, "o": 2}, passes)
    order = [k for k in order_of(table) if k != 4]
    found = stage_profiles(table, [4, *order, 4])
    each_s = table.time_s[4, -1] / 2
    assert auto(found.profiles[FORWARD]).time_s == pytest.approx(
        table.time_s[:2, -1].sum() + each_s
    )
    assert auto(found.profiles[BACKWARD]).time_s == pytest.approx(
        table.time_s[2:4, -1].sum() + each_s
    )
    assert any("collectives" in each for each in found.warnings)


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
    found = stage_profiles(table, order, risk, rules(8e-3)).profiles[FORWARD]
    assert (auto(found).time_error_s, auto(found).energy_error_j) == (0.0, 0.0)
    inside = next(row for row in found.rows if row.inside)
    for row in (found.rows[1], inside):
        lasts = [(each.clocks, each.launches) for each in row.inside]
        clocks = [at for at, count in lasts or [(row.clocks, len(launched))] for _ in range(count)]
        at = np.array([table.settings.index(each) for each in clocks])
        deviation = drawn(risk, launched, at)
        assert row.time_error_s == pytest.approx(deviation * row.time_s, rel=0.05)
    narrow = stage_profiles(table, order, risk_of(table)).profiles[FORWARD].rows[1]
    assert found.rows[1].energy_error_j == pytest.approx(2.0 * narrow.energy_error_j)


def test_what_the_cap_holds_is_auto_and_as_sure() -> None:
    table = under_cap(table_of(STEP), 250.0)
    found = stage_profiles(table, order_of(table), risk_of(table)).profiles[BACKWARD]
    assert (found.rows[-2].core_mhz, found.rows[-2].time_error_s) == (CORES[-1], 0.0)
    assert found.rows[0].time_error_s > 0.0


@pytest.mark.parametrize("latency_s", [0.0, 5e-3, 1.0])
@pytest.mark.parametrize("limit_w", [math.inf, 250.0])
def test_clocks_inside_save_more_than_mixing_and_every_stretch_lasts(
    latency_s: float, limit_w: float
) -> None:
    table = table_of(STEP)
    if math.isfinite(limit_w):
        table = under_cap(table, limit_w)
    order = order_of(table)
    found = stage_profiles(table, order, None, rules(latency_s))
    assert any("a bound" in each for each in found.warnings) == (latency_s == 0.0)
    many = 0
    for kind, own in ((FORWARD, {0, 1}), (BACKWARD, {2, 3})):
        profile = found.profiles[kind]
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


def test_clocks_inside_that_save_next_to_nothing_are_left_away() -> None:
    alike = table_of({"a": 6, "b": 3, "c": 3})
    slower = np.array([1800 / core for core in (*CORES, CORES[-1])])
    for k, off in enumerate((1.0, 1.002)):
        alike.time_s[k] = 6e-3 * (0.5 * off * slower + 0.5)
        alike.energy_j[k] = alike.time_s[k] * (100.0 + 250.0 / slower**3)
    found = stage_profiles(alike, order_of(alike), None, rules(0.0)).profiles[FORWARD]
    assert not any(row.inside for row in found.rows)


def test_where_the_fastest_clock_is_the_cheapest_too_it_is_all_there_is() -> None:
    table = table_of(STEP)
    table.energy_j[:] = 300.0 * table.time_s
    found = stage_profiles(table, order_of(table), None, rules(0.0)).profiles[BACKWARD]
    assert not any(row.inside for row in found.rows)


def test_what_runs_inside_costs_the_sum_of_its_stretches() -> None:
    table = table_of(STEP)
    order = order_of(table)
    found = stage_profiles(table, order, None, rules(8e-3)).profiles[BACKWARD]
    launched = [k for k in order if k in {2, 3}]
    for row in (row for row in found.rows if row.inside):
        clocks = [each.clocks for each in row.inside for _ in range(each.launches)]
        at = launched, [table.settings.index(each) for each in clocks]
        assert row.time_s == pytest.approx(table.launches.time_s[at].sum())
        assert row.energy_j == pytest.approx(table.launches.energy_j[at].sum())


def test_auto_is_the_step_as_measured_and_the_highest_clock_saves_nothing_against_it() -> None:
    table = under_cap(table_of(STEP), 250.0, closure=0.98)
    found = stage_profiles(table, order_of(table)).profiles
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


def test_a_long_instruction_is_capped_by_itself() -> None:
    table = table_of(STEP, launch_s=0.5)
    table.energy_j[:2] *= 0.5  # a forward that draws half, seconds long
    capped = under_cap(table, 250.0)
    found = stage_profiles(capped, order_of(capped)).profiles
    assert auto(found[FORWARD]).time_s == pytest.approx(table.time_s[:2, -2].sum(), rel=1e-3)
    assert auto(found[BACKWARD]).time_s > 1.02 * table.time_s[2:, -2].sum()


def test_a_step_that_draws_less_is_cooler_inside_too() -> None:
    table = under_cap(table_of(STEP), 400.0)
    heat = Heat(c_per_w=0.1, w_per_c=np.full(len(table.settings), 0.5))
    warm = dataclasses.replace(table, heat=heat)
    order = order_of(table)
    cold = stage_profiles(table, order, None, rules(0.0)).profiles[FORWARD]
    found = stage_profiles(warm, order, None, rules(0.0)).profiles[FORWARD]
    assert (found.rows[0].energy_j or 0.0) < (cold.rows[0].energy_j or 0.0)
    assert auto(found).energy_j == auto(cold).energy_j
    by_clocks = {row.inside: row.energy_j or 0.0 for row in cold.rows if row.inside}
    both = [row for row in found.rows if row.inside in by_clocks]
    assert both
    assert all((row.energy_j or 0.0) < by_clocks[row.inside] for row in both)


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


def test_clocks_inside_need_the_order_of_launches() -> None:
    with pytest.raises(DataError, match="the order in which"):
        stage_profiles(table_of(STEP), (), None, rules(6e-3))

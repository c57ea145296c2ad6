"""A table of runs is a sample of the GPU: what is expected of it, and how surely."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from noisy_tables import CORES, noisy_samples, run_table, true_costs
from score import as_measured
from underclock.arrays import Floats
from underclock.core.model.costs import Costs
from underclock.core.model.estimate import estimate
from underclock.records import AUTO, Clocks, SampleSet


def inferred_costs(sample_set: SampleSet) -> Costs:
    return estimate(sample_set).costs


def _energy_errors(table: Costs) -> Floats:
    truth = [2 * true_costs(c.core_mhz or 1950)[1] for c in table.table.settings]
    errors: Floats = np.log(table.table.energy_j / np.array(truth))
    return errors


def test_rows_are_drawn_towards_their_neighbours_and_know_their_errors() -> None:
    samples = [s for k in range(4) for s in noisy_samples(f"k{k}", 0.03, k)]
    smooth = inferred_costs(run_table(samples))
    plain = as_measured(run_table(samples))
    locked = [c.core_mhz is not None for c in smooth.table.settings]

    off, before = _energy_errors(smooth)[:, locked], _energy_errors(plain)[:, locked]
    assert np.std(off) < 0.9 * np.std(before)
    z = off / np.sqrt(smooth.variance(0.0, 1.0)[:, locked])
    # Energies of kernels are taken to be off together 1.3 times as much as rows say one by one.
    assert 0.5 < 1.3 * np.sqrt(np.mean(z**2)) < 1.6


@pytest.mark.untraced
def test_the_least_of_many_noisy_rows_is_not_believed() -> None:
    """The winner's curse, over several tables."""

    def curse(make: Callable[[SampleSet], Costs]) -> float:
        errors = []
        for seed in range(8):
            made = make(run_table(noisy_samples("a", 0.04, seed)))
            column = int(made.table.energy_j[0, :-1].argmin())
            errors.append(float(_energy_errors(made)[0, column]))
        return abs(float(np.mean(errors)))

    assert curse(inferred_costs) < 0.6 * curse(as_measured)


def test_the_order_of_kernels_changes_nothing() -> None:
    """Sizes are learned from some of many kernels: the same ones, however they are listed."""
    blocks = [
        [s for s in noisy_samples(f"k{k}", 0.05 if k % 3 else 0.005, k) if s.repeat == 0][::3]
        for k in range(70)
    ]
    others = [blocks[int(k)] for k in np.random.default_rng(1).permutation(len(blocks))]
    made, again = (
        inferred_costs(run_table([s for b in some for s in b])) for some in (blocks, others)
    )

    names = [kernel.name for kernel in again.table.kernels]
    rows = [names.index(kernel.name) for kernel in made.table.kernels]
    assert made.table.settings == again.table.settings
    # But for draws, whose scatter lifts the mean of what is lognormal.
    assert again.table.energy_j[rows] == pytest.approx(made.table.energy_j, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [1, 3])
def test_a_steep_rise_that_all_runs_attest_is_believed(kernels: int) -> None:
    """Energy that rises by half at the highest clocks: nothing below says so but its own runs."""
    steep = {1800: 1.25, 1900: 1.5}
    samples = [
        msgspec.structs.replace(s, energy_j=steep.get(s.asked.core_mhz or 0, 1.0) * s.energy_j)
        for k in range(kernels)
        for s in noisy_samples(f"k{k}", 0.002, k)
    ]
    sample_set = run_table(samples)
    measured = as_measured(sample_set).table
    expected = inferred_costs(sample_set).table
    for core in steep:
        ours, theirs = (
            table.energy_j[:, table.settings.index(Clocks(core_mhz=core))]
            for table in (expected, measured)
        )
        assert ours == pytest.approx(theirs, rel=0.01)


def _one_run(**more: object) -> SampleSet:
    samples = [s for k in range(6) for s in noisy_samples(f"k{k}", 0.003, k, repeats=1)]
    return run_table(samples, **more)


def test_a_disturbed_row_of_one_run_moves_nothing() -> None:
    sample_set = _one_run(sampled=True)
    at = next(i for i, s in enumerate(sample_set.samples) if s.asked.core_mhz == CORES[6])
    samples = list(sample_set.samples)
    samples[at] = msgspec.structs.replace(
        samples[at], time_s=1.8 * samples[at].time_s, energy_j=1.8 * samples[at].energy_j
    )
    calm, odd = (
        inferred_costs(run_table(each, sampled=True))
        for each in (list(sample_set.samples), samples)
    )

    assert np.abs(np.log(odd.table.time_s / calm.table.time_s)).max() < 0.02


def test_intervals_hold_what_was_not_looked_at() -> None:
    random, inside = np.random.default_rng(5), []
    for seed in range(0, 40, 10):
        every = [s for k in range(6) for s in noisy_samples(f"k{k}", 0.003, seed + k, repeats=1)]
        settings = tuple(dict.fromkeys(s.asked for s in every))
        kept = [s for s in every if s.asked == AUTO or random.random() < 0.5]
        costs = inferred_costs(run_table(kept, sampled=True, settings=settings))
        true_s = np.array([2.0 * true_costs(c.core_mhz or 1950)[0] for c in costs.table.settings])
        seen = {(s.kernel, s.asked) for s in kept}
        unseen = [[(f"k{k}", c) not in seen for c in costs.table.settings] for k in range(6)]
        off = np.abs(np.log(costs.table.time_s / true_s)) / np.sqrt(costs.variance(1.0, 0.0))
        inside += (off[np.array(unseen)] < 1.96).tolist()

    assert len(inside) > 100
    assert np.mean(inside) > 0.9


def test_a_fit_of_fewer_samples_serves_until_there_are_some_more() -> None:
    every = _one_run(sampled=True)
    few = [s for s in every.samples if s.asked == AUTO or (s.asked.core_mhz or 0) > CORES[8]]
    one_more = [s for s in every.samples if s in few or s.asked.core_mhz == CORES[8]][
        : len(few) + 1
    ]
    first = estimate(run_table(few, sampled=True, settings=every.settings))
    again = estimate(run_table(one_more, sampled=True, settings=every.settings), before=first)
    more = estimate(every, before=again)

    assert again.fit is first.fit
    assert again.sizes == first.sizes
    assert more.fit is not first.fit
    assert more.fit.weights.shape[1] == len(every.samples)
    assert more.holds_alone.all()


def test_a_kernel_that_repeats_badly_is_unsure_and_others_are_not() -> None:
    """Most kernels repeat to 0.03 %, one scatters, one runs in one of two ways."""
    calm = [s for k in range(4) for s in noisy_samples(f"k{k}", 0.0003, k)]
    two_ways = [
        msgspec.structs.replace(s, time_s=s.time_s * (0.98, 1.02)[n % 2])
        for n, s in enumerate(noisy_samples("bimodal", 0.0003, 8))
    ]
    found = estimate(run_table([*calm, *noisy_samples("noisy", 0.015, 9), *two_ways]))
    spread = np.sqrt(found.costs.variance(1.0, 0.0)).mean(axis=1)
    noise = found.posterior.noise[0]
    noisy, bimodal = 4, 5

    assert noise[noisy] == pytest.approx(0.015, rel=0.4)
    assert noise[bimodal] == pytest.approx(0.02, rel=0.4)
    assert noise[:4].max() < 0.001
    assert spread[:4].max() < 0.3 * min(spread[noisy], spread[bimodal])


def test_a_row_that_no_clock_can_give_is_not_planned() -> None:
    """One row x 0.72 of a kernel that was looked at twice promised a plan 70 % less."""
    samples = [s for k in range(4) for s in noisy_samples(f"k{k}", 0.002, k, repeats=1)]
    two = [s for s in samples if s.kernel != "k0" or s.asked in (AUTO, Clocks(core_mhz=700))]
    odd = [
        msgspec.structs.replace(s, time_s=0.72 * s.time_s, energy_j=0.72 * s.energy_j)
        if (s.kernel, s.asked.core_mhz) == ("k0", 700)
        else s
        for s in two
    ]
    settings = tuple(dict.fromkeys(s.asked for s in samples))
    table = estimate(run_table(odd, sampled=True, settings=settings)).costs.table
    column = table.settings.index(Clocks(core_mhz=700))

    assert table.time_s[0, column] > 0.93 * table.time_s[0, -1]


@pytest.mark.parametrize("mem_mhz", [None, 5000])
def test_one_kernel_at_one_lock_is_enough_for_costs_everywhere(mem_mhz: int | None) -> None:
    samples = [s for s in noisy_samples("a", 0.01, 0, repeats=1) if s.asked.core_mhz in {None, 900}]
    settings = (Clocks(core_mhz=900, mem_mhz=mem_mhz), Clocks(core_mhz=1500, mem_mhz=mem_mhz), AUTO)
    samples = [
        msgspec.structs.replace(s, asked=AUTO if s.asked.is_auto else settings[0]) for s in samples
    ]
    found = estimate(run_table(samples, settings=settings))
    change, other = (found.costs.predicted_change(np.array([at])) for at in (0, 1))

    assert found.costs.table.settings == settings
    assert np.isfinite(found.costs.table.time_s).all()
    assert np.isfinite(found.costs.moves).all()
    assert 0.0 < change.time_change < 1.0
    assert 0.0 < change.energy_spread < other.energy_spread < 1.0


def test_kernels_that_a_step_does_not_wait_for_cost_the_same_at_all_clocks() -> None:
    sample_set = run_table([s for k in "ab" for s in noisy_samples(k, 0.01, ord(k))])
    kernels = (
        sample_set.kernels[0],
        msgspec.structs.replace(sample_set.kernels[1], waited_for=0.0),
    )
    costs = inferred_costs(msgspec.structs.replace(sample_set, kernels=kernels))

    assert np.ptp(costs.table.energy_j[1]) == 0.0
    assert (costs.moves[:, 1] == costs.moves[:, 1, -1:]).all()
    still = costs.predicted_change(np.array([costs.table.baseline, 2]))
    assert (still.time_change, still.energy_change) == pytest.approx((0.0, 0.0))
    assert still.energy_spread == pytest.approx(0.0, abs=1e-12)

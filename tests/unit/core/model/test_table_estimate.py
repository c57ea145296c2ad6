"""A table of runs is a sample of the GPU: what is expected of it, and how surely."""

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisy_tables import CORES, noisy_samples, run_table, true_costs
from score import as_measured, run_variances
from underclock.arrays import Floats
from underclock.core.model.costs import Costs
from underclock.core.model.estimate import estimate
from underclock.core.model.sample_sets import odd_repeats, odd_rows, sample_weights
from underclock.records import AUTO, Clocks, Evidence, GpuInfo, Kernel, SampleSet, Step, Window


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
    # Energies of kernels are taken to be off together 1.7 times as much as rows say one by one.
    assert 0.5 < 1.7 * np.sqrt(np.mean(z**2)) < 1.6


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


def _with_row(cores: set[int], off: float, repeats: int) -> SampleSet:
    """Return few rows of four kernels, one kernel's at some core clocks off by a factor."""
    return run_table(
        [
            msgspec.structs.replace(s, time_s=off * s.time_s, energy_j=off * s.energy_j)
            if s.kernel == "k0" and s.asked.core_mhz in cores
            else s
            for k in range(4)
            for s in noisy_samples(f"k{k}", 0.002, k, repeats=repeats)
        ],
        sampled=True,
    )


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_row_that_repeats_attest_is_believed_and_a_single_odd_one_is_not(repeats: int) -> None:
    core = CORES[len(CORES) // 2]
    costs, true = (inferred_costs(_with_row({core}, off, repeats)) for off in (1.3, 1.0))
    at = costs.table.settings.index(Clocks(core_mhz=core))
    ratio = costs.table.time_s[0, at] / true.table.time_s[0, at]
    assert ratio == pytest.approx(1.3 if repeats > 1 else 1.0, rel=0.03)


@pytest.mark.parametrize(("repeats", "believed"), [(1, False), (2, True)])
def test_a_single_run_that_is_faster_than_physics_allows_is_not_planned(
    repeats: int, *, believed: bool
) -> None:
    costs = inferred_costs(_with_row({CORES[-1]}, 0.72, repeats))
    at = costs.table.settings.index(Clocks(core_mhz=CORES[-1]))
    assert np.isfinite(costs.table.time_s[:, at]).tolist() == [believed, True, True, True]
    assert any("faster than any clock" in words for words in costs.table.warnings) is not believed
    # Where most rows are so fast, it is auto that ran slow.
    every = inferred_costs(_with_row(set(CORES), 0.72, repeats))
    assert np.isfinite(every.table.time_s).all()


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


_CORES = (*range(600, 1500, 150), 1900)
MEMS = (5001, 9251)


def table(odd: tuple[str, int, int] | None = None, factor: float = 1.0, seed: int = 0) -> SampleSet:
    """Return a smooth table of three kernels, one row of it wrong."""
    random = np.random.default_rng(seed)
    samples = []
    for name, bound in (("core", 1.0), ("memory", 0.1), ("both", 0.5)):
        for mem_mhz in MEMS:
            for core_mhz in _CORES:
                time_s = bound * 1000 / core_mhz + (1 - bound) * 5000 / mem_mhz
                power_w = 50 + 100 * (core_mhz / 1500) ** 2.5 + mem_mhz / 500
                wrong = factor if odd == (name, mem_mhz, core_mhz) else 1.0
                samples.append(
                    Window(
                        kernel=name,
                        asked=Clocks(core_mhz=core_mhz, mem_mhz=mem_mhz),
                        time_s=time_s * float(np.exp(0.005 * random.standard_normal())),
                        energy_j=time_s * power_w * wrong,
                    )
                )
        fastest = samples[-1]
        samples.append(msgspec.structs.replace(fastest, asked=AUTO))
    names = dict.fromkeys(sample.kernel for sample in samples)
    return SampleSet(
        evidence=Evidence.REPLAYED,
        gpu=GpuInfo(name="G"),
        step=Step(name="t.csv", kernels=tuple(Kernel(name=name) for name in names)),
        windows=tuple(samples),
        expected_samples=len(samples),
        settings=tuple(dict.fromkeys(sample.asked for sample in samples)),
    )


def test_odd_repeats_are_told_and_weighed() -> None:
    samples = noisy_samples("a", 0.005, 0)
    set_ = run_table(samples)
    assert odd_repeats(set_) == ()
    assert (sample_weights(set_) == 1.0).all()
    place = 7
    odd = samples[place]
    samples[place] = msgspec.structs.replace(odd, energy_j=2.0 * odd.energy_j)

    (sentence,) = odd_repeats(run_table(samples))
    assert "1 of 45 repeats is odd, most of all 'a'" in sentence
    assert str(odd.asked) in sentence
    assert "% energy" in sentence
    assert np.flatnonzero(sample_weights(run_table(samples))[1] < 1.0).tolist() == [place]
    off = run_variances(run_table(samples))[1]
    assert np.median(off) < 0.01**2  # that of an ordinary run is as runs usually scatter
    assert math.sqrt(off[place]) == pytest.approx(math.log(2.0), rel=0.05)

    samples[place + 1] = msgspec.structs.replace(
        samples[place + 1], time_s=0.1 * samples[place + 1].time_s
    )
    samples[20] = msgspec.structs.replace(samples[20], time_s=2.0 * samples[20].time_s)
    assert "repeats are odd" in odd_repeats(run_table(samples))[0]


@given(
    st.sampled_from(["core", "memory", "both"]),
    st.sampled_from(MEMS),
    st.sampled_from(_CORES),
    st.sampled_from([0.01, 0.1, 20.0, 1000.0]),
    st.integers(0, 20),
)
def test_one_wrong_row_is_named_and_no_other(
    kernel: str, mem_mhz: int, core_mhz: int, factor: float, seed: int
) -> None:
    (said,) = odd_rows(table((kernel, mem_mhz, core_mhz), factor, seed))

    assert said.startswith("1 row is far off")
    assert f"{kernel!r} at core {core_mhz} MHz, memory {mem_mhz} MHz: energy is" in said


@given(st.integers(0, 100))
def test_rows_that_follow_each_other_are_not_doubted(seed: int) -> None:
    assert odd_rows(table(seed=seed)) == ()


def test_a_disturbed_row_of_one_run_moves_nothing() -> None:
    samples = [s for k in range(6) for s in noisy_samples(f"k{k}", 0.003, k, repeats=1)]
    sample_set = run_table(samples, sampled=True)
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

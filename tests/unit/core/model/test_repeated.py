"""A table with repeats is a sample of the GPU: what is expected of it, and how surely."""

import itertools
import math

import msgspec
import numpy as np
import pytest

from noisy_tables import CORES, noisy_samples, run_table, stepped_samples, true_costs
from underclock.arrays import Floats
from underclock.core.inference.table import as_measured
from underclock.core.model.estimate import estimate
from underclock.core.model.row_runs import odd_repeats, run_variances, sample_weights
from underclock.core.model.smoothing import bends, likeliest, smoothed
from underclock.core.statistics.repeats import Runs
from underclock.records import AUTO


def test_a_kernel_dear_at_auto_by_luck_is_drawn_to_what_the_fit_says() -> None:
    """One run of each row, as in a campaign: no repeat tells how runs scatter."""
    dear = 1.03
    samples = [
        msgspec.structs.replace(
            s,
            energy_j=s.energy_j * (dear if s.kernel == "k0" and s.asked == AUTO else 1.0),
        )
        for k in range(6)
        for s in noisy_samples(f"k{k}", 0.01, k, repeats=1)
    ]
    sample_set = run_table(samples, sampled=True)
    baseline = estimate(sample_set, isolated=True).baseline
    measured = {s.kernel: 2.0 * s.energy_j for s in samples if s.asked == AUTO}
    truth = 2.0 * true_costs(1950)[1]

    assert baseline.energy_j.sum() == pytest.approx(sum(measured.values()))
    assert abs(baseline.energy_j[0] / truth - 1.0) < 0.6 * abs(measured["k0"] / truth - 1.0)
    assert (baseline.of_kernels > 0).all()
    # Six kernels alike, each off by one run's scatter; how much that is, is not surely known.
    assert 0.01 / math.sqrt(6) < baseline.spread[1] < 0.03


def test_a_campaign_of_one_run_each_knows_locks_where_a_table_has_no_auto() -> None:
    samples = [
        s for k in range(3) for s in noisy_samples(f"k{k}", 0.01, k, repeats=1) if s.asked != AUTO
    ]
    baseline = estimate(run_table(samples, sampled=True), isolated=True).baseline

    assert 0.0 < baseline.spread[1] < 0.05


def test_many_rows_are_smoothed_too() -> None:
    rows = 150
    log_mhz = np.log(np.linspace(500, 2000, rows))
    noise = 0.01 * np.random.default_rng(0).standard_normal(rows)
    runs = Runs(
        log=-log_mhz + noise,
        row=np.arange(rows),
        kernel=np.zeros(rows, dtype=np.int64),
        log_mhz=log_mhz,
    )
    made = smoothed(runs, np.repeat([5001.0, 9501.0], rows // 2), np.full(rows, 0.01))

    assert np.std(made.mean + log_mhz) < 0.005


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


def test_nothing_repeated_is_nothing_odd() -> None:
    set_ = run_table(noisy_samples("a", 0.3, 0, repeats=1))

    assert odd_repeats(set_) == ()
    assert (sample_weights(set_) == 1.0).all()
    assert set_.is_exact
    assert not msgspec.structs.replace(set_, sampled=True).is_exact
    assert not run_table(noisy_samples("a", 0.3, 0)).is_exact


@pytest.mark.parametrize("seed", [0, 126, 162])  # weights of all but the first do not settle
def test_rows_run_once_with_heavy_tails_are_smoothed(seed: int) -> None:
    log_mhz = np.log(np.linspace(500, 2000, 14))
    runs = Runs(
        log=-log_mhz + 0.01 * np.random.default_rng(seed).standard_t(1.2, 14),
        row=np.arange(14),
        kernel=np.zeros(14, dtype=np.int64),
        log_mhz=log_mhz,
    )
    made = smoothed(runs, np.ones(14), np.full(14, 0.01))

    assert np.median(np.abs(made.mean + log_mhz)) < 0.02
    assert (made.variance > 0).all()


@pytest.mark.parametrize(
    ("kernels", "cores"), [(4, CORES), (2, tuple(range(500, 1900, 20)))], ids=["few", "many"]
)
def test_a_fit_believes_what_all_runs_of_a_row_say(kernels: int, cores: tuple[int, ...]) -> None:
    """Physics and the rows beside it say otherwise; there may be more rows than a fit takes."""
    samples = stepped_samples(kernels, cores, repeats=3)
    fitted = estimate(run_table(samples), isolated=True)
    measured = as_measured(run_table(samples)).table
    columns = [measured.settings.index(clocks) for clocks in fitted.table.settings[:-1]]

    for ours, theirs in (
        (fitted.table.time_s, measured.time_s),
        (fitted.table.energy_j, measured.energy_j),
    ):
        off = np.log(ours[:, :-1] / theirs[:, columns])
        assert np.sqrt(np.mean(off**2)) < 0.01
    assert len(fitted.rows.kernel) == kernels * len(cores)
    assert fitted.rows.of_first(1).run_variance is not None


def _likeliest_one_by_one(
    bend: Floats, line: Floats, noise2: Floats, means: Floats, counted: Floats
) -> tuple[float, float]:
    """Do what `likeliest` does by its definition: a factor and a solution for each pair."""
    order = np.argsort(counted < 1.5, kind="stable")
    most = np.where(counted[order] < 1.5, 16.0, np.inf)
    best: list[tuple[float, float, float]] = []
    for bends_by, own in itertools.product(
        (0.003, 0.01, 0.03, 0.1, 0.3), (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
    ):
        whole = line + bends_by**2 * bend + np.diag(noise2) + own**2 * np.eye(len(means))
        factor = np.linalg.cholesky(whole[np.ix_(order, order)])
        white = np.linalg.solve(factor, means[order])
        misfit = float(np.minimum(white**2, most).sum())
        best.append((-0.5 * misfit - float(np.log(np.diag(factor)).sum()), bends_by, own))
    return max(best)[1:]


def test_the_likeliest_sizes_are_those_of_the_definition() -> None:
    random = np.random.default_rng(4)
    found = set()
    for scale in np.geomspace(1e-3, 3.0, 25).tolist():
        rows = int(random.integers(2, 30))
        core_mhz, mem_mhz = random.uniform(200, 2000, rows), np.full(rows, 5001.0)
        bend = bends(core_mhz, mem_mhz, core_mhz, mem_mhz)
        line = np.full((rows, rows), 4.0)
        noise2, counted = random.uniform(1e-6, 1e-4, rows), random.uniform(1.0, 3.0, rows)
        means = scale * random.standard_normal(rows)
        sizes = likeliest(bend, line, noise2, means, np.ones(rows), counted)
        assert sizes == _likeliest_one_by_one(bend, line, noise2, means, counted)
        found.add(sizes)
    assert len(found) > 3

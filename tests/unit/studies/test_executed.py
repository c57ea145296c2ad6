"""A job learned from executed plans: truth is recovered, intervals hold, bad rows are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executed_runs import LINKS, MICROBATCHES, STAGES, WAITING_W, Truth, random_plans
from job_costs import job_cost
from learned_jobs.executed import FittedJob, job_of_executed
from learned_jobs.runs import PASSES, ExecutedRuns, MicrobatchRun, RankRun
from perseus import halves, read
from underclock.errors import DataError
from underclock.records import GpuInfo
from underclock.records.job import Held, Instruction


def fitted(truth: Truth | None = None, seed: int = 0) -> FittedJob:
    return job_of_executed((truth or Truth()).runs(random_plans(9, seed), seed))


def test_plans_are_predicted_from_clocks_alone() -> None:
    asked = Truth().runs(random_plans(12, 7), 8)
    found = fitted().predict(asked.clocks_mhz)
    assert np.abs(found.time_s / asked.iteration_s - 1.0).mean() < 0.002
    assert np.abs(found.energy_j / asked.total_j - 1.0).mean() < 0.003
    assert (found.time_low_s < found.time_s).all()


def test_a_loaded_microbatch_and_the_slow_boundary_are_told() -> None:
    found = fitted()
    assert found.links[0].slow == 1
    assert found.links[0].slower_s == pytest.approx(LINKS.slower_s, rel=0.3)
    job = found.job
    first = job.profiles["stage 0 forward of microbatch 0"].rows[-1]
    usual = job.profiles["stage 0 forward"].rows[-1]
    assert first.time_s / usual.time_s == pytest.approx(1.02, abs=0.004)
    waiting = [rank.waiting[-1].power_w for rank in job.ranks]
    assert waiting == pytest.approx([WAITING_W] * STAGES, rel=0.15)


def test_power_rises_with_the_clock_and_is_near_the_truth() -> None:
    job = fitted().job
    for stage in range(STAGES):
        rows = job.profiles[f"stage {stage} backward"].rows
        power = np.array([row.energy_j / row.time_s for row in rows if row.energy_j is not None])
        assert (np.diff(power) > -1e-9).all()
        mhz = np.array([[[row.core_mhz for row in rows]]]).repeat(STAGES, 0)
        assert power == pytest.approx(Truth().power_w(mhz)[stage, 0], rel=0.04)


@pytest.mark.slow
def test_intervals_hold_what_comes_and_are_narrow() -> None:
    time, energy, widths = [], [], []
    for seed in range(8):
        asked = Truth().runs(random_plans(9, 100 + seed), 200 + seed)
        found = fitted(seed=seed).predict(asked.clocks_mhz)
        time.append(
            (found.time_low_s <= asked.iteration_s) & (asked.iteration_s <= found.time_high_s)
        )
        energy.append(
            (found.energy_low_j <= asked.total_j) & (asked.total_j <= found.energy_high_j)
        )
        widths.append((found.time_high_s - found.time_low_s) / found.time_s)
    assert np.mean(time) > 0.92
    assert np.mean(energy) > 0.92
    assert np.median(widths) < 0.02


@pytest.mark.untraced
@pytest.mark.parametrize("data", [1, 2])
def test_the_job_takes_what_is_predicted(data: int) -> None:
    truth = Truth(data=data, links=replace(LINKS, reduce_s=0.3 if data > 1 else 0.0))
    found = fitted(truth)
    clocks = random_plans(4, 3)[3:]
    job = found.job

    def held(each: Instruction, stage: int) -> Held | None:
        if each.profile is None or each.microbatch is None:
            return None
        mhz = clocks[0, stage, PASSES.index(each.kind), each.microbatch]
        return Held([row.core_mhz for row in job.profiles[each.profile].rows].index(int(mhz)))

    cost = job_cost(
        job, tuple(tuple(held(i, rank.stage) for i in rank.instructions) for rank in job.ranks)
    )
    expected = found.predict(clocks)
    assert len(job.ranks) == STAGES * data
    assert cost.time_s == pytest.approx(expected.time_s[0], rel=1e-3)  # its boundary may be slower
    assert cost.energy_j == pytest.approx(expected.energy_j[0], rel=1e-2)


def test_slack_that_no_plan_spent_is_in_the_interval() -> None:
    """The second boundary has slack in every plan: the last stage is always much faster."""
    truth = Truth(links=replace(LINKS, slower_s=0.0))
    clocks = random_plans(9, 0)
    clocks[:, :2, :, :-1] = 900
    clocks[:, 2] = np.maximum(clocks[:, 2], 1350)
    blind = job_of_executed(truth.runs(clocks, 0, between_nodes=None))
    even = np.full((1, STAGES, 2, MICROBATCHES), 1200)
    even[:, 2] = 950
    found = blind.predict(even)
    taken_s = truth.runs(even, 1).iteration_s
    assert found.slack_s[0] > 0.002
    assert found.time_low_s[0] <= taken_s[0] <= found.time_high_s[0]
    assert blind.predict(clocks).slack_s.max() < 0.0005


def test_a_cold_plan_counts_little() -> None:
    truth = Truth()
    runs = truth.runs(random_plans(9, 0), 0, cold=0)
    cooled = replace(runs, energy_j=np.where(runs.cold[:, None], 0.983, 1.0) * runs.energy_j)
    asked = truth.runs(random_plans(9, 5), 6)
    found = job_of_executed(cooled).predict(asked.clocks_mhz)
    assert np.abs(found.energy_j / asked.total_j - 1.0).mean() < 0.006


def test_two_warm_plans_are_judged_with_the_cold_one() -> None:
    runs = Truth().runs(random_plans(3, 0), 0, cold=0)
    assert job_of_executed(runs).time_spread > 0.0
    only = replace(runs, cold=np.array([True, True, False]))
    assert job_of_executed(only).links


RANKS = [RankRun(plan, stage, 1.0, 100.0) for plan in range(3) for stage in range(2)]
ROWS = [
    MicrobatchRun(plan, stage, kind, microbatch, 1000 + 15 * plan, 0.1)
    for plan in range(3)
    for stage in range(2)
    for kind in PASSES
    for microbatch in range(2)
]


def put_together(ranks: list[RankRun], rows: list[MicrobatchRun]) -> ExecutedRuns:
    return ExecutedRuns.of_rows(ranks, rows, gpu=GpuInfo(name="a GPU"), workload="made up")


def test_rows_become_arrays() -> None:
    runs = put_together([*RANKS, RankRun(2, 1, 3.0, 50.0, load_s=0.4)], ROWS)
    assert runs.iteration_s.tolist() == [1.0, 1.0, 3.0]
    assert runs.energy_j[2].tolist() == [100.0, 75.0]
    assert runs.loads_s[2].tolist() == [0.0, 0.1]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: put_together([], []), "no run"),
        (lambda: put_together(RANKS, ROWS[:16]), "plan 2 of made up has no forward"),
        (lambda: put_together(RANKS, ROWS[:-1]), "no backward of microbatch 1 on stage 1"),
        (lambda: put_together(RANKS[:-1], ROWS), "no rank of stage 1"),
        (
            lambda: put_together(RANKS, [row._replace(time_s=0.0) for row in ROWS]),
            "least of times_s is 0",
        ),
        (lambda: job_of_executed(put_together(RANKS[:2], ROWS)), "1 plan only"),
        (lambda: job_of_executed(put_together(RANKS[:4], ROWS)), "2 plans only"),
        (lambda: fitted().predict(np.full((1, STAGES, 2, 5), 1000)), r"\(3, 2, 5\)"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(DataError, match=says) as refused:
        make()
    assert refused.value.hint


DATA = Path(__file__).parents[5] / "shared" / "data" / "perseus" / "even"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the executed plans are not beside this checkout")
def test_a_real_pipeline_is_predicted_from_half_of_its_plans() -> None:
    [runs] = [
        each
        for each in read(DATA / "plans.csv", "microbatches_{}.csv")
        if (each.gpu.name, each.workload) == ("A100", "t5-3b")
    ]
    warm = halves(runs).warm()
    assert np.abs(warm.time).mean() < 0.004
    assert np.abs(warm.time).max() < 0.01
    assert np.abs(warm.energy).mean() < 0.006
    assert np.abs(warm.energy).max() < 0.02
    assert warm.time_held.mean() > 0.85
    assert warm.energy_held.mean() > 0.85

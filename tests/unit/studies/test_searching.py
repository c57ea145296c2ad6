"""The searches compared in studies/searching.py, on a small table made here."""

from pathlib import Path

import pytest

import searching_tuner as tuner
from searching import Problem, Take, adaptive, by_chance, coarse, even, shares
from underclock.records import AUTO, Clocks, SampleSet

CORES = range(300, 1501, 150)
MEMS = (405, 810)


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    lines = ["gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w"]
    for name, weight in (("a", 1.0), ("b", 2.0), ("c", 4.0)):
        lines.append(f"Toy,{name},,,{weight},{300 * weight},")
        lines += [
            f"Toy,{name},{core},{mem},{weight * (1500 / core) ** 0.5},{weight * core / 6},"
            for core in CORES
            for mem in MEMS
        ]
    path = tmp_path / "toy.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return Problem(path=path)


@pytest.mark.slow
@pytest.mark.parametrize("take", [adaptive, coarse, even, by_chance])
def test_every_search_takes_the_baseline_once_and_only_rows_there_are(
    problem: Problem, take: Take
) -> None:
    taken = take(problem, 12, 0, 0.0)
    rows = problem.rows_of(taken) if isinstance(taken, SampleSet) else list(taken)

    assert set(problem.baseline_rows) <= set(rows) <= set(problem.samples)
    assert len(set(rows)) == len(rows)
    assert len(problem.take(rows).samples) == len(rows)


@pytest.mark.parametrize("take", [even, by_chance])
def test_as_many_samples_are_taken_as_were_asked_for(problem: Problem, take: type) -> None:
    assert [len(take(problem, n, 1, 0.0)) for n in (3, 4, 12, 57)] == [3, 4, 12, 57]


def test_what_is_left_over_goes_to_the_kernel_of_most_energy(problem: Problem) -> None:
    assert shares(problem, 10) == [2, 2, 3]
    assert shares(problem, 2) == [0, 0, 0]


def test_the_papers_grid_has_every_memory_clock(problem: Problem) -> None:
    taken = {clocks for k, clocks in coarse(problem, 0, 0, 0.0) if k == 0}

    cores = {300, 450, 750, 900, 1200, 1350}
    assert taken == {AUTO, *(Clocks(core_mhz=c, mem_mhz=m) for c in cores for m in MEMS)}


def test_a_plan_on_everything_has_no_regret_and_keeps_the_budget(problem: Problem) -> None:
    cost = problem.executed(problem.rows, 0.0, raw=True)

    assert -cost.energy_change == problem.full_saving(0.0) > 0
    assert cost.time_change <= 0
    assert problem.regret(list(problem.samples), 0.0) == pytest.approx(0.0)


def test_the_baseline_alone_saves_nothing(problem: Problem) -> None:
    assert problem.executed(problem.take(problem.baseline_rows), 0.01, raw=True).energy_change == 0


def test_an_objective_within_time_never_prefers_a_broken_limit_to_auto() -> None:
    auto = (100.0, 1.0)

    assert tuner.objective_of(50.0, 1.2, auto, None) == 50.0
    assert tuner.objective_of(90.0, 1.0, auto, 0.0) == 90.0
    assert tuner.objective_of(50.0, 1.2, auto, 0.01) > 100.0
    assert tuner.objective_of(50.0, 1.3, auto, 0.01) > tuner.objective_of(50.0, 1.2, auto, 0.01)


def test_a_space_leaves_out_a_clock_that_never_changes_and_pairs_not_measured() -> None:
    line = tuner.space_of(tuple(Clocks(core_mhz=core) for core in CORES))
    ragged = tuner.space_of(
        (Clocks(core_mhz=300, mem_mhz=405), Clocks(core_mhz=600, mem_mhz=810), Clocks(mem_mhz=810))
    )

    assert list(line.parameters) == ["core_mhz"]
    assert line.restriction == []
    assert ragged.parameters == {"core_mhz": [300, 600, 601], "mem_mhz": [405, 810]}
    assert len(ragged.restriction) == 1


def test_kernel_tuner_takes_no_more_than_it_may(problem: Problem) -> None:
    pytest.importorskip("kernel_tuner")
    rows = tuner.kernel_tuner("genetic_algorithm", limited=False)(problem, 12, 0, 0.0)

    assert isinstance(rows, list)
    assert rows[:3] == problem.baseline_rows
    assert len(rows) <= 12
    assert set(rows) <= set(problem.samples)

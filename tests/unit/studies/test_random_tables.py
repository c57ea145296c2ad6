"""A handful of random tables, and what is written about them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from random_tables import Judge, judge, line_of
from random_tables_made import MadeTable, made_table
from random_tables_page import write_page
from underclock.records import AUTO, Clocks
from underclock.store import read_table

_SEEDS = (0, 3, 6)


@pytest.fixture(scope="module")
def judged() -> dict[int, Judge]:
    """Do everything to a few small tables."""
    return {seed: judge(seed, most_kernels=3, longest_s=None) for seed in _SEEDS}


@pytest.mark.slow
def test_random_tables_end_without_a_traceback(judged: dict[int, Judge]) -> None:
    assert [failure for each in judged.values() for failure in each.failed] == []
    sources = {plan["source"] for each in judged.values() for plan in each.plans}
    assert sources == {"rows", "fit", "campaign"}


def test_a_promise_without_an_interval_is_what_the_table_says(judged: dict[int, Judge]) -> None:
    exact = [
        (plan["energy"], plan["table_energy"])
        for each in judged.values()
        for plan in each.plans
        if plan["energy_interval"] is None
    ]

    assert exact
    for promised, said in exact:
        assert promised == pytest.approx(said, abs=1e-9)


def test_a_page_is_written_of_what_became_of_tables(
    judged: dict[int, Judge], tmp_path: Path
) -> None:
    broken = dataclasses.replace(
        judged[_SEEDS[0]], failed=["plan of rows: Traceback", "x: no end within 300 s"]
    )
    lines = [line_of(seed, each, 1.0) for seed, each in {**judged, 99: broken}.items()]

    write_page(lines, tmp_path / "page.md")

    page = (tmp_path / "page.md").read_text()
    assert "4 tables" in page
    assert "| tracebacks | 1 |" in page
    assert "| anything without an end (300 s of the processor) | 1 |" in page
    assert "Table 99" in page


@pytest.mark.parametrize("seed", range(12))
def test_a_table_is_of_its_truth(seed: int, tmp_path: Path) -> None:
    made = made_table(seed, most_kernels=4)
    made.write(tmp_path / "t.csv")

    table = read_table(tmp_path / "t.csv")

    assert len(table.samples) == len(made.rows)
    apart = [abs(np.log(s.time_s / made.truth[s.kernel, s.asked][0])) for s in table.samples]
    assert float(np.median(apart)) < 4.0 * made.scatter.time
    _check_physics(made)


def _check_physics(made: MadeTable) -> None:
    """At auto nothing is slower than at lower clocks, but for what a row has of its own."""
    auto = (
        AUTO
        if AUTO in made.pairs
        else max(made.pairs, key=lambda c: (c.mem_mhz or 0, c.core_mhz or 0))
    )
    lowest = min(made.pairs, key=lambda c: (c.core_mhz or 9e9, c.mem_mhz or 0))
    for name in made.counts:
        assert made.truth[name, auto][0] < 1.05 * made.truth[name, lowest][0]


def test_a_change_is_against_the_baseline() -> None:
    made = made_table(1, most_kernels=3)
    base: Clocks = made.pairs[0]

    assert made.changes(dict.fromkeys(made.counts, base), base) == (0.0, 0.0)

"""Files that something damaged: read as they were, or refused with a sentence; never otherwise.

A small, seeded part of what was tried on tens of thousands of files.
"""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from mutated_files import tried
from score import score
from underclock.app.planning import plan
from underclock.app.validating import judged_runs
from underclock.core.planning.best_choice import Goal
from underclock.errors import UnderclockError
from underclock.records import Plan
from underclock.report import plan_tables
from underclock.store import read_document, read_table, write_document

_ROWS = ["gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w,count,pass"] + [
    f"G,{kernel},{core or ''},,{slow * 1800 / (core or 1800):.6g},{slow * (90 + core / 20):.6g},,2,"
    for kernel, slow in (("a", 1.0), ("b/forward", 0.01))
    for core in (0, 600, 900, 1200, 1500)
]
_CELLS = (
    *("0", "-1", "1e-3", "1e6", "1e24", "1e308", "1e-308", "nan", "inf", "auto", "1740000"),
    *("1", "9", "20001", "0,5", "x", "b", "\t", "é"),
)
_VALUES: tuple[object, ...] = (
    *(None, 0, -1, 1e308, 1e30, 2**32 + 1740, 2**64, "", "x", True, 9, -210, 0.5),
    *([], {}, [0], "auto", "kernel_global"),
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(_ROWS) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_changed_files_of_every_kind_are_read_as_they_say_or_refused(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    counts, wrong = tried(1360, seed)

    assert wrong == []
    for outcome in ("accepted", "refused"):
        assert sum(count for (_, became), count in counts.items() if became == outcome) > 136


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_is_used_or_refused(table: Path, tmp_path: Path, seed: int) -> None:
    draw, path = random.Random(seed), tmp_path / "plan.json"  # noqa: S311 - to repeat it
    write_document(path, plan(table, Goal(max_slowdown=0.1)))
    body, refused = path.read_text(), 0
    places = _places(json.loads(body))

    for _ in range(60):
        damaged = json.loads(body)
        place = draw.choice(places)
        part = damaged
        for name in place[:-1]:
            part = part[name]
        part[place[-1]] = draw.choice(_VALUES)
        path.write_text(json.dumps(damaged))
        try:
            found = read_document(path, Plan)
            plan_tables(found)
            score(found, table)
            judged_runs(found, None, dict.fromkeys(("auto", "plan"), np.ones((1, 2))))
        except UnderclockError:
            refused += 1

    assert 0 < refused < 60


@pytest.mark.parametrize("seed", range(3))
def test_a_table_is_planned_on_or_refused(table: Path, seed: int) -> None:
    draw, refused = random.Random(seed), 0  # noqa: S311 - to repeat it

    for _ in range(60):
        rows = list(_ROWS)
        number = draw.randrange(len(rows))
        cells = rows[number].split(",")
        cells[draw.randrange(len(cells))] = draw.choice(_CELLS)
        rows[number] = ",".join(cells)
        table.write_text("\n".join(rows) + "\n")
        try:
            plan(read_table(table), Goal(max_slowdown=0.1), raw=True)
        except UnderclockError:
            refused += 1

    assert 0 < refused < 60


def _places(value: object, above: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return where every value of a document stands."""
    inside: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    deeper = [place for name, each in inside for place in _places(each, (*above, name))]
    return ([above] if above else []) + deeper

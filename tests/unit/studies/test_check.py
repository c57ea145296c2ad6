"""`studies/check.py`: halves of a table's repeats, and what became of promises on them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from check import check, command, halves
from underclock.errors import DataError, InfeasibleError

_CORES = (900, 1100, 1300, 1500, 1700)


def _rows(kernel: str, *, repeats: int = 2, cores: Sequence[int | None] = (None, *_CORES)) -> str:
    random, rows = np.random.default_rng(0), ""
    for core in cores:
        time_s = 1.0 + 500.0 / (core or 1800)
        energy_j = time_s * (50.0 + 90.0 * ((core or 1800) / 1500.0) ** 3)
        for _ in range(repeats):
            off = np.exp(0.002 * random.standard_normal(2))
            rows += f"G,{kernel},{core or ''},,{time_s * off[0]:.6g},{energy_j * off[1]:.6g}\n"
    return rows


def _table(folder: Path, *rows: str) -> Path:
    path = folder / "sweep.csv"
    path.write_text("gpu,kernel,core_mhz,mem_mhz,time_s,energy_j\n" + "".join(rows))
    return path


@pytest.mark.slow
def test_what_can_be_split_is_checked_and_the_rest_is_named(tmp_path: Path) -> None:
    table = _table(tmp_path, _rows("a"), _rows("b"), _rows("once", repeats=1))
    asked = [str(table), "--splits", "3", "--max-slowdown", "5%"]
    printed, again = (
        CliRunner().invoke(command, [*asked, "--json"], catch_exceptions=False) for _ in range(2)
    )
    found = json.loads(printed.output)

    assert printed.output == again.output
    assert (found["kernels"], found["rows"], found["runs"], found["splits"]) == (2, 12, 24, 3)
    assert any("6 of 18 rows have no repeats" in each for each in found["warnings"])
    (promise,) = found["promises"]
    assert promise["max_slowdown"] == 0.05
    assert 0.0 <= promise["energy_coverage"]["value"] <= 1.0
    assert promise["executed_energy"]["value"] > -0.9
    shown = CliRunner().invoke(command, asked, catch_exceptions=False).output
    assert "24 runs of 12 rows of 2 kernels, split 3 times (seed 0)" in shown


def test_what_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no kernel with repeats both at core auto"):
        check(_table(tmp_path, _rows("a", repeats=1)))
    with pytest.raises(InfeasibleError, match=r"changes time by -50.00 % or less"):
        check(_table(tmp_path, _rows("a")), slowdowns=[-0.5], splits=1)


@given(st.lists(st.integers(2, 6), min_size=1, max_size=20), st.integers(0, 1000))
def test_each_half_has_a_run_of_every_row(taken: list[int], seed: int) -> None:
    row = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(taken)), taken))

    first = halves(row, np.random.default_rng(seed))

    mine = np.bincount(row[first], minlength=len(taken))
    assert (np.abs(2 * mine - np.array(taken)) <= 1).all()

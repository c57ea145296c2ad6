"""Studies that check tables and compare policies."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from arms import arm_cost
from check import command
from compare import POLICIES, Rival
from compare import command as compare_command

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


SWEEP = Path(__file__).parents[3] / "docs" / "examples" / "sweep.csv"


def energy_j(rival: Rival, *, achievable: bool = False) -> float:
    choice = rival.achievable if achievable else rival.free
    return (choice and arm_cost(choice.arm).energy_j) or math.inf


def test_as_json_each_has_its_clocks_and_whether_it_keeps_the_budget() -> None:
    asked = [str(SWEEP), "--max-slowdown", "1%"]
    printed = CliRunner().invoke(compare_command, [*asked, "--json"], catch_exceptions=False)
    found = {each["name"]: each for each in json.loads(printed.output)["rivals"]}

    assert found.keys() == POLICIES.keys()
    assert found["kernel_global"]["free"]["keeps_budget"]
    assert len(found["kernel_global"]["free"]["kernels"]) == 4
    assert found["kernel_global"]["achievable"] is None
    assert not found["edp"]["free"]["keeps_budget"]
    assert found["edp"]["free"]["arm"]["name"] == "edp"
    table = CliRunner().invoke(compare_command, asked, catch_exceptions=False).output
    assert "| kernel, global (ours) | -0.94 % | -7.97 % | kept |" in table.replace("\u2212", "-")

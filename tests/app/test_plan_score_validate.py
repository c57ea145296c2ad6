"""From samples to a plan, and what becomes of its promise."""

import json
from pathlib import Path

import msgspec
import pytest

import underclock
from judged_tables import judged
from score import score
from underclock.app.measuring import measure
from underclock.app.planning import costs_of, plan
from underclock.app.report import write_report
from underclock.campaign.grid import Campaign
from underclock.core.model.sample_rows import CannotFitError
from underclock.errors import DataError, InfeasibleError
from underclock.hw.measurer import BRISK
from underclock.records import (
    AUTO,
    Accounting,
    Clocks,
    Evidence,
    SampleSet,
    Strategy,
)
from underclock.workloads import workload
from windows import having

# Two kernels that can lend each other time: b gives 0.1 s, a takes it.
_TABLE = (Path(__file__).parents[1] / "data/tables/two_kernels.csv").read_text()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.csv"
    path.write_text(_TABLE)
    return path


def test_kernels_lend_each_other_time_only_globally(table: Path) -> None:
    made = plan(table)
    local, best = made.arm(Strategy.KERNEL_LOCAL).cost, made.arm(Strategy.KERNEL_GLOBAL).cost

    assert made.evidence is Evidence.REPLAYED
    assert local is not None
    assert best is not None
    assert local.energy_change == 0.0
    assert best.energy_j == 161
    assert best.time_change == pytest.approx(0.0)
    assert made.kernels["a"].clocks == Clocks(core_mhz=900)
    assert made.kernels["b"].clocks == Clocks(core_mhz=1200)
    assert made.fixed == AUTO


def test_the_json_holds_what_the_readme_names(table: Path) -> None:
    body = json.loads(msgspec.json.encode(plan(table)))

    names = "auto best_fixed pass kernel_local kernel_global"
    assert [arm["name"] for arm in body["arms"]] == names.split()
    shared = {"time_change", "energy_change"}
    intervals = {"time_interval", "energy_interval"}
    for arm in body["arms"]:
        assert set(arm) == intervals | {"name", "cost", "status", "gap"}
        assert set(arm["cost"]) == shared | {"time_s", "energy_j"}
    assert body["evidence"] == "replayed"
    at_auto = {"auto_time_s", "auto_energy_j", "auto_core_mhz"}
    assert body["kernels"]["a"].keys() == shared | at_auto | {"clocks"}
    assert body["kernels"]["a"]["clocks"]["mem_mhz"] is None


def test_a_budget_nobody_can_keep_says_what_could_be(table: Path) -> None:
    with pytest.raises(InfeasibleError, match=r"-20\.00 %") as caught:
        plan(table, underclock.Goal(max_slowdown=-0.2))

    assert "-5.00 %" in caught.value.hint


def test_a_score_on_the_plans_own_table_is_its_promise(table: Path) -> None:
    made = plan(table)
    scored = score(made, table)

    assert scored.energy_change == made.promise.energy_change
    assert scored.time_s == made.promise.time_s
    assert [arm.name for arm in scored.arms] == [Strategy.AUTO, Strategy.KERNEL_GLOBAL]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("G,", "H,", "the plan is for G"),
        ("G,a,900", "G,a,930", "no row for 'a' at core 900"),
        ("G,b,", "G,c,", "kernel 'c' that the plan does not know"),
        ("\nG,b,,,1.0,100,100\nG,b,900,,1.3,95,73\nG,b,1200,,0.9,101,112.2", "", "'b', which the"),
    ],
)
def test_a_table_that_cannot_score_a_plan_says_why(
    table: Path, old: str, new: str, sentence: str
) -> None:
    made = plan(table)
    table.write_text(_TABLE.replace("gpu,", "gpU,").replace(old, new).replace("gpU,", "gpu,"))
    with pytest.raises(DataError, match=sentence):
        score(made, table)


def test_a_report_refuses_another_plans_validation(table: Path, tmp_path: Path) -> None:
    made = plan(table)
    other = judged(plan(table, underclock.Goal(max_slowdown=0.5)), table, repeats=1)
    with pytest.raises(DataError, match="another plan"):
        write_report(made, to=tmp_path / "r.html", validation=other)
    assert not (tmp_path / "r.html").exists()


@pytest.fixture(scope="module")
def sample_set(tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    return measure(
        workload("gpt3-125m", {"layers": 1}),
        gpu="sim:rtx3080ti",
        to=tmp_path_factory.mktemp("costing") / "samples.db",
        campaign=Campaign(core_mhz=(1050, 1470, 1680, 1890, None), mem_mhz=(None,)),
        measuring=BRISK,
    )


def test_samples_that_no_model_fits_are_taken_as_certain_unless_a_model_is_asked_for(
    sample_set: SampleSet,
) -> None:
    unread = [
        msgspec.structs.replace(s, observed=None) for s in sample_set.samples if s.asked == AUTO
    ]
    only_auto = having(sample_set, samples=tuple(unread), settings=(AUTO,))
    table, risk = costs_of(only_auto, None, raw=None, isolated=False)

    assert risk is None
    assert table.accounting is Accounting.ISOLATED
    assert "costs are taken as certain, for no model can be fitted" in table.warnings[-1]
    with pytest.raises(CannotFitError):
        costs_of(only_auto, None, raw=False, isolated=False)

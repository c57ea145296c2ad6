"""From samples to a plan, and what becomes of its promise."""

import json
from pathlib import Path

import msgspec
import pytest

import underclock
from judged_tables import judged
from score import score
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.report import write_report
from underclock.campaign.grid import Campaign
from underclock.errors import DataError, InfeasibleError
from underclock.records import (
    AUTO,
    Accounting,
    Clocks,
    Evidence,
    MeasurementSettings,
    Plan,
    SampleSet,
    Strategy,
)
from underclock.report.answer import headline
from underclock.workloads import workload

# Two kernels that can lend each other time: b gives 0.1 s, a takes it.
_TABLE = (Path(__file__).parents[1] / "data/tables/two_kernels.csv").read_text()
_QUICK = MeasurementSettings(kernel_warm_s=1.0, window_s=1.0)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.csv"
    path.write_text(_TABLE)
    return path


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    return measure(
        workload("gpt3-xl", {"layers": 2}),
        gpu="sim:rtx3080ti",
        to=tmp_path_factory.mktemp("sim") / "samples.db",
        campaign=Campaign(
            core_mhz=(1050, 1260, 1470, 1680, 1890, None), mem_mhz=(5001, 9501, None)
        ),
        measuring=_QUICK,
    )


@pytest.fixture(scope="module")
def simulated_plan(simulated: SampleSet) -> Plan:
    return plan(simulated, underclock.Goal(max_slowdown=0.01), latency="free")


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
    costs = shared | {"time_s", "energy_j", "time_interval", "energy_interval"}
    for arm in body["arms"]:
        assert set(arm) == costs | {"name", "status", "gap"}
    assert body["evidence"] == "replayed"
    at_auto = {"auto_time_s", "auto_energy_j", "auto_core_mhz"}
    assert body["kernels"]["a"].keys() == shared | at_auto | {"core_mhz", "mem_mhz"}
    assert body["kernels"]["a"]["mem_mhz"] is None


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


def test_auto_of_a_simulated_step_is_the_step_as_it_ran(
    simulated: SampleSet, simulated_plan: Plan
) -> None:
    made, auto = simulated_plan, simulated_plan.arm(Strategy.AUTO)

    assert made.accounting is Accounting.STEP
    assert made.closure is not None
    assert made.closure.time == pytest.approx(1.0, abs=0.005)
    assert made.closure.energy == pytest.approx(1.0, abs=0.01)
    assert auto.time_s == pytest.approx(simulated.in_situ[0].time_s)
    assert auto.energy_j == pytest.approx(simulated.in_situ[0].energy_j)
    assert made.promise.energy_change < -0.08


def test_a_score_is_as_sure_as_the_table_s_repeats(table: Path) -> None:
    made = plan(table)
    assert "of this table" in headline(made)
    alone = score(made, table).arms[-1]
    assert alone.energy_interval is None

    repeated = score(made, _noisy_table(table, 4)).arms[-1]
    assert repeated.energy_interval is not None
    assert repeated.energy_interval[0] < (repeated.energy_change or 0) < repeated.energy_interval[1]


def _noisy_table(table: Path, rows: int, *, less: float = 0.0) -> Path:
    """Write every row several times, a little different, and saving that much more at 900 MHz."""
    header, *body = _TABLE.splitlines()
    written = [header]
    for row in range(rows):
        for line in body:
            cells = line.split(",")
            for place, size in ((4, 1e-4), (5, 2e-4)):
                cells[place] = str(float(cells[place]) * (1.0 + size * (row * 7 % rows - rows / 2)))
            if cells[2] == "900":
                cells[5] = str(float(cells[5]) * (1.0 - less))
            written.append(",".join(cells))
    table.write_text("\n".join(written) + "\n")
    return table


def test_pairs_keep_the_time_budget_to_the_tolerance_that_the_verdict_uses(table: Path) -> None:
    made = plan(_noisy_table(table, 10), underclock.Goal(max_slowdown=0.0), raw=True)
    strict, usual, loose = (
        judged(made, table, tolerance=tolerance) for tolerance in (0.0, 0.0005, 0.01)
    )
    pairs = [p / a - 1.0 for p in usual.plan_time_s for a in usual.auto_time_s]

    assert strict.pairs_keeping_time == sum(pair <= 1e-9 for pair in pairs)
    assert usual.pairs_keeping_time == sum(pair <= 0.0005 + 1e-9 for pair in pairs)
    assert (strict.pairs_keeping_time or 0) < (usual.pairs_keeping_time or 0) < 100
    assert loose.pairs_keeping_time == 100


def test_a_report_refuses_another_plans_validation(table: Path, tmp_path: Path) -> None:
    made = plan(table)
    other = judged(plan(table, underclock.Goal(max_slowdown=0.5)), table, repeats=1)
    with pytest.raises(DataError, match="another plan"):
        write_report(made, to=tmp_path / "r.html", validation=other)
    assert not (tmp_path / "r.html").exists()

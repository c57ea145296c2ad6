"""Refining: the settings around a plan, on another unit, resumed and never mixed."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.app.measuring import measure, refine
from underclock.app.planning import plan
from underclock.campaign.around import around
from underclock.campaign.progress import Tally
from underclock.campaign.survey import Campaign
from underclock.core.planning.goal import Goal
from underclock.errors import DataError, UsageError
from underclock.hw.measurer import BRISK
from underclock.records import AUTO, Clocks, Plan, SampleSet, Step
from underclock.store import SampleFile
from underclock.workloads import workload
from windows import having

pytestmark = pytest.mark.slow

_TABLE = """gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w,count
G,a,,,1.0,100,,3
G,a,900,,1.1,80,,3
G,a,800,,1.3,81,,3
G,a,500,,2.3,95,,3
G,b,,,2.0,300,,1
G,b,900,,2.0,250,,1
G,b,500,,2.1,200,,1
"""


@pytest.fixture(scope="module")
def step() -> Step:
    return workload("gpt3-125m", {"layers": 1, "batch": 4})


@pytest.fixture(scope="module")
def given_plan(step: Step, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    campaign = Campaign(core_mhz=(900, 1800, None), mem_mhz=(5001, 9251, None))
    folder = tmp_path_factory.mktemp("unit0")
    sample_set = measure(
        step, gpu="sim:rtx3080ti", to=folder / "s.db", campaign=campaign, measuring=BRISK
    )
    return plan(sample_set, Goal(max_slowdown=0.02))


@pytest.fixture(scope="module")
def refined(given_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    to = tmp_path_factory.mktemp("unit3") / "s.db"
    return refine(given_plan, gpu="sim:rtx3080ti#3", to=to, measuring=BRISK)


def _table(folder: Path, text: str = _TABLE) -> str:
    path = folder / "table.csv"
    path.write_text(text)
    return f"replay:{path}"


def test_every_kernel_is_measured_at_auto_at_its_clocks_and_around_them(
    refined: SampleSet, given_plan: Plan
) -> None:
    seen = Counter((sample.kernel, sample.asked) for sample in refined.samples)

    assert set(seen.values()) == {1}
    assert len(refined.samples) == refined.expected_samples
    assert len(refined.in_situ) == 1
    for name, choice in given_plan.kernels.items():
        mine = {clocks for kernel, clocks in seen if kernel == name}
        assert {AUTO, choice.clocks} <= mine
        assert len(mine) <= 7
        if core := choice.core_mhz:
            assert all(abs((c.core_mhz or core) - core) <= 105 for c in mine)


def test_a_setting_is_held_once(refined: SampleSet) -> None:
    order = [sample.asked for sample in refined.samples]
    turns = [b for a, b in zip([None, *order], order, strict=False) if a != b]

    assert len(turns) == len(set(turns))


def test_what_was_measured_can_be_planned_on(refined: SampleSet, given_plan: Plan) -> None:
    made = plan(refined, Goal(max_slowdown=0.02))

    assert made.promise.energy_change == pytest.approx(given_plan.promise.energy_change, abs=0.05)
    assert any("around the clocks of another GPU's plan" in words for words in made.warnings)
    assert {choice.clocks for choice in made.kernels.values()} <= {AUTO, *refined.settings}


def test_an_interrupted_run_goes_on_where_it_stopped(given_plan: Plan, tmp_path: Path) -> None:
    to = tmp_path / "s.db"

    def interrupt(tally: Tally) -> None:
        if tally.done == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        refine(given_plan, gpu="sim:rtx3080ti#3", to=to, measuring=BRISK, progress=interrupt)
    first = SampleFile.read(to)
    whole = refine(given_plan, gpu="sim:rtx3080ti#3", to=to, measuring=BRISK)

    assert len(first.windows) == 11
    assert whole.windows[:11] == first.windows
    assert len(whole.samples) == whole.expected_samples
    told: list[Tally] = []
    assert (
        refine(given_plan, gpu="sim:rtx3080ti#3", to=to, measuring=BRISK, progress=told.append)
        == whole
    )
    assert [tally.doing for tally in told] == ["done"]


def test_another_unit_or_reach_does_not_mix(
    given_plan: Plan, refined: SampleSet, tmp_path: Path
) -> None:
    to = tmp_path / "s.db"
    header = having(refined, samples=(), in_situ=())
    with SampleFile.create(to, header):
        pass

    with pytest.raises(UsageError, match="samples of another GPU"):
        refine(given_plan, gpu="sim:rtx3080ti#4", to=to)
    with pytest.raises(UsageError, match="samples of another"):
        refine(given_plan, gpu="sim:rtx3080ti#3", to=to, reach=9)


def test_a_kernel_left_at_auto_is_measured_next_to_the_best_fixed_clocks(
    given_plan: Plan, tmp_path: Path
) -> None:
    first = given_plan.runs[0].name
    choice = msgspec.structs.replace(given_plan.kernels[first], core_mhz=None, mem_mhz=None)
    fixed = Clocks(core_mhz=1350, mem_mhz=9251)
    planned = [c.clocks for c in given_plan.kernels.values() if c.core_mhz is not None]
    fastest_mhz = max(planned, key=lambda clocks: clocks.rank).core_mhz
    assert fastest_mhz is not None
    for found, expected in ((fixed, 1350), (None, fastest_mhz)):
        changed = msgspec.structs.replace(
            given_plan, kernels={**given_plan.kernels, first: choice}, fixed=found
        )
        to = tmp_path / f"{expected}.db"
        sample_set = refine(changed, gpu="sim:rtx3080ti#3", to=to, measuring=BRISK)
        cores = {s.asked.core_mhz for s in sample_set.samples if s.kernel == first}
        assert None in cores
        assert all(abs(mhz - expected) <= 105 for mhz in cores if mhz is not None)
        assert len(cores) >= 3


def test_a_table_of_another_unit_is_replayed(tmp_path: Path) -> None:
    gpu = _table(tmp_path)
    given = plan(measure(gpu=gpu, to=tmp_path / "a.db"), Goal(max_slowdown=0.1))
    sample_set = refine(given, gpu=gpu, to=tmp_path / "b.db")

    assert given.kernels["a"].clocks == Clocks(core_mhz=900)
    mine = {s.asked.core_mhz for s in sample_set.samples if s.kernel == "a"}
    assert mine == {None, 900, 800}
    assert not sample_set.in_situ
    other = _table(tmp_path, _TABLE.replace("G,b", "G,c"))
    with pytest.raises(DataError, match="other kernels"):
        refine(given, gpu=other, to=tmp_path / "c.db")
    without = _table(tmp_path, _TABLE.replace("G,b,,,2.0,300,,1\n", ""))
    with pytest.raises(UsageError, match="no answer for 'b' at core auto"):
        refine(given, gpu=without, to=tmp_path / "c.db")
    nothing = "\n".join(line for line in _TABLE.splitlines() if ",,," in line or "gpu" in line)
    with pytest.raises(UsageError, match="none of the plan's clocks"):
        refine(given, gpu=_table(tmp_path, nothing), to=tmp_path / "c.db")
    assert not (tmp_path / "c.db").exists()


def test_a_plan_of_another_gpu_model_is_refused(given_plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the plan is for"):
        refine(given_plan, gpu="sim:a100", to=tmp_path / "s.db")


def test_a_plan_that_does_not_say_what_it_runs_is_refused(given_plan: Plan, tmp_path: Path) -> None:
    broken = msgspec.structs.replace(given_plan, runs=(), order=())
    with pytest.raises(DataError, match="the plan does not say what it runs") as refused:
        refine(broken, gpu="sim:rtx3080ti#1", to=tmp_path / "s.db")
    assert "underclock plan" in refused.value.hint
    with pytest.raises(UsageError, match="reach of 0"):
        refine(given_plan, gpu="sim:rtx3080ti#1", to=tmp_path / "s.db", reach=0)


_GRID = [
    *(Clocks(core_mhz=c, mem_mhz=m) for m in (405, 5001, 9251) for c in range(200, 2001, 50)),
    *(Clocks(mem_mhz=mem) for mem in (405, 5001, 9251)),
    *(Clocks(core_mhz=core) for core in range(200, 2001, 50)),
    AUTO,
]  # fmt: skip


@given(st.sampled_from(_GRID), st.integers(1, 8))
def test_neighbours_are_offered_and_near(clocks: Clocks, reach: int) -> None:
    found = around(clocks, _GRID, reach)

    assert clocks not in found
    assert len(found) == len(set(found))
    assert set(found) <= set(_GRID)
    for near in found:
        changed = (near.core_mhz != clocks.core_mhz, near.mem_mhz != clocks.mem_mhz)
        assert changed in {(True, False), (False, True)}
        assert abs((near.core_mhz or 0) - (clocks.core_mhz or 0)) <= reach * 45 + 50
        assert near.mem_mhz == clocks.mem_mhz or (near.mem_mhz or 0) > 0.4 * 9251


def test_neighbours_of_clocks_at_the_edge() -> None:
    top = Clocks(core_mhz=2000, mem_mhz=9251)
    assert around(top, _GRID, 2) == (
        Clocks(core_mhz=1900, mem_mhz=9251),
        Clocks(core_mhz=2000, mem_mhz=5001),
    )
    assert Clocks(core_mhz=1000, mem_mhz=5001) in around(Clocks(core_mhz=1000), _GRID, 2)
    assert around(AUTO, _GRID, 2) == around(top, [AUTO], 2) == ()


def test_neighbours_of_auto_memory_are_those_of_the_clock_that_was_read() -> None:
    core = Clocks(core_mhz=1000)
    memories = {c.mem_mhz for c in around(core, _GRID, 2, 5001) if c.core_mhz == 1000}
    assert memories == {9251}
    memories = {c.mem_mhz for c in around(core, _GRID, 2, 9000) if c.core_mhz == 1000}
    assert memories == {5001, 9251}


def test_memory_around_auto_is_that_of_the_clock_this_gpu_runs_at(
    given_plan: Plan, tmp_path: Path
) -> None:
    """The fastest memory clock of this GPU is listed, and not what auto runs at."""
    name = given_plan.runs[0].name
    choice = msgspec.structs.replace(given_plan.kernels[name], core_mhz=900, mem_mhz=None)
    moved = msgspec.structs.replace(given_plan, kernels={**given_plan.kernels, name: choice})
    made = refine(moved, gpu="sim:rtx3080ti#2", to=tmp_path / "s.db", measuring=BRISK)
    mine = {s.asked.mem_mhz for s in made.samples if s.kernel == name and s.asked.core_mhz == 900}

    assert made.auto_mem_mhz == 9251
    assert mine == {None, 5001, 9501}


def test_units_differ_in_energy_and_not_in_name(step: Step, tmp_path: Path) -> None:
    campaign = Campaign(core_mhz=(1050, None), mem_mhz=(9251,), in_situ=False)
    energy = {}
    for unit in ("", "#0", "#8"):
        sample_set = measure(
            step,
            gpu=f"sim:rtx3080ti{unit}",
            to=tmp_path / f"s{unit}.db",
            campaign=campaign,
            measuring=BRISK,
        )
        energy[unit] = sum(sample.energy_j for sample in sample_set.samples)
        assert sample_set.gpu.name == "RTX 3080 Ti"

    assert energy[""] == energy["#0"]
    assert energy["#8"] > 1.02 * energy["#0"]  # its sensors show 4 % too much

"""The paper's study: complete, beside the paper's numbers, and honest about its own."""

import contextlib
import csv
import io
import json
from collections import Counter
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.app import main
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.validating import validate
from underclock.campaign.survey import Campaign
from underclock.core.planning.goal import Goal
from underclock.errors import UsageError
from underclock.paper.comparison import agreement, beside_table1, clock_changes, lever, noun
from underclock.paper.outputs import (
    FIGURE_NUMBERS,
    charts,
    paper_page,
    run_paper,
)
from underclock.paper.published import TABLE1, TABLE2
from underclock.paper.records import Lever, QuotedNumber, Study, Table1Row
from underclock.paper.study import Conditions, before_optimizer, search_second_gpu
from underclock.records import (
    AUTO,
    Aggregate,
    Clocks,
    Evidence,
    Granularity,
    MeasurementSettings,
    Objective,
    Pass,
    Plan,
    SampleSet,
    Strategy,
)
from underclock.tracing.trace import trace
from underclock.workloads import workload

pytestmark = pytest.mark.slow

_TABLE1_CSV = Path(__file__).parents[4] / "shared/data/spaan2026_table1_rtx3080ti.csv"
_QUICK = MeasurementSettings(kernel_warm_s=1.0, window_s=1.0)
# Ours may have no such kernel; the study has no such quantity.
_MAY_BE_MISSING = (
    "sacrificed GEMMs:",
    "memory-lowered GEMMs:",
    "core-lowered others:",
    "RTX A4000",
)
_CHART_KEYS = ("frontier", "relaxed", "kernels", "validation", "batch", "tensor-parallel")
_NEVER_OURS = "least time a switch took"

mhz = st.none() | st.sampled_from([210, 420, 810, 1260, 1680, 5001, 9251, 9501])
clock_pairs = st.builds(Clocks, core_mhz=mhz, mem_mhz=mhz)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """What ``underclock paper`` left: the one study that every test here looks at."""

    said: str
    folder: Path


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> _Command:
    folder = tmp_path_factory.mktemp("paper") / "out"
    with contextlib.redirect_stdout(io.StringIO()) as said:
        main(["paper", "--gpu", "sim:rtx3080ti", "-o", str(folder)])
    return _Command(said=said.getvalue(), folder=folder)


@pytest.fixture(scope="module")
def study(command: _Command) -> Study:
    return msgspec.json.decode((command.folder / "paper.json").read_bytes(), type=Study)


@pytest.fixture(scope="module")
def isolated_plan(isolated: SampleSet) -> Plan:
    return plan(isolated, Goal(max_slowdown=0.1))


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    """Measure a small step without ever running it whole."""
    return measure(
        before_optimizer(workload("gpt3-125m", {"layers": 1, "batch": 4})),
        gpu="sim:rtx3080ti",
        to=tmp_path_factory.mktemp("isolated") / "samples.db",
        campaign=Campaign(core_mhz=(1260, None), mem_mhz=(5001, None), repeats=2, in_situ=False),
        measuring=_QUICK,
    )


def test_the_command_prints_table_2_and_writes_numbers_and_a_page(command: _Command) -> None:
    for words in ("Table 2", "kernels (", "-15.64", "simulated"):
        assert words in command.said
    assert {path.name for path in command.folder.iterdir()} == {"paper.json", "paper.html"}
    before = {path: path.read_bytes() for path in command.folder.iterdir()}
    with pytest.raises(UsageError, match="will not overwrite"):
        run_paper(Conditions(), command.folder)
    assert {path: path.read_bytes() for path in command.folder.iterdir()} == before


def test_table_2_is_every_way_of_choosing(study: Study) -> None:
    ways = [(cell.granularity, cell.objective, cell.aggregate) for cell in study.table2]

    assert ways == list(TABLE2)
    assert set(ways) == {
        (granularity, objective, aggregate)
        for granularity in (Granularity.PASS, Granularity.KERNEL)
        for objective in (Objective.EDP, Objective.WASTE)
        for aggregate in Aggregate
    }
    for cell in study.table2:
        paper = TABLE2[cell.granularity, cell.objective, cell.aggregate]
        assert (cell.paper_time_pct, cell.paper_energy_pct) == (paper.time_pct, paper.energy_pct)
        assert cell.energy_pct <= 0.0
        if cell.objective is Objective.WASTE:
            assert cell.time_pct <= 1e-9


def test_more_freedom_never_costs_energy(study: Study) -> None:
    energy = {
        (cell.granularity, cell.aggregate): cell.energy_pct
        for cell in study.table2
        if cell.objective is Objective.WASTE
    }

    for aggregate in Aggregate:
        assert energy[Granularity.KERNEL, aggregate] <= energy[Granularity.PASS, aggregate]
    for granularity in (Granularity.PASS, Granularity.KERNEL):
        assert energy[granularity, Aggregate.GLOBAL] <= energy[granularity, Aggregate.LOCAL]


def test_every_quoted_number_stands_beside_ours(study: Study) -> None:
    named = [(number.group, number.name) for number in study.quoted]
    lacking = [number.name for number in study.quoted if number.ours is None]

    assert len(named) == len(set(named))
    assert Counter(number.group for number in study.quoted)["Table 2"] == 2 * len(TABLE2)
    assert _NEVER_OURS in lacking
    assert all(name.startswith(_MAY_BE_MISSING) for name in lacking if name != _NEVER_OURS)
    for number in study.quoted:
        if number.ours is not None:
            assert number.difference == number.ours - number.paper


@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("kernels before the optimizer", 46),
        ("core clocks of the driver", 127),
        ("exhaustive search", 3),
        ("kernel-level, waste, global: energy", -15.64),
        ("pass-level, edp, local: time", 10.21),
        ("mean of all pairs: time", 0.6),
        ("mean of all pairs: energy", -14.6),
        ("pairs that reach that energy", 0),
        ("batch 8: time", 0.5),
        ("batch 8: energy", -14.2),
        ("smaller batches: greatest time", 3.0),
        ("smaller batches: least energy", -15.3),
        ("tensor parallel 4: time", 2.1),
        ("tensor parallel 8: energy", -17.3),
        ("tensor parallel 16: time", 6.5),
        ("RTX A4000, searched again: energy", -9.56),
        ("clock changes per layer", 34),
        ("sacrificed GEMMs", 3),
    ],
)
def test_the_papers_side_is_what_it_says(study: Study, name: str, paper: float) -> None:
    assert _quoted(study, name).paper == paper


def _quoted(study: Study, name: str) -> QuotedNumber:
    (quoted,) = [number for number in study.quoted if number.name == name]
    return quoted


def test_the_study_says_where_it_comes_from(study: Study) -> None:
    assert study.evidence is Evidence.SIMULATED
    assert study.calibration
    assert "2601.08539" in study.source
    assert study.warnings == ()


def test_the_study_holds_what_the_readme_names(study: Study) -> None:
    body = msgspec.to_builtins(study)

    assert body.keys() >= {
        "table1",
        "table2",
        "agreement",
        "validation",
        "batch_transfer",
        "tensor_parallel_transfer",
        "relaxed",
        "a4000",
        "evidence",
        "gpu",
        "calibration",
    }
    assert body["table2"][0].keys() == {
        "granularity",
        "objective",
        "aggregate",
        "time_pct",
        "energy_pct",
        "paper_time_pct",
        "paper_energy_pct",
    }
    assert msgspec.convert(body, Study) == study


def test_the_step_is_the_papers(study: Study) -> None:
    step = before_optimizer(trace("gpt3-xl"))

    assert [row.name for row in study.table1] == [kernel.name for kernel in step.kernels]
    assert [noun(kernel) for kernel in step.kernels] == [row.kernel for row in TABLE1]
    assert not any(kernel.pass_ is Pass.OPTIMIZER for kernel in step.kernels)
    for row, kernel in zip(study.table1, step.kernels, strict=True):
        assert row.section.startswith({"Lf": "layer_f", "Lb": "layer_b"}.get(kernel.section, ""))
        assert row.lever is lever(
            Clocks(core_mhz=row.core_mhz, mem_mhz=row.mem_mhz),
            Clocks(core_mhz=row.auto_core_mhz, mem_mhz=row.auto_mem_mhz),
        )


def test_the_validation_is_of_all_pairs(study: Study) -> None:
    validation = study.validation
    saving = [pair.energy_pct for pair in validation.pairs]

    assert len(validation.pairs) == 100
    assert validation.energy_pct == pytest.approx(sum(saving) / 100)
    assert validation.pairs_reaching_discovered == sum(
        saved <= validation.discovered_energy_pct + 1e-6 for saved in saving
    )


def test_the_discovered_clocks_are_carried_to_every_size(study: Study) -> None:
    assert [row.batch for row in study.batch_transfer] == [1, 2, 4, 8, 16, 24, 32, 40]
    assert [row.tensor_parallel for row in study.tensor_parallel_transfer] == [2, 4, 8, 16]
    assert all(row.unplanned == () for row in study.batch_transfer)
    for row in study.tensor_parallel_transfer:
        assert all(name.startswith("reduce_add_sum") for name in row.unplanned)
    again = study.batch_transfer[-1]
    assert again.energy_pct == pytest.approx(study.validation.energy_pct, abs=1.0)


def test_a_longer_budget_never_costs_energy(study: Study) -> None:
    budgets = [point.max_slowdown_pct for point in study.relaxed]
    for field in ("pass_global", "kernel_local", "kernel_global"):
        energies = [getattr(point, field).energy_pct for point in study.relaxed]
        assert energies == sorted(energies, reverse=True)
    assert (budgets[0], budgets[-1]) == (0.0, 10.0)
    strict = study.relaxed[0].kernel_global
    assert strict is not None
    assert strict.energy_pct == study.table2[-1].energy_pct


def test_the_published_table_is_the_shared_one() -> None:
    if not _TABLE1_CSV.exists():
        pytest.skip("the paper's table is not beside this checkout")
    with _TABLE1_CSV.open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert len(rows) == len(TABLE1)
    for row, ours in zip(rows, TABLE1, strict=True):
        assert (ours.section, ours.kernel) == (row["section"], row["kernel"])
        assert ours.invocations == int(row["invocations_per_iteration"])
        for clock, field in ((ours.clocks.core_mhz, "core_mhz"), (ours.clocks.mem_mhz, "mem_mhz")):
            assert ("auto" if clock is None else str(clock)) == row[field]
        assert ours.change.time_pct == float(row["time_change_pct"])
        assert ours.change.energy_pct == float(row["energy_change_pct"])


@given(clock_pairs, clock_pairs)
def test_only_what_is_below_auto_is_lowered(chosen: Clocks, auto: Clocks) -> None:
    core = chosen.core_mhz is not None and chosen.core_mhz < (auto.core_mhz or 0)
    mem = chosen.mem_mhz is not None and chosen.mem_mhz < (auto.mem_mhz or 0)
    lowered = lever(chosen, auto)

    assert (lowered in {Lever.CORE, Lever.BOTH}) == core
    assert (lowered in {Lever.MEMORY, Lever.BOTH}) == mem


@given(clock_pairs)
def test_auto_and_auto_s_own_clocks_lower_nothing(auto: Clocks) -> None:
    assert lever(AUTO, auto) is Lever.NEITHER
    assert lever(auto, auto) is Lever.NEITHER


@pytest.mark.parametrize(
    ("mem_mhz", "auto_mem_mhz", "expected"),
    [
        (9501, 9501, Lever.NEITHER),
        (9501, 9251, Lever.NEITHER),
        (9251, 9501, Lever.MEMORY),
        (9251, 9251, Lever.NEITHER),
        (5001, 9251, Lever.MEMORY),
    ],
)
def test_a_fast_memory_clock_counts_only_below_autos(
    mem_mhz: int, auto_mem_mhz: int, expected: Lever
) -> None:
    auto = Clocks(core_mhz=1700, mem_mhz=auto_mem_mhz)

    assert lever(Clocks(mem_mhz=mem_mhz), auto) is expected


def _rows(study: Study, pairs: list[tuple[Lever, Lever]]) -> list[Table1Row]:
    return [
        msgspec.structs.replace(study.table1[0], paper_lever=paper, lever=ours)
        for paper, ours in pairs
    ]


@given(st.data())
def test_agreement_counts_every_kernel_once(study: Study, data: st.DataObject) -> None:
    levers = st.sampled_from(list(Lever))
    pairs = data.draw(st.lists(st.tuples(levers, levers), min_size=1))
    counted = agreement(_rows(study, pairs))
    swapped = agreement(_rows(study, [(ours, paper) for paper, ours in pairs]))

    assert counted.kernels == len(pairs) == sum(count.kernels for count in counted.counts)
    assert counted.same == sum(paper is ours for paper, ours in pairs) <= counted.overlapping
    assert counted.share == counted.same / len(pairs)
    assert (swapped.same, swapped.overlapping) == (counted.same, counted.overlapping)


@pytest.mark.parametrize(
    ("paper", "ours", "same", "overlapping"),
    [
        (Lever.CORE, Lever.CORE, 1, 1),
        (Lever.NEITHER, Lever.NEITHER, 1, 1),
        (Lever.CORE, Lever.BOTH, 0, 1),
        (Lever.CORE, Lever.MEMORY, 0, 0),
        (Lever.BOTH, Lever.NEITHER, 0, 0),
    ],
)
def test_sharing_one_clock_is_not_agreeing(
    study: Study, paper: Lever, ours: Lever, same: int, overlapping: int
) -> None:
    counted = agreement(_rows(study, [(paper, ours)]))

    assert (counted.same, counted.overlapping) == (same, overlapping)


@given(st.lists(clock_pairs), st.integers(0, 20))
def test_where_a_loop_begins_does_not_change_its_clock_changes(
    loop: list[Clocks], shift: int
) -> None:
    turn = shift % len(loop) if loop else 0

    assert clock_changes([loop[turn:] + loop[:turn]]) == clock_changes([loop])
    assert clock_changes([loop, loop]) == 2 * clock_changes([loop])
    assert clock_changes([[AUTO] * len(loop)]) == 0


def test_table_1_changes_clocks_34_times_a_layer(study: Study) -> None:
    loops = [
        [row.clocks for row in TABLE1 if row.section == section]
        for section in ("layer_forward", "layer_backward")
    ]

    assert clock_changes(loops) == 34
    assert 0 <= study.clock_changes_per_layer <= 37


def test_a_step_of_other_kernels_is_not_put_beside_table_1(isolated_plan: Plan) -> None:
    with pytest.raises(ValueError, match="Table 1 has 46 kernels, the step has 48"):
        beside_table1(isolated_plan, {})
    runs = isolated_plan.runs[:46]
    other = msgspec.structs.replace(
        isolated_plan,
        runs=runs,
        kernels={kernel.name: isolated_plan.kernels[kernel.name] for kernel in runs},
        order=(),
    )
    with pytest.raises(ValueError, match="where the step has"):
        beside_table1(other, {})


def test_without_the_step_in_situ_the_baseline_is_the_isolated_sum(
    isolated: SampleSet, isolated_plan: Plan
) -> None:
    counts = {kernel.name: kernel.count for kernel in isolated.kernels}
    auto = [sample for sample in isolated.samples if sample.asked == AUTO]

    assert isolated.in_situ == ()
    assert isolated_plan.closure is None
    assert isolated_plan.arm(Strategy.AUTO).time_s == pytest.approx(
        sum(counts[sample.kernel] * sample.time_s for sample in auto) / 2
    )


def test_a_plan_on_isolated_kernels_is_validated_on_those(isolated_plan: Plan) -> None:
    again = validate(
        isolated_plan, gpu="sim:rtx3080ti", repeats=2, only_plan=True, measuring=_QUICK
    )
    auto = isolated_plan.arm(Strategy.AUTO)

    assert again.auto_time_s[0] == pytest.approx(auto.time_s, rel=0.01)
    assert again.auto_energy_j[0] == pytest.approx(auto.energy_j, rel=0.02)


def test_the_same_seed_finds_the_same_and_another_does_not(tmp_path: Path) -> None:
    known = json.loads((files("underclock.gpus") / "data/rtx3080ti.json").read_text())
    few = {"core_mhz": [420, 1050, 1680], "mem_mhz": known["mem_mhz"][-2:]}
    (tmp_path / "few.json").write_text(json.dumps(known | few))
    gpu, step = f"sim:{tmp_path / 'few.json'}", before_optimizer(trace("gpt3-xl"))

    first, again, other = (
        search_second_gpu(step, Conditions(gpu=gpu, seed=seed, measuring=_QUICK))
        for seed in (3, 3, 4)
    )

    assert first == again != other


def test_a_gpu_the_simulator_lacks_is_said_to_be_missing() -> None:
    second = search_second_gpu(before_optimizer(trace("gpt3-xl")), Conditions(gpu="sim:nowhere"))

    assert second.energy_pct is None
    assert second.paper_energy_pct == -9.56
    assert "no simulated GPU is called 'nowhere'" in second.missing


@pytest.mark.parametrize("gpu", ["replay:table.csv", "nvml:0", "sim:nowhere", "gpu"])
def test_only_a_simulated_gpu_can_be_studied(gpu: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run_paper(Conditions(gpu=gpu), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


class _Links(HTMLParser):
    """Collects what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.places: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        self.fetched += [v or "" for k, v in attrs if k in {"src", "href"}]
        self.places += [v or "" for k, v in attrs if k == "id"]


def test_the_page_is_whole_and_offline(study: Study) -> None:
    page = paper_page(study)
    links = _Links()
    links.feed(page)

    assert links.fetched == []
    assert {f"figure-{key}" for key in _CHART_KEYS} <= set(links.places)
    assert "simulated" in page
    for number in study.quoted:
        assert number.name.replace("'", "&#39;") in page
    assert paper_page(study) == page


def test_every_drawing_says_what_is_the_papers(study: Study) -> None:
    drawn = charts(study)

    assert tuple(chart.key for chart in drawn) == _CHART_KEYS
    assert set(FIGURE_NUMBERS) < set(_CHART_KEYS)
    for chart in drawn:
        for series in chart.series:
            assert series.hollow == series.name.endswith(", paper"), (chart.key, series.name)
            assert len(series.notes) in {0, len(series.points)}
        assert any(series.hollow for series in chart.series)


def test_a_gpu_without_a_drawn_figure_still_has_a_page(study: Study) -> None:
    missing = search_second_gpu(before_optimizer(trace("gpt3-xl")), Conditions(gpu="sim:nowhere"))
    bare = msgspec.structs.replace(study, a4000=missing, warnings=("look twice",))
    page = paper_page(bare)

    assert "cannot simulate an RTX A4000" in page
    assert "look twice" in page

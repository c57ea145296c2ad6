"""Plans for a fleet, from samples of few boards, and refined on another by what differs."""

from pathlib import Path

import msgspec
import pytest

from made_boards import made_board
from underclock.app.boards import plan_fleet, refine
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.campaign.progress import Tally
from underclock.campaign.survey import Campaign
from underclock.core.planning.goal import Goal
from underclock.errors import DataError, UsageError
from underclock.hw.measurer import BRISK
from underclock.records import Objective, Plan, SampleSet, Step
from underclock.store import SampleFile
from underclock.workloads import workload

pytestmark = pytest.mark.slow

_GOAL = Goal(max_slowdown=0.01)


_CAMPAIGN = Campaign(core_mhz=(900, 1200, 1500, 1695, 1800, 1890, None), mem_mhz=(5001, 9251, None))


def _step() -> Step:
    """Return a step of few kernels that the cap holds."""
    every = workload("gpt3-xl", {"layers": 1}).kernels[:10]
    kernels = tuple(msgspec.structs.replace(kernel, count=1) for kernel in every)
    return Step(name="few", kernels=kernels, order=tuple(range(len(kernels))))


def _board(folder: Path, unit: str) -> SampleSet:
    return measure(
        _step(),
        gpu=f"sim:{unit}",
        to=folder / f"{unit}.db",
        campaign=_CAMPAIGN,
        measuring=BRISK,
    )


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> list[SampleSet]:
    folder = tmp_path_factory.mktemp("boards")
    return [_board(folder, f"rtx3080ti#{number}") for number in (1, 2)]


@pytest.fixture(scope="module")
def fleet_plan(boards: list[SampleSet]) -> Plan:
    return plan_fleet(boards, _GOAL)


def test_a_fleets_plan_is_for_any_board_and_says_what_it_is_worth(
    fleet_plan: Plan, boards: list[SampleSet]
) -> None:
    own = plan(boards[0], _GOAL)
    low, high = fleet_plan.headline.energy_interval or (0.0, 0.0)

    assert fleet_plan.gpu.uuid is None
    assert fleet_plan.check_gpu(boards[1].gpu, boards[1].gpu.power_limit_w) == ()
    assert fleet_plan.promise.energy_change == pytest.approx(own.promise.energy_change, abs=0.01)
    assert low < own.promise.energy_change < high
    assert (fleet_plan.headline.time_interval or (0.0, 0.0))[1] < 0.0125
    first, second = fleet_plan.warnings[:2]
    assert "for any RTX 3080 Ti, from samples of 2 of them: over 64 boards -" in first
    assert all(str(board.gpu.uuid) in second for board in boards)


def test_a_schedule_of_a_fleet_is_made_for_its_latency(boards: list[SampleSet]) -> None:
    made = plan_fleet(boards, _GOAL, boards=8, latency="20us")

    assert made.schedule is not None
    assert "over 8 boards" in made.warnings[0]


def test_one_board_leaves_open_how_boards_differ(boards: list[SampleSet]) -> None:
    made = plan_fleet(boards[:1], _GOAL)

    assert "one board does not tell how boards differ" in made.warnings[0]


def test_a_fleet_that_cannot_be_planned_is_refused(boards: list[SampleSet]) -> None:
    with pytest.raises(DataError, match="have the same samples"):
        plan_fleet([boards[0], boards[0]])
    with pytest.raises(DataError, match="two GPU models"):
        plan_fleet([boards[0], made_board(1)])
    with pytest.raises(UsageError, match="has no time budget"):
        plan_fleet(boards, Goal(objective=Objective.EDP))
    with pytest.raises(UsageError, match="a fleet of 0 boards is none"):
        plan_fleet(boards, boards=0)


def test_few_windows_make_a_plan_a_boards_own(
    fleet_plan: Plan, boards: list[SampleSet], tmp_path: Path
) -> None:
    to, told = tmp_path / "s.db", list[Tally]()

    def interrupt(tally: Tally) -> None:
        if tally.done == 7:
            raise KeyboardInterrupt

    def again(progress: object) -> Plan:
        return refine(
            fleet_plan,
            boards,
            gpu="sim:rtx3080ti#3",
            to=to,
            measuring=BRISK,
            progress=progress,  # type: ignore[arg-type]
        )

    with pytest.raises(KeyboardInterrupt):
        again(interrupt)
    first = SampleFile.read(to)
    refined = again(told.append)
    taken = SampleFile.read(to)

    assert taken.windows[:7] == first.windows
    assert 7 < len(taken.windows) <= len(boards[0].windows) / 10 + 1
    assert len(taken.in_situ) >= 4
    assert refined.gpu == taken.gpu
    assert refined.max_slowdown == 0.01
    told_of = f"refined with {len(taken.windows)} windows from what is known of 2 boards"
    assert refined.warnings[0] == told_of
    assert any("in what it differs from other boards only" in words for words in refined.warnings)
    low, high = refined.headline.energy_interval or (0.0, 0.0)
    before, after = fleet_plan.headline.energy_interval or (0.0, 0.0)
    assert high - low < 0.7 * (after - before)
    again(told.append)
    assert SampleFile.read(to) == taken


def test_what_cannot_be_refined(fleet_plan: Plan, boards: list[SampleSet], tmp_path: Path) -> None:
    def refused(
        match: str, gpu: str = "sim:rtx3080ti#3", made: Plan = fleet_plan, kind: type = DataError
    ) -> None:
        with pytest.raises(kind, match=match):
            refine(made, boards, gpu=gpu, to=tmp_path / "s.db", measuring=BRISK)
        assert not (tmp_path / "s.db").exists()

    refused("the plan is for", "sim:a100")
    refused("boards 1 and 3 are one", "sim:rtx3080ti#1")
    table = Path(__file__).parents[1] / "data/tables/two_kernels.csv"
    refused("cannot run", f"replay:{table}", kind=UsageError)
    other = msgspec.structs.replace(fleet_plan, workload="another")
    refused("the plan is of another, and the samples are of another step", made=other)
    nothing = msgspec.structs.replace(fleet_plan, runs=(), order=(), kernels={})
    refused("the samples are of another step", made=nothing)


def test_units_differ_in_energy_and_not_in_name(tmp_path: Path) -> None:
    campaign = Campaign(core_mhz=(1050, None), mem_mhz=(9251,), in_situ=False)
    energy = {}
    for unit in ("", "#0", "#8"):
        sample_set = measure(
            workload("gpt3-125m", {"layers": 1, "batch": 4}),
            gpu=f"sim:rtx3080ti{unit}",
            to=tmp_path / f"s{unit}.db",
            campaign=campaign,
            measuring=BRISK,
        )
        energy[unit] = sum(sample.energy_j for sample in sample_set.samples)
        assert sample_set.gpu.name == "RTX 3080 Ti"

    assert energy[""] == energy["#0"]
    assert energy["#8"] > 1.02 * energy["#0"]  # its sensors show 4 % too much

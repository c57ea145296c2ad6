"""`measure --near`: a plan's clocks on another board of its model."""

from pathlib import Path

import msgspec
import pytest

from underclock.app import main
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.validating import validate
from underclock.campaign.grid import Campaign
from underclock.core.planning.best_choice import Goal
from underclock.errors import DataError, UsageError
from underclock.hw.measurer import BRISK
from underclock.records import Plan, Step
from underclock.store import read_samples, write_document
from underclock.workloads import workload

pytestmark = pytest.mark.slow

_GOAL = Goal(max_slowdown=0.01)
_CAMPAIGN = Campaign(core_mhz=(900, 1200, 1500, 1695, 1800, 1890, None), mem_mhz=(5001, 9251, None))


def _step() -> Step:
    """Return a step of few kernels that the cap holds."""
    every = workload("gpt3-xl", {"layers": 1}).kernels[:10]
    kernels = tuple(msgspec.structs.replace(kernel, count=1) for kernel in every)
    return Step(name="few", kernels=kernels, order=tuple(range(len(kernels))))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Return a plan of board 1."""
    to = tmp_path_factory.mktemp("near") / "1.db"
    samples = measure(_step(), gpu="sim:rtx3080ti#1", to=to, campaign=_CAMPAIGN, measuring=BRISK)
    return plan(samples, _GOAL, latency="free")


def test_few_windows_make_a_plan_a_boards_own(
    given: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_document(tmp_path / "plan.json", given)
    ask = "measure --near plan.json --gpu sim:rtx3080ti#3 --precision 1% -o mine.db"

    main(ask.split())
    own = read_samples("mine.db")
    main(ask.split())

    assert read_samples("mine.db") == own
    assert own.fingerprint == given.fingerprint
    planned = {choice.clocks for choice in given.kernels.values()} - {given.baseline}
    assert planned <= {*own.settings}
    mems = {clocks.mem_mhz for clocks in planned}
    assert {clocks.mem_mhz for clocks in own.settings} <= {*mems, None}
    for clocks in own.settings:
        core = clocks.core_mhz
        assert core is None or any(
            abs(core / (each.core_mhz or core) - 1) < 0.06 for each in planned
        )
    refined = plan(own, _GOAL)
    assert refined.gpu == own.gpu
    ran = validate(refined, gpu="sim:rtx3080ti#3", repeats=2, measuring=BRISK)
    assert ran.energy_change.mean == pytest.approx(refined.promise.energy_change, abs=0.01)
    assert ran.time_change.mean == pytest.approx(refined.promise.time_change, abs=0.004)


def test_what_cannot_be_measured_near(given: Plan, tmp_path: Path) -> None:
    def refused(
        match: str, gpu: str = "sim:rtx3080ti#3", near: Plan = given, kind: type = DataError
    ) -> None:
        with pytest.raises(kind, match=match):
            measure(gpu=gpu, to=tmp_path / "s.db", campaign=Campaign(near=near))
        assert not (tmp_path / "s.db").exists()

    refused("the plan is for", "sim:a100")
    refused(
        "no clocks of kernels", near=msgspec.structs.replace(given, runs=(), order=(), kernels={})
    )
    with pytest.raises(DataError, match="this is another step"):
        measure(
            workload("gpt3-125m", {"layers": 1}),
            gpu="sim:rtx3080ti#3",
            to=tmp_path / "s.db",
            campaign=Campaign(near=given),
        )
    with pytest.raises(UsageError, match="name no grid"):
        Campaign(near=given, grid="full")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="name no clocks"):
        Campaign(near=given, core_mhz=(900,))

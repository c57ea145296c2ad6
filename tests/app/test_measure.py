"""Campaigns on the simulated GPU and on tables: complete, resumable, never mixed; near a plan."""

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from underclock.app import main
from underclock.app.backends import open_measurer
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.validating import validate
from underclock.campaign.grid import Campaign, settings_of
from underclock.core.planning.best_choice import Goal
from underclock.errors import DataError, UsageError
from underclock.hw.measurer import BRISK
from underclock.records import Clocks, Evidence, MeasurementSettings, Plan, SampleSet, Step
from underclock.store import SampleFile, read_samples, write_document
from underclock.workloads import workload
from windows import with_step

pytestmark = pytest.mark.slow

_SMALL = Campaign(core_mhz=(1050, None), mem_mhz=(9501, None), repeats=2)
_QUICK = MeasurementSettings(kernel_warm_s=1.0, window_s=1.0)
_TABLE = """gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w,count
G,a,,,1.0,100,100,3
G,a,900,,1.1,80,,3
G,a,900,,1.2,81,,3
G,b,,,2.0,300,150,1
"""


@pytest.fixture(scope="module")
def step() -> Step:
    return workload("gpt3-125m", {"layers": 1, "batch": 4})


def _measure(step: Step, path: Path, campaign: Campaign = _SMALL, **more: object) -> SampleSet:
    return measure(
        step,
        gpu="sim:rtx3080ti",
        to=path,
        campaign=campaign,
        measuring=_QUICK,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def finished(step: Step, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "samples.db"
    _measure(step, path)
    return path


def _keys(sample_set: SampleSet) -> list[tuple[str, Clocks, int]]:
    return [(sample.kernel, sample.asked, sample.repeat) for sample in sample_set.samples]


def test_every_kernel_is_measured_at_every_pair_as_often_as_asked(
    step: Step, finished: Path
) -> None:
    sample_set = SampleFile.read(finished)

    assert sample_set.evidence is Evidence.SIMULATED
    assert len(_keys(sample_set)) == len(set(_keys(sample_set))) == sample_set.expected_samples
    assert len(sample_set.samples) == len(step.kernels) * len(sample_set.settings) * 2
    assert len(sample_set.in_situ) == 2
    assert sample_set.step.fingerprint == step.fingerprint


def test_a_killed_campaign_loses_nothing_and_goes_on(step: Step, tmp_path: Path) -> None:
    path, step_file = tmp_path / "samples.db", tmp_path / "step.json"
    write_document(step_file, step)
    script = (
        "import os, signal, sys\n"
        "import underclock\n"
        "from underclock.records import Step\n"
        "from underclock.store import read_document\n"
        "from pathlib import Path\n"
        "def kill(tally):\n"
        "    if tally.done == 60: os.kill(os.getpid(), signal.SIGKILL)\n"
        "step = read_document(Path(sys.argv[1]), Step)\n"
        "underclock.measure(step, gpu='sim:rtx3080ti', to=sys.argv[2], progress=kill,\n"
        "    campaign=underclock.Campaign(\n"
        "        core_mhz=(1050, None), mem_mhz=(9501, None), repeats=2),\n"
        "    measuring=underclock.records.MeasurementSettings(kernel_warm_s=1.0, window_s=1.0))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, step_file, path], check=False)

    assert ended.returncode == -signal.SIGKILL
    first = SampleFile.read(path).windows
    assert len(first) == 60
    sample_set = _measure(step, path)
    assert sample_set.windows[:60] == first
    assert len(sample_set.in_situ) == 2
    assert len(_keys(sample_set)) == len(set(_keys(sample_set))) == sample_set.expected_samples


@pytest.mark.parametrize(
    ("change", "noun"),
    [
        ({"campaign": Campaign(core_mhz=(1260, None), mem_mhz=(None,))}, "clock grid"),
        ({"campaign": Campaign(core_mhz=(1050, None), mem_mhz=(9501, None))}, "repeats"),
        ({"step": workload("gpt3-125m", {"layers": 2, "batch": 4})}, "step"),
    ],
)
def test_two_campaigns_do_not_mix_in_one_file(
    step: Step, finished: Path, change: dict[str, object], noun: str
) -> None:
    before = SampleFile.read(finished)
    with pytest.raises(UsageError, match=f"another .*{noun}"):
        _measure(**{"step": step, "path": finished} | change)  # type: ignore[arg-type]
    assert SampleFile.read(finished) == before


def test_clocks_the_gpu_lacks_are_refused_with_the_nearest() -> None:
    with (
        open_measurer("sim:rtx3080ti") as measurer,
        pytest.raises(UsageError, match="no core clock of 1000 MHz") as caught,
    ):
        settings_of(measurer, Campaign(core_mhz=(1000,)))

    assert "990, 1005" in caught.value.hint


def test_a_table_answers_only_for_kernels_it_has(step: Step, tmp_path: Path) -> None:
    table = tmp_path / "sweep.csv"
    table.write_text(_TABLE)
    with pytest.raises(UsageError, match="cannot answer for"):
        measure(step, gpu=f"replay:{table}", to=tmp_path / "samples.db")


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
    samples = measure(
        _step(), gpu="sim:rtx3080ti#1#smooth", to=to, campaign=_CAMPAIGN, measuring=BRISK
    )
    return plan(samples, _GOAL, latency="free")


def test_few_windows_make_a_plan_a_boards_own(
    given: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_document(tmp_path / "plan.json", given)
    ask = "measure --near plan.json --gpu sim:rtx3080ti#3#smooth --precision 1% -o mine.db"

    main(ask.split())
    own = read_samples("mine.db")
    main(ask.split())

    assert read_samples("mine.db") == own
    assert own.step.fingerprint == given.step.fingerprint
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
    ran = validate(refined, gpu="sim:rtx3080ti#3#smooth", repeats=2, measuring=BRISK)
    assert ran.energy_change.mean == pytest.approx(refined.promise.energy_change, abs=0.01)
    assert ran.time_change.mean == pytest.approx(refined.promise.time_change, abs=0.004)


def test_what_cannot_be_measured_near(given: Plan, tmp_path: Path) -> None:
    def refused(
        match: str, gpu: str = "sim:rtx3080ti#3#smooth", near: Plan = given, kind: type = DataError
    ) -> None:
        with pytest.raises(kind, match=match):
            measure(gpu=gpu, to=tmp_path / "s.db", campaign=Campaign(near=near))
        assert not (tmp_path / "s.db").exists()

    refused("the plan is for", "sim:a100")
    refused("no clocks of kernels", near=with_step(given, order=(), modules=()))
    with pytest.raises(DataError, match="this is another step"):
        measure(
            workload("gpt3-125m", {"layers": 1}),
            gpu="sim:rtx3080ti#3#smooth",
            to=tmp_path / "s.db",
            campaign=Campaign(near=given),
        )
    with pytest.raises(UsageError, match="name no grid"):
        Campaign(near=given, grid="full")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="name no clocks"):
        Campaign(near=given, core_mhz=(900,))

"""`measure --ray`: simulated GPUs in actors of one local Ray, killed in between."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from made_boards import made_board
from underclock.app import main
from underclock.app.raying import RayWorkers, gpus_of, measure_together
from underclock.campaign.survey import Campaign, Grid
from underclock.errors import DeviceError, NotSupportedError, UsageError
from underclock.records import Kernel, MeasurementSettings, Step
from underclock.store import read_parts, read_samples, save, write_document
from underclock.workloads import workload

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
FEW = Campaign(grid=Grid.COARSE, core_mhz=(1050, None), mem_mhz=(None,))
BRIEF = MeasurementSettings(warm_s=10.0, longest_warm_s=10.0, kernel_warm_s=0.1, window_s=0.2)


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    """Start Ray, once for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        ray: Any = pytest.importorskip("ray")
        ray.init(
            num_cpus=2,
            object_store_memory=80_000_000,
            include_dashboard=False,
            log_to_driver=False,
        )
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def step() -> Step:
    return workload("gpt3-xl")


@pytest.mark.usefixtures("_ray")
def test_a_killed_workers_windows_are_taken_by_others_and_none_twice(
    tmp_path: Path, step: Step
) -> None:
    killed: list[int] = []
    seen: list[RayWorkers] = []
    told = count(1)

    def kill(_tally: object) -> None:
        alive = sorted({*seen[0].processes.values()}.difference(killed))
        if next(told) in {3, 12} and alive:
            os.kill(alive[0], signal.SIGKILL)
            killed.append(alive[0])

    (found,) = measure_together(
        step,
        gpus=["sim:rtx3080ti"] * 3,
        to=tmp_path / "all.db",
        campaign=FEW,
        measuring=BRIEF,
        progress=kill,
        told=seen.append,
    )

    assert len(killed) == 2
    counts = {window.what for window in found.windows}
    assert len(counts) == len(found.windows) == 1 + 2 * len(step.kernels)
    parts = read_parts(tmp_path / "all.db")
    assert [part.provenance.seed for part in parts if part.provenance] == [0, 1, 2]
    assert sum(len(part.windows) for part in parts) == len(found.windows)


@pytest.mark.usefixtures("_ray")
def test_boards_that_differ_are_measured_as_one_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = workload("gpt3-xl")
    write_document(tmp_path / "step.json", step)
    boards = measure_together(
        step,
        gpus=["sim:rtx3080ti#1", "sim:rtx3080ti#2"],
        to=tmp_path / "two.db",
        campaign=Campaign(max_samples=60),
    )
    assert [len(board.in_situ) for board in boards] == [4, 4]
    assert sum(len(board.windows) for board in boards) == 60

    asked = "step.json --gpu sim:rtx3080ti*1 --max-samples 5 -o all.db --ray"
    main(["measure", *asked.split()])
    assert "5 windows of one board in all.db" in capsys.readouterr().out
    assert len(read_samples("all.db").windows) == 5
    for path in (tmp_path / "all.db.parts").iterdir():
        path.unlink()
    (tmp_path / "all.db.parts").rmdir()
    with pytest.raises(UsageError, match="cannot be gone on with"):
        measure_together(step, gpus=["sim:rtx3080ti"], to=tmp_path / "all.db")


@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize(
    ("gpus", "campaign", "error", "words"),
    [
        (["sim:rtx3080ti"], Campaign(clocks="steer"), NotSupportedError, "clocks are steered here"),  # type: ignore[arg-type]
        (["nvml"], Campaign(), DeviceError, "the Ray cluster has no GPU"),
        (["replay:t.csv"], Campaign(), UsageError, "cannot run kernels"),
    ],
)
def test_what_many_gpus_cannot_do_is_said(
    tmp_path: Path,
    step: Step,
    gpus: list[str],
    campaign: Campaign,
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        measure_together(step, gpus=gpus, to=tmp_path / "a.db", campaign=campaign)


def test_a_step_that_only_runs_whole_is_measured_without_ray(tmp_path: Path) -> None:
    whole = Step(name="s", kernels=(Kernel(name="k"),), order=(0,), obstacle="a graph is captured")
    for step in (whole, None):
        with pytest.raises(UsageError, match="only runs whole"):
            measure_together(step, gpus=["sim:rtx3080ti"], to=tmp_path / "a.db")


def test_no_ray_is_said(
    tmp_path: Path,
    step: Step,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[[str], tuple[int, str]],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_document(tmp_path / "step.json", step)
    code, said = fails("measure step.json --gpu sim:rtx3080ti*many -o a.db --ray")
    assert (code, "cannot read 'sim:rtx3080ti*many' as GPUs" in said) == (2, True)
    assert gpus_of("sim:a*2,sim:b#1") == ("sim:a", "sim:a", "sim:b#1")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NotSupportedError, match="Ray is not installed") as caught:
        measure_together(step, gpus=["sim:rtx3080ti"], to=tmp_path / "a.db")
    assert "pip install 'underclock[ray]'" in caught.value.hint


def test_a_ray_that_does_not_answer_is_said(
    tmp_path: Path, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unreachable:
        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**_given: object) -> None:
            raise ConnectionError("nothing listens there")

    monkeypatch.setattr("underclock.app.raying._ray", Unreachable)
    with pytest.raises(DeviceError, match=r"no Ray answers at 10\.0\.0\.1:6379: nothing listens"):
        measure_together(
            step, gpus=["sim:rtx3080ti"], to=tmp_path / "a.db", address="10.0.0.1:6379"
        )


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be where samples of two boards lie."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        save(made_board(number), tmp_path / f"{number}.db")
    return tmp_path


@pytest.mark.usefixtures("_ray")
def test_a_grid_of_plans_is_the_same_with_ray_and_without(
    samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "1.db 2.db --max-slowdown 0 --max-slowdown 1% --latency free"
    main(["plan", *asked.split(), "-o", "here"])
    said = capsys.readouterr().out
    main(["plan", *asked.split(), "-o", "there", "--ray"])
    assert capsys.readouterr().out == said

    names = sorted(path.name for path in (samples / "here").iterdir())
    assert names == [f"{n}-{budget}%-free.plan.json" for n in (1, 2) for budget in (0, 1)]
    for name in names:
        assert (samples / "there" / name).read_bytes() == (samples / "here" / name).read_bytes()
        assert name in said


def test_a_grid_of_plans_says_what_is_wrong(
    samples: Path, fails: Callable[[str], tuple[int, str]]
) -> None:
    for arguments, words in (
        ("1.db 2.db", "2 plans go into a folder"),
        ("1.db 1.db -o 1.db", "go into a folder"),
    ):
        code, said = fails(f"plan {arguments}")
        assert (code, words in said) == (2, True), said
    (samples / "to").mkdir()
    code, said = fails("plan 1.db 1.db -o to")
    assert (code, "two plans would be called 1-0%-known.plan.json" in said) == (2, True)

"""`measure --ray`: simulated GPUs in tasks of one local Ray, killed in between."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from underclock.app import main, raying
from underclock.app.raying import measure_together
from underclock.campaign.grid import Campaign, Grid
from underclock.errors import DataError, DeviceError, NotSupportedError, StuckError, UsageError
from underclock.hw.interrupts import InterruptedBySignal, interruptible
from underclock.records import MeasurementSettings, Step
from underclock.store import read_parts, read_samples, write_document
from underclock.workloads import workload

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
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


def measuring_processes() -> list[int]:
    """Return the processes of Ray that measure now."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                if (each / "cmdline").read_bytes().startswith(b"ray::_measured"):
                    found.append(int(each.name))
            except OSError:
                continue  # it has ended
    return found


class Ray:
    """Stands in for Ray, which takes signals for itself, and waits for an agent at its end."""

    def __init__(self) -> None:
        self.agents: list[subprocess.Popen[bytes]] = []
        self.hangs = threading.Event()

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.agents.append(subprocess.Popen(["/bin/sleep", "60"]))

    def shutdown(self) -> None:
        self.hangs.wait(30.0)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    ray = Ray()
    monkeypatch.setattr(raying, "_ray", lambda: ray)
    monkeypatch.setattr(raying, "_END_S", 0.05)
    before = signal.getsignal(signal.SIGTERM)
    yield ray
    ray.hangs.set()
    signal.signal(signal.SIGTERM, before)
    for agent in ray.agents:
        agent.kill()
        agent.wait()


def test_a_node_agent_that_is_stopped_keeps_no_command_from_ending(stand_in: Ray) -> None:
    with (
        pytest.raises(StuckError, match=r"no GPU; Ray did not end in 0\.05 s: a node") as stuck,
        raying._connected(""),  # noqa: SLF001 - what ends Ray
    ):
        raise DataError("no GPU")

    assert stand_in.agents[0].wait(10.0) == -signal.SIGKILL
    assert stuck.value.exit_code == DataError.exit_code


def test_signals_stay_ours_beside_ray(stand_in: Ray) -> None:
    stand_in.hangs.set()
    with (
        pytest.raises(InterruptedBySignal),
        interruptible(),
        raying._connected(""),  # noqa: SLF001 - what begins Ray
    ):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("_ray")
def test_a_killed_process_is_started_again_and_nothing_is_lost_or_taken_twice(
    tmp_path: Path, step: Step
) -> None:
    killed: list[int] = []

    def kill(_tally: object) -> None:
        if not killed:
            killed.extend(measuring_processes()[:1])
            for process in killed:
                os.kill(process, signal.SIGKILL)

    campaign = Campaign(grid=Grid.COARSE, core_mhz=(630, 1050, None), mem_mhz=(None,))
    (found,) = measure_together(
        step,
        gpus=["sim:rtx3080ti"] * 2,
        to=tmp_path / "all.db",
        campaign=campaign,
        measuring=BRIEF,
        progress=kill,
    )

    assert killed
    kernels = [window for window in found.windows if window.kernel]
    assert len({window.what for window in kernels}) == len(kernels) == 3 * len(step.kernels)
    assert len(found.in_situ) == 4
    parts = read_parts(tmp_path / "all.db")
    assert [part.provenance.seed for part in parts if part.provenance] == [0, 1]
    assert sum(len(part.windows) for part in parts) == len(found.windows)


@pytest.mark.usefixtures("_ray")
def test_boards_that_differ_share_the_kernels_and_the_same_call_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = workload("gpt3-xl")
    write_document(tmp_path / "step.json", step)

    def both(most: int) -> list[int]:
        boards = measure_together(
            step,
            gpus=["sim:rtx3080ti#1", "sim:rtx3080ti#2"],
            to=tmp_path / "two.db",
            campaign=Campaign(max_samples=most),
        )
        names = [{window.kernel for window in each.windows} - {""} for each in boards]
        assert not names[0] & names[1]
        assert [len(board.in_situ) for board in boards] == [2, 2]
        return [len(board.windows) for board in boards]

    assert both(50) == [25, 25]
    before = {window.time_s for window in read_samples("two.db").windows}
    assert both(56) == [28, 28]
    assert before <= {window.time_s for window in read_samples("two.db").windows}

    asked = "step.json --gpu sim:rtx3080ti*1 --max-samples 50 -o all.db --ray"
    main(["measure", *asked.split()])
    assert "50 windows of one board in all.db" in capsys.readouterr().out
    assert len(read_samples("all.db").windows) == 50
    for path in (tmp_path / "all.db.parts").iterdir():
        path.unlink()
    (tmp_path / "all.db.parts").rmdir()
    with pytest.raises(UsageError, match="cannot be gone on with"):
        measure_together(step, gpus=["sim:rtx3080ti"], to=tmp_path / "all.db")


@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize(
    ("gpus", "campaign", "error", "words"),
    [
        (
            ["sim:rtx3080ti"] * 2,
            Campaign(clocks="steer"),  # type: ignore[arg-type]
            NotSupportedError,
            "clocks are steered here",
        ),
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


@pytest.mark.usefixtures("_ray")
def test_a_gpu_that_falls_silent_ends_the_campaign(
    tmp_path: Path, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_tally: object) -> None:
        monkeypatch.setattr(raying, "_SILENT_S", 2.0)  # opening the GPU may take longer
        for each in measuring_processes():
            os.kill(each, signal.SIGSTOP)

    with pytest.raises(DeviceError, match="silent for 2 s: its node may be gone") as caught:
        measure_together(
            step,
            gpus=["sim:rtx3080ti"],
            to=tmp_path / "a.db",
            campaign=Campaign(grid=Grid.COARSE),
            progress=stop,
        )
    assert "the same command goes on" in caught.value.hint
    assert list((tmp_path / "a.db.parts").glob("0-of-1.*.db"))


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

"""A plan held while real PyTorch trains on the CPU, with a served GPU for its marks."""

import itertools
import json
import os
import shutil
import signal
import stat
import statistics
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from small_training import UNCOMPILED, Model, files_of, plan, train
from underclock.errors import DataError, UsageError
from underclock.hw.nvml_calls import READ_ONLY
from underclock.ledger import LEDGER, read_runs
from underclock.records import Clocks, GpuInfo, Plan, Strategy
from underclock.records.runs import AskLine, StepLine
from underclock.runtime.controller.log import read_log
from underclock.runtime.controller.run_files import Run, tidy
from underclock.runtime.holding.held_gpu import applied
from underclock.runtime.holding.run import HowToRun, held_run, run
from underclock.runtime.trainer import page as pages
from underclock.runtime.undo.ownership import RUNTIME_DIR, named_in
from underclock.testing import Control, Served
from users import as_root

_TESTS = Path(__file__).parents[2]
_STEPS = 24
_SCRIPT = """
import json, sys
import torch
torch.set_num_threads(1)
from small_training import Model, train
torch.manual_seed(0)
json.dump(train(Model(), int(sys.argv[1])), open(sys.argv[2], "w"))
"""
_AWAITING = """
import os, time
for _ in range(6000):
    if os.path.exists({log!r}) and os.path.getsize({log!r}):
        break
    time.sleep(0.01)
"""
pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give runs a folder of their own, and trainers what the tests import."""
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(_TESTS), *sys.path]))
    (tmp_path / "train.py").write_text(UNCOMPILED + _SCRIPT)
    return tmp_path / "runs"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    return [sys.executable, str(tmp_path / "train.py"), str(_STEPS), str(tmp_path / "losses")]


def _plain() -> list[float]:
    import torch

    torch.manual_seed(0)
    return train(Model(), _STEPS)


def _left(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if each.name.startswith("run-")]


@pytest.mark.slow
def test_clocks_follow_the_plan_and_are_given_back(
    command: list[str],
    tmp_path: Path,
    folder: Path,
    control: Control,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guard learns at auto first, so that one run has steps of both."""
    log, ledger = tmp_path / "log.jsonl", tmp_path / "ledger.jsonl"
    monkeypatch.setenv(LEDGER, str(ledger))
    # With all that a trainer loads, and not before its controller is there: machines may be slow.
    Path(command[1]).write_text(_AWAITING.format(log=str(log)) + _SCRIPT)
    ran = run(plan(low_mhz=900), command, HowToRun(window=5, log=log))

    assert json.loads((tmp_path / "losses").read_text()) == _plain()
    assert (ran.code, ran.why) == (0, "the training process ended")
    assert ran.undone == ("core given back to the driver",)
    # Where others have the processor steps pass unseen, and are counted: all but those before the
    # first mark, and what was not seen to begin.
    assert ran.summary.enqueued == _STEPS
    assert _STEPS - 6 <= ran.summary.steps <= _STEPS - 2
    assert f"{ran.summary.steps} of {_STEPS} steps seen; promised" in ran.line
    assert ran.line.endswith("kWh drawn; clocks were given back")
    assert ran.summary.followed > 0
    assert ran.summary.error_p50_s is not None
    truth = control.truth()
    assert (truth["core_lock"], truth["limit_w"]) == (None, 350.0)
    steps = [line for line in read_log(log) if isinstance(line, StepLine)]
    assert _usual_j(steps, "plan") < 0.97 * _usual_j(steps, "learning")
    ((saved,), _) = read_runs(ledger)
    (entry,) = saved.gpus
    drawn_j = sum(step.steps * step.energy_j for step in steps if step.energy_j is not None)
    # Of steps that neither ran at auto nor followed the plan nobody can tell what they saved.
    assert entry.energy_j is not None
    assert entry.untold_j < 0.2 * drawn_j
    assert entry.energy_j + entry.untold_j == pytest.approx(ran.summary.energy_j)
    assert entry.energy_j + entry.untold_j > drawn_j  # what no step drew is booked too
    assert entry.steps == ran.summary.steps
    assert not _left(folder)


def _usual_j(steps: list[StepLine], arm: str) -> float:
    """Return what steps of an arm drew, but for those at its beginning."""
    known = [step.energy_j for step in steps if step.arm == arm]
    return statistics.median(each for each in known[2:] if each is not None)


@pytest.mark.slow
def test_a_dry_run_asks_for_nothing_and_says_what_it_would_have_asked_for(
    command: list[str], control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READ_ONLY, "1")

    log = tmp_path / "log.jsonl"
    dry = run(plan(), command, HowToRun(dry=True, window=0, log=log))

    assert (dry.code, dry.undone) == (0, ())
    asked = [line.to_mhz for line in read_log(log) if isinstance(line, AskLine)]
    # How many come in time is a matter of who else has the processor; never two alike on end.
    assert asked[:2] == [1110, None]
    assert all(before != after for before, after in itertools.pairwise(asked))
    assert dry.summary.asks == len(asked) / dry.summary.steps
    assert dry.summary.error_p99_s is not None
    assert dry.summary.conductor is not None
    assert control.truth()["core_lock"] is None


@pytest.mark.slow
def test_two_ranks_have_a_gpu_each(command: list[str], control: Control, tmp_path: Path) -> None:
    """As torchrun starts them: each with its local rank in the environment."""
    log = tmp_path / "log.jsonl"
    command[2] = "8"
    launcher = (
        "import os, subprocess, sys\n"
        "ranks = [subprocess.Popen(sys.argv[1:], env=dict(os.environ, LOCAL_RANK=rank)) "
        "for rank in '01']\n"
        "sys.exit(max(rank.wait() for rank in ranks))"
    )
    ran = run(
        plan(),
        [sys.executable, "-c", launcher, *command],
        HowToRun(gpus=("nvml:0", "nvml:1"), log=log, window=0),
    )

    steps = [json.loads(line) for line in log.read_text().splitlines()]
    assert ran.code == 0
    assert {line["gpu"] for line in steps if line["line"] == "step"} == {0, 1}
    assert [control.truth(gpu)["core_lock"] for gpu in (0, 1)] == [None, None]


@pytest.mark.usefixtures("served")
def test_more_gpus_than_setters_can_be_called_for_are_told_of() -> None:
    told: list[str] = []
    made = plan(launch_s=3e-4)  # a step of 16 ms; two calls of 5 ms for each GPU
    for gpus in (("nvml:0",), ("nvml:0", "nvml:1")):
        told.clear()
        with held_run(made, HowToRun(gpus=gpus, dry=True, tell=told.append)):
            pass
        words = [sentence for sentence in told if "changes will be late" in sentence]
        assert len(words) == 1
    assert "for all GPUs (2)" in words[0]

    told.clear()
    with held_run(plan(), HowToRun(gpus=gpus, dry=True, tell=told.append)):
        pass
    assert not any("will be late" in sentence for sentence in told)


@pytest.mark.usefixtures("served")
def test_a_controller_that_dies_as_it_is_asked_to_end_is_told_of(folder: Path) -> None:
    told: list[str] = []
    with held_run(plan(), HowToRun(tell=told.append)) as held:
        held.start(os.getpid())
        (lock,) = folder.glob("GPU-*.lock")
        controller, watchdog = named_in(lock)
        assert controller
        assert watchdog
        os.kill(controller.pid, signal.SIGSTOP)
        os.kill(watchdog.pid, signal.SIGKILL)
        dies = threading.Timer(0.05, os.kill, (controller.pid, signal.SIGKILL))
        dies.start()  # when the block ends it lives still, and says nothing any more
    dies.join()

    assert any("clocks are held no more" in sentence for sentence in told), told


@pytest.fixture
def holding(served: Served) -> Iterator[None]:
    del served
    yield
    import gc

    gc.collect()


@pytest.mark.slow
def test_a_block_is_held_and_given_back(
    holding: None, control: Control, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    del holding
    log = tmp_path / "log.jsonl"
    with applied(plan(launch_s=5e-4), HowToRun(log=log)) as held:
        early, scalars = held.summary, held.scalars()
        losses = train(Model(), 6)

    assert len(losses) == 6
    assert (early, scalars) == (None, {})
    assert held.summary is not None
    assert held.summary.enqueued == 6
    (said,) = (line for line in capfd.readouterr().err.splitlines() if "; clocks were" in line)
    assert "the plan was never held: the run ended before 22 steps" in said
    assert said.endswith("clocks were given back")
    assert control.truth()["core_lock"] is None
    assert '"end"' in log.read_text()


def _unscheduled() -> Plan:
    made = _changed(schedule=None, chosen=Strategy.AUTO)
    name, choice = next(iter(made.kernels.items()))
    return _changed(
        schedule=None,
        chosen=Strategy.AUTO,
        kernels=made.kernels
        | {name: msgspec.structs.replace(choice, clocks=Clocks(core_mhz=1005))},
    )


def _changed(**fields: object) -> Plan:
    return msgspec.structs.replace(plan(), **fields)


@pytest.mark.parametrize(
    ("made", "how", "error", "reason"),
    [
        (_unscheduled(), HowToRun(), UsageError, "has no schedule"),
        (
            plan(gpu=GpuInfo(name="RTX 4090", power_limit_w=350.0)),
            HowToRun(),
            DataError,
            "the plan is for RTX 4090, this is RTX 3080 Ti",
        ),
        (
            plan(gpu=GpuInfo(name="RTX 3080 Ti", power_limit_w=350.0, driver="1.2")),
            HowToRun(),
            DataError,
            "made under driver 1.2, and this is",
        ),
        (plan(low_mhz=1111), HowToRun(), DataError, "1111 MHz.*does not list"),
        (plan(), HowToRun(leader="node0:1"), UsageError, "this plan is of one GPU"),
        (plan(), HowToRun(gpus=("nvml:0", "nvml:0")), UsageError, "named twice"),
        (plan(), HowToRun(gpus=("nvml:7",)), UsageError, "there is no GPU 7"),
        (plan(), HowToRun(gpus=("sim:rtx3080ti",)), UsageError, "exists in one process only"),
    ],
)
@pytest.mark.usefixtures("served")
def test_what_cannot_be_held_is_refused_before_anything_runs(
    made: Plan, how: HowToRun, error: type[Exception], reason: str, folder: Path
) -> None:
    with pytest.raises(error, match=reason):
        run(made, [sys.executable, "-c", "raise SystemExit(9)"], how)

    assert not folder.exists() or not _left(folder)


@pytest.mark.usefixtures("served")
def test_another_driver_will_do_if_one_says_so() -> None:
    told: list[str] = []
    other = plan(gpu=GpuInfo(name="RTX 3080 Ti", power_limit_w=350.0, driver="1.2"))

    ran = run(
        other,
        [sys.executable, "-S", "-c", "raise SystemExit(9)"],
        HowToRun(anyway=True, dry=True, tell=told.append),
    )

    assert ran.code == 9
    assert ran.summary.steps == 0
    assert any("driver 1.2" in sentence for sentence in told)


@pytest.mark.parametrize(
    ("command", "reason"), [([], "nothing to run"), (["no-such"], "'no-such'")]
)
def test_a_command_that_is_none_is_refused(command: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        run(plan(), command)


def test_nothing_is_held_inside_of_a_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERCLOCK_RUN", "somewhere")

    with pytest.raises(UsageError, match="in this process already"), applied(plan()):
        pass


def test_files_of_a_run_whose_launcher_died_are_removed(folder: Path) -> None:
    run_ = files_of(plan(), (("GPU-x", 0),), simulated="RTX 3080 Ti")
    page = Path(run_.gpus[0].page)
    left = run_.folder.rename(folder / "run-999999999-1-abcdef")
    orphan = page.parent.rename(page.parent.with_name(f"underclock-{left.name}"))

    tidy()

    assert not left.exists()
    assert not orphan.exists()


@as_root
def test_pages_lie_where_nobody_can_foresee_and_others_folders_stay_theirs(folder: Path) -> None:
    runs = [files_of(plan(), (("GPU-x", 0),)) for _ in "12"]
    places = [Path(each.gpus[0].page).parent for each in runs]
    assert places[0] != places[1]
    assert all(len(each.name.rpartition("-")[2]) == 16 for each in places)
    runs[1].remove()
    assert not places[1].exists()

    left = runs[0].folder.rename(folder / "run-999999999-1-abcdef")
    foreign = places[0].rename(places[0].with_name(f"underclock-{left.name}"))
    os.chown(foreign, 65534, 65534)  # as if another had made it
    tidy()
    assert foreign.exists()
    shutil.rmtree(foreign)


def test_only_its_owner_may_write_the_files_of_a_run(folder: Path) -> None:
    run_ = files_of(plan(), (("GPU-x", 0),))

    for path in (folder, run_.folder, Path(run_.gpus[0].page)):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077
    assert Run.open(run_.folder).gpus == run_.gpus
    run_.remove()
    with pytest.raises(DataError, match="holds no run"):
        Run.open(run_.folder)
    assert pages.VERSION == 3

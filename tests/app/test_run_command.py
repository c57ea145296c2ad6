"""`underclock run` as a shell sees it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from free_time import free_s
from small_training import SCRIPT, plan
from underclock.app import main
from underclock.hw.base import SystemClock
from underclock.hw.interrupts import InterruptedBySignal
from underclock.hw.nvml_calls import READ_ONLY, SIMULATOR
from underclock.hw.simulated.served.client import Control
from underclock.ledger import LEDGER, SavedAgainst, read_runs
from underclock.records import Clocks
from underclock.records.runs import StepLine
from underclock.runtime.controller.log import read_log
from underclock.runtime.holding.run import HeldRun
from underclock.runtime.undo.ownership import RUNTIME_DIR, Process
from underclock.store import write_document
from underclock.testing import served_gpus


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "runs"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    write_document(Path("plan.json"), plan())


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with served_gpus("rtx3080ti", tmp_path / "s", count=2):
        monkeypatch.setenv(SIMULATOR, str(tmp_path / "s"))
        yield


@pytest.mark.usefixtures("served")
def test_it_ends_with_the_commands_code_and_says_what_was_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [sys.executable, "-S", "-c", "print('mine'); raise SystemExit(3)"]
    with pytest.raises(SystemExit) as ended:
        main(["run", "plan.json", "--json", "--log", "log.jsonl", "--", *command])

    said = json.loads(capsys.readouterr().out)
    assert ended.value.code == said["code"] == 3
    assert said["why"] == "the training process ended"
    assert said["summary"]["steps"] == 0
    assert said["summary"]["run"]["workload"] == "small"

    main(["report", "log.jsonl", "-o", "run.html"])
    assert "0 steps under the plan" in Path("run.html").read_text()
    assert said["line"].startswith("0 steps")


@pytest.mark.usefixtures("served")
def test_a_command_that_a_signal_ends_has_the_shells_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [sys.executable, "-S", "-c", "import os; os.kill(os.getpid(), 15)"]
    with pytest.raises(SystemExit) as ended:
        main(["run", "plan.json", "--dry-run", "--", *command])

    assert ended.value.code == 143
    said = capsys.readouterr()
    assert "steps seen" in said.out
    assert "the command was ended by SIGTERM" in said.err
    assert said.err.splitlines()[-1].endswith("; no clock was set")


@pytest.mark.usefixtures("served")
def test_ctrl_c_ends_with_one_line_and_no_traceback(tmp_path: Path) -> None:
    underclock = Path(sys.executable).with_name("underclock")
    began = tmp_path / "began"
    command = ["sh", "-c", f"echo > {began}; exec sleep 60"]
    with subprocess.Popen(
        [underclock, "run", "plan.json", "--compare", "auto,plan", "--", *command],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        clock = SystemClock()
        until_s = clock.now_s() + 60.0
        while not began.exists() and clock.now_s() < until_s:
            clock.sleep_s(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate()

    assert process.returncode == 130
    assert "steps seen" in out
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("underclock: 0 steps; promised")
    assert err.splitlines()[-1].endswith("; clocks were given back")


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("number", "deaf"),
    [
        (signal.SIGINT, "trap '' INT TERM"),
        (signal.SIGTERM, "trap : INT TERM; while :; do sleep 9; done"),
    ],
)
def test_a_command_deaf_to_signals_ends_within_5_s_and_clocks_are_given_back(
    number: signal.Signals, deaf: str, tmp_path: Path
) -> None:
    began, clock = tmp_path / "began", SystemClock()
    left = f"trap '' INT TERM; sleep 60 & echo $! > {began}.new; mv {began}.new {began}"
    command = ["sh", "-c", f"{left}; {deaf}; wait"]
    with subprocess.Popen(
        [sys.executable, "-m", "underclock", "run", "plan.json", "--", *command],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until_s = clock.now_s() + 60.0
        while not began.exists() and clock.now_s() < until_s:
            clock.sleep_s(0.02)
        asked_s = free_s()
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=60.0)
        took_s = free_s() - asked_s

    assert took_s < 5.0
    assert process.returncode == 128 + number
    assert "killed what did not end within 3 s of being asked to" in err
    assert err.splitlines()[-1].endswith("; clocks were given back")
    orphan = Process.of(int(began.read_text()))
    assert orphan is None or not orphan.lives


@pytest.mark.usefixtures("served")
def test_a_driver_that_hangs_keeps_no_command_and_nothing_is_said_to_be_given_back(
    tmp_path: Path,
) -> None:
    began, clock = tmp_path / "began", SystemClock()
    write_document(
        Path("plan.json"),
        msgspec.structs.replace(plan(), fixed=Clocks(core_mhz=1500)),
        force=True,
    )
    command = ["sh", "-c", f"echo > {began}; exec sleep 60"]
    said = tmp_path / "said"
    with (
        said.open("w") as err,
        subprocess.Popen(
            [sys.executable, "-m", "underclock", "run", "plan.json", "--", *command],
            stdout=subprocess.DEVNULL,
            stderr=err,
        ) as process,
        Control(str(tmp_path / "s")) as control,
    ):
        until_s = clock.now_s() + 60.0
        while not began.exists() and clock.now_s() < until_s:
            clock.sleep_s(0.02)
        control.fault("setter_hangs", 8.0)
        asked_s = free_s()
        process.terminate()
        assert process.wait(60.0) == 143
        took_s = free_s() - asked_s
        control.heal()

    assert took_s < 5.0
    last = said.read_text().splitlines()[-1]
    assert last.endswith("is being given back by its watchdog: `underclock restore` checks")


@pytest.mark.usefixtures("served")
def test_a_signal_between_the_commands_start_and_waiting_for_it_ends_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(_held: HeldRun, trainer: "subprocess.Popen[bytes]") -> None:
        started.append(trainer)
        raise InterruptedBySignal(signal.SIGTERM)

    monkeypatch.setattr(HeldRun, "wait", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["run", "plan.json", "--dry-run", "--", "sleep", "60"])

    assert ended.value.code == 143
    assert [each.returncode for each in started] == [-signal.SIGTERM]


@pytest.mark.usefixtures("served")
def test_a_run_too_short_to_compare_ends_with_8(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "plan.json", "--compare", "auto,plan", "--", "true"])

    assert ended.value.code == 8
    assert "no step was seen: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("run plan.json", "nothing to run"),
        ("run", "run takes a command"),
        ("run --observe", "run takes a command"),
        ("run --observe plan.json -- true", "with --observe a command alone"),
        ("run --observe --compare auto,plan -- true", "nothing to compare"),
        ("run -- no-such-command", "there is no command 'no-such-command'"),
        ("run plan.json -- no-such-command", "there is no command 'no-such-command'"),
        ("run plan.json --compare plan,magic -- true", "there is no way 'magic'"),
        ("run plan.json --compare auto,best-fixed -- true", "no best fixed clock"),
        ("run plan.json --guard 1 -- true", "cannot judge 1 steps together"),
        ("run plan.json --guard 5 --compare auto,plan -- true", "one run cannot do both"),
        ("run plan.json --gpu nvml:3 -- true", "there is no GPU 3"),
        ("run nothing.json -- true", "cannot read nothing.json"),
        ("run plan.json --log /no/such/folder/log -- true", "cannot write /no/such/folder/log"),
    ],
)
def test_what_is_wrong_is_said(
    fails: Callable[[str], tuple[int, str]], arguments: str, reason: str
) -> None:
    code, said = fails(arguments)

    assert code in {2, 4}
    assert reason in said


@pytest.mark.slow
@pytest.mark.usefixtures("served")
def test_a_run_without_a_plan_has_its_kwh_and_sets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(READ_ONLY, "1")
    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger.jsonl"))
    Path("train.py").write_text(SCRIPT)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--observe", "--json", "--", sys.executable, "train.py", "25"])
    ran = json.loads(capsys.readouterr().out)
    ((booked,), notes) = read_runs(tmp_path / "ledger.jsonl")

    assert (ended.value.code, notes) == (0, ())
    assert ran["summary"]["enqueued"] == 25 > ran["summary"]["steps"] > 10
    assert ran["line"].endswith(" kWh drawn; no clock was set")
    assert len(booked.gpus) == 2  # all that the command sees
    assert (booked.job, booked.against, booked.plan) == ("train", SavedAgainst.OBSERVED, "")
    assert [gpu.energy_j for gpu in booked.gpus] == [gpu.auto_j for gpu in booked.gpus]


@pytest.mark.slow
def test_a_run_without_a_plan_learns_clocks_and_gives_them_back(
    served: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The served GPU executes what the script's step is assumed to launch."""
    del served
    Path("train.py").write_text(SCRIPT)
    log = tmp_path / "log.jsonl"
    with pytest.raises(SystemExit) as ended:
        main(["run", "--log", str(log), "--", sys.executable, "train.py", "60"])
    said = capsys.readouterr().err

    assert ended.value.code == 0
    assert "the command runs twice" in said
    assert said.splitlines()[-1].endswith("clocks were given back")
    steps = [line for line in read_log(log) if isinstance(line, StepLine)]
    assert {line.arm for line in steps} <= {"auto", "tried", "learned"}
    with Control(str(tmp_path / "s")) as control:
        assert control.truth()["core_lock"] is None


@pytest.mark.slow
def test_simulated_gpus_are_served_as_long_as_a_run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fails: Callable[[str], tuple[int, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--gpu", "sim:rtx3080ti", "--observe", "--", sys.executable, "train.py", "30"])
    assert ended.value.code == 0
    assert "kWh drawn; no clock was set" in capsys.readouterr().err
    assert SIMULATOR not in os.environ

    code, said = fails(f"run --gpu sim:a100 --gpu sim:h200 -- {sys.executable} train.py 30")
    assert code == 2
    assert "one server has GPUs of one model" in said


@pytest.mark.usefixtures("served")
def test_a_run_that_may_not_set_clocks_says_what_it_may_do(
    fails: Callable[[str], tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READ_ONLY, "1")
    Path("train.py").write_text(SCRIPT)
    code, said = fails(f"run -- {sys.executable} train.py 30")

    assert code == 3
    assert "READ_ONLY" in said
    assert "--observe counts what it draws" in said

"""`underclock tune`: from a training command to its clocks, in one folder."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import underclock
from small_training import SCRIPT
from underclock.app import main
from underclock.errors import UsageError
from underclock.hw.nvml_calls import SIMULATOR
from underclock.ledger import LEDGER
from underclock.records import Plan, Step
from underclock.runtime.undo.ownership import RUNTIME_DIR
from underclock.store import SampleFile, read_document
from underclock.testing import served_gpus

_AGAIN = ["tune", "--gpu", "sim:a100", "-o", "tuned"]
_TUNE = [*_AGAIN, "--precision", "2%"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)


def test_a_script_is_tuned_once_and_held_and_python_finds_the_same_plan(
    capfd: pytest.CaptureFixture[str],
) -> None:
    main([*_TUNE, "--", sys.executable, "train.py", "4"])

    said = capfd.readouterr()
    assert "assumed: no GPU was seen" in said.out
    assert "clocks are held to measure" in said.out
    assert "Simulated A100" in said.out
    assert len(said.out.splitlines()) <= 15
    step = read_document(Path("tuned/step.json"), Step)
    plan = read_document(Path("tuned/plan.json"), Plan)
    assert step.is_assumed
    assert plan.workload == "train"
    assert (plan.headline.energy_change or 0.0) < -0.01
    assert plan.answer[0] in said.out
    assert "report.html" in said.out
    assert "Next: the same command with --hold" in said.out
    taken = _on_file()

    with pytest.raises(SystemExit) as ended:
        main([*_AGAIN, "--hold", "--", sys.executable, "train.py", "4"])

    assert ended.value.code == 0
    assert _on_file() == taken
    assert read_document(Path("tuned/plan.json"), Plan) == plan
    said = capfd.readouterr()
    assert "plan.json is there already" in said.err
    assert said.out.count("trained") == 1  # tracing it again would have ended it before
    assert "steps seen" in said.out
    assert underclock.tune([sys.executable, "train.py", "4"], gpu="sim:a100", to="tuned") == plan


def test_python_counts_what_a_command_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot sum by 'year'"):
        underclock.saved("year")
    with served_gpus("a100", Path("gpu.sock")):
        monkeypatch.setenv(SIMULATOR, "gpu.sock")
        monkeypatch.setenv(LEDGER, "ledger.jsonl")
        assert underclock.observe(f"{sys.executable} train.py 4").energy_j
        (total,) = underclock.saved()
    assert (total.against, total.saved_j) == ("observed", 0.0)


def _on_file() -> tuple[object, ...]:
    """Return when the step was written, and which samples are on file."""
    samples = SampleFile.read(Path("tuned/samples.db"))
    return (Path("tuned/step.json").stat().st_mtime_ns, samples.samples, samples.in_situ)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("tune --gpu sim:rtx3080ti", "there is no command to run"),
        ("tune --gpu sim:rtx3080ti -- no-such-launcher train.py", "there is no command"),
        ("tune --gpu sim:rtx3080 -- true", "no simulated GPU is called"),
        ("tune --gpu sim:rtx3080ti -- true", "true ended with exit code 0 before a first step"),
        ("tune --gpu replay:table.csv -- python train.py", "nothing trains"),
        ("tune --gpu sim:rtx3080ti --max-slowdown abc -- python train.py", "abc"),
        ("tune --gpu sim:rtx3080ti -o train.py -- python train.py", "cannot make train.py"),
    ],
)
def test_what_is_wrong_is_said(
    fails: Callable[[str], tuple[int, str]], arguments: str, reason: str
) -> None:
    code, said = fails(arguments)

    assert code == 2
    assert reason in said


def test_another_scripts_folder_is_left_alone(
    fails: Callable[[str], tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["trace", "--assume", "train.py", "-o", "step.json", "--", "4"])
    capsys.readouterr()
    before = json.loads(Path("step.json").read_text())
    Path("train.py").write_text(SCRIPT + "\n# changed\n")

    code, said = fails("tune --gpu sim:rtx3080ti -o . -- python train.py 4")

    assert code == 2
    assert "step.json is of train.py" in said
    assert "another folder with -o" in said
    assert json.loads(Path("step.json").read_text()) == before

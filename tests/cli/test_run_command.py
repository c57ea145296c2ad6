"""`underclock run` as a shell sees it."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from small_training import plan
from underclock.cli import main
from underclock.hw.served_simulator import SIMULATOR
from underclock.runtime.undo.ownership import RUNTIME_DIR
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
    with served_gpus("rtx3080ti", tmp_path / "s"):
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
    assert "0 steps under a plan" in Path("run.html").read_text()


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


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("run plan.json", "nothing to run"),
        ("run plan.json -- no-such-command", "there is no command 'no-such-command'"),
        ("run plan.json --arms plan,magic -- true", "there is no arm 'magic'"),
        ("run plan.json --arms auto,best-fixed -- true", "no best fixed clock"),
        ("run plan.json --guard 1 -- true", "cannot judge 1 steps together"),
        ("run plan.json --guard 5 --arms auto,plan -- true", "one run cannot do both"),
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

"""Names that try to steer the terminal."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from underclock.app import main
from underclock.app.output import clean
from underclock.errors import DeviceError

_EVIL = "a\x1b[2J\x1b]0;pwned\x07\x9b31m\u202eb"
_STEERS = ("\x1b", "\x07", "\x9b", "\u202e")


@pytest.fixture(autouse=True)
def _in_a_folder_with_an_evil_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.csv").write_text(
        "gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w\n"
        f"{_EVIL},{_EVIL},,,1.0,100,100\n"
        f"{_EVIL},{_EVIL},900,5001,1.0,80,80\n"
    )


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand a tab", "Größe ≤ 3 %", ""])
def test_text_without_control_characters_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


def test_control_characters_are_written_out() -> None:
    assert clean(_EVIL) == r"a\u001b[2J\u001b]0;pwned\u0007\u009b31m\u202eb"


@pytest.mark.parametrize(
    "command",
    ["breakdown sweep.csv", "plan sweep.csv", "plan sweep.csv --json", "score p.json s.csv"],
)
def test_no_command_lets_a_name_steer_the_terminal(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):
        main(command.split())
    said = capsys.readouterr()

    assert said.out + said.err
    assert not any(mark in said.out + said.err for mark in _STEERS)


def test_json_stays_json_of_the_same_names(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "sweep.csv", "--json"])

    assert json.loads(capsys.readouterr().out)["gpu"]["name"] == _EVIL


def test_what_stays_locked_is_said_beside_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_gpu: object) -> None:
        error = DeviceError("it broke", hint="mend it")
        error.add_note("the clocks STAY locked: could not unlock\x1b; paste this")
        raise error

    monkeypatch.setattr("underclock.app.doctor.examine", fail)
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])

    assert ended.value.code == 3
    assert capsys.readouterr().err.splitlines() == [
        "underclock: it broke",
        "  hint: mend it",
        r"underclock: the clocks STAY locked: could not unlock\u001b; paste this",
    ]


@pytest.mark.parametrize(("err", "code"), [("True", 0), ("False", 1)])
def test_a_full_disk_behind_stderr_ends_nothing_and_behind_stdout_is_an_error(
    err: str, code: int
) -> None:
    """A file that takes nothing stands for the disk."""
    program = f"from underclock.app.output import say; say('words', err={err})"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, check=False, stdout=full, stderr=full)

    assert min(ended.returncode, 1) == code

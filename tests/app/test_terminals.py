"""What commands print at terminals that lack letters, end early or are narrow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_TABLE = Path(__file__).parents[1] / "data/tables/two_kernels.csv"
_PLAIN = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
_PRINTS = ["--help", f"plan {_TABLE}"]


def _environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "UNDERCLOCK_LEDGER": str(folder / "ledger.jsonl"), **more}


def _command(words: str) -> list[str]:
    return [sys.executable, "-m", "underclock", *words.split()]


@pytest.mark.parametrize("words", [*_PRINTS, "plan missing.csv"])
def test_a_terminal_without_letters_is_told_in_ascii(tmp_path: Path, words: str) -> None:
    done = subprocess.run(
        _command(words),
        cwd=tmp_path,
        env=_environment(tmp_path, **_PLAIN),
        capture_output=True,
        check=False,
    )

    said = (done.stdout + done.stderr).decode("ascii")
    assert "Traceback" not in said
    assert done.returncode == (4 if "missing" in words else 0), said


@pytest.mark.parametrize("words", _PRINTS)
def test_a_reader_that_leaves_ends_a_command_quietly(tmp_path: Path, words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        done = subprocess.run(
            _command(words),
            cwd=tmp_path,
            env=_environment(tmp_path),
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert done.returncode == 0, done.stderr.decode()
    assert b"Error" not in done.stderr
    assert b"Exception" not in done.stderr

"""`plan` on a table of another program: asked about at a terminal, else taken with --yes alone."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

_TABLE = (Path(__file__).parents[1] / "data/tables/two_kernels.csv").read_text()
_FOREIGN = _TABLE.replace("core_mhz,mem_mhz", "coreF,memF")
_READ_SO = "core_mhz is 'coreF'; mem_mhz is 'memF'"


def _plan(folder: Path, *options: str, answer: str | None = None) -> tuple[int, str]:
    """Plan the table; at a terminal where there is an answer. Return the code and what it said."""
    (folder / "sweep.csv").write_text(_FOREIGN)
    command = [sys.executable, "-m", "underclock", "plan", "sweep.csv", *options]
    if answer is None:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    ours, its = pty.openpty()
    process = subprocess.Popen(command, cwd=folder, stdin=its, stdout=its, stderr=its)
    os.close(its)
    os.write(ours, answer.encode())
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    return process.wait(60.0), " ".join(said.decode().split())


def test_without_a_terminal_only_yes_takes_it(tmp_path: Path) -> None:
    code, said = _plan(tmp_path)
    assert (code, _READ_SO in said, "--yes" in said) == (4, True, True)

    code, said = _plan(tmp_path, "--yes", "--json")
    assert code == 0
    assert _READ_SO in said
    assert json.loads(said[said.index("{") : said.rindex("}") + 1])["step"]["name"] == "sweep"


@pytest.mark.parametrize(("answer", "expected"), [("y\n", 0), ("n\n", 4)])
def test_a_person_at_a_terminal_is_asked(tmp_path: Path, answer: str, expected: int) -> None:
    code, said = _plan(tmp_path, answer=answer)

    assert code == expected
    assert _READ_SO in said

"""The README, followed from top to bottom in one folder, on a step of few kernels.

Every command and option that README and the H200's page name must exist. All blocks but those that
say what they need are run in order, in one environment, so that a file that one writes is what the
next one reads. Campaigns are small; with UNDERCLOCK_README=whole they are as the page says, which
takes some minutes, and what it shows of what commands print is compared with what they do.
"""

import contextlib
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from small_training import SCRIPT
from underclock import Kernel, Step
from underclock.app import main
from underclock.app.main import cli
from underclock.hw.nvml_calls import READ_ONLY, SIMULATOR
from underclock.runtime.undo.ownership import RUNTIME_DIR
from underclock.store import write_document
from underclock.testing import served_gpus

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[2]
_README = (_ROOT / "README.md").read_text()
_PAGES = (_README, (_ROOT / "docs" / "evidence" / "h200" / "README.md").read_text())
_GPUS = {"sim:rtx3080ti": "replay:unit0.csv", "sim:rtx3080ti#1": "replay:unit1.csv"}
_WHOLE = os.environ.get("UNDERCLOCK_README") == "whole"
_COMMANDS = ("underclock ", "make ", ". ", "pip ", "export ")
_OTHERS = {"docs/examples/train.py": "small.py"}


def _indented(text: str) -> list[list[str]]:
    """Return the code blocks of a page."""
    found = re.finditer(r"(?:^ {4}.*\n|^\n(?= {4}))+", text, re.MULTILINE)
    return [[line[4:] for line in each[0].splitlines() if line.strip()] for each in found]


_BLOCKS = [each for each in _indented(_README) if each[0].startswith(_COMMANDS)]
_PRINTED = [
    line for each in _indented(_README) if re.match(r"-\d.* % energy", each[0]) for line in each
]
_ENDINGS = {0, 8}  # a table repeats itself, which decides nothing


def _lines(text: str) -> Iterator[str]:
    """Yield the commands of a page's code blocks."""
    for match in re.finditer(r"^ {4}(?:[A-Z_]+=\S+ )?underclock (.+)$", text, re.MULTILINE):
        yield match[1].split(" #")[0].strip().removesuffix(" &")


def _mentions(text: str) -> Iterator[str]:
    """Yield the commands mentioned in a sentence; they may leave arguments away."""
    for match in re.finditer(r"`underclock ([a-z][^`]*)`", text):
        yield " ".join(match[1].split())


def _parse(arguments: list[str]) -> None:
    """Read a command line without running it.

    Raises:
        click.UsageError, UsageError: There is no such command, option or value.
    """
    group = click.Context(cli, **cli.context_settings)
    command = cli.get_command(group, arguments[0])
    assert command is not None, f"there is no command {arguments[0]}"
    command.make_context(arguments[0], arguments[1:], parent=group)


def _few() -> Step:
    """Return a step of two kernels, which the tables know."""
    kernels = (Kernel(name="product", count=2), Kernel(name="copy", count=2))
    return Step(name="few", kernels=kernels, order=(0, 1, 0, 1))


def _sweep(path: Path, hunger_w: float, runs: Sequence[float] = (1.0,)) -> None:
    """Write a table as somebody with an RTX 3080 Ti may have it; boards differ in their hunger.

    Args:
        path: Where to.
        hunger_w: Of the board.
        runs: What each run of a row takes, against the usual one.
    """
    rows = ["gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w"]
    for kernel, core_s, dram_s in (("product", 2e-3, 5e-4), ("copy", 3e-4, 2e-3)):
        for core, mem in ((0, 0), *itertools.product((600, 900, 1200, 1800), (5001, 9501))):
            ghz, share = (core or 1850) / 1000, (mem or 9501) / 9501
            time_s = max(core_s / ghz, dram_s / share) + 1e-4
            power_w = 70 + 30 * share + hunger_w * min(1, core_s / ghz / time_s) * ghz**2
            clocks = f"{core or ''},{mem or ''}"
            rows += [
                f"RTX 3080 Ti,{kernel},{clocks},{run * time_s},{run * time_s * power_w},"
                for run in runs
            ]
    path.write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("line", [line for page in _PAGES for line in _lines(page)])
def test_every_command_line_can_be_read(line: str) -> None:
    arguments = shlex.split(line)
    if not arguments[0].startswith("--"):
        _parse(arguments)


@pytest.mark.parametrize("mention", [each for page in _PAGES for each in _mentions(page)])
def test_every_command_mentioned_is_there(mention: str) -> None:
    with contextlib.suppress(click.MissingParameter):  # a sentence need not say everything
        _parse(shlex.split(mention))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator["_Shell"]:
    """One shell for all of the page, in a folder of its own."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "docs").symlink_to(_ROOT / "docs")
    for name, hunger_w in (("unit0.csv", 90.0), ("unit1.csv", 99.0)):
        _sweep(folder / name, hunger_w)
    (folder / "small.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PWD", str(folder))
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        monkeypatch.setenv(RUNTIME_DIR, str(folder / "runs"))
        shell = _Shell(monkeypatch)
        with shell.jobs:
            yield shell


@pytest.mark.parametrize("at", range(len(_BLOCKS)), ids=lambda at: _BLOCKS[at][0])
def test_the_readme_works_from_top_to_bottom_in_one_shell(
    at: int, shell: "_Shell", capfd: pytest.CaptureFixture[str]
) -> None:
    for line in _BLOCKS[at]:
        shell.run(line)
    shell.said += capfd.readouterr().out


def test_all_of_the_readme_ran_and_left_the_shell_as_it_was(shell: "_Shell") -> None:
    assert READ_ONLY not in os.environ
    assert SIMULATOR not in os.environ
    assert Path("underclock-tune/report.html").is_file()
    assert shell.ran == {
        *(
            "breakdown",
            "calibrate",
            "check",
            "compare",
            "fit",
            "job",
            "latency",
            "measure",
            "plan",
            "predict",
        ),
        *("refine", "report", "run", "score", "simulate", "trace", "transfer", "tune", "validate"),
        "--install-completion",
    }
    for line in _PRINTED if _WHOLE else []:
        assert _bare(line) in _bare(shell.said), line


def test_the_readmes_python_works(
    shell: "_Shell",  # noqa: ARG001 - where it runs
    capfd: pytest.CaptureFixture[str],
) -> None:
    python = "\n".join(re.findall(r"```python\n(.*?)```", _README, re.DOTALL))
    if not _WHOLE:
        python = re.sub(r'underclock.trace\("gpt3-xl"[^)]*\)', "few()", python)
        python = python.replace('"sim:rtx3080ti"', '"replay:unit0.csv"')
        assert "few()" in python
        assert "replay:" in python
    exec(python, {"few": _few})  # noqa: S102 - our own page
    lines = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"-0\.\d+ -0\.\d+", lines[0])
    assert lines[1] == "2"


class _Shell:
    """Does what a shell does with the README's lines, commands of ours in this process.

    Attributes:
        ran: Commands of ours.
        jobs: What runs in the background, until its block ends.
        said: What all of them printed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: set[str] = set()
        self.said = ""
        self.jobs = contextlib.ExitStack()
        self._monkeypatch = monkeypatch

    def run(self, line: str) -> None:
        """Run a line; it ends well."""
        line = os.path.expandvars(line.split(" #", maxsplit=1)[0].strip())
        for part in line.split(" && "):
            self._run(shlex.split(part))

    def _run(self, words: list[str]) -> None:
        first, *rest = words
        if first == "export":
            name, _, value = rest[0].partition("=")
            self._monkeypatch.setenv(name, value)
        elif first == "unset":
            self._monkeypatch.delenv(rest[0])
        elif first == "kill":
            self.jobs.close()
        elif words == ["make", "demo"]:
            if _WHOLE:
                assert _code(["demo", "--force", "-o", "underclock-demo"]) == 0
        elif first == "underclock":
            self._ours(rest)
        else:  # what sets up the environment in which this test runs
            assert first in {".", "pip"} or words == ["make", "test"], words

    def _ours(self, words: list[str]) -> None:
        command, *rest = words
        self.ran.add(command)
        if command == "simulate":
            assert rest[1:] == ["--socket", "gpu.sock", "&"]
            self.jobs.enter_context(served_gpus(rest[0], Path(rest[2])))
        elif command == "--install-completion":
            self._monkeypatch.setenv("HOME", str(Path.cwd()))
            assert _code(words) == 0
        elif command == "trace" and "gpt3-xl" in rest and not _WHOLE:
            write_document(Path(rest[rest.index("-o") + 1]), _few())
        elif (command in {"refine", "transfer"} or "--power-limit" in rest) and not _WHOLE:
            pass  # they are of a step that was run whole; a table runs none
        else:
            assert _code(words if _WHOLE else _smaller(command, rest)) in _ENDINGS, words


def _bare(text: str) -> str:
    """Return text as it is whatever the terminal's width: without blanks and rules."""
    return re.sub(r"[\s─]", "", text)


def _smaller(command: str, rest: list[str]) -> list[str]:
    """Return a command line that takes less time: on a table, or of fewer samples."""
    if command == "latency":  # a table has no clocks to change
        return [command, *rest, "--targets", "2", "--repeats", "2"]
    if command == "check":
        return [command, *rest, "--splits", "1"]
    if command == "tune":
        sure = [] if "--hold" in rest else ["--precision", "5%"]
        return [command, *sure, *(_OTHERS.get(word, word) for word in rest), "4"]
    if command == "run":
        return [command, *(_OTHERS.get(word, word) for word in rest), "4"]
    if "sim:mygpu.json" in rest:
        fewer = "--core-mhz 600,auto --mem-mhz auto --warmup 100ms --window 200ms"
        return [command, *rest, *fewer.split()]
    return [command, *(_GPUS.get(word, word) for word in rest)]


def _code(arguments: list[str]) -> int:
    """Run a command; return the code it ends with."""
    try:
        main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0

"""The README, followed from top to bottom in one folder, on a step of few kernels.

Every command and option that README and the H200's page name must exist. Those that need no real
GPU are run in order, so that a file that one writes is what the next one reads.
"""

import contextlib
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from underclock import Kernel, Step
from underclock.cli import main
from underclock.cli.main import cli
from underclock.store import write_document

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[2]
_README = (_ROOT / "README.md").read_text()
_PAGES = (_README, (_ROOT / "docs" / "evidence" / "h200" / "README.md").read_text())
_GPUS = {"sim:rtx3080ti": "replay:unit0.csv", "sim:rtx3080ti#1": "replay:unit1.csv"}
_ENDINGS = {0, 8}  # a table repeats itself, which decides nothing


def _lines(text: str) -> Iterator[str]:
    """Yield the commands of a page's code blocks."""
    for match in re.finditer(r"^ {4}(?:[A-Z_]+=\S+ )?underclock (.+)$", text, re.MULTILINE):
        yield match[1].split(" #")[0].strip()


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
    if arguments != ["--help"]:
        _parse(arguments)


@pytest.mark.parametrize("mention", [each for page in _PAGES for each in _mentions(page)])
def test_every_command_mentioned_is_there(mention: str) -> None:
    with contextlib.suppress(click.MissingParameter):  # a sentence need not say everything
        _parse(shlex.split(mention))


def test_the_readme_works_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(_ROOT / "docs")
    for name, hunger_w in (("sweep.csv", 90.0), ("unit0.csv", 90.0), ("unit1.csv", 99.0)):
        _sweep(tmp_path / name, hunger_w)
    _sweep(tmp_path / "repeats.csv", 90.0, runs=(1.0, 1.001, 0.999))
    ran = set()
    for line in _lines(_README):
        command, *rest = shlex.split(line)
        if {"nvml:0", "train.json", "train.db", "--help"} & set(rest) or ".py:" in line:
            continue  # these need a GPU
        if {"train.plan.json", "run.jsonl"} & set(rest):
            continue  # and these a job that trains
        if "--power-limit" in rest:
            continue  # a limit holds a step that was run whole; a table runs none
        if command in {"--help", "predict"}:
            continue  # this takes long, and what it reads is read by others
        if command == "trace":
            write_document(Path(rest[rest.index("-o") + 1]), _few())
        else:
            assert _code(_smaller(command, rest)) in _ENDINGS, capsys.readouterr().err
        ran.add(command)

    assert ran == {
        *("breakdown", "calibrate", "check", "fit", "latency", "measure", "plan", "refine"),
        *("report", "score", "trace", "validate"),
    }
    python = "\n".join(re.findall(r"```python\n(.*?)```", _README, re.DOTALL))
    python = python.replace('underclock.trace("gpt3-xl", batch=8)', "few()")
    python = python.replace('"sim:rtx3080ti"', '"replay:unit0.csv"')
    assert "few()" in python
    assert "replay:" in python
    capsys.readouterr()
    exec(python, {"few": _few})  # noqa: S102 - our own page
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"-0\.\d+ -0\.\d+", said[0])
    assert said[1] == "2"


def _smaller(command: str, rest: list[str]) -> list[str]:
    """Return a command line that takes less time: on a table, or of fewer samples."""
    if command == "latency":  # a table has no clocks to change
        return [command, *rest, "--targets", "2", "--repeats", "2"]
    if command == "check":
        return [command, *rest, "--splits", "1"]
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

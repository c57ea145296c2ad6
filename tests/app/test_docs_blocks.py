"""Every code block of README and the documentation, run from top to bottom, page after page.

Commands and options that any page names must exist. The blocks of the pages below are run in one
shell, in one folder, on a step of few kernels, so that a file that one writes is what the next one
reads. Blocks that say what they need, such as an NVIDIA GPU, are read and not run. Campaigns are
small; with UNDERCLOCK_DOCS=whole they are as the pages say, which takes some minutes, and what
pages show of what commands print is compared with what they do.
"""

import ast
import contextlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml

import underclock
from small_training import SCRIPT
from underclock.app import main
from underclock.app.main import cli
from underclock.hw.nvml_calls import READ_ONLY, SIMULATOR
from underclock.ledger import LEDGER
from underclock.records import Kernel, Step
from underclock.runtime.undo.ownership import RUNTIME_DIR
from underclock.store import write_document
from underclock.testing import served_gpus

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[2]
_PAGES = {
    str(path.relative_to(_ROOT)): path.read_text()
    for path in (
        _ROOT / "README.md",
        _ROOT / "CONTRIBUTING.md",
        *sorted(_ROOT.glob("docs/**/*.md")),
    )
}
_FOLLOWED = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "start",
            "reading",
            "your_step",
            "integrations",
            "jobs",
            "serving",
            "safe",
            "proven",
            "reference",
        )
    ),
)
"""Pages whose blocks are run, in the order in which they are read."""
_GPUS = {
    "sim:rtx3080ti": "replay:unit0.csv",
    "sim:a100": "replay:unit0.csv",
    "sim:h200": "replay:unit0.csv",
    "sim:rtx3080ti#1": "replay:unit1.csv",
}
_WORKLOADS = ("gpt3-xl", "llama3-8b-decode", "llama3-8b-prefill")
_WHOLE = os.environ.get("UNDERCLOCK_DOCS") == "whole"
_OTHERS = {"docs/examples/train.py": "small.py"}
_OF_WHOLE_STEPS = {"demo", "transfer", "plan-server", "validate"}
_NEEDS = "# needs "
_ENDINGS = {0, 8}  # a table repeats itself, which decides nothing
_ELSEWHERE = {"apply", "merge", "paper"}
"""Commands that need more than a page brings; what pages say of them is read."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A code block: where it stands, its language, its lines, and whether it can be run here."""

    page: str
    language: str
    lines: tuple[str, ...]

    @property
    def runs(self) -> bool:
        return not self.lines[0].startswith(_NEEDS)

    def __str__(self) -> str:
        return f"{Path(self.page).stem}: {self.lines[0]}"


def _fenced(page: str) -> list[_Block]:
    """Return the fenced blocks of a page, without empty lines but in Python."""
    found = re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", _PAGES[page], re.MULTILINE | re.DOTALL)
    blocks = []
    for indent, language, text in (each.groups() for each in found):
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        kept = [line for line in lines if line.strip() or language == "python"]
        blocks.append(_Block(page, language, tuple(kept)))
    return blocks


_BLOCKS = [block for page in _PAGES for block in _fenced(page)]
_RUN = [
    block
    for page in _FOLLOWED
    for block in _BLOCKS
    if block.page == page and block.runs and block.language in {"bash", "python"}
]


def _command_lines(page: str) -> Iterator[str]:
    """Yield the lines of a page's blocks that are commands, fenced, indented or of a session."""
    yield from re.findall(r"^\$ (.+)$", _PAGES[page], re.MULTILINE)
    for block in _fenced(page):
        if block.language in {"bash", "sh"}:
            yield from "\n".join(block.lines).replace("\\\n", " ").splitlines()
    for match in re.finditer(r"^ {4}(\S.*(?:\\\n.*)*)$", _PAGES[page], re.MULTILINE):
        if not re.search(r"\S {5}", match[1]):  # a line of a table
            yield match[1].replace("\\\n", " ")


def _ours(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each command of ours in a line, also of one that torchrun starts."""
    for part in line.split(" # ", maxsplit=1)[0].split(" && "):
        words = part.strip().removesuffix(" &")
        match = re.match(r"(?:[A-Z_]+=\S+ )*(?:\S*/)?underclock (.+)$", words)
        match = match or re.match(r"(?:[A-Z_]+=\S+ )*torchrun .*-m underclock (.+)$", words)
        if match and not match[1].startswith("--"):
            yield shlex.split(match[1])


def _mentions(text: str) -> Iterator[str]:
    """Yield the commands mentioned in a sentence; they may leave arguments away."""
    for match in re.finditer(r"`underclock ([a-z][^`…]*)`", text):
        yield " ".join(match[1].split())


def _parse(arguments: list[str]) -> None:
    """Read a command line without running it.

    Raises:
        click.UsageError, UsageError: There is no such command, option or value.
    """
    group = click.Context(cli, **cli.context_settings)
    command = cli.get_command(group, arguments[0])
    assert command is not None, f"there is no command {arguments[0]}"
    context = command.make_context(arguments[0], arguments[1:], parent=group)
    if isinstance(command, click.Group):
        name, deeper, rest = command.resolve_command(context, arguments[1:])
        assert deeper is not None
        deeper.make_context(name, rest, parent=context)


def _few() -> Step:
    """Return a step of two kernels, which the tables know."""
    kernels = (Kernel(name="product", count=2), Kernel(name="copy", count=2))
    return Step(name="few", kernels=kernels, order=(0, 1, 0, 1))


def _validated(_gpu: str) -> SimpleNamespace:
    """Stand for a validation, which only a GPU that changes clocks within a step gives."""
    return SimpleNamespace(energy_change=SimpleNamespace(mean=-0.01))


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


def _shell_syntax(text: str) -> None:
    """Let a shell read a script without running it."""
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)  # noqa: S607


@pytest.mark.parametrize("page", _PAGES)
def test_every_command_of_a_page_can_be_read(page: str) -> None:
    for line in _command_lines(page):
        for arguments in _ours(line):
            _parse(arguments)
        script = re.match(r"(?:[A-Z_]+=\S+ |nice )*python ((?:studies|benchmarks)/\S+)", line)
        assert script is None or (_ROOT / script[1]).is_file(), line
    for mention in _mentions(_PAGES[page]):
        # A sentence need not say everything.
        with contextlib.suppress(click.MissingParameter, click.BadOptionUsage):
            _parse(shlex.split(mention))


@pytest.mark.parametrize("block", [block for block in _BLOCKS if block.language != "bash"], ids=str)
def test_every_other_block_is_what_it_says(block: _Block) -> None:
    text = "\n".join(block.lines)
    readers: dict[str, Callable[[str], object]] = {
        "json": json.loads,
        "python": ast.parse,
        "text": str,
        "toml": tomllib.loads,
        "sh": _shell_syntax,
        "yaml": yaml.safe_load,
    }
    read = readers[block.language](text)
    if isinstance(read, ast.Module):
        for node in ast.walk(read):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "underclock":
                assert hasattr(underclock, node.attr), node.attr


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
        monkeypatch.setenv(LEDGER, str(folder / "ledger.jsonl"))
        shell = _Shell(monkeypatch)
        with shell.jobs:
            yield shell


@pytest.mark.parametrize("block", _RUN, ids=str)
def test_the_pages_work_from_top_to_bottom_in_one_shell(
    block: _Block, shell: "_Shell", capfd: pytest.CaptureFixture[str]
) -> None:
    if block.language == "python":
        shell.python("\n".join(block.lines))
    else:
        for line in block.lines:
            shell.run(line)
    said, progress = capfd.readouterr()
    if block.language == "python":
        assert re.fullmatch(r"(Saves|No saving) .*\n|None\n|2\n|", said), said
    shell.said += said + progress


def test_all_of_the_pages_ran_and_left_the_shell_as_it_was(shell: "_Shell") -> None:
    assert READ_ONLY not in os.environ
    assert SIMULATOR not in os.environ
    assert Path("underclock-tune/report.html").is_file()
    assert not set(cli.list_commands(click.Context(cli))) - shell.ran - _ELSEWHERE
    printed = [
        line
        for block in _BLOCKS
        if block.language == "text" and block.lines[0].startswith(("Saves ", "$ underclock tune"))
        for line in block.lines
        if not line.startswith("$ ")
    ]
    assert printed
    for line in printed if _WHOLE else []:
        assert _bare(line) in _bare(shell.said), line


class _Shell:
    """Does what a shell does with the lines of pages, commands of ours in this process.

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

    def python(self, text: str) -> None:
        """Run a block of Python, on a step of few kernels."""
        if not _WHOLE:
            text = re.sub(r'underclock.trace\("gpt3-xl"[^)]*\)', "few()", text)
            text = text.replace('"sim:rtx3080ti"', '"replay:unit0.csv"')
            text = text.replace("underclock.validate(plan, gpu=", "validated(")
        exec(text, {"few": _few, "validated": _validated})  # noqa: S102 - our own page

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
        elif first == "mkdir":
            Path(rest[-1]).mkdir(exist_ok=True)
        elif first == "kill":
            self.jobs.close()
        elif first == "underclock":
            self._ours(rest)
        else:  # what sets up the environment in which this test runs
            assert first in {".", "pip"} or words[:3] == ["python", "-m", "venv"], words

    def _ours(self, words: list[str]) -> None:
        command, *rest = words
        self.ran.add(command)
        if command == "simulate":
            assert rest[1:3] == ["--socket", "gpu.sock"]
            assert rest[-1] == "&"
            count = int(rest[4]) if rest[3:-1] else 1
            served = rest[0] if _WHOLE else "a100"  # for which `tune` planned
            self.jobs.enter_context(served_gpus(served, Path(rest[2]), count=count))
        elif command == "trace" and rest[0] in _WORKLOADS and not _WHOLE:
            write_document(Path(rest[rest.index("-o") + 1]), _few())
        elif (command in _OF_WHOLE_STEPS) and not _WHOLE:
            pass  # they are of a step that was run whole; a table runs none
        else:
            assert _code(words if _WHOLE else _smaller(command, rest)) in _ENDINGS, words


def _bare(text: str) -> str:
    """Return text as it is whatever the terminal's width: without blanks and rules."""
    return re.sub(r"[\s─]", "", text)


def _short(rest: Sequence[str]) -> list[str]:
    """Let a small script train for four steps in the place of the example."""
    return [*(_OTHERS.get(word, word) for word in rest), "4"]


def _one_memory_clock(rest: Sequence[str]) -> list[str]:
    """Let a GPU stand in that has a fifth of the clock pairs to plan with."""
    return ["sim:a100" if word == "sim:rtx3080ti" else word for word in rest]


_SMALLER: dict[str, Callable[[list[str]], list[str]]] = {
    "tune": lambda rest: [
        *["--precision", "5%", "--latency", "6ms"],
        *_one_memory_clock(_short(rest)),
    ],
    # for which `tune` planned
    "run": lambda rest: _short(["sim:a100" if "sim:" in word else word for word in rest]),
    "latency": lambda rest: [*rest, "--targets", "1200"],
}


def _smaller(command: str, rest: list[str]) -> list[str]:
    """Return a command line that takes less time: on a table, or of fewer samples."""
    if command == "doctor":
        return [command, *rest]
    if command in _SMALLER:  # a table has no clocks to change
        return [command, *_SMALLER[command](rest)]
    if command == "report":  # a validation is of a step that was run whole
        return [command, *(word for word in rest if not word.endswith("validation.json"))]
    if "sim:mygpu.json" in rest:
        fewer = "--core-mhz 600,auto --mem-mhz auto --window 100ms,200ms"
        return [command, *rest, *fewer.split()]
    return [command, *(_GPUS.get(word, word) for word in rest)]


def _code(arguments: list[str]) -> int:
    """Run a command; return the code it ends with."""
    try:
        main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0

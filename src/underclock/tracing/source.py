"""Where a traced step's function is, and which files may be run to find it.

A step or plan file names Python code that runs with the rights of the measuring user. It is run
only where it lies in the folder of the file that names it and is what it was when it was traced,
or where the user names it; the file's path is printed.
"""

import hashlib
import importlib.util
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any

from underclock.errors import NotSupportedError, UsageError
from underclock.hw.cuda.driver import INSTALL_TORCH
from underclock.records import Step, StepSource
from underclock.store import read_document
from underclock.tracing.job_files import ProcessRank
from underclock.units import name_hint
from underclock.workloads import MODELS, workload

LEAST_STEP = 1
"""Earliest step to look at: in the first the optimizer makes its state."""
_HOW = "name what trains: -- python train.py --your --arguments, or -- torchrun ... train.py"

StepFunction = Callable[[], object]


class TracePhase(StrEnum):
    """What tracing does with a step, in turn; the value is shown to the user."""

    WARMING = "running the step to warm up"
    PROFILING = "profiling the step"
    CAPTURING = "capturing the step"
    CHECKING = "capturing it again, to see that it stays the same"
    MEASURING = "measuring the step's kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCommand:
    """A command that trains, in one process or in several, and which of its steps to look at."""

    # the command, as a shell has it: ``python train.py``, ``torchrun … train.py``
    words: tuple[str, ...]
    latest: int  # step that is looked at at the latest, counted from 0

    @classmethod
    def of(cls, words: Sequence[str], *, latest: int = 20) -> "TrainingCommand":
        """Return a command; a Python script alone is run by this Python.

        Raises:
            UsageError: There is no such command, or the step is one of the first.
        """
        if not words:
            raise UsageError("there is no command to run", hint=_HOW)
        given = tuple(words)
        if given[0].endswith(".py") and Path(given[0]).is_file():
            given = (sys.executable, *given)
        if shutil.which(given[0]) is None:
            raise UsageError(f"there is no command {given[0]!r}", hint=_HOW)
        if latest < LEAST_STEP:
            raise UsageError(
                f"cannot look at step {latest}: the first makes the optimizer's state",
                hint=f"take a later one: --step {LEAST_STEP}",
            )
        return cls(words=given, latest=latest)

    @property
    def script(self) -> Path | None:
        """Return the first word that is a Python file; ``None`` where there is none."""
        files = (Path(word) for word in self.words if word.endswith(".py"))
        return next((file for file in files if file.is_file()), None)

    @property
    def name(self) -> str:
        """Return what the step is called: as the script, the module, or the command."""
        if self.script is not None:
            return self.script.stem
        if "-m" in self.words[:-1]:
            return self.words[self.words.index("-m") + 1].rpartition(".")[2]
        return Path(self.words[0]).name


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFile:
    """Where a step's function may be taken from."""

    folder: Path = Path()  # of the step or plan file that names it
    # ``FILE.py:FUNCTION`` or ``SCRIPT.py`` from the user, who answers for it; empty where nothing
    # is named
    named: str = ""
    # receives which function is run, before it is
    tell: Callable[[str], None] = lambda _sentence: None

    def load(self, source: StepSource | None) -> StepFunction | TrainingCommand:
        """Import a step's function, or say which command runs the script that has it.

        Raises:
            UsageError: There is none, it changed, or it is outside the folders that are read.
        """
        text = self.named or self._allowed(source)
        if source is not None and source.steps is not None and text.endswith(".py"):
            self.tell(f"running {text} to its step {source.steps[0]}")
            return TrainingCommand.of((text, *source.arguments), latest=source.steps[0])
        self.tell(f"running {text} as the training step")
        sizes = source.sizes if source is not None else {}
        return sized(load_step(text), sizes) if sizes else load_step(text)

    def _allowed(self, source: StepSource | None) -> str:
        if source is None:
            raise untraced()
        path = (self.folder / source.file).resolve()
        text = f"{path}:{source.function}" if source.function else str(path)
        folder = self.folder.resolve()
        if not path.is_relative_to(folder):
            raise UsageError(
                f"will not run {text}: it lies outside {folder}, whose file names it",
                hint=f"if you trust it, name it: --source {text}",
            )
        if not path.is_file():
            raise UsageError(
                f"cannot run {text}: no such file",
                hint="name where it is now: --source path/to/train.py:step",
            )
        if _hash(path) != source.sha256:
            raise UsageError(
                f"will not run {text}: the file changed since the step was traced",
                hint=f"trace it again, or if you trust it, name it: --source {text}",
            )
        return text


def sized(function: StepFunction, sizes: Mapping[str, int]) -> StepFunction:
    """Return the step that a function runs at some sizes, which its name says.

    Raises:
        UsageError: It takes no such sizes.
    """
    taken = inspect.signature(function).parameters
    if unknown := [name for name in sizes if name not in taken]:
        name = getattr(function, "__name__", "the step")
        raise UsageError(
            f"{name} takes no {unknown[0]!r}, so it cannot be run at one",
            hint=name_hint(unknown[0], taken) if taken else f"give {name} an argument {unknown[0]}",
        )

    @wraps(function)
    def step() -> object:
        return function(**sizes)

    step.__name__ = sized_name(getattr(function, "__name__", "step"), sizes)
    return step


def sized_name(name: str, sizes: Mapping[str, int]) -> str:
    """Return a step's name with its sizes: ``decode-b8-c1024``; further names are not cut."""
    short = {"batch": "b", "context": "c"}
    ordered = sorted(sizes, key=lambda size: (size not in short, size))
    return "-".join([name, *(f"{short.get(size, size)}{sizes[size]}" for size in ordered)])


def source_of(
    what: str, folder: Path, sizes: Mapping[str, int] = MappingProxyType({})
) -> StepSource:
    """Say where a function is, for a file in some folder.

    Args:
        what: ``FILE.py:FUNCTION``, which was just imported.
        sizes: With which the function was called.
    """
    file, _, function = what.rpartition(":")
    arguments = tuple(f"{name}={number}" for name, number in sizes.items())
    return _source(Path(file), folder, function=function, arguments=arguments)


def source_of_command(command: TrainingCommand, folder: Path) -> StepSource | None:
    """Say where the script of a command is, for a file in some folder.

    Returns:
        ``None`` of a command other than ``python FILE.py …``, which is named again where it is run
        again.
    """
    python, *rest = command.words
    if (
        command.script is None
        or rest[:1] != [str(command.script)]
        or not Path(python).name.startswith("python")
    ):
        return None
    steps = (command.latest, command.latest + 1)
    return _source(command.script, folder, steps=steps, arguments=tuple(rest[1:]))


def _source(path: Path, folder: Path, **rest: Any) -> StepSource:  # noqa: ANN401 - its other fields
    found = path.resolve()
    file = Path(os.path.relpath(found, folder.resolve())).as_posix()
    return StepSource(file=file, sha256=_hash(found), **rest)


def is_command(word: str) -> bool:
    """Whether a word begins a command that trains, rather than naming a workload or a function."""
    if word in MODELS or ".py:" in word:
        return False
    if word.endswith(".py"):
        return Path(word).is_file()
    return shutil.which(word) is not None


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def untraced() -> UsageError:
    """Return what to say where there is no traced step to run."""
    return UsageError(
        "a real GPU needs a step that was traced on one",
        hint="make it with `underclock trace path/to/train.py:step -o step.json`",
    )


def as_step(source: Step | str | Path | None) -> Step | None:
    """Return a step: itself, a named workload, or a file that `underclock trace` wrote.

    Raises:
        UsageError: There is no such workload or file.
        DataError: The file cannot be read.
    """
    if source is None or isinstance(source, Step):
        return source
    if str(source) in MODELS or not Path(source).is_file():
        return workload(str(source))
    return read_document(Path(source), Step)


def load_step(source: str) -> StepFunction:
    """Import a user's training step, ``FILE.py:FUNCTION``.

    Raises:
        UsageError: There is no such file, no such function in it, or none is named.
        NotSupportedError: The file needs what cannot be imported here.
    """
    file, colon, name = source.rpartition(":")
    if not colon:
        raise UsageError(f"{source!r} names no function", hint="write path/to/train.py:step")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"cannot read {file!r}: no such file", hint="write path/to/train.py:step")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file", hint="write path/to/train.py:step")
    module = importlib.util.module_from_spec(spec)
    # As `python train.py` would: its folder comes first, and its classes can be found by name.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as exc:
        raise NotSupportedError(
            f"{file} needs {exc.name or 'a module'!r}, which cannot be imported here: {exc}",
            hint=f"install it next to underclock; for PyTorch 2.8 or newer: {INSTALL_TORCH}",
        ) from exc
    step = getattr(module, name, None)
    _take_own_gpu()
    if not callable(step):
        functions = [n for n, thing in vars(module).items() if callable(thing) and n[0] != "_"]
        raise UsageError(f"{file} has no function {name!r}", hint=name_hint(name, functions))
    function: StepFunction = step
    return function


def _take_own_gpu() -> None:
    """Have a rank that ``torchrun`` started work on its own GPU, unless its file saw to that."""
    # A stream belongs to the GPU that is current when it is made, and the first is made before the
    # step runs.
    library: Any = sys.modules.get("torch")
    if library is None or not library.cuda.is_available():
        return
    cuda, rank = library.cuda, ProcessRank.of(os.environ)
    own = rank and rank.own_gpu(there=cuda.device_count(), current=cuda.current_device())
    if own is not None:
        cuda.set_device(own)

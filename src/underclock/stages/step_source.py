"""Where a traced step's function is, and which files may be run to find it.

A step or plan file names Python code that runs with the rights of whoever measures it. It is run
only where it lies in the folder of the file that names it and is what it was when it was traced,
or where the user names it; and the user is told which file it is.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from underclock.errors import UsageError
from underclock.records import StepSource
from underclock.stages.script import Script

StepFunction = Callable[[], object]


def source_of(what: str | Script, folder: Path) -> StepSource:
    """Say where a function or a script is, for a file in some folder.

    Args:
        what: ``FILE.py:FUNCTION``, which was just imported, or a script that was run.
        folder: Of the file that will name it.
    """
    script = what if isinstance(what, Script) else None
    file, _, function = ("", "", "") if isinstance(what, Script) else what.rpartition(":")
    path = (script.path if script else Path(file)).resolve()
    return StepSource(
        file=Path(os.path.relpath(path, folder.resolve())).as_posix(),
        function=function,
        sha256=_hash(path),
        steps=(script.first, script.last) if script else None,
        arguments=script.arguments if script else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFile:
    """Where a step's function may be taken from.

    Attributes:
        folder: Of the step or plan file that names it.
        named: ``FILE.py:FUNCTION`` or ``SCRIPT.py`` from the user, who answers for it; empty where
            nothing is named.
        tell: Told which function is run, before it is.
    """

    folder: Path = Path()
    named: str = ""
    tell: Callable[[str], None] = lambda _sentence: None

    def load(self, source: StepSource | None) -> StepFunction | Script:
        """Import a step's function, or say which script has it.

        Args:
            source: What the step or plan file says.

        Raises:
            UsageError: There is none, it changed, or it lies where nobody looks unless told.
        """
        text = self.named or self._allowed(source)
        if source is not None and source.steps is not None and text.endswith(".py"):
            first, last = source.steps
            self.tell(f"running {text} to its step {last}")
            return Script(path=Path(text), arguments=source.arguments, first=first, last=last)
        # PyTorch is imported only by those who have a function to run.
        from underclock.stages.load_step import load_step  # noqa: PLC0415

        self.tell(f"running {text} as the training step")
        return load_step(text)

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


def untraced() -> UsageError:
    """Return what to say where there is no traced step to run."""
    return UsageError(
        "a real GPU needs a step that was traced on one",
        hint="make it with `underclock trace path/to/train.py:step -o step.json`",
    )


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""Files that were there before a training command runs, put back after it.

A command that is run to be looked at runs for real: it writes checkpoints and logs. What it would
replace, empty or remove is set aside first, under a name next to the file, and noted in a list that
its launcher reads; once the command has ended the launcher puts each file back. New files stay.

Loaded into the training process: standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

LOOK = "UNDERCLOCK_LOOK"
"""Names, in a process's environment, the file that says what is to be looked at."""
KEPT = "kept"
"""Name of the list of files that were set aside, in their folder."""
ASIDE = ".underclock-kept"
_WRITES = os.O_WRONLY | os.O_RDWR
_MADE_ANEW = os.O_TRUNC | os.O_CREAT
_RENAMES = {"os.rename", "os.link", "os.symlink"}
_CACHES = ("__pycache__", ".cache", ".triton", ".nv")
_DEVICES = ("/dev/", "/proc/", "/sys/", "/run/")


def protect_files() -> None:
    """Set files aside that this process is about to change, where the environment asks for it."""
    look = os.environ[LOOK]
    with open(look, "rb") as file:
        if json.load(file)["protect"]:
            begun_ns = os.stat(look).st_mtime_ns
            files = KeptFiles(os.path.join(os.path.dirname(look), KEPT), begun_ns)
            sys.addaudithook(files.audited)
            _protecting.append(files)


def watch_libraries() -> None:
    """Set files aside too that libraries of this process write by themselves."""
    for files in _protecting:
        files.watch_libraries()


class KeptFiles:
    """Sets files aside before this process, or one that it forks, changes them."""

    def __init__(self, listed: str, begun_ns: int) -> None:
        self._listed = listed  # a line of JSON for each file: where it was, and where it is
        self._seen: set[str] = set()
        self._busy = False
        self._begun_ns = begun_ns  # what was written since is the run's own

    def watch_libraries(self) -> None:
        """Look at what PyTorch and safetensors write where Python does not see the file opened."""
        keep = self.keep
        serialization: Any = sys.modules.get("torch.serialization")
        writer = getattr(serialization, "_open_zipfile_writer_file", None)
        if writer is not None and not hasattr(writer, "__wrapped__"):

            class Writer(writer):  # type: ignore[misc,valid-type]
                __wrapped__ = writer

                def __init__(self, name: Any) -> None:
                    keep(name, moved=True)
                    super().__init__(name)

            serialization._open_zipfile_writer_file = Writer
        tensors: Any = sys.modules.get("safetensors.torch")
        serialize = getattr(tensors, "serialize_file", None)
        if serialize is not None and not hasattr(serialize, "__wrapped__"):

            def serialize_file(data: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
                keep(filename, moved=True)
                return serialize(data, filename, *args, **kwargs)

            serialize_file.__wrapped__ = serialize  # type: ignore[attr-defined]
            tensors.serialize_file = serialize_file

    def keep(self, path: Any, *, moved: bool) -> None:
        """Set a file aside, once; one that is no regular file, new or in a cache is passed over.

        One of which all is about to be replaced is moved, any other is copied.
        """
        with contextlib.suppress(OSError, ValueError, TypeError):
            name = os.path.realpath(os.fsdecode(path))
            ours = name in self._seen or name.endswith(ASIDE) or name.startswith(_DEVICES)
            if ours or not os.path.isfile(name) or any(f"/{each}/" in name for each in _CACHES):
                return
            if os.stat(name).st_mtime_ns >= self._begun_ns:
                return
            self._seen.add(name)
            aside = name + ASIDE
            with open(self._listed, "a") as file:
                file.write(json.dumps([name, aside]) + "\n")
            (os.rename if moved else shutil.copy2)(name, aside)

    def audited(self, event: str, arguments: Sequence[Any]) -> None:
        """Look at each file that Python is about to change."""
        if self._busy:
            return
        self._busy = True
        try:
            if event == "open":
                path, _mode, flags = arguments[:3]
                if isinstance(flags, int) and flags & _WRITES and not isinstance(path, int):
                    self.keep(path, moved=flags & _MADE_ANEW == _MADE_ANEW)
            elif event in _RENAMES:
                self.keep(arguments[1], moved=True)
                if event == "os.rename":
                    self.keep(arguments[0], moved=False)
            elif event == "os.remove":
                self.keep(arguments[0], moved=False)
        finally:
            self._busy = False


_protecting: list[KeptFiles] = []


def put_back(listed: Path, say: Callable[[str], None]) -> tuple[str, ...]:
    """Put back the files of a list, if there is one, and return their names; say what cannot be."""
    if not listed.is_file():
        return ()
    back: dict[str, None] = {}
    for line in listed.read_text().splitlines():
        with contextlib.suppress(ValueError):  # the process was killed as it wrote the line
            name, aside = json.loads(line)
            try:
                if os.path.lexists(aside):
                    os.replace(aside, name)
                    back[name] = None
            except OSError as exc:
                say(f"{name} was replaced, and is kept as {aside}: {exc.strerror}")
    return tuple(back)

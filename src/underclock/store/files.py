"""Where output may go, and writing it whole or not at all."""

import gzip
import os
import stat
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from underclock.errors import DataError, UsageError

_LOOKED_AT = 1000  # characters: more than any of our files has before it says something
SQLITE_MAGIC = b"SQLite format 3\x00"
_GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: Path, *, hint: str = "", most: int = -1) -> bytes:
    """Return what a file holds, or the first bytes of it; what gzip packed is unpacked.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            packed = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
            return gzip.open(file).read(most) if packed else file.read(most)
    except (OSError, EOFError, zlib.error) as exc:
        words = getattr(exc, "strerror", None) or exc
        raise DataError(f"cannot read {path}: {words}", hint=hint) from exc


def check_output(
    path: Path,
    *,
    force: bool = False,
    inputs: Iterable[Path | None] = (),
    over_samples: bool = False,
    begins: str = "",
) -> None:
    """Make sure a file can be written, before any work is spent on its contents.

    A pipe or a device other than a disk may always be written to: nothing there is replaced.

    Args:
        inputs: Files that are read meanwhile, which are never replaced.
        begins: How files of the kind that will be written begin; a file that begins otherwise is
            a user's table or script, and never replaced.

    Raises:
        UsageError: It exists already, is an input, of another kind or holds measurements, or its
            folder is missing or not writable.
    """
    try:
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder", hint="name a file with -o")
        if path.exists():
            _check_existing(path, begins, force=force, inputs=inputs, over_samples=over_samples)
        if takes_writes_through(path):
            return
        folder = _target(path).parent
        if not folder.is_dir():
            raise UsageError(
                f"cannot write {path}: there is no folder {folder}",
                hint="make it first, or another -o",
            )
        # Asking the folder, not its mode bits: root and read-only mounts make those lie.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        raise UsageError(
            f"cannot write {path}: {exc.strerror}", hint="choose a writable folder with -o"
        ) from exc


def _check_existing(
    path: Path, begins: str, *, force: bool, inputs: Iterable[Path | None], over_samples: bool
) -> None:
    for source in inputs:
        if source is not None and source.exists() and path.samefile(source):
            raise UsageError(
                f"will not overwrite {path}: it is read as {source}",
                hint="name another file with -o",
            )
    if path.is_block_device():
        raise UsageError(f"will not write {path}: it is a disk", hint="name a file with -o")
    if not path.is_file():
        return
    with path.open("rb") as file:
        there = file.read(_LOOKED_AT)
    if there.startswith(SQLITE_MAGIC) and not over_samples:
        raise UsageError(
            f"will not overwrite {path}: it holds measurements",
            hint="name another file with -o, or remove it yourself",
        )
    if not force:
        raise UsageError(
            f"will not overwrite {path}: it exists", hint="pass --force, or another -o"
        )
    text = there.decode(errors="replace").lstrip() or begins  # an empty file is of any kind
    if not text.startswith(begins):
        raise UsageError(
            f"will not overwrite {path}: it is of another kind than what would be written there, "
            f"and begins with {text[:20]!r}",
            hint="name another file with -o, or remove it yourself",
        )


def takes_writes_through(path: Path) -> bool:
    """Whether there is a pipe or a device, which must be written to and never renamed over."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode))


def write_text(path: Path, text: str, *, force: bool = False, begins: str = "") -> None:
    """Write a file so that a reader finds the old one or the new one, never half of it.

    Raises:
        UsageError: As `check_output`, or the disk is full.
    """
    check_output(path, force=force, begins=begins)
    try:
        if takes_writes_through(path):
            path.write_text(text, encoding="utf-8")
            return
        target = _target(path)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".underclock.")
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            mask = os.umask(0)  # it can only be read by setting it
            os.umask(mask)
            partial.chmod(0o666 & ~mask)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise UsageError(f"cannot write {path}: {exc.strerror}") from exc


def _target(path: Path) -> Path:
    """Follow a link to a file that is there; a link to nowhere stands for itself."""
    return path.resolve() if path.is_symlink() and path.exists() else path

"""Where output may go, and writing it whole or not at all."""

import os
import tempfile
from pathlib import Path

from underclock.errors import UsageError


def check_output(path: Path, *, force: bool = False) -> None:
    """Make sure a file can be written, before any work is spent on its contents.

    Args:
        path: Where the file will go.
        force: Whether an existing file may be replaced.

    Raises:
        UsageError: It exists already, or its folder is missing or not writable.
    """
    folder = path.parent
    try:
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder", hint="name a file with -o")
        if path.exists() and not force:
            raise UsageError(
                f"will not overwrite {path}: it exists", hint="pass --force, or another -o"
            )
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


def write_text(path: Path, text: str, *, force: bool = False) -> None:
    """Write a file so that a reader finds the old one or the new one, never half of it.

    Raises:
        UsageError: As `check_output`, or the disk is full.
    """
    check_output(path, force=force)
    try:
        _replace(path, text)
    except OSError as exc:
        raise UsageError(f"cannot write {path}: {exc.strerror}") from exc


def _replace(path: Path, text: str) -> None:
    """Write beside the file and move it there; nothing stays behind when that fails."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".underclock.")
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o666 & ~_umask())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Return the process's file mode mask; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""One writer for one file: a lock beside it, held from before the file is made until it is closed.

The lock is a file of its own, because closing any handle of a database gives up the locks that
SQLite holds on it in the same process.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

from underclock.errors import UsageError


class WriterLock:
    """The right to write one file. The system gives it up where the process dies."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, of: Path) -> Self:
        """Lock a file, which need not be there yet.

        Raises:
            UsageError: Somebody else has the lock.
            OSError: The folder takes no file.
        """
        target = of.resolve()
        path = target.with_name(f".{target.name}.lock")
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                os.close(descriptor)
                raise UsageError(
                    f"another process is measuring into {of}",
                    hint="wait until it has ended, or name another file with -o",
                ) from exc
            except OSError:  # a file system without locks: there, two writers are the user's care
                return cls(path, descriptor)
            # Who had the lock before may have removed its file between our opening and locking it.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                return cls(path, descriptor)
            os.close(descriptor)

    def release(self) -> None:
        """Give the lock back, and leave nothing behind; harmless when it was given back."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

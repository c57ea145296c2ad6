"""A second user, hostile where a test wants one: code that runs without any right of root's."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
# The package may lie where only root can read: it is loaded before the rights go.
_DROP = f"""
import fcntl, json, os, sys
import underclock.runtime.undo.guarded_gpu
os.setgroups([]); os.setresgid(*[{NOBODY}] * 3); os.setresuid(*[{NOBODY}] * 3)
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


class AsNobody:
    """Runs code as the user who has nothing.

    Attributes:
        folder: That user's own, below a folder of root's that everybody may enter.
    """

    def __init__(self, top: Path) -> None:
        self.folder = top / "own"
        self.folder.mkdir(mode=0o700)
        os.chown(self.folder, NOBODY, NOBODY)

    def __call__(self, code: str) -> str:
        """Run it to its end; return what it says."""
        with self.started(code) as process:
            said, _ = process.communicate(timeout=20)
        assert process.returncode == 0, said
        return said

    @contextmanager
    def started(self, code: str) -> Iterator["subprocess.Popen[str]"]:
        """Have it run beside the test; it ends with the block."""
        with subprocess.Popen(
            [sys.executable, "-P", "-c", _DROP + code],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            yield process
            process.kill()


@contextmanager
def second_user() -> Iterator[AsNobody]:
    """Make that user a folder, outside pytest's own: nobody else may enter that."""
    top = Path(tempfile.mkdtemp())
    try:
        top.chmod(0o755)
        yield AsNobody(top)
    finally:
        shutil.rmtree(top, ignore_errors=True)

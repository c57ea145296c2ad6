"""How long a user waits before anything happens: --help, import, demo.

Usage: python benchmarks/startup.py
"""

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_REPEATS = 15
_UNDERCLOCK = Path(sys.executable).with_name("underclock")


def _time_s(*command: str | Path) -> float:
    started_s = time.perf_counter()
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return time.perf_counter() - started_s


def _row(name: str, limit: str, repeats: int, *command: str | Path) -> None:
    _time_s(*command)  # once, to fill caches
    times_s = [_time_s(*command) for _ in range(repeats)]
    print(
        f"{name:24s} median {statistics.median(times_s):7.3f} s   "
        f"least {min(times_s):7.3f} s   greatest {max(times_s):7.3f} s   n={repeats}   "
        f"wanted {limit}"
    )


def main() -> None:
    """Print the table."""
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        "wall time of a whole process"
    )
    _row("python -c pass", "(floor)", _REPEATS, sys.executable, "-c", "pass")
    _row("import underclock", "0.060 s", _REPEATS, sys.executable, "-c", "import underclock")
    _row("underclock --help", "0.150 s", _REPEATS, _UNDERCLOCK, "--help")
    folder = Path(tempfile.mkdtemp())
    try:
        _row("underclock demo", "60 s", 2, _UNDERCLOCK, "demo", "--force", "-o", folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

"""What a training process loads of ours, and how long that takes."""

import subprocess
import sys

_MOST_S = 5e-3
_SCRIPT = """
import bisect, ctypes, importlib, mmap, os, stat, struct, sys, time, weakref  # as PyTorch has
before = set(sys.modules)
started_s = time.process_time()
import underclock.runtime
from underclock.runtime import marks, page, streams, trainer
print(time.process_time() - started_s)
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_a_trainer_loads_the_standard_library_alone_and_quickly() -> None:
    """By the processor's time, least of several, for other work on the machine is no fault."""
    runs = [
        subprocess.run(
            [sys.executable, "-S", "-c", _SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        ).stdout.splitlines()
        for _ in range(5)
    ]

    loaded = set(runs[0][1].split()) - {"underclock"}
    assert loaded <= sys.stdlib_module_names
    assert min(float(took_s) for took_s, _ in runs) <= _MOST_S

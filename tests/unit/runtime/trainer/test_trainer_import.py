"""What a training process loads of ours, and how long that takes."""

import subprocess
import sys
from pathlib import Path

_TIMES = 4.0  # what json takes, in the same process; NumPy takes some 70 times that
_SCRIPT = """
import bisect, ctypes, importlib, mmap, os, re, stat, struct, sys, time, weakref  # as PyTorch has
times = [time.process_time()]
import json
times.append(time.process_time())
before = set(sys.modules)
times.append(time.process_time())
import underclock.runtime
times.append(time.process_time())
from underclock.runtime.trainer import marks
from underclock.runtime.trainer import page
from underclock.runtime.trainer import streams
from underclock.runtime.trainer import marking as trainer
times.append(time.process_time())
print(times[1] - times[0], times[3] - times[2], times[4] - times[2])
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_a_trainer_loads_the_standard_library_alone_and_quickly() -> None:
    """By the processor's time against json's, the least of several runs."""
    runs = [
        subprocess.run(
            [sys.executable, "-S", "-c", _SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        ).stdout.splitlines()
        for _ in range(7)
    ]

    assert set(runs[0][1].split()) - {"underclock"} <= sys.stdlib_module_names
    json_s, package_s, all_s = (min(float(line.split()[at]) for line, _ in runs) for at in range(3))
    assert package_s <= json_s
    assert all_s <= _TIMES * json_s


_LOOKS_FIRST = """
import importlib.util, sys
from underclock.runtime.trainer.marking import when_imported
seen = []
when_imported(lambda torch: seen.append(torch.__name__))
sys.meta_path.append(object())  # of before Python 3.4: it finds nothing any more
specs = [importlib.util.find_spec("torch") for _ in range(2)]  # as libraries do
assert not seen and "torch" not in sys.modules
import torch
specs[0].loader.exec_module(importlib.util.module_from_spec(specs[0]))
assert seen == ["torch"] and importlib.util.find_spec("torch")
"""


def test_a_library_that_only_looks_for_pytorch_does_not_hide_its_import(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    path = ":".join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-S", "-c", _LOOKS_FIRST], check=True, env={"PYTHONPATH": path})

"""Faults on demand, in GPUs that another process serves."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from underclock.errors import UsageError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.faults import FAULT_NAMES
from underclock.records import Kernel, Step
from underclock.runtime.trainer.streams import ServedStream
from underclock.store import write_document
from underclock.testing import Control, Served


def test_who_undoes_waits_for_a_setter_that_hangs_and_comes_after_it(
    served: Served, control: Control, comes: Callable[[Callable[[], bool]], None]
) -> None:
    import subprocess
    import sys

    control.fault("setter_hangs", 0.5)
    program = """
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.records import Clocks
with nvml_session():
    gpu = NvmlGpu()
    print(flush=True)
    gpu.lock(Clocks(core_mhz=900))
"""
    hanging = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert hanging.stdout is not None
    hanging.stdout.readline()
    comes(served.setters.locked)
    hanging.kill()
    hanging.wait()
    hanging.stdout.close()
    control.heal()
    with nvml_session():
        NvmlGpu().unlock()
    assert served.gpus[0].core_lock is None


@pytest.mark.parametrize(
    ("name", "shown"), [("marks_stuck", [0, 0, 0]), ("marks_backwards", [3, 2, 1])]
)
def test_marks_can_stick_and_run_backwards(
    name: str, shown: list[int], served: Served, control: Control, socket: Path, tmp_path: Path
) -> None:
    del served
    page, file = tmp_path / "page", tmp_path / "step.json"
    page.write_bytes(bytes(128))
    kernel = Kernel(name="a", flops=1e9, bytes_moved=4e8)
    write_document(file, Step(name="one", kernels=(kernel,), order=(0,)))
    stream = ServedStream.connect(socket, step=file, page=page)

    def mark(value: int) -> int:
        stream.mark(value)
        stream.synchronise()
        (seen,) = struct.unpack_from("<I", page.read_bytes(), 64)
        return int(seen)

    if name == "marks_backwards":
        mark(3)
    control.fault(name)
    assert [mark(value) for value in (1, 2, 3)] == shown
    control.heal()
    assert mark(2) == 2
    stream.close()


def test_every_fault_can_be_healed(served: Served, control: Control) -> None:
    for name in FAULT_NAMES:
        value = 200.0 if name in {"setter_hangs", "power_limit_changed"} else None
        control.fault(name, value)
        control.fault(name, value)  # once is as good as twice
    control.heal()
    assert all(gpu.faults == [] for gpu in served.gpus)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda control: control.fault("gpu_losst"), "no fault is called"),
        (lambda control: control.fault("setter_hangs"), "does not go with the value None"),
        (lambda control: control.fault("gpu_lost", 3.0), "does not go with the value 3.0"),
        (lambda control: control.fault("setter_hangs", -1.0), "does not go with the value"),
        (lambda control: control.fault("gpu_lost", gpu=7), "no GPU 7"),
        (lambda control: control.truth(7), "no GPU 7"),
    ],
)
def test_what_cannot_go_wrong_is_refused(
    ask: Callable[[Control], object], words: str, control: Control
) -> None:
    with pytest.raises(UsageError, match=words):
        ask(control)

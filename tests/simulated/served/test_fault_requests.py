"""Faults on demand, in GPUs that another process serves."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from underclock.errors import DeviceError, NotPermittedError, UnderclockError, UsageError
from underclock.hw.clock import SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.faults import FAULT_NAMES
from underclock.records import Clocks, Kernel, Step, ThrottleReason
from underclock.records.latencies import Domain
from underclock.runtime.trainer.streams import ServedStream
from underclock.store import write_document
from underclock.testing import Control, Served


def test_permission_can_be_taken_away_and_given_back(served: Served, control: Control) -> None:
    with nvml_session():
        gpu = NvmlGpu()
        gpu.lock(Clocks(core_mhz=900))
        control.fault("permission_revoked")
        with pytest.raises(NotPermittedError):
            gpu.unlock()
        assert served.gpus[0].core_lock == (900, 900)
        control.heal()
        gpu.unlock()
        assert served.gpus[0].core_lock is None


def test_a_lock_can_stop_after_its_first_clock(served: Served, control: Control) -> None:
    control.fault("memory_refused", gpu=0)
    with nvml_session():
        with pytest.raises(DeviceError, match="lock the memory"):
            NvmlGpu(0).lock(Clocks(core_mhz=900, mem_mhz=5001))
        NvmlGpu(1).lock(Clocks(core_mhz=900, mem_mhz=5001))
    assert (served.gpus[0].core_lock, served.gpus[0].mem_lock) == ((900, 900), None)
    assert served.gpus[1].mem_lock == (5001, 5001)


def test_a_setter_can_hang_while_reading_goes_on(served: Served, control: Control) -> None:
    clock = SystemClock()
    control.fault("setter_hangs", 0.2)
    with nvml_session():
        gpu = NvmlGpu()
        begun_s = clock.now_s()
        gpu.lock(Clocks(core_mhz=900))
        assert clock.now_s() - begun_s > 0.2
    control.heal()
    assert served.gpus[0].core_lock == (900, 900)


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


def test_a_gpu_can_be_lost_and_comes_back_without_locks(served: Served, control: Control) -> None:
    with nvml_session():
        gpu = NvmlGpu()
        gpu.lock(Clocks(core_mhz=900))
        control.fault("gpu_lost", gpu=0)
        with pytest.raises(DeviceError, match="GPU is lost"):
            gpu.observed()
        assert NvmlGpu(1).observed().core_mhz == 210
        control.heal()
        assert gpu.locked_mhz(Domain.CORE) is None
    assert served.gpus[0].faults == []


def test_locks_can_be_accepted_and_not_followed(served: Served, control: Control) -> None:
    control.fault("locks_ignored")
    with nvml_session():
        gpu = NvmlGpu()
        gpu.lock(Clocks(core_mhz=900))
        assert gpu.locked_mhz(Domain.CORE) == (900, 900)
        served.clock.sleep_s(0.2)
        assert gpu.observed().core_mhz == 210
        control.heal()
        assert gpu.observed().core_mhz == 900


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("soft_slowdown", ThrottleReason.SW_THERMAL_SLOWDOWN),
        ("hard_slowdown", ThrottleReason.HW_THERMAL_SLOWDOWN),
    ],
)
def test_heat_can_lower_the_clocks(
    name: str, reason: ThrottleReason, served: Served, control: Control
) -> None:
    del served
    control.fault(name)
    with nvml_session():
        assert (NvmlGpu().throttle_reasons() or 0) & reason
        control.heal()
        healed = NvmlGpu().throttle_reasons()
        assert healed is not None
        assert not healed & reason


def test_somebody_else_can_set_the_power_limit(served: Served, control: Control) -> None:
    del served
    control.fault("power_limit_changed", 250.0)
    with nvml_session():
        assert NvmlGpu().power_limit_w() == 250.0


def test_the_energy_counter_can_begin_again(served: Served, control: Control) -> None:
    served.clock.sleep_s(0.3)
    with nvml_session():
        before_j = NvmlGpu().energy_j()
        assert before_j > 0
        control.fault("counter_restarts")
        assert NvmlGpu().energy_j() < before_j


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


def test_a_lost_gpu_ends_what_runs_on_it(
    served: Served, control: Control, socket: Path, tmp_path: Path
) -> None:
    del served
    file = tmp_path / "step.json"
    kernel = Kernel(name="a", flops=1e9, bytes_moved=4e8)
    write_document(file, Step(name="one", kernels=(kernel,), order=(0,)))
    stream = ServedStream.connect(socket, step=file)
    control.fault("gpu_lost")
    with pytest.raises(DeviceError, match="fell off the bus"):
        stream.synchronise()
    control.heal()
    with pytest.raises(DeviceError, match="fell off the bus"):
        stream.synchronise()  # a context does not come back
    again = ServedStream.connect(socket, step=file)
    again.work(0, 1)
    again.synchronise()
    again.close()
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


def test_a_control_without_a_server_says_so(socket: Path, control: Control) -> None:
    with pytest.raises(UnderclockError, match="no simulated GPU answers"):
        Control(str(socket) + "x")
    del control

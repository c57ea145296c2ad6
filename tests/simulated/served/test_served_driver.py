"""Served GPUs, seen by programs that know NVML only."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts import GpuContract
from underclock.errors import DeviceError, NotPermittedError
from underclock.hw.base import Clock, Gpu
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import (
    READ_ONLY,
    SIMULATOR,
    is_read_only,
    nvml_session,
)
from underclock.hw.simulated.served.client import connected
from underclock.hw.wire import MessageReader, send
from underclock.records import Clocks, Kernel, Step
from underclock.records.latencies import Domain
from underclock.testing import Served, served_gpus


class TestServedGpu(GpuContract):
    """Time goes faster than it does, so that a contract is no matter of minutes."""

    @pytest.fixture
    def served(
        self, socket: Path, elementwise: Kernel, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Served]:
        load = Step(name="load", kernels=(elementwise_once(elementwise),), order=(0,))
        with served_gpus("rtx3080ti", socket, load=load, speed=50.0) as made:
            monkeypatch.setenv(SIMULATOR, str(socket))
            yield made

    @pytest.fixture
    def gpu(self, served: Served) -> Iterator[Gpu]:
        served.clock.sleep_s(1.0)
        with nvml_session():
            yield NvmlGpu()

    @pytest.fixture
    def clock(self, served: Served) -> Clock:
        return served.clock


def elementwise_once(kernel: Kernel) -> Kernel:
    """Return a kernel as a step has it that launches it once."""
    import msgspec

    return msgspec.structs.replace(kernel, count=1)


def test_a_lock_outlives_the_process_that_set_it(served: Served) -> None:
    program = """
import os, signal
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.records import Clocks
with nvml_session():
    NvmlGpu(1).lock(Clocks(core_mhz=1050, mem_mhz=5001))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=30)

    assert ended.returncode == -signal.SIGKILL
    assert served.gpus[1].core_lock == (1050, 1050)
    assert served.gpus[1].mem_lock == (5001, 5001)
    with nvml_session():
        gpu = NvmlGpu(1)
        assert gpu.locked_mhz(Domain.CORE) == (1050, 1050)
        assert gpu.locked_mhz(Domain.MEMORY) == (5001, 5001)
        assert NvmlGpu(0).locked_mhz(Domain.CORE) is None


def test_the_environment_closes_writes_here_too(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READ_ONLY, "1")
    with nvml_session():
        assert is_read_only()
        gpu = NvmlGpu()
        writes: tuple[Callable[[], None], ...] = (
            lambda: gpu.lock(Clocks(core_mhz=1050)),
            gpu.unlock,
        )
        for write in writes:
            with pytest.raises(NotPermittedError, match=READ_ONLY):
                write()
    assert served.gpus[0].core_lock is None


def test_a_process_that_was_forked_off_has_a_connection_of_its_own(served: Served) -> None:
    with nvml_session():
        gpu = NvmlGpu()
        pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(BaseException):
                gpu.lock(Clocks(core_mhz=900))
                code = 0
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert gpu.locked_mhz(Domain.CORE) == (900, 900)
    assert served.gpus[0].core_lock == (900, 900)


def test_a_server_that_went_away_is_said_and_one_that_came_back_answers(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIMULATOR, str(socket))
    with contextlib.ExitStack() as first:
        first.enter_context(served_gpus("rtx3080ti", socket))
        with nvml_session():
            gpu = NvmlGpu()
            first.close()
            with pytest.raises(DeviceError, match="Driver Not Loaded") as caught:
                gpu.observed()
            assert "again" in caught.value.hint
            with served_gpus("rtx3080ti", socket):
                assert gpu.observed().core_mhz == 210


def test_without_a_server_the_message_says_how_to_start_one(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIMULATOR, str(socket))
    with pytest.raises(DeviceError, match="no simulated GPU answers") as caught, nvml_session():
        pass

    assert "underclock simulate" in caught.value.hint
    assert SIMULATOR in caught.value.hint


def test_what_no_driver_has_is_refused_by_the_server(served: Served, socket: Path) -> None:
    del served
    connection = connected(str(socket)).socket
    reader = MessageReader(connection)
    for message, words in (
        ({"do": "call", "name": "gpus", "arguments": []}, "no function gpus"),
        ({"do": "call"}, "name"),
        ({"do": "dance"}, "nothing here can do 'dance'"),
        ({"do": "attach", "gpu": 0, "step": {}}, "name"),
        ({"do": "synchronise"}, "no step was loaded"),
    ):
        send(connection, message)
        assert words in reader.receive()["error"]
    connection.close()

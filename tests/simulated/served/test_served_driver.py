"""Served GPUs, seen by programs that know NVML only."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from contracts import GpuContract
from underclock.app.doctor import examine
from underclock.errors import DeviceError, NotPermittedError
from underclock.hw.base import Clock, Gpu
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import (
    READ_ONLY,
    SIMULATOR,
    gpu_count,
    is_read_only,
    is_simulated,
    nvml_session,
)
from underclock.hw.simulated.served.client import connected
from underclock.hw.wire import MessageReader, send
from underclock.records import Clocks, Kernel, Step
from underclock.records.latencies import Domain
from underclock.testing import Control, Served, served_gpus, simulated_driver


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


def test_the_clocks_follow_in_real_time(
    served: Served, control: Control, comes: Callable[[Callable[[], bool]], None]
) -> None:
    del served
    with nvml_session():
        gpu = NvmlGpu()
        gpu.lock(Clocks(core_mhz=1050))
        begun_s = control.truth()["now_s"]
        comes(lambda: gpu.observed().core_mhz == 1050)
        assert control.truth()["now_s"] < begun_s + 2.0
        gpu.unlock()
        comes(lambda: gpu.observed().core_mhz == 210)


def test_its_numbers_are_simulated_and_never_measured(served: Served) -> None:
    del served
    (finding,) = examine("nvml:0").gpus

    assert finding.evidence == "simulated"
    with nvml_session():
        assert is_simulated()


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


def test_a_simulated_gpu_of_this_process_goes_first(served: Served) -> None:
    del served
    with simulated_driver("a40"), nvml_session():
        assert NvmlGpu().info().name == "A40"
    with nvml_session():
        assert NvmlGpu().info().name == "RTX 3080 Ti"


def test_nvml_is_as_it_was_when_the_last_session_ended(served: Served) -> None:
    del served
    before = pynvml.nvmlLib
    with nvml_session():
        with nvml_session():
            assert gpu_count() == 2
        assert gpu_count() == 2
    assert pynvml.nvmlLib is before


def test_clients_do_not_end_one_another(served: Served, socket: Path) -> None:
    del served
    with nvml_session():
        gpu = NvmlGpu()
        with Control(str(socket)) as other:
            other.truth()
        assert gpu.observed().core_mhz == 210


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


def test_nvitop_finds_nothing_missing(served: Served, control: Control) -> None:
    del served
    untouched = dict(vars(pynvml))
    with nvml_session():
        nvitop = pytest.importorskip("nvitop")
        library = importlib.import_module("nvitop.api.libnvml")
        try:
            snapshot = nvitop.Device(1).as_snapshot()
            assert snapshot.name == "NVIDIA GeForce RTX 3080 Ti"
            assert snapshot.power_limit == 350_000
            assert library.UNKNOWN_FUNCTIONS == {}
            NvmlGpu(1).lock(Clocks(core_mhz=1050))
            assert control.truth(1)["core_lock"] == [1050, 1050]
        finally:
            library.nvmlShutdown()
            for module in [m for m in sys.modules if m.split(".")[0] == "nvitop"]:
                del sys.modules[module]
            for name, value in untouched.items():
                setattr(pynvml, name, value)


def test_a_machine_needs_a_gpu_and_time_that_goes_on(socket: Path) -> None:
    with pytest.raises(ValueError, match="at least one GPU"), served_gpus("a40", socket, count=0):
        pass
    with pytest.raises(ValueError, match="speed"), served_gpus("a40", socket, speed=0.0):
        pass
    assert not socket.exists()


def test_an_error_has_words_here_too(served: Served) -> None:
    del served
    with nvml_session():
        assert pynvml.nvmlErrorString(3) == "simulated error 3"


@pytest.mark.untraced
def test_what_the_server_cannot_do_is_an_unknown_error(served: Served) -> None:
    del served
    with nvml_session():
        code = pynvml.nvmlLib.nvmlSystemGetDriverVersion()
        assert code == pynvml.NVML_ERROR_UNKNOWN
        assert gpu_count() == 2  # and the connection goes on


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

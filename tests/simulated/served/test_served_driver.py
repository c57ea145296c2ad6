"""Served GPUs, seen by programs that know NVML only, and by those that launch on them."""

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import GpuContract
from underclock.errors import DeviceError, NotPermittedError, UsageError
from underclock.hw.base import Clock, Gpu
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import (
    READ_ONLY,
    SIMULATOR,
    is_read_only,
    nvml_session,
)
from underclock.hw.simulated.served.client import (
    Received,
    connected,
    packed,
    shape_of,
    type_of,
    write_back,
)
from underclock.hw.wire import MessageReader, send
from underclock.records import Clocks, Kernel, Step
from underclock.runtime.trainer.streams import ServedStream
from underclock.store import write_document
from underclock.testing import Control, Served, served_gpus
from underclock.units import Domain


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


_OFFSET = 64


class _Bench:
    """A step of four short launches on a served GPU, and the page its marks go to."""

    def __init__(self, folder: Path, socket: Path, kernels: tuple[Kernel, ...]) -> None:
        self.socket, self.page, self.file = socket, folder / "page", folder / "step.json"
        self.step = Step(name="short", kernels=kernels, order=(0, 1, 0, 1))
        self.page.write_bytes(bytes(4096))
        write_document(self.file, self.step)

    def connect(self, marks: tuple[int, ...] = (), gpu: int = 0) -> ServedStream:
        return ServedStream.connect(
            self.socket, gpu=gpu, step=self.file, page=self.page, marks=marks
        )

    @property
    def mark(self) -> int:
        (value,) = struct.unpack_from("<I", self.page.read_bytes(), _OFFSET)
        return int(value)


def _short(name: str) -> Kernel:
    return Kernel(name=name, count=2, flops=1e9, bytes_moved=4e8)


@pytest.fixture
def bench(tmp_path: Path, socket: Path, served: Served) -> _Bench:
    del served
    return _Bench(tmp_path, socket, (_short("a"), _short("b")))


@pytest.fixture
def stream(bench: _Bench) -> Iterator[ServedStream]:
    made = bench.connect(marks=(0, 2))
    yield made
    made.close()


def test_marks_arrive_in_order_when_what_lies_before_them_is_done(
    bench: _Bench, stream: ServedStream, control: Control
) -> None:
    assert stream.launches == 4
    assert bench.mark == 0
    for value in (1, 2, 1):
        stream.mark(value)
        stream.synchronise()
        assert bench.mark == value
    assert control.truth()["launches"] == 4  # the third mark begins the second step


def test_what_a_dead_process_put_there_never_runs(
    bench: _Bench, served: Served, comes: Callable[[Callable[[], bool]], None]
) -> None:
    program = f"""
import os, signal
from underclock.runtime.trainer.streams import ServedStream
stream = ServedStream.connect({str(bench.socket)!r}, step={str(bench.file)!r},
                              page={str(bench.page)!r})
for _ in range(200):
    stream.work(0, 4)
stream.write(64, 7)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=30)
    comes(lambda: served.gpus[0].running is None)

    assert bench.mark == 0
    stream = bench.connect()
    stream.work(0, 4)
    stream.write(64, 8)
    stream.synchronise()
    assert bench.mark == 8
    stream.close()


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (lambda stream: stream.work(0, 5), "not in a step of 4"),
        (lambda stream: stream.work(3, 1), "not in a step of 4"),
        (lambda stream: stream.write(4096, 1), "no word at 4096"),
        (lambda stream: stream.write(2, 1), "no word at 2"),
        (lambda stream: stream.write(64, -1), "no word of 32 bits"),
    ],
)
def test_what_cannot_be_done_is_told_when_one_waits(
    put: Callable[[ServedStream], None], words: str, stream: ServedStream
) -> None:
    put(stream)
    with pytest.raises(UsageError, match=words):
        stream.synchronise()
    stream.synchronise()  # and once only


def test_a_gpu_that_is_not_there_or_loaded_already_is_refused(
    bench: _Bench, tmp_path: Path, served: Served
) -> None:
    del served
    with pytest.raises(UsageError, match="no GPU 5"):
        bench.connect(gpu=5)
    loaded = tmp_path / "loaded"
    with served_gpus("rtx3080ti", loaded, load=bench.step):
        bench.socket = loaded
        with pytest.raises(UsageError, match="load of its own"):
            bench.connect()
    with pytest.raises(DeviceError, match="no simulated GPU answers"):
        bench.connect()


def test_a_server_that_ends_is_said(tmp_path: Path, socket: Path) -> None:
    bench = _Bench(tmp_path, socket, (_short("a"), _short("b")))
    with served_gpus("rtx3080ti", socket):
        stream = bench.connect()
    with pytest.raises(DeviceError, match="gone"):
        stream.synchronise()
    stream.close()


_NUMBERS = (
    ctypes.c_uint,
    ctypes.c_int,
    ctypes.c_ulonglong,
    ctypes.c_double,
    ctypes.c_char,
    ctypes.c_void_p,
)
_types: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(_NUMBERS),
    lambda inner: st.one_of(
        st.tuples(inner, st.integers(0, 4)).map(lambda pair: pair[0] * pair[1]),
        st.tuples(
            st.sampled_from([ctypes.Structure, ctypes.Union]), st.lists(inner, max_size=4)
        ).map(
            lambda pair: type(
                "Drawn",
                (pair[0],),
                {"_fields_": [(f"field{i}", kind) for i, kind in enumerate(pair[1])]},
            )
        ),
    ),
    max_leaves=8,
)


@given(_types)
def test_a_type_made_again_is_laid_out_alike(kind: Any) -> None:
    again = type_of(shape_of(kind))

    assert shape_of(again) == shape_of(kind)
    assert ctypes.sizeof(again) == ctypes.sizeof(kind)


@given(_types, st.data())
def test_what_the_function_writes_comes_back(kind: Any, data: st.DataObject) -> None:
    size = ctypes.sizeof(kind)
    before, after = (data.draw(st.binary(min_size=size, max_size=size)) for _ in range(2))
    mine = kind.from_buffer_copy(before)

    received = Received(packed(ctypes.byref(mine)))
    theirs = received.passed._obj  # noqa: SLF001
    assert bytes(theirs) == before
    ctypes.memmove(ctypes.addressof(theirs), after, size)
    write_back(ctypes.byref(mine), received.answer())

    assert bytes(mine) == after


def test_every_structure_of_nvml_can_be_sent() -> None:
    found = 0
    for kind in vars(pynvml).values():
        if hasattr(kind, "_fields_"):
            assert ctypes.sizeof(type_of(shape_of(kind))) == ctypes.sizeof(kind), kind
            found += 1
    assert found > 100

"""What another process puts in a row for a served GPU, and when its marks arrive."""

import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from underclock.errors import DeviceError, UsageError
from underclock.records import Kernel, Step
from underclock.runtime.trainer.streams import ServedStream
from underclock.store import write_document
from underclock.testing import Control, Served, served_gpus

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


def test_two_processes_share_a_gpu(bench: _Bench, stream: ServedStream, control: Control) -> None:
    other = bench.connect()
    stream.work(0, 4)
    other.work(0, 2)
    stream.work(0, 4)
    other.synchronise()
    stream.synchronise()
    assert control.truth()["launches"] == 10
    other.close()
    stream.work(0, 1)
    stream.synchronise()


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


def test_a_step_that_cannot_be_simulated_is_refused(
    tmp_path: Path, socket: Path, served: Served
) -> None:
    del served
    bench = _Bench(tmp_path, socket, (Kernel(name="a", count=2), Kernel(name="b", count=2)))
    with pytest.raises(UsageError, match="what it costs is unknown"):
        bench.connect()


def test_a_server_that_ends_is_said(tmp_path: Path, socket: Path) -> None:
    bench = _Bench(tmp_path, socket, (_short("a"), _short("b")))
    with served_gpus("rtx3080ti", socket):
        stream = bench.connect()
    with pytest.raises(DeviceError, match="gone"):
        stream.synchronise()
    stream.close()

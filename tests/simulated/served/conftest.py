"""Simulated GPUs that are served, by a thread of this process, to whoever names the socket."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fault_bench import Bench
from free_time import free_s
from kills import Rig
from underclock.hw.nvml_calls import SIMULATOR, nvml_session
from underclock.runtime.undo.ownership import RUNTIME_DIR
from underclock.testing import Control, Served, served_gpus


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def served(socket: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with served_gpus("rtx3080ti", socket, count=2) as made:
        monkeypatch.setenv(SIMULATOR, str(socket))
        yield made


@pytest.fixture
def control(served: Served, socket: Path) -> Iterator[Control]:
    del served
    with Control(str(socket)) as made:
        yield made


@pytest.fixture
def comes() -> Callable[[Callable[[], bool]], None]:
    """Wait for something that takes real time, but not for long."""
    from underclock.hw.base import SystemClock

    def wait(condition: Callable[[], bool], within_s: float = 5.0) -> None:
        clock, until_s = SystemClock(), free_s() + within_s
        while not condition():
            assert free_s() < until_s, "it never came"
            clock.sleep_s(0.002)

    return wait


@pytest.fixture
def rig(control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    del control
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(RUNTIME_DIR, str(folder))
    studies = Path(sys.modules["kills"].__file__ or "").parent
    paths = [str(studies), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    with nvml_session():
        yield Rig(folder)


@pytest.fixture
def bench(
    control: Control,
    comes: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "runs"))
    (tmp_path / "runs").mkdir(mode=0o700)
    yield Bench(tmp_path / "runs", tmp_path / "log.jsonl", control, comes)
    import gc

    gc.collect()

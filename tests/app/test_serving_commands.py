"""What `simulate` serves and refuses, and what `doctor` says of it."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from underclock.app import main
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import LOCKED_CLOCKS, SIMULATOR, nvml_session
from underclock.records import Clocks, Kernel, Step
from underclock.store import write_document
from underclock.testing import Control, served_gpus, simulated_driver


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "s"
    with served_gpus("rtx3080ti", path, count=2):
        monkeypatch.setenv(SIMULATOR, str(path))
        yield path


def _doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main(["doctor", "--json", *arguments])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_doctor_tells_what_is_locked(socket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del socket
    keys = ("spec", "evidence", "locked_core_mhz", "locked_mem_mhz", "power_limit_w")

    def gpus() -> list[tuple[Any, ...]]:
        found = _doctor(capsys)
        assert any(SIMULATOR in note for note in found["notes"])
        return [tuple(gpu[key] for key in keys) for gpu in found["gpus"]][:2]

    assert gpus() == [(f"nvml:{index}", "simulated", None, None, 350.0) for index in (0, 1)]
    with nvml_session():
        NvmlGpu(1).lock(Clocks(core_mhz=1050, mem_mhz=5001))
    assert gpus()[1] == ("nvml:1", "simulated", 1050, 5001, 350.0)
    main(["doctor", "--gpu", "nvml:1"])
    assert "core locked at 1050 MHz" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_end(number: signal.Signals, tmp_path: Path) -> None:
    path, file = tmp_path / "s", tmp_path / "step.json"
    kernel = Kernel(name="a", flops=1e9, bytes_moved=4e8)
    write_document(file, Step(name="one", kernels=(kernel,), order=(0,)))
    command = ["underclock", "simulate", "rtx3080ti", "--socket", str(path), "--count", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--load", str(file)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    with process.stderr as said:
        assert "serving 2 x rtx3080ti" in said.readline()
        with Control(str(path)) as control:
            assert control.truth(1)["core_mhz"] > 1000  # under load
        process.send_signal(number)
        assert process.wait(60) == 0
        assert "ended" in said.read()
    assert not path.exists()


def test_what_cannot_be_served_is_refused(
    fails: Callable[[str], tuple[int, str]], socket: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for arguments, words in (
        (f"simulate rtx3080ti --socket {socket}", "a process already listens"),
        (f"simulate rtx3080ti --socket {file}", "is no socket"),
        (f"simulate rtx3080 --socket {tmp_path / 'x'}", "rtx3080ti"),
        (f"simulate rtx3080ti --socket {tmp_path / 'x'} --count 0", "cannot serve 0 GPUs"),
        ("simulate rtx3080ti", "--socket"),
    ):
        code, said = fails(arguments)
        assert code == 2
        assert words in said


def test_doctor_says_that_a_real_driver_does_not_tell_of_locks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with simulated_driver("h200") as machine:
        machine.driver.simulated = False  # as a real one looks
        del machine.driver._functions[LOCKED_CLOCKS]  # noqa: SLF001
        found = _doctor(capsys)

    assert found["gpus"][0]["evidence"] == "measured"
    assert found["gpus"][0]["locked_core_mhz"] is None
    assert found["gpus"][0]["power_limit_w"] == 700.0
    assert any("does not say which clocks are locked" in note for note in found["notes"])

"""Samples files with a few invented measurements, changed behind our back, and refused."""

import contextlib
import sqlite3
from pathlib import Path

import refused
from underclock.errors import DataError
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Mix,
    SampleSet,
    Step,
    ThrottleReason,
    Window,
)
from underclock.store import SampleFile, read_samples

HEADER = SampleSet(
    evidence=Evidence.SIMULATED,
    gpu=GpuInfo(name="a GPU", driver="1.2", power_limit_w=350.0),
    step=Step(
        name="a step",
        kernels=(Kernel(name="gemm", count=24), Kernel(name="copy", count=24)),
        order=(0, 1) * 24,
    ),
    expected_samples=10,
    warnings=("take care",),
)


def sample(repeat: int = 0, kernel: str = "gemm", asked: Clocks = AUTO) -> Window:
    return Window(kernel=kernel, asked=asked, repeat=repeat, time_s=0.5, energy_j=100.0)


def in_company(repeat: int = 0, kernel: str = "gemm", mix: Mix | None = None) -> Window:
    return Window(
        kernel=kernel,
        mix=mix or Mix(hot=2),
        repeat=repeat,
        core_mhz=1607.3,
        core_spread_mhz=11.0,
        time_s=0.1 / 3,
        energy_j=20.0,
        kernel_s=(0.0006, 0.0005) if not kernel else (0.012,),
        hot_s=0.002,
        window_s=1.0,
        throttle_reasons=ThrottleReason.SW_POWER_CAP,
    )


def filled(path: Path, count: int = 3) -> Path:
    with SampleFile.create(path, HEADER) as file:
        for repeat in range(count):
            file.append(sample(repeat))
    return path


def run(path: Path, statement: str, *values: object) -> None:
    """Change a file behind our back."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


def assert_refused(path: Path, *words: str) -> DataError:
    """Reading is a `DataError` that names the file, says these words, and what to do."""
    return refused.assert_refused(lambda: read_samples(path), path, *words)

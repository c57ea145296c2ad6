"""tune: what leads from a training command to a plan is kept in one folder, and not done twice."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from underclock.app.backends import open_gpu
from underclock.core.planning.goal import Goal
from underclock.errors import UsageError
from underclock.hw.gpu_names import GpuKind, GpuName
from underclock.hw.nvml_calls import SIMULATOR, is_simulated, nvml_session
from underclock.hw.simulated.served.server import served_gpus
from underclock.records import Plan, Step
from underclock.store import read_document
from underclock.tracing.source import TrainingCommand, source_of_command


def runs_elsewhere(gpu: GpuName) -> bool:
    """Whether a GPU is simulated, so that a step runs on the CPU and its kernels are assumed.

    Raises:
        UsageError: It is a table, on which nothing can run.
        DeviceError: A real one does not answer.
    """
    if gpu.kind is GpuKind.REPLAYED:
        raise UsageError(
            f"{gpu.text} is a table, on which nothing trains", hint="name a GPU: nvml:0"
        )
    if gpu.is_simulated:
        return True
    with nvml_session():
        return is_simulated()


def traced_before(command: TrainingCommand, file: Path, *, assume: bool) -> Step | None:
    """Return the step on file; ``None`` where there is none.

    Raises:
        UsageError: The step on file is of something else.
    """
    if not file.exists():
        return None
    step = read_document(file, Step)
    if step.source != source_of_command(command, file.parent) or step.is_assumed != assume:
        raise UsageError(
            f"{file} is of {step.source or step.name}, or of what that file held before",
            hint="name another folder with -o, or remove this one to begin again",
        )
    return step


def planned_before(file: Path, samples: Path, gpu: GpuName, goal: Goal) -> Plan | None:
    """Return the plan on file where it is of these samples, this GPU and this budget."""
    if not file.exists() or not samples.exists():
        return None
    if file.stat().st_mtime_ns < samples.stat().st_mtime_ns:
        return None
    plan = read_document(file, Plan)
    with open_gpu(gpu) as opened:
        here = opened.gpu.info().name
    return plan if (plan.gpu.name, plan.max_slowdown) == (here, goal.max_slowdown) else None


@contextmanager
def to_hold(gpu: GpuName) -> Iterator[str]:
    """Yield the GPU on which a plan can be held: a simulated one is served as long as the block."""
    if not gpu.is_simulated:
        yield gpu.text
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        served_gpus(gpu.name, socket := Path(folder) / "gpu.sock"),
    ):
        before = os.environ.get(SIMULATOR)
        os.environ[SIMULATOR] = str(socket)
        try:
            yield "nvml:0"
        finally:
            os.environ.pop(SIMULATOR)
            if before is not None:
                os.environ[SIMULATOR] = before

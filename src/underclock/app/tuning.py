"""tune: what leads from a training command to a plan is kept in one folder, and not done twice."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from underclock.app.backends import open_gpu
from underclock.app.signals import BY_SIGNAL, INTERRUPTED
from underclock.core.planning.goal import Goal
from underclock.errors import UsageError
from underclock.hw.gpu_names import GpuKind, GpuName
from underclock.hw.nvml_calls import SIMULATOR, is_simulated, nvml_session
from underclock.hw.simulated.served.server import served_gpus
from underclock.records import Plan, Step
from underclock.store import read_document, write_document
from underclock.tracing.source import Script, TracePhase, source_of
from underclock.tracing.trace import trace

APART = (sys.executable, "-P", "-m", "underclock")  # -P: as the command, not of this folder
_HOW = "name what trains: underclock tune -- python train.py --your --arguments"


def training_of(command: Sequence[str], *, assume: bool) -> Script:
    """Return the script that a training command runs: ``python train.py …``, or the script alone.

    Where it is assumed it runs on the CPU, where steps take long, and early ones are looked at.

    Raises:
        UsageError: It runs no script, or not by itself.
    """
    first, *rest = command or ("",)
    words = rest if Path(first).name.startswith("python") else [first, *rest]
    while words and words[0] == "-u":
        words = words[1:]
    if not words or not words[0].endswith(".py"):
        raise UsageError(
            f"cannot tune {' '.join(command)!r}: it is no Python script"
            if command
            else "there is nothing to tune",
            hint=f"{_HOW}; several ranks trace and measure under torchrun, each by its command",
        )
    path = Path(words[0])
    if not path.is_file():
        raise UsageError(f"cannot read {words[0]!r}: no such file", hint=_HOW)
    first_step = 2 if assume else 20
    return Script(path=path, arguments=tuple(words[1:]), first=first_step, last=first_step + 1)


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


def traced_once(
    script: Script, file: Path, *, assume: bool, progress: Callable[[TracePhase], None]
) -> Step:
    """Return a script's step: the one on file, or else a trace, which is then on file.

    Raises:
        UsageError: The step on file is of something else.
    """
    source = source_of(script, file.parent)
    if not file.exists():
        step = trace(script, folder=file.parent, assume=assume, progress=progress)
        write_document(file, step)
        return step
    step = read_document(file, Step)
    if step.source != source or step.is_assumed != assume:
        raise UsageError(
            f"{file} is of {step.source or step.name}, or of what that file held before",
            hint="name another folder with -o, or remove this one to begin again",
        )
    return step


def traced_by(script: Script, file: Path) -> list[str]:
    """Return the words after ``trace`` that trace a script."""
    steps = f"{script.first}:{script.last + 1}"
    return [f"{script.path}", "--steps", steps, "-o", f"{file}", "--", *script.arguments]


def measured_by(
    script: Script,
    max_slowdown: float,
    *,
    time_limit: float | None = None,
    precision: float | None = None,
) -> list[str]:
    """Return the words after ``measure`` that say how a script's kernels are measured.

    Args:
        script: Which the user named, so it may be run wherever it lies.
        max_slowdown: Of the plan; 0 where every plan is measured for.
        time_limit: As after ``--time-limit``, in s.
        precision: As after ``--precision``.
    """
    words = ["--source", str(script.path.resolve())]
    if max_slowdown:
        words += ["--max-slowdown", f"{100.0 * max_slowdown:.15g}%"]
    if time_limit is not None:
        words += ["--time-limit", f"{time_limit:f}s"]
    if precision is not None:
        words += ["--precision", f"{100.0 * precision:.15g}%"]
    return words


def run_apart(command: Sequence[str]) -> int:
    """Run a command with our own input and output; return its exit code, as a shell has it.

    A process traces, or measures, once: PyTorch's profiler sees operators only the first time that
    it looks, and what ran keeps its memory on the GPU until the process ends.
    """
    with subprocess.Popen(list(command)) as child:
        try:
            code = child.wait()
        except BaseException as exc:
            if getattr(exc, "exit_code", INTERRUPTED) != INTERRUPTED:
                child.terminate()  # of Ctrl-C the terminal tells it as well
            child.wait()
            raise
    return code if code >= 0 else BY_SIGNAL - code


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

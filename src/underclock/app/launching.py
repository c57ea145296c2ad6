"""A training command run to be looked at: started, watched, and ended with all that it started.

The command runs as by itself, in an environment in which every Python that imports PyTorch looks at
its steps (`app.looking`). Here nothing is done but to wait, with deadlines: for a first step, for
the next one, for all ranks. Whatever the command started ends with it, and with this process.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from underclock.app.looking import RUNNING, RankStatus, TraceRequest, statuses
from underclock.errors import MeasurementError, UnderclockError, UsageError
from underclock.hw.base import SystemClock, parse_gpu
from underclock.hw.nvml import NvmlGpu, shown_by_cuda
from underclock.hw.nvml_calls import nvml_session
from underclock.records import Step, Window
from underclock.runtime.controller.starting import end_family
from underclock.runtime.holding.run import INJECT
from underclock.runtime.trainer.kept_files import KEPT, LOOK, put_back
from underclock.runtime.undo.ownership import Process, family_of
from underclock.store import read_document, write_document
from underclock.tracing.job_files import SUFFIX, ProcessRank, told_of_ranks
from underclock.tracing.source import TracePhase, TrainingCommand, source_of_command
from underclock.units import format_duration

POLL_S = 0.05
_SAY_S = 45.0  # without a step
_NO_STEP_S = 900.0  # large models take minutes to load
_NEXT_STEP_S = 600.0  # of a step, or of a phase of looking
_ALONE_S = 5.0  # from where one rank failed or is gone to where all are ended
_END_S = 3.0  # of a command whose ranks are done, and of what is killed
_SUBREAPER = 36  # of prctl, whose 1 below is to die with the parent
_NAME_A_STEP = (
    "a step is seen where an optimizer of PyTorch's steps, or a backward pass begins; a script "
    "that does neither says where its steps end: underclock.step()"
)
# Ends with the process that started it, and becomes the command.
_GATE = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)


def looked_at(
    command: TrainingCommand,
    look: TraceRequest,
    *,
    say: Callable[[str], None],
    phase: Callable[[TracePhase], None] = lambda _phase: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[RankStatus, ...]:
    """Run a command until its steps were looked at, then end it; return how it went in each rank.

    ``phase`` is called as the first rank begins each; ``meanwhile`` often: it returns in seconds.
    """
    folder = Path(look.folder)
    place = folder / "look.json"
    place.write_bytes(msgspec.json.encode(look))
    try:
        with _started(command, place, asks=bool(look.measure)) as trainer:
            return _Watch(command, folder, trainer, say, phase, meanwhile).until_done()
    finally:
        for name in put_back(folder / KEPT, say):
            say(f"put back as it was: {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """The step that one rank of a command runs."""

    step: Step
    file: Path | None  # where it was written; None where it was not
    running: Window | None  # the step as it ran by itself; None where its energy was not read
    warnings: tuple[str, ...]  # what a reader of the step must know


def trace_command(
    command: TrainingCommand,
    *,
    to: Path | None = None,
    assume: bool = False,
    allow_writes: bool = False,
    force: bool = False,
    measure: tuple[str, ...] = (),
    progress: Callable[[TracePhase], None] = lambda _phase: None,
    say: Callable[[str], None] = lambda _sentence: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[RankStep, ...]:
    """Run a command that trains until one of its steps was looked at; list the step's kernels.

    Args:
        to: File for the step; of several ranks each has its own, ``step.rank0.json`` and so on,
            with what its profiler saw in ``step.rank0.trace.json.gz``. The caller writes the file
            of a command of one process.
        assume: Whether it runs on a CPU, and the kernels that a GPU would run are assumed.
        allow_writes: Whether files that were there may be replaced; else they are put back.
        force: Whether files that exist are replaced.
        measure: Words after ``underclock measure STEP``, where the step's kernels are measured at
            once if they can run alone; the step is in ``to`` before that.
        progress: Called with every phase, as it begins.
        say: Called with a sentence that the user should read meanwhile.
        meanwhile: Called often, and returns within seconds.

    Returns:
        Of each rank on this machine, in their order.

    Raises:
        UnderclockError: As of `looked_at`.
    """
    with looking_folder() as folder:

        def begun(phase: TracePhase) -> None:
            progress(phase)
            if phase is TracePhase.MEASURING and to is not None:
                write_document(to, read_document(folder / "step.rank0.json", Step), force=force)

        look = TraceRequest(
            folder=str(folder),
            name=command.name,
            latest=command.latest,
            assume=assume,
            source=source_of_command(command, to.parent if to is not None else Path()),
            measure=measure,
            own_step=True,
            cwd=str(Path.cwd()),
            protect=not allow_writes,
        )
        ranks = looked_at(command, look, say=say, phase=begun, meanwhile=meanwhile)
        found: list[RankStep] = []
        sharing = () if assume else others_on_gpus()
        for rank in ranks:
            step = read_document(folder / f"step.rank{rank.rank}.json", Step)
            step = msgspec.structs.replace(step, warnings=(*step.warnings, *sharing))
            file = None
            if rank.world > 1 and to is not None:
                own = ProcessRank(number=rank.rank, world=rank.world)
                file = own.file(to)
                write_document(file, step, force=force)
                trace = folder / f"step.rank{rank.rank}{SUFFIX}"
                if trace.is_file():
                    shutil.copyfile(trace, file.with_suffix(SUFFIX))
            window, running = folder / f"step.rank{rank.rank}{RUNNING}", None
            if window.is_file():
                running = msgspec.json.decode(window.read_bytes(), type=Window)
            found.append(RankStep(step=step, file=file, running=running, warnings=step.warnings))
        if to is not None and len(found) > 1:
            own = ProcessRank(number=0, world=len(found))
            differs = told_of_ranks(found[0].step, to, own)
            found[0] = replace(found[0], warnings=(*found[0].warnings, *differs))
    return tuple(found)


def others_on_gpus() -> tuple[str, ...]:
    """Say which processes compute on the GPUs that CUDA shows, once a command has ended."""
    with suppress(UnderclockError), nvml_session():
        gpus = {name: NvmlGpu(parse_gpu(name).index) for name in shown_by_cuda()}
        return tuple(
            f"process {pid} also computes on {name}: the step was timed while it ran"
            for name, gpu in gpus.items()
            for pid in gpu.neighbours() or ()
            if (process := Process.of(pid)) is not None and process.lives
        )
    return ()


@contextmanager
def looking_folder() -> Iterator[Path]:
    """Yield a folder for `looked_at`, gone after the block."""
    with tempfile.TemporaryDirectory(prefix="underclock-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _started(
    command: TrainingCommand, look: Path, *, asks: bool
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a command; end all that it started after the block, however that ends."""
    environment = dict(os.environ)
    environment[LOOK] = str(look)
    environment.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes of itself
    paths = [str(INJECT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    # What the command starts and leaves behind becomes our own child, and is found.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    gate = [sys.executable, "-I", "-S", "-c", _GATE, str(os.getpid()), *command.words]
    before = _descendants()
    trainer = subprocess.Popen(gate, env=environment, stdout=2, process_group=0)
    try:
        yield trainer
    finally:
        if asks:  # what it measures may have locked clocks
            end_family(trainer, grace_s=_END_S, ask=True)
        _end_all(trainer, before)
        ctypes.CDLL(None).prctl(_SUBREAPER, 0)


class _Watch:
    """Waits for the ranks of a command."""

    def __init__(
        self,
        command: TrainingCommand,
        folder: Path,
        trainer: "subprocess.Popen[bytes]",
        say: Callable[[str], None],
        phase: Callable[[TracePhase], None],
        meanwhile: Callable[[], None],
    ) -> None:
        self._name = command.name
        self._folder = folder
        self._trainer = trainer
        self._say, self._phase, self._meanwhile = say, phase, meanwhile
        self._clock = SystemClock()
        self._begun_s = self._changed_s = self._clock.now_s()
        self._ranks: dict[int, RankStatus] = {}
        self._pidfds: dict[int, int] = {}
        self._gone_s: dict[int, float] = {}  # since when a rank's process does not run
        self._shown = ""
        self._said = False

    def until_done(self) -> tuple[RankStatus, ...]:
        """Wait until all ranks are done; raise what keeps one from it."""
        try:
            return self._until_done()
        finally:
            for pidfd in self._pidfds.values():
                os.close(pidfd)

    def _until_done(self) -> tuple[RankStatus, ...]:
        alone_s: float | None = None
        while True:
            ended = self._trainer.poll() is not None
            self._read()
            ranks = [self._ranks[rank] for rank in sorted(self._ranks)]
            if ranks and len(ranks) == ranks[0].here and all(rank.done for rank in ranks):
                with suppress(subprocess.TimeoutExpired):
                    self._trainer.wait(_END_S)
                return tuple(ranks)
            now_s = self._clock.now_s()
            for rank in ranks:
                if not self._is_gone(rank):
                    self._gone_s.pop(rank.rank, None)
                else:
                    self._gone_s.setdefault(rank.rank, now_s)
            if not ended and not self._gone_s and not any(rank.error for rank in ranks):
                alone_s = None
            elif alone_s is None:
                alone_s = now_s
            over = ranks and len(ranks) == ranks[0].here and all(r.done or r.error for r in ranks)
            if ended or over or now_s - (alone_s or now_s) > _ALONE_S:
                raise self._because(ranks)
            self._check_deadlines(ranks, now_s)
            self._meanwhile()
            # Woken at once where a process ends, so that it is known which one was the first.
            alive = [self._pidfd(rank) for rank in ranks if not self._is_gone(rank)]
            select.select(alive, [], [], POLL_S)

    def _read(self) -> None:
        for status in statuses(self._folder):
            before = self._ranks.get(status.rank)
            if before == status or (before is not None and before.done):
                continue
            # A process that a rank starts has its number too, and takes no step.
            if before is None or before.pid == status.pid or status.steps > 0:
                self._ranks[status.rank] = status
                self._changed_s = self._clock.now_s()
        first = self._ranks.get(0)
        if first is not None and first.phase and first.phase != self._shown:
            self._shown = first.phase
            self._phase(TracePhase[first.phase])

    def _pidfd(self, rank: RankStatus) -> int:
        """Return what can be read once a rank's process has ended; at once where it is gone."""
        if rank.pid not in self._pidfds:
            try:
                self._pidfds[rank.pid] = os.pidfd_open(rank.pid)
            except ProcessLookupError:
                self._pidfds[rank.pid] = os.open(os.devnull, os.O_RDONLY)
        return self._pidfds[rank.pid]

    def _is_gone(self, rank: RankStatus) -> bool:
        """Whether a rank's process has ended without a word, or was stopped."""
        return not (rank.done or rank.error or rank.runs)

    def _because(self, ranks: list[RankStatus]) -> Exception:
        code = self._trainer.poll()
        # The first that failed is the reason: errors of further ranks follow from it.
        failed = {rank.rank: rank.said_s for rank in ranks if rank.error}
        since_s = self._gone_s | failed
        first = self._ranks[min(since_s, key=lambda rank: since_s[rank])] if since_s else None
        if first is not None and first.after in self._ranks:
            first = self._ranks[first.after]
        named = ranks[0].world > 1 if ranks else False
        if first is not None and not first.error:
            which = f"rank {first.rank} of {first.world}" if named else self._name
            stopped = (process := Process.of(first.pid)) is not None and process.stopped
            did = "was stopped" if stopped else "ended"
            when = f"in step {first.steps} before it" if first.steps else "before a first step"
            how = "" if code is None else f" (the command's exit code is {code})"
            return MeasurementError(
                f"{which}, process {first.pid}, {did} {when} was looked at{how}",
                hint="all ranks were ended; run it by itself first: it must train as it is",
            )
        if first is not None:
            which = f"rank {first.rank} of {first.world}: " if named else ""
            error = MeasurementError(f"{which}{first.error}", hint=first.hint)
            error.exit_code = first.exit_code
            return error
        ended = f"{self._name} ended with exit code {code} before"
        if ranks:
            hint = "run it by itself first: it must train as it is"
            return MeasurementError(f"{ended} all of its ranks were looked at", hint=hint)
        trains = f"is it a command that trains? {_NAME_A_STEP}"
        hint = "run it by itself first" if code else trains
        return UsageError(f"{ended} a first step of training was seen", hint=hint)

    def _check_deadlines(self, ranks: list[RankStatus], now_s: float) -> None:
        if not any(rank.steps for rank in ranks):  # a launcher's processes are ranks from the start
            waited_s = now_s - self._begun_s
            if waited_s > _SAY_S and not self._said:
                self._said = True
                self._say(f"no step of training was seen in {_SAY_S:.0f} s; {_NAME_A_STEP}")
            if waited_s > _NO_STEP_S:
                raise UsageError(
                    f"{self._name} took no step of training in {format_duration(_NO_STEP_S)}",
                    hint=_NAME_A_STEP,
                )
        elif now_s - self._changed_s > _NEXT_STEP_S and self._shown != TracePhase.MEASURING.name:
            late = ", ".join(str(rank.rank) for rank in ranks if not rank.done)
            raise MeasurementError(
                f"rank {late} of {ranks[0].world} came no further in "
                f"{format_duration(_NEXT_STEP_S)}, in step {ranks[0].steps}",
                hint="all ranks were ended; look at what they wait for with py-spy",
            )


def _end_all(trainer: "subprocess.Popen[bytes]", before: set[int]) -> None:
    """Kill a command and all that descends from it.

    It is not asked to end: what a script does then, such as to save where it is, is of a run that
    its user means to keep.
    """
    clock = SystemClock()
    begun_s = clock.now_s()
    while (pids := _descendants() - before) and clock.now_s() - begun_s < _END_S:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        trainer.poll()
        for pid in pids - {trainer.pid}:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        clock.sleep_s(POLL_S)


def _descendants() -> set[int]:
    return {each.pid for each in family_of(os.getpid())} - {os.getpid()}

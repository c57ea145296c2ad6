"""run: a training command with its clocks held by a plan, and given back whatever happens.

A run has files, a controller that holds the clocks in a process of its own, and a summary.
"""

import math
import os
import secrets
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from underclock import runtime
from underclock.errors import DataError, UnderclockError, UsageError
from underclock.hw.base import GpuKind, SystemClock, parse_gpu
from underclock.hw.interrupts import INTERRUPTED, InterruptedBySignal, raise_lost_interrupt
from underclock.hw.nvml import NvmlGpu, listed_clocks, shown_by_cuda
from underclock.hw.nvml_calls import is_simulated, nvml_session
from underclock.records import Plan, Step
from underclock.records.job import JobPlan
from underclock.records.planned import check_clocks
from underclock.records.runs import RunSummary
from underclock.report import closing_line
from underclock.runtime.controller.log import (
    LogReader,
    last_run,
    live_line,
    live_scalars,
    read_log,
    summary_of,
)
from underclock.runtime.controller.process import TRAINER_ENDED
from underclock.runtime.controller.run_files import Run, read_plan
from underclock.runtime.controller.starting import (
    ENDED_S,
    HURRIED_S,
    POLL_S,
    ControllerProcess,
    code_of,
    end_family,
)
from underclock.runtime.policy.arms import parse_arms
from underclock.runtime.policy.parts import RankPart, observed_part, parts_of
from underclock.runtime.trainer.marking import RUN
from underclock.runtime.trainer.sites import marked, scheduled
from underclock.runtime.undo.ownership import say

INJECT = Path(runtime.__file__).parent / "trainer" / "inject"
"""The folder that has every Python wait for PyTorch, on its PYTHONPATH."""
_WORK = "underclock.runtime.controller.follow:begin"
_PATH = "PYTHONPATH"
_ELSEWHERE = "`underclock measure --near` measures the plan's clocks here; or say --anyway"
_WINDOW, _PORTS = 20, 1 << 16
_MOST_CALLS = 0.5  # of a step, of all GPUs: with eight, calls that take 0.7 of it come 27 ms late
_SCALARS_EVERY_S = 1.0
_GRACE_S = 3.0  # from asking a command to end to killing it
# Waits for a byte on its pipe, and becomes the command: so the controller knows it beforehand.
# Interrupted before that, it just ends.
_GATE = (
    "import os, sys, _signal as s; "
    "s.getsignal(2) is s.default_int_handler and s.signal(2, s.SIG_DFL); "
    "go = os.read(int(sys.argv[1]), 1); os.close(int(sys.argv[1])); "
    "os.execvp(sys.argv[2], sys.argv[2:]) if go else sys.exit(1)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a run went."""

    code: int  # that the command ended with; negative where a signal ended it, 0 where a block did
    why: str  # why the controller ended
    undone: tuple[str, ...]  # what it put back, as sentences
    summary: RunSummary  # of its steps
    line: str  # all that in one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToRun:
    """How a plan is held.

    Attributes:
        gpus: The GPU of each local rank, in their order; by default the first, and for a job's plan
            as many as it has ranks.
        dry: Do all but set clocks.
        log: File for a line of JSON for each step; it is appended to.
        anyway: Whether another board or driver than the plan's will do.
        arms: Ways of choosing clocks that take turns, as after ``--compare``; empty: the plan.
        steps: That the run is to have; ``None`` where that is not known.
        window: Steps that the guard judges together, 0 for no guard; by default 20, and none where
            arms take turns.
        first_rank: Of a job on several machines: which rank is the first of this one's.
        leader: Host and port, as ``node0:29600``, at which the machine of rank 0 decides for a job
            on several machines; empty for one.
        metrics_port: On which Prometheus may ask this machine; ``None`` for no such thing.
        learn: Learn clocks, and try a plan's first; without both, nothing is set and what GPUs draw
            is counted.
        max_slowdown: Most time over auto's, as a fraction, that clocks may cost which are learned.
        step: That a simulated GPU executes where there is no plan.
        live_s: Every so often ``tell`` hears how the last steps went; ``None`` for never.
        tell: Takes what a reader should know as it goes on; by default to stderr.
        ended: Takes how it went, whatever ended it; by default ``tell`` has one line.
    """

    gpus: tuple[str, ...] = ()
    dry: bool = False
    log: Path | None = None
    anyway: bool = False
    arms: str = ""
    steps: int | None = None
    window: int | None = None
    first_rank: int = 0
    leader: str = ""
    metrics_port: int | None = None
    learn: bool = False
    max_slowdown: float = 0.01
    step: Step | None = None
    live_s: float | None = None
    tell: Callable[[str], None] = say
    ended: Callable[[Ran], None] | None = None


def run(
    plan: Plan | JobPlan | str | Path | None, command: Sequence[str], how: HowToRun | None = None
) -> Ran:
    """Run a training command, and hold a plan's clocks while it trains.

    Args:
        plan: With a schedule or of a job, or its file; ``None`` counts what GPUs draw, or learns
            clocks while it trains (``how.learn``).
        command: What to run, unchanged; it may start several trainers, as torchrun does.
        how: By default on GPU 0, of a job on as many as it has ranks, and without a plan on all
            that the command sees.

    Raises:
        UsageError: A plan without a schedule, a job of more ranks than GPUs, no such command, or a
            GPU that another user sets.
        DataError: The plan is of another GPU, board, driver or limit.
        DeviceError: The GPU does not answer, or clocks may not be set.
    """
    if not command:
        raise UsageError("nothing to run", hint="underclock run plan.json -- python train.py")
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"there is no command {command[0]!r}", hint="write it as a shell would find it"
        )
    read = read_plan(Path(plan)) if isinstance(plan, str | Path) else plan
    name = Path(next((word for word in command if word.endswith(".py")), command[0])).stem
    with (
        held_run(read, how or HowToRun(), name) as held,
        _gated(command, held.environment()) as (trainer, go),
    ):
        held.start(trainer.pid)
        go()
        held.wait(trainer)
    if held.ran is None:
        raise AssertionError("it began")
    return held.ran


@contextmanager
def _gated(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], object]]]:
    """Start a process that becomes the command at a byte on its pipe; it ends with the block."""
    theirs, ours = os.pipe()
    gate = [sys.executable, "-I", "-S", "-c", _GATE, str(theirs), *command]
    trainer = subprocess.Popen(gate, env=dict(environment), pass_fds=(theirs,))
    os.close(theirs)
    try:
        yield trainer, lambda: os.write(ours, b"1")
    finally:
        os.close(ours)
        if trainer.poll() is None:
            end_family(trainer, grace_s=_GRACE_S, ask=_is_to_be_asked())


def _is_to_be_asked() -> bool:
    """Whether a command has not heard that it is to end: at Ctrl-C the terminal signals it too."""
    return getattr(sys.exception(), "exit_code", INTERRUPTED) != INTERRUPTED


class HeldRun:
    """The files of a run and its controller.

    Attributes:
        ran: How it went; ``None`` until it ended, or where it never began.
    """

    def __init__(self, run: Run, how: HowToRun, options: Mapping[str, Any]) -> None:
        self.run = run
        self.ran: Ran | None = None
        self._code: int | None = None  # that the command ended with
        self._grace_s = 0.0  # that it took to end once a signal had asked for that
        self._began = False
        self._how = how
        self._log = LogReader(Path(options["log"]))
        self._scalars: dict[str, float] = {}
        self._scalars_s = -math.inf  # when they were read
        self._words: Mapping[str, Any] | None = None  # the controller's last
        self._asked = False  # whether it was asked to end
        self._options = options
        self._set = [] if options["dry"] else [gpu.uuid for gpu in run.gpus]
        self._process: ControllerProcess | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment in which a command's trainers mark."""
        environment = dict(os.environ)
        environment[RUN] = str(self.run.path)
        paths = [str(INJECT), *filter(None, [environment.get(_PATH)])]
        environment[_PATH] = os.pathsep.join(paths)
        return environment

    def start(self, trainer_pid: int) -> None:
        """Start the controller, and wait until all is armed.

        Raises:
            UnderclockError: It refuses.
        """
        self._process = ControllerProcess.start(
            self._set, work=_WORK, options=self._options, trainer_pid=trainer_pid
        )
        try:
            armed = self._process.armed()
        except UnderclockError:
            self._words = {"why": "refused", "undone": []}
            self._process.undo()  # where it did not refuse, and died
            raise
        self._began = True
        for sentence in armed["notes"]:
            self._how.tell(sentence)
        for gpu in armed["recovered"]:
            for line in gpu["done"]:
                self._how.tell(f"an earlier run had left something set: {line}")

    def wait(self, trainer: subprocess.Popen[bytes]) -> None:
        """Wait for the trainer; what ends us ends it too. Say if the controller ends first."""
        pidfd = os.pidfd_open(trainer.pid)
        listening = [pidfd, self._controller.fileno()]
        clock, live_s = SystemClock(), self._how.live_s or math.inf
        live_at_s = clock.now_s() + live_s
        try:
            while pidfd not in (ready := select.select(listening, [], [], POLL_S)[0]):
                raise_lost_interrupt()
                if ready:
                    self._hear()
                    listening = [pidfd]
                if clock.now_s() >= live_at_s:
                    live_at_s += live_s
                    if words := live_line(self._log.new()):
                        self._how.tell(words)
                if self._words is None:
                    self._controller.poll()
            self._code = code_of(trainer, _GRACE_S)
        except BaseException:
            begun_s = clock.now_s()
            self._code = end_family(trainer, grace_s=_GRACE_S, ask=_is_to_be_asked())
            self._grace_s = clock.now_s() - begun_s
            raise
        finally:
            os.close(pidfd)

    @property
    def _controller(self) -> ControllerProcess:
        if self._process is None:
            raise AssertionError("it was started")
        return self._process

    def _hear(self) -> Mapping[str, Any]:
        """Wait for the controller's last words; where it has none, see to what it set ourselves."""
        if self._words is not None:
            return self._words
        was_asked = self._asked
        try:
            hurried = isinstance(sys.exception(), InterruptedBySignal | KeyboardInterrupt)
            words = self._controller.ended(HURRIED_S - self._grace_s if hurried else ENDED_S)
        except UnderclockError as exc:
            was_asked = False  # whom we ask to end says how: it was gone before, or failed at it
            self._controller.undo()
            undone = self._controller.undone
            done = [line for one in undone for line in (*one.done, *one.failed)]
            why = "; ".join([str(exc), *(done or filter(None, [exc.hint]))])
            words = {"why": why, "undone": [one._asdict() for one in undone]}
        self._words = words
        if words["why"] != TRAINER_ENDED and not was_asked:
            self._how.tell(f"clocks are held no more: {words['why']}")
        if any(gpu["failed"] for gpu in words["undone"]):
            self._how.tell("what stays set is given back within 15 s, or by `underclock restore`")
        return words

    def scalars(self) -> dict[str, float]:
        """Return how the first GPU's last steps went, for a logger; empty before there was one.

        It may be asked for every step: the log is read once a second at most.
        """
        now_s = SystemClock().now_s()
        if now_s >= self._scalars_s + _SCALARS_EVERY_S:
            self._scalars_s = now_s
            self._scalars = live_scalars(self._log.new()) or self._scalars
        return dict(self._scalars)

    @property
    def summary(self) -> RunSummary | None:
        """Of its steps, once it ended."""
        return None if self.ran is None else self.ran.summary

    def end(self) -> None:
        """End the controller, if it still runs; once clocks are as found, say how it went.

        Of what never began nothing is said.
        """
        if self._process is None:
            return
        if self._code is None:  # else it knows that the command has ended
            self._asked = not select.select([self._process], [], [], 0.0)[0]  # it said nothing yet
            if self._asked:
                self._process.process.terminate()
        words = self._hear()
        self._process.close()
        if not self._began:
            return
        undone = [line for gpu in words["undone"] for line in (*gpu["done"], *gpu["failed"])]
        log = Path(self._options["log"])
        summary = summary_of(last_run(read_log(log) if log.is_file() else ()))
        clocks = "no clock was set" if self._how.dry else "clocks were given back"
        if any(gpu["failed"] for gpu in words["undone"]):
            clocks = "what was set STAYS set for now: `underclock restore` gives it back"
        elif any(gpu["kept"] for gpu in words["undone"]):
            clocks = "what was set is being given back by its watchdog: `underclock restore` checks"
        self.ran = Ran(
            code=self._code or 0,
            why=words["why"],
            undone=tuple(undone),
            summary=summary,
            line=closing_line(summary, clocks=clocks),
        )
        if self._how.ended is None:
            self._how.tell(self.ran.line)
        else:
            self._how.ended(self.ran)


@contextmanager
def held_run(plan: Plan | JobPlan | None, how: HowToRun, name: str = "") -> Iterator[HeldRun]:
    """Check a plan, and make the files of its run, which go after the block; errors as of `run`.

    The ledger calls a run without a plan by a name, by default that of this process's program.
    """
    window, leader = _guard_window(how), _address(plan, how)
    if plan is None:
        if how.arms or how.window or how.leader:
            raise UsageError(
                "without a plan there is nothing to compare, to guard or to lead",
                hint="leave out --compare, --guard and --leader",
            )
        gpus = how.gpus or shown_by_cuda()[: 1 if how.learn else None]
        found, simulated = _checked_gpus(gpus, lambda _rank, _gpu: None)
        part = observed_part()
        run = Run.create(None, [part], found, simulated=simulated, step=how.step, learns=how.learn)
        how = replace(how, dry=how.dry or not how.learn)
    else:
        run = _files_of_job(plan, how) if isinstance(plan, JobPlan) else _files_of_plan(plan, how)
    log = run.steps if how.log is None else how.log.absolute()
    options = {
        "run": str(run.folder),
        "name": name or Path(sys.argv[0]).stem,
        "log": str(log),
        "dry": how.dry,
        "arms": how.arms,
        "steps": how.steps,
        "window": window,
        "max_slowdown": how.max_slowdown if how.learn else None,
        "seed": secrets.randbits(32),
        "leader": leader,
        "metrics_port": how.metrics_port,
    }
    held = HeldRun(run, how, options)
    try:
        yield held
    finally:
        try:
            held.end()
        finally:
            run.remove()


def _files_of_plan(plan: Plan, how: HowToRun) -> Run:
    sites, unmarked = marked(plan)
    if how.arms:
        parse_arms(how.arms, has_fixed=plan.fixed is not None)
    held = [("a part of the step", pair) for pair in dict.fromkeys(scheduled(plan).clocks)]

    def check(_rank: int, gpu: NvmlGpu) -> None:
        for sentence in plan.check_to_hold(gpu.info(), anyway=how.anyway, hint=_ELSEWHERE):
            how.tell(sentence)
        check_clocks(held, listed_clocks(gpu))

    found, simulated = _checked_gpus(how.gpus or shown_by_cuda()[:1], check)
    if how.learn:
        part, step = observed_part(), plan.step
        return Run.create(plan, [part], found, simulated=simulated, step=step, learns=True)
    if unmarked:
        less = "" if plan.step.modules else "; a step that is traced with its modules has more"
        how.tell(
            f"{len(unmarked)} changes of the plan fall where nothing can be marked and are "
            f"timed from the mark before{less}"
        )
    part = RankPart(sites=sites, schedules=(scheduled(plan),))
    _tell_of_calls(how, len(found) * part.timetable(0).calls, len(found))
    return Run.create(plan, [part], found, simulated=simulated)


def _files_of_job(plan: JobPlan, how: HowToRun) -> Run:
    if how.arms:
        raise UsageError(
            "ways of choosing clocks take turns on one GPU, and ranks of a job are held together",
            hint="leave out --compare: the guard compares the job's plan with auto",
        )
    count, first = len(plan.job.ranks), how.first_rank
    gpus = how.gpus or shown_by_cuda()[:count]
    last = first + len(gpus) - 1
    if not 0 <= first <= last < count or (len(gpus) != count and not how.leader):
        raise UsageError(
            f"the job has {count} ranks and {len(gpus)} GPUs are named"
            + (f", for ranks {first} to {last}" if first else ""),
            hint="name one for each rank of this machine, in their order; where more machines have "
            "the rest: --first-rank and --leader",
        )
    parts = parts_of(plan)

    def check(local: int, gpu: NvmlGpu) -> None:
        rank = first + local
        planned, info = plan.job.gpu_of(rank), gpu.info()
        if planned.name != info.name:
            raise DataError(
                f"rank {rank} is planned for {planned.name}, and its GPU is {info.name}",
                hint="name the GPUs in the order of the ranks, or plan the job for these",
            )
        if planned.is_another_board(info):
            how.tell(f"rank {rank} was planned on board {planned.uuid}, and this is {info.uuid}")
        pairs = {pair for each in parts[rank].schedules for pair in each.clocks}
        held = [(f"an instruction of rank {rank}", pair) for pair in pairs]
        check_clocks(held, listed_clocks(gpu))

    found, simulated = _checked_gpus(gpus, check)
    here = parts[first : last + 1]
    _tell_of_calls(how, sum(part.timetable(0).calls for part in here), len(here))
    return Run.create(plan, parts, found, simulated=simulated, first=first)


def _address(plan: Plan | JobPlan | None, how: HowToRun) -> tuple[str, int] | None:
    """Return where the machine of rank 0 decides; ``None`` for a job on one machine."""
    if not how.leader:
        return None
    if isinstance(plan, Plan):
        raise UsageError(
            "this plan is of one GPU, and each machine holds it by itself",
            hint="leave out --leader: ranks of a job alone wait for one another",
        )
    host, _, port = how.leader.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < _PORTS:
        raise UsageError(
            f"{how.leader!r} is no host and port", hint="write for example --leader node0:29600"
        )
    return host.strip("[]"), int(port)


def _tell_of_calls(how: HowToRun, calls: float, gpus: int) -> None:
    if calls > _MOST_CALLS:
        how.tell(
            f"calls that set clocks take {calls:.0%} of a step, one after the other for all GPUs "
            f"({gpus}), so changes will be late: plan with fewer, --max-switches"
        )


def _guard_window(how: HowToRun) -> int:
    if how.window is None:
        return 0 if how.arms else _WINDOW
    if how.arms and how.window:
        raise UsageError(
            "a guard takes the plan back where it slows the job, and ways are compared by letting "
            "it be: one run cannot do both",
            hint="leave out --guard or --compare",
        )
    if how.window < 0 or how.window == 1:
        raise UsageError(
            f"a guard cannot judge {how.window} steps together", hint="take 20, or 0 for no guard"
        )
    return how.window


def _checked_gpus(
    gpus: Sequence[str], check: Callable[[int, NvmlGpu], None]
) -> tuple[tuple[tuple[str, int], ...], str]:
    """Return UUID and index of each GPU, and what they are called where they are simulated."""
    names = [parse_gpu(text) for text in gpus]
    for name in names:
        if name.kind is not GpuKind.REAL:
            raise UsageError(
                f"{name.text} exists in one process only, and training is another",
                hint="serve it: underclock simulate rtx3080ti --socket PATH, then "
                "UNDERCLOCK_SIMULATOR=PATH underclock run --gpu nvml:0 …",
            )
    indices = [name.index for name in names]
    if len(set(indices)) < len(indices):
        raise UsageError(
            f"a GPU is named twice: {' '.join(gpus)}", hint="name one for each local rank"
        )
    with nvml_session():
        found = []
        for rank, index in enumerate(indices):
            gpu = NvmlGpu(index)
            gpu.check_whole()
            check(rank, gpu)
            found.append((gpu.uuid(), index))
        return tuple(found), gpu.info().name if is_simulated() else ""

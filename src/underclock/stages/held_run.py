"""A run that holds a plan: its files, its conductor, and how it went."""

import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underclock import runtime
from underclock.errors import UnderclockError
from underclock.hw.clock import SystemClock
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.ways_to_set import settable_gpu
from underclock.records import Plan
from underclock.records.runs import Line, RunSummary
from underclock.report import closing_line
from underclock.runtime.conductor.log import last_run, live_line, read_log, summary_of
from underclock.runtime.conductor.process import TRAINER_ENDED
from underclock.runtime.conductor.run_files import Run
from underclock.runtime.conductor.starting import POLL_S, Conducting, can_be_read
from underclock.runtime.machine.timetable import timetable_of
from underclock.runtime.policy.arms import parse_arms
from underclock.runtime.policy.policy import scheduled
from underclock.runtime.trainer.marking import RUN
from underclock.runtime.trainer.sites import MarkedStep, marked
from underclock.runtime.undo.armed import left_behind, restore_left
from underclock.runtime.undo.ownership import runtime_folder
from underclock.stages.how_to_run import HowToRun, checked_gpus, guard_window

if TYPE_CHECKING:
    import subprocess

    from underclock.runtime.undo.armed import Undone

_WORK = "underclock.runtime.conductor.follow:begin"
_PATH = "PYTHONPATH"
_MOST_CALLS = 0.5  # of a step, of all GPUs: with eight, calls that take 0.7 of it come 27 ms late
_INTERRUPTED = 130  # as a shell has it, after SIGINT


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a run went.

    Attributes:
        code: That the command ended with; negative where a signal ended it, 0 where a block did.
        why: Why the conductor ended.
        undone: What it put back, as sentences.
        summary: Of its steps.
        line: All that in one sentence.
    """

    code: int
    why: str
    undone: tuple[str, ...]
    summary: RunSummary
    line: str


class HeldRun:
    """The files of a run and its conductor.

    Attributes:
        run: Its files.
        marked: Its marks.
        ran: How it went; ``None`` until it ended, or where it never began.
    """

    def __init__(
        self, run: Run, marks: MarkedStep, how: HowToRun, options: Mapping[str, Any]
    ) -> None:
        self.run = run
        self.ran: Ran | None = None
        self._code: int | None = None  # that the command ended with
        self._began = False
        self._how, self._told = how, 0
        self._words: Mapping[str, Any] | None = None  # the conductor's last
        self._asked = False  # whether it was asked to end
        self._undone: tuple[Undone, ...] = ()  # what the two did not undo
        self.marked = marks
        self._options = options
        self._conducting: Conducting | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment in which a command's trainers mark."""
        environment = dict(os.environ)
        environment[RUN] = str(self.run.path)
        paths = [str(inject_folder()), *filter(None, [environment.get(_PATH)])]
        environment[_PATH] = os.pathsep.join(paths)
        return environment

    def start(self, trainer_pid: int) -> None:
        """Start the conductor, and wait until everything is armed.

        Raises:
            UnderclockError: It refuses.
        """
        uuids = [] if self._options["dry"] else [gpu.uuid for gpu in self.run.gpus]
        self._conducting = Conducting.start(
            uuids,
            work=_WORK,
            options=self._options,
            rescue=self._restore,
            trainer_pid=trainer_pid,
        )
        try:
            armed = self._conducting.armed()
        except UnderclockError:
            self._words = {"why": "refused", "undone": []}
            self._restore()  # where it did not refuse, and died
            raise
        self._began = True
        for sentence in armed["notes"]:
            self._how.tell(sentence)
        for gpu in armed["mended"]:
            for line in gpu["done"]:
                self._how.tell(f"an earlier run had left something set: {line}")

    def wait(self, trainer: "subprocess.Popen[bytes]") -> None:
        """Wait for the trainer; what ends us ends it too. Of a conductor that ends before, tell."""
        pidfd = os.pidfd_open(trainer.pid)
        listening = [pidfd, self._conductor.fileno()]
        clock, live_s = SystemClock(), self._how.live_s or math.inf
        live_at_s = clock.now_s() + live_s
        try:
            while pidfd not in (ready := can_be_read(listening, POLL_S)):
                if ready:
                    self._hear()
                    listening = [pidfd]
                if clock.now_s() >= live_at_s:
                    live_at_s += live_s
                    self._tell_of_last_steps()
                if self._words is None:
                    self._conductor.tend()
            self._code = trainer.wait()
        except BaseException as exc:
            if getattr(exc, "exit_code", _INTERRUPTED) != _INTERRUPTED:
                trainer.terminate()  # of Ctrl-C the terminal tells it as well
            self._code = trainer.wait()
            raise
        finally:
            os.close(pidfd)

    @property
    def _conductor(self) -> Conducting:
        if self._conducting is None:
            raise AssertionError("it was started")
        return self._conducting

    def _hear(self) -> Mapping[str, Any]:
        """Wait for the conductor's last words; where it has none, see to what it set ourselves."""
        if self._words is not None:
            return self._words
        was_asked = self._asked
        try:
            words = self._conductor.ended()
        except UnderclockError as exc:
            was_asked = False  # whom we ask to end says how: it was gone before, or failed at it
            self._restore()
            undone = self._undone
            done = [line for one in undone for line in (*one.done, *one.failed)]
            why = "; ".join([str(exc), *(done or filter(None, [exc.hint]))])
            words = {"why": why, "undone": [one._asdict() for one in undone]}
        self._words = words
        if words["why"] != TRAINER_ENDED and not was_asked:
            self._how.tell(f"clocks are held no more: {words['why']}")
        if any(gpu["failed"] for gpu in words["undone"]):
            self._how.tell("what stays set is given back within 15 s, or by `underclock restore`")
        return words

    def _restore(self) -> None:
        """Undo what conductor and watcher left, as the next start would; nothing where one acts."""
        folder, uuids = runtime_folder(), [gpu.uuid for gpu in self.run.gpus]
        if left_behind(folder):
            with nvml_session():
                self._undone += restore_left(folder, uuids, settable_gpu)

    def _tell_of_last_steps(self) -> None:
        lines = self._lines()
        new, self._told = lines[self._told :], len(lines)
        words = live_line(new)
        if words:
            self._how.tell(words)

    @property
    def summary(self) -> RunSummary | None:
        """Of its steps, once it ended."""
        return None if self.ran is None else self.ran.summary

    def tell_how_it_ended(self) -> None:
        """Say how it went, once clocks are as they were found; nothing where it never began."""
        if not self._began:
            return
        words = self._hear()
        undone = [line for gpu in words["undone"] for line in (*gpu["done"], *gpu["failed"])]
        summary = summary_of(last_run(self._lines()))
        clocks = "no clock was set" if self._how.dry else "clocks were given back"
        if any(gpu["failed"] for gpu in words["undone"]):
            clocks = "what was set STAYS set for now: `underclock restore` gives it back"
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

    def _lines(self) -> tuple[Line, ...]:
        """Return the log, where it is a file that can be read again."""
        log = Path(self._options["log"])
        return read_log(log) if log.is_file() else ()

    def stop(self) -> None:
        """End the conductor, if it still runs."""
        if self._conducting is None:
            return
        if self._code is None:  # else it knows that the command has ended
            self._asked = not can_be_read([self._conducting.fileno()], 0.0)  # it said nothing yet
            if self._asked:
                self._conducting.process.terminate()
        self._hear()
        self._conducting.close()


def inject_folder() -> Path:
    """Return the folder that has every Python wait for PyTorch, on its PYTHONPATH."""
    return Path(runtime.__file__).parent / "trainer" / "inject"


@contextmanager
def held_run(plan: Plan, how: HowToRun) -> Iterator[HeldRun]:
    """Check a plan, and make the files of its run; they go after the block.

    Raises:
        As `run.run`.
    """
    marks = marked(plan)
    if how.arms:
        parse_arms(how.arms, has_fixed=plan.fixed is not None)
    window = guard_window(how)
    found, simulated = checked_gpus(plan, how)
    if marks.unmarked:
        less = "" if plan.modules else " (a step that is traced with its modules has more marks)"
        how.tell(
            f"{len(marks.unmarked)} changes of the plan fall where nothing can be marked and are "
            f"timed from the mark before{less}"
        )
    calls = len(found) * timetable_of(scheduled(plan), marks.marks).calls
    if calls > _MOST_CALLS:
        how.tell(
            f"calls that set clocks take {calls:.0%} of a step, one after the other for all GPUs "
            f"({len(found)}), so changes will be late: plan with fewer, --max-switches"
        )
    run = Run.create(plan, marks, found, simulated=simulated)
    log = run.steps if how.log is None else how.log.absolute()
    options = {
        "run": str(run.folder),
        "log": str(log),
        "dry": how.dry,
        "arms": how.arms,
        "window": window,
        "seed": secrets.randbits(32),
        "metrics_port": how.metrics_port,
    }
    held = HeldRun(run, marks, how, options)
    try:
        yield held
    finally:
        try:
            held.stop()
            held.tell_how_it_ended()
        finally:
            run.remove()

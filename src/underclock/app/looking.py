"""Looking at a training command's steps from inside of its own process.

`app.launching` starts the command; the file that every Python finds first hands PyTorch to `begin`
as soon as the script has imported it. The script notices nothing: it runs in its main thread, and
what looks on is called where its steps end. Once all was looked at the process ends there, without
running what the script would do at its end.
"""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from underclock.app.step_looks import Looks, StepLook
from underclock.errors import MeasurementError, UnderclockError, UsageError
from underclock.hw.base import SystemClock
from underclock.hw.cuda.boundaries import BoundarySource, StepBoundaries
from underclock.hw.cuda.driver import torch as torch_with_gpu
from underclock.hw.cuda.launcher import CudaLauncher
from underclock.hw.cuda.torch_step import check_free, keep_quiet, quiet, reason_of
from underclock.hw.interrupts import InterruptedBySignal, interruptible
from underclock.hw.lockstep import RankAgreement
from underclock.hw.nvml_calls import READ_ONLY
from underclock.records import Step, StepSource, Window
from underclock.records.common import Record
from underclock.runtime.trainer.kept_files import LOOK, watch_libraries
from underclock.runtime.undo.ownership import Process
from underclock.store import write_document
from underclock.tracing import held
from underclock.tracing.job_files import SUFFIX, leave_trace
from underclock.tracing.source import TracePhase

RUNNING = ".running.json"
"""Suffix of the file with a window of the step as it ran by itself."""
RANK_LATE_S = 120.0
"""Longest wait of one rank for another at the end of a step, in s."""


class TraceRequest(Record, frozen=True, kw_only=True):
    """What is to be looked at in a training command's processes."""

    folder: str  # where each rank leaves what it finds and says how it goes
    name: str  # of the step
    latest: int  # step that is looked at at the latest, counted from 0
    assume: bool = False  # whether the script runs on a CPU, and a GPU's kernels are assumed
    source: StepSource | None = None  # of the step
    # words after underclock measure, to measure the captured step where it is held; empty to trace
    # it
    measure: tuple[str, ...] = ()
    # whether those words name no step: then the captured one is measured, if it can be
    own_step: bool = False
    cwd: str  # folder in which those words were written
    protect: bool = True  # whether files that were there are put back


class RankStatus(Record, frozen=True, kw_only=True):
    """How looking goes in one process of the command."""

    rank: int
    world: int
    here: int  # how many ranks run on this machine
    pid: int
    steps: int = 0  # ends of steps that were seen
    phase: str = ""  # what is being done
    done: bool = False  # whether all was looked at
    error: str = ""  # why nothing more is; empty while all goes well
    hint: str = ""
    exit_code: int = 0  # of the error; 0 without one
    # rank whose process had ended without a word before that; None for none
    after: int | None = None
    said_s: float = 0.0  # when this was said, in s of this machine's monotonic clock

    @property
    def runs(self) -> bool:
        """Whether its process is there, and was not stopped."""
        process = Process.of(self.pid)
        return process is not None and process.lives and not process.stopped


def statuses(folder: Path) -> Iterator[RankStatus]:
    """Yield what processes of a command said last; one that is being written is passed over."""
    for path in folder.glob("status.*"):
        if path.suffix != ".new":
            with suppress(OSError, msgspec.DecodeError):
                yield msgspec.json.decode(path.read_bytes(), type=RankStatus)


def begin(torch: Any) -> None:
    """Look at the steps of the script that imported PyTorch, as the environment says."""
    look = msgspec.json.decode(Path(os.environ[LOOK]).read_bytes(), type=TraceRequest)
    keep_quiet()
    if not look.assume and _number("WORLD_SIZE", 1) == 1:
        # Where the script first touches CUDA: gradients are gathered on the stream on which a
        # weight was used first, and no capture can be of the default one.
        torch.cuda._lazy_call(lambda: torch.cuda.set_stream(torch.cuda.Stream()))  # noqa: SLF001
    _Looker(torch, look)


_FROM_LAUNCHER = "RANK"  # as torchrun and accelerate tell it
_LAUNCHERS = ("torch.distributed.elastic.agent.server.api", "accelerate.commands.launch")


def _number(name: str, usual: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else usual


class _Looker:
    """Looks at the steps of this process, and ends it when that is done."""

    def __init__(self, torch: Any, look: TraceRequest) -> None:
        self._torch = torch
        self._look = look
        self._clock = SystemClock()
        self._rank: tuple[RankAgreement, Looks] | None = None
        self._thread = 0
        self._over = False
        self._found: Step | None = None
        self._steps = 0
        self._phase = ""
        self._pid = os.getpid()
        self._boundaries = StepBoundaries(torch, self._ended)
        self._excepthook, sys.excepthook = sys.excepthook, self._failed
        self._exit, sys.exit = sys.exit, self._exits
        self._failure: str = ""  # of a script that catches what it raises, and ends itself
        atexit.register(self._script_over)

    def _ended(self) -> None:
        if self._over or os.getpid() != self._pid:  # a process that this one forked
            return
        if self._rank is None:
            self._thread = threading.get_ident()
        if threading.get_ident() != self._thread:
            return
        self._steps += 1
        try:
            with quiet():
                next((self._rank or self._start())[1])
            self._say()
        except StopIteration:
            self._end(None)
        except UnderclockError as exc:
            self._end(exc)
        except (Exception, InterruptedBySignal) as exc:  # noqa: BLE001 - the script ends here
            self._end(MeasurementError(f"{self._look.name} could not be looked at: {exc!r}"))

    def _start(self) -> tuple[RankAgreement, Looks]:
        watch_libraries()
        ranks = RankAgreement(self._torch, self._clock, longest_s=RANK_LATE_S)
        look = StepLook(
            name=self._look.name,
            latest=self._look.latest,
            ranks=ranks,
            clock=self._clock,
            phase=self._tell,
            found=self._keep,
            captured=self._measure,
        )
        if self._look.measure and not self._look.own_step and ranks.world > 1:
            raise UsageError(
                f"{self._look.name} trains with {ranks.world - 1} other ranks, and its kernels "
                "cannot run without them",
                hint="trace it, and plan the job of its ranks: underclock job traced",
            )
        if self._look.assume:
            looks = look.on_cpu()
        else:
            torch_with_gpu()
            check_free(self._torch)
            looks = look.on_gpu()
        self._rank = ranks, looks
        return self._rank

    def _tell(self, phase: TracePhase) -> None:
        self._phase = phase.name
        self._say()

    def _keep(self, step: Step, trace: Mapping[str, Any] | None, running: Window | None) -> None:
        """Leave a step where the launcher finds it; a later one is better."""
        ranks = self._ranks
        path = Path(self._look.folder) / f"step.rank{ranks.number}.json"
        ends = self._boundaries.source
        odd = () if ends in {None, BoundarySource.OPTIMIZER} else (f"a step ends {ends}",)
        step = msgspec.structs.replace(
            step, source=self._look.source, warnings=(*step.warnings, *odd)
        )
        write_document(path, step, force=True)
        if running is not None:
            path.with_suffix(RUNNING).write_bytes(msgspec.json.encode(running))
        if trace is not None and ranks.world > 1:
            leave_trace(path.with_suffix(SUFFIX), trace, source=None)
        self._found = step

    def _measure(self, launcher: CudaLauncher) -> None:
        """Measure the captured step's kernels, as the command line says, while it is held."""
        if not self._look.measure:
            return
        self._tell(TracePhase.MEASURING)
        os.chdir(self._look.cwd)  # where the command line was written; the script ends here
        from underclock.app.measure import command

        if threading.current_thread() is not threading.main_thread():
            os.environ[READ_ONLY] = "1"  # no signal would reach what gives clocks back
        folder = Path(self._look.folder)
        out, own = folder / "stdout", [str(folder / "step.rank0.json")] * self._look.own_step
        with (
            out.open("w") as file,
            redirect_stdout(file),
            interruptible(),
            held.handing_over(launcher),
        ):
            command([*own, *self._look.measure], standalone_mode=False)

    @property
    def _ranks(self) -> RankAgreement:
        if self._rank is None:
            raise AssertionError("a step has ended")
        return self._rank[0]

    def _failed(
        self, kind: type[BaseException], exc: BaseException, where: TracebackType | None
    ) -> None:
        """The script ends with an exception that nothing catches."""
        launches = any(name in sys.modules for name in _LAUNCHERS)
        if self._rank is None and launches and _FROM_LAUNCHER not in os.environ:
            self._excepthook(kind, exc, where)
            return
        if self._rank is not None and not self._over and isinstance(exc, Exception):
            try:
                self._rank[1].throw(exc)
            except StopIteration:
                self._end(None)  # what looks on has its answer: it was the capture that failed
            except UnderclockError as ours:
                self._end(ours)
            except BaseException:  # noqa: BLE001, S110 - it is `exc` itself
                pass
        self._excepthook(kind, exc, where)
        self._end(self._fails(f"failed in step {self._steps}: {kind.__name__}: {reason_of(exc)}"))

    def _exits(self, code: Any = None) -> NoReturn:
        """The script ends itself, maybe for what it has just caught."""
        if code and not self._failure:
            caught = sys.exc_info()[1]
            why = f": {type(caught).__name__}: {reason_of(caught)}" if caught else ""
            self._failure = f"ended with exit code {code} in step {self._steps}{why}"
        self._exit(code)

    def _fails(self, how: str) -> MeasurementError:
        hint = "run it by itself first: it must train as it is"
        return MeasurementError(f"{self._look.name} {how}", hint=hint)

    def _script_over(self) -> None:
        if self._over or self._rank is None or os.getpid() != self._pid:
            return
        with suppress(BaseException):
            self._rank[1].close()
        if self._found or self._failure:
            self._end(None if self._found else self._fails(self._failure))
        words = f"{self._look.name} ended after step {self._steps}, before one was looked at"
        hint = "let it train for longer: its second step is looked at first"
        self._end(UsageError(words, hint=hint))

    def _say(self, *, done: bool = False, error: UnderclockError | None = None) -> None:
        rank, world = _number(_FROM_LAUNCHER, 0), _number("WORLD_SIZE", 1)
        if self._rank is not None:
            rank, world = self._ranks.number, self._ranks.world
        status = RankStatus(
            rank=rank,
            world=world,
            here=min(world, _number("LOCAL_WORLD_SIZE", world)),
            pid=self._pid,
            steps=self._steps,
            phase=self._phase,
            done=done,
            said_s=self._clock.now_s(),
        )
        if error is not None:
            # A rank whose process ended without a word may be why this one fails; one that is
            # killed closes its sockets before it is gone.
            self._clock.sleep_s(0.5)
            ranks = statuses(Path(self._look.folder))
            ended = next((r.rank for r in ranks if not (r.done or r.error or r.runs)), None)
            said = {"error": str(error), "hint": error.hint, "exit_code": error.exit_code}
            status = msgspec.structs.replace(status, **said, after=ended)
        path = Path(self._look.folder) / f"status.{self._pid}"
        made = path.with_name(f"{path.name}.new")
        made.write_bytes(msgspec.json.encode(status))
        made.replace(path)

    def _end(self, error: UnderclockError | None) -> None:
        """End this process, and say how it went; no other rank is left waiting."""
        self._over = True
        code = 0 if error is None else error.exit_code
        if self._rank is not None:
            with suppress(Exception):
                if error is None:
                    self._ranks.agree("done")
                else:
                    self._ranks.fail(str(error))
        self._say(done=error is None, error=error)
        if self._rank is not None and error is None:
            with suppress(Exception):
                self._ranks.part()
        for child in multiprocessing.active_children():
            with suppress(OSError):
                os.kill(child.pid or 0, signal.SIGKILL)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

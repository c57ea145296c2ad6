"""Starting a controller, and hearing how it goes without missing a signal."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Self

from underclock.errors import DataError, DeviceError, UnderclockError
from underclock.hw.interrupts import raise_lost_interrupt
from underclock.runtime.undo.ownership import RUNTIME_DIR, Process, family_of, runtime_folder, say
from underclock.runtime.undo.watchdog_process import WatchdogProcess

if TYPE_CHECKING:
    from underclock.runtime.undo.guarded_gpu import Undone

POLL_S = 0.05
"""Between polls whether it was stopped."""
ARMED_S = 120.0
"""Longest from its start until everything is armed: modules load, drivers answer, GPUs lock."""
ENDED_S = 60.0
"""Longest from its trainer's end, or from being asked to end, until all is undone: a daemon that
sets clocks may take 30 s for one."""
HURRIED_S = 4.0
"""Longest from a signal to end a command until all is undone; then the watchdog undoes."""
_LAST_S = 1.0  # from its last words to its end
_CHUNK = 65536
# Who is interrupted before it has set anything just ends.
_CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "from underclock.runtime.controller.starting import main; main()"
)


class ControllerProcess:
    """A controller that was started, as seen by who started it.

    Attributes:
        undone: What `undo` undid, where controller and watchdog did not.
    """

    def __init__(
        self, process: "subprocess.Popen[bytes]", messages: IO[bytes], gpus: Sequence[str] = ()
    ) -> None:
        self.process = process
        self.undone: tuple[Undone, ...] = ()
        self._messages, self._gpus = messages, gpus
        self._running, self._was_stopped = Process.of(process.pid), False
        self._heard = b""  # of a line that is not whole yet

    @classmethod
    def start(
        cls,
        gpus: Sequence[str],
        *,
        work: str,
        options: Mapping[str, Any],
        trainer_pid: int | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> Self:
        """Start one, without waiting for it.

        Args:
            gpus: Which it may set, by UUID.
            work: What it does, as ``module:name``, with ``options``.
            trainer_pid: Whose end is its end; by default this process's.
            stdin: What it reads as its standard input.

        Raises:
            InterruptedBySignal: A signal asked this command to end, and that got lost.
        """
        raise_lost_interrupt()
        order = {
            "gpus": list(gpus),
            "trainer": Process.of(os.getpid() if trainer_pid is None else trainer_pid),
            "work": work,
            "options": options,
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE, json.dumps(order)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # a terminal's Ctrl-C is for those who asked, and they end it
        )
        if process.stdout is None:
            raise AssertionError("it was asked for")
        return cls(process, process.stdout, gpus)

    def armed(self) -> Mapping[str, Any]:
        """Wait until everything is armed and the work has begun; return what was undone first.

        Raises:
            UnderclockError: It refused; everything is as it was found.
        """
        return self._next("armed", ARMED_S)

    def ended(self, longest_s: float = ENDED_S) -> Mapping[str, Any]:
        """Wait until it has ended; return why, and what was undone.

        Args:
            longest_s: After so long it is killed, and its watchdog undoes; infinite where a person
                ends it.

        Raises:
            UnderclockError: It failed; what it set was undone, or the error says what was not.
        """
        return self._next("ended", longest_s)

    def end(self, longest_s: float = ENDED_S) -> Mapping[str, Any]:
        """Ask it to undo and end, and wait until it has; as of `ended`."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended(longest_s)

    def fileno(self) -> int:
        """Return what to wait on for its messages."""
        return self._messages.fileno()

    def close(self) -> None:
        """Wait until its process has ended, and listen no more."""
        code_of(self.process, _LAST_S)
        self._messages.close()

    def poll(self) -> None:
        """See to what is set where it is stopped, and its watchdog does not act; call it often."""
        before, self._was_stopped = self._was_stopped, bool(self._running and self._running.stopped)
        if before and self._was_stopped:  # a container may be resuming
            self.undo()

    def undo(self) -> None:
        """Undo what controller and watchdog left, as the next start would; unless one acts."""
        from underclock.hw.nvml_calls import nvml_session, settable_gpu  # noqa: PLC0415 - lighter
        from underclock.runtime.undo.guarded_gpu import left_behind, restore  # noqa: PLC0415

        if left_behind(runtime_folder()):
            with nvml_session():
                self.undone += restore(runtime_folder(), self._gpus, settable_gpu)

    def _next(self, state: str, longest_s: float) -> Mapping[str, Any]:
        until_s = time.monotonic() + longest_s
        while line := self._line(until_s):
            message: dict[str, Any] = json.loads(line)
            if message["state"] == "refused":
                code_of(self.process, _LAST_S)
                kind = _kinds(UnderclockError).get(message["kind"], DeviceError)
                raise kind(message["error"], hint=message["hint"])
            if message["state"] == state:
                return message
            if message["state"] == "ended":
                break
        if line:
            raise DeviceError(f"it ended before anything was set: {message['why']}")
        is_late = time.monotonic() >= until_s
        code = code_of(self.process, 0.0 if is_late else _LAST_S)
        how = f"was not {state} within {longest_s:g} s, and was killed" if is_late else ""
        raise DeviceError(
            f"the process that sets clocks {how or f'ended ({code}) and said nothing'}",
            hint="its watchdog undoes what it set; `underclock restore` makes sure",
        )

    def _line(self, until_s: float) -> bytes:
        while b"\n" not in self._heard:
            if time.monotonic() >= until_s:
                return b""
            if not select.select([self], [], [], POLL_S)[0]:
                self.poll()
            else:
                chunk = os.read(self.fileno(), _CHUNK)
                if not chunk:
                    return b""
                self._heard += chunk
        line, _, self._heard = self._heard.partition(b"\n")
        return line


def _kinds(base: type[UnderclockError]) -> dict[str, type[UnderclockError]]:
    kinds = {base.__name__: base}
    for kind in base.__subclasses__():
        kinds |= _kinds(kind)
    return kinds


def main() -> None:
    """Begin the controller's process: carry out the order that is its first argument.

    Its watchdog is started before anything heavy is loaded, so that both load at the same time.
    """
    # Who started us may have closed stderr, which the watchdog inherits: nothing that we open is to
    # be taken for it.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - stderr's number
        os.set_inheritable(fd, True)
    os.close(fd)
    try:
        # Where this process ends before it has set anything, the watchdog ends by itself.
        watchdog = WatchdogProcess(runtime_folder())
        from underclock.runtime.controller.process import carry_out  # noqa: PLC0415

        why, undone = carry_out(json.loads(sys.argv[1]), watchdog, _say)
    except (UnderclockError, OSError) as exc:
        # Of whatever file it is: everything was undone, and why must be known.
        hint = f"see to the folder of runs, or name another with {RUNTIME_DIR}"
        ours = (
            exc
            if isinstance(exc, UnderclockError)
            else DataError(f"cannot go on: {exc}", hint=hint)
        )
        error = "; ".join((str(ours), *getattr(exc, "__notes__", ())))
        _say({"state": "refused", "error": error, "hint": ours.hint, "kind": type(ours).__name__})
        sys.exit(ours.exit_code)
    _say({"state": "ended", "why": why, "undone": [one._asdict() for one in undone]})


def _say(message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


def code_of(child: "subprocess.Popen[bytes]", longest_s: float) -> int | None:
    """Return the code that a child ends with; it is killed where it does not end in time. Returns
    the code; ``None`` where the kernel does not let go of it.
    """
    for each_s in (longest_s, _LAST_S):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(each_s)
        child.kill()
    return None


def end_family(child: "subprocess.Popen[bytes]", *, grace_s: float, ask: bool) -> int | None:
    """End a child and all that descends from it, by force where asking is not enough.

    Args:
        grace_s: From now until what has not ended is killed.
        ask: Whether to ask the child, and at its end what it leaves; else a terminal asked all.

    Returns:
        As of `code_of`.
    """
    family, asked = family_of(child.pid), False
    if ask:
        child.terminate()
    until_s = time.monotonic() + grace_s
    while (living := [each for each in family if each.lives]) and time.monotonic() < until_s:
        if ask and not asked and child.poll() is not None:
            asked = True
            _signal(living, signal.SIGTERM)
        time.sleep(POLL_S)  # noqa: TID251 - other processes end in real time
    late: list[Process] = []  # stopped first: a parent that runs on may start anew what is killed
    while more := [p for p in {*living, *family_of(child.pid)} if p.lives and p not in late]:
        _signal(more, signal.SIGSTOP)
        late += more
    if late:
        _signal(late, signal.SIGKILL)
        pids = ", ".join(str(each.pid) for each in late)
        say(f"killed what did not end within {grace_s:g} s of being asked to: process {pids}")
    return code_of(child, _LAST_S)


def _signal(processes: Sequence[Process], number: signal.Signals) -> None:
    for each in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each.pid, number)

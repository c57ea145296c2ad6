"""Signals that ask a command to end, as an exception that every ``with`` on the way sees."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from underclock.hw.interrupts import INTERRUPTS

BY_SIGNAL = 128  # a shell reports this much more than the signal's number
INTERRUPTED = BY_SIGNAL + signal.SIGINT


class InterruptedBySignal(BaseException):
    """A signal asks the command to end; raised wherever it is, so that every ``with`` is left."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = BY_SIGNAL + number


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into an exception for the length of a command.

    What the process was told to ignore, as by ``nohup``, stays ignored. Python takes signals in
    its main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise InterruptedBySignal(number)

    with ExitStack() as stack:
        for number in INTERRUPTS:
            handler = signal.getsignal(number)
            if handler is not None and handler != signal.SIG_IGN:
                stack.callback(signal.signal, number, handler)
                signal.signal(number, interrupt)
        yield

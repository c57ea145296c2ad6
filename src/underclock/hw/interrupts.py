"""Signals that ask a command to end: raised, never lost, and made to wait where that must be.

What a handler raises may be swallowed, where it comes while a module is loaded, say. So the handler
keeps it, and `raise_lost_interrupt` raises it again: between a command's stages, and before
anything is set.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

INTERRUPTS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

BY_SIGNAL = 128  # a shell reports this much more than the signal's number
INTERRUPTED = BY_SIGNAL + signal.SIGINT

_Handler = Callable[[int, FrameType | None], object] | int


class InterruptedBySignal(BaseException):
    """A signal asks the command to end; raised wherever it is, so that every ``with`` is left."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = BY_SIGNAL + number


class _Interrupt:
    """A handler that raises, and keeps which signal came first."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        raise InterruptedBySignal(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into an exception for the length of a command.

    What the process was started to ignore, as by ``nohup``, stays ignored. Python takes signals in
    its main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raise_lost_interrupt()
    interrupt = _Interrupt()
    with ExitStack() as stack:
        for number, handler in _handlers():
            stack.callback(signal.signal, number, handler)
            signal.signal(number, interrupt)
        yield


def raise_lost_interrupt() -> None:
    """Raise what a signal has asked for, where that was raised once and got lost.

    Call it before something begins, never where something ends: what is being raised would be
    raised anew.
    """
    if threading.current_thread() is threading.main_thread():
        for _, handler in _handlers():
            if isinstance(handler, _Interrupt) and handler.number is not None:
                raise InterruptedBySignal(handler.number)


def _handlers() -> Iterator[tuple[int, _Handler]]:
    """Yield the signals that Python handles here, each with its handler."""
    for number in INTERRUPTS:
        handler = signal.getsignal(number)
        if handler is not None and handler != signal.SIG_IGN:  # None is not Python's
            yield number, handler


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP wait until the block is over, then handle the first of them.

    Signals that the process ignores stay ignored. Python handles signals in its main thread only,
    so in any other there is nothing to wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    over = False

    def wait(number: int, _frame: FrameType | None) -> None:
        if over:  # a second one came before its own handler was back
            signal.signal(number, handlers[number])
            signal.raise_signal(number)
        waiting.append(number)

    handlers: dict[int, _Handler] = {}
    with ExitStack() as stack:
        for number, handler in _handlers():
            handlers[number] = handler
            stack.callback(signal.signal, number, handler)
            signal.signal(number, wait)
        try:
            yield
        finally:
            over = True
    if waiting:
        signal.raise_signal(waiting[0])

"""Interrupts that wait until something short is done whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

INTERRUPTS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

_Handler = Callable[[int, FrameType | None], object] | int


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
        for number in INTERRUPTS:
            handler = signal.getsignal(number)
            if handler is None or handler == signal.SIG_IGN:  # not Python's, or ignored
                continue
            handlers[number] = handler
            stack.callback(signal.signal, number, handler)
            signal.signal(number, wait)
        try:
            yield
        finally:
            over = True
    if waiting:
        signal.raise_signal(waiting[0])

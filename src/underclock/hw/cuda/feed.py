"""Keeps a stream of the GPU fed, and times what is launched on it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from underclock.errors import DeviceError, StuckError
from underclock.hw.base import Progress
from underclock.hw.clock import SystemClock
from underclock.hw.lockstep import Pace

STUCK_S = 60.0
"""No launch of a trial takes a fraction of this."""
IN_FLIGHT = 3
"""Launches queued ahead of the GPU."""


class Feed:
    """Keeps a stream fed from a thread of its own, and counts what is done.

    Args:
        torch: PyTorch.
        launch: Queues one round on the stream it is given.
        per_round: Launches in a round.
        pace: Says whether to launch, when the GPU is about to run out.
    """

    def __init__(
        self,
        torch: Any,
        launch: Callable[[Any], None],
        per_round: int,
        pace: Pace,
    ) -> None:
        self._torch, self._launch, self._per_round, self._pace = torch, launch, per_round, pace
        self._device = torch.cuda.current_device()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done = Progress(launches=0, elapsed_s=0.0)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="underclock-launches", daemon=True)
        self._thread.start()

    def progress(self) -> Progress:
        """Return how far it is.

        Raises:
            DeviceError: A launch failed.
        """
        with self._lock:
            if self._error is not None:
                raise DeviceError(f"a launch failed: {self._error}") from self._error
            return self._done

    def run_out(self) -> None:
        """Wait until its pace lets nothing more be launched, and all that was is done.

        Raises:
            DeviceError: A launch failed.
        """
        self._thread.join()
        self.progress()

    def close(self, longest_s: float = STUCK_S) -> None:
        """Stop launching and wait for what is in flight.

        Raises:
            StuckError: It does not end.
        """
        self._stop.set()
        self._thread.join(longest_s)
        if self._thread.is_alive():
            raise StuckError(
                f"launches in flight did not end in {longest_s:g} s: the GPU hangs",
                hint="this process's GPU work is lost; look at the GPU with `nvidia-smi`",
            )

    def _run(self) -> None:
        torch = self._torch
        try:
            torch.cuda.set_device(self._device)
            stream = torch.cuda.Stream()
            begun = torch.cuda.Event(enable_timing=True)
            begun.record(stream)
            flying: list[Any] = []
            while not self._stop.is_set() and self._pace.go():
                self._launch(stream)
                ended = torch.cuda.Event(enable_timing=True)
                ended.record(stream)
                flying.append(ended)
                if len(flying) >= IN_FLIGHT:
                    self._complete(begun, flying.pop(0))
            stream.synchronize()
        except Exception as exc:  # noqa: BLE001 - carried to whoever asks for progress
            with self._lock:
                self._error = exc

    def _complete(self, begun: Any, ended: Any) -> None:
        ended.synchronize()
        elapsed_s = begun.elapsed_time(ended) * 1e-3
        with self._lock:
            self._done = Progress(
                launches=self._done.launches + self._per_round, elapsed_s=elapsed_s
            )


@contextmanager
def feeding(
    torch: Any, launch: Callable[[Any], None], per_round: int, pace: Pace
) -> Iterator[Feed]:
    """Keep a stream fed from entry to exit; the arguments are those of `Feed`."""
    feed = Feed(torch, launch, per_round, pace)
    try:
        yield feed
    finally:
        feed.close()
        pace.end()


def timed(torch: Any, launch: Callable[[Any], None], times: int) -> float:
    """Return the GPU time of some launches, in s."""
    stream = torch.cuda.current_stream()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record(stream)
    for _ in range(times):
        launch(stream)
    ended.record(stream)
    clock = SystemClock()
    deadline_s = clock.now_s() + STUCK_S
    while not ended.query():
        if clock.now_s() > deadline_s:
            raise StuckError(
                f"what was launched did not end in {STUCK_S:g} s: maybe it waits for what "
                "another kernel of its operator prepares",
                hint="this process's GPU work is lost; have the step compute it otherwise, and "
                "tell us the kernel",
            )
    return max(1e-9, float(begun.elapsed_time(ended)) * 1e-3)

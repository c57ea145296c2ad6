"""Small kernels on a GPU that is made up: what the events around them say."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from underclock.hw.base import SystemClock
from underclock.hw.cuda.feed import CudaSmallKernels
from underclock.units import Domain

_PRODUCT_S = 2e-4


@dataclass
class MadeUpGpu:
    """Its clock is halved, and of the memory too, once ``slow`` is set."""

    now_s: float = 0.0
    slow: bool = False
    fails: bool = False
    captured: list[Callable[[], float]] | None = None
    ran: list[str] = field(default_factory=list)

    def spin(self, cycles: int) -> None:
        self._do("spin", lambda: cycles / (1e9 if self.slow else 2e9))

    def copy(self, _other: object) -> None:
        self._do("copy", lambda: 4e-4 if self.slow else 2e-4)

    def product(self, _a: object, _b: object, out: object = None) -> str:
        del out
        self._do("product", lambda: _PRODUCT_S)
        return "a matrix"

    def _do(self, name: str, takes_s: Callable[[], float]) -> None:
        if self.captured is not None:
            self.captured.append(takes_s)
            return
        self.ran.append(name)
        self.now_s += takes_s()

    @contextlib.contextmanager
    def capture(self, graph: Any, *, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        self.captured = graph.work
        yield
        self.captured = None

    def graph(self) -> Any:
        work: list[Callable[[], float]] = []

        def replay() -> None:
            if self.fails:
                raise RuntimeError("an illegal instruction")
            self.now_s += sum(takes_s() for takes_s in work)

        return SimpleNamespace(work=work, replay=replay)

    def event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at_s=0.0, synchronize=lambda: threading.Event().wait(2e-4))
        event.query = lambda: event.synchronize() or True  # which takes as long
        event.record = lambda _stream: setattr(event, "at_s", self.now_s)
        event.elapsed_time = lambda later: 1e3 * (later.at_s - event.at_s)
        return event

    @property
    def torch(self) -> Any:
        stream = SimpleNamespace(synchronize=lambda: None)
        cuda = SimpleNamespace(
            CUDAGraph=self.graph,
            Event=self.event,
            Stream=lambda: stream,
            current_device=lambda: 0,
            graph=self.capture,
            set_device=lambda _device: None,
            stream=lambda _stream: contextlib.nullcontext(),
            synchronize=lambda _device: None,
            _sleep=self.spin,
        )
        return SimpleNamespace(
            bfloat16="bf16",
            cuda=cuda,
            mm=self.product,
            randn=lambda *_, **__: "a matrix",
            uint8="byte",
            zeros=lambda _size, **_: SimpleNamespace(copy_=self.copy),
        )


@pytest.mark.parametrize("domain", [Domain.CORE, Domain.MEMORY])
def test_durations_follow_the_clock_and_starts_are_on_the_hosts(domain: Domain) -> None:
    gpu, clock, changed_s, fast_s = MadeUpGpu(), SystemClock(), 0.0, 2e-4

    def during() -> None:
        nonlocal changed_s
        while gpu.now_s < 0.02:
            clock.sleep_s(0.002)
        changed_s, gpu.slow = gpu.now_s, True
        while gpu.now_s < changed_s + 0.02:
            clock.sleep_s(0.002)

    begun_s = clock.now_s()
    starts_s, durations_s, hot = CudaSmallKernels(2000, gpu.torch).run(during, domain).T

    assert begun_s < starts_s[0] < clock.now_s()
    assert np.diff(starts_s) == pytest.approx(durations_s[:-1])
    assert set(np.round(durations_s / fast_s, 6)) == {1.0, 2.0}
    assert not hot.any()
    at = int(np.argmax(durations_s > 1.5 * fast_s))
    assert starts_s[at] - starts_s[0] == pytest.approx(changed_s, abs=0.01)

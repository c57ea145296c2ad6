"""Small kernels of equal work on a real GPU, timed by events around a few of them.

For the core it is one thread that counts cycles, so that its duration times the clock is constant;
for the memory a copy that no L2 cache holds.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from underclock.arrays import Floats
from underclock.errors import NotSupportedError
from underclock.hw.base import SMALL_S, SystemClock
from underclock.hw.cuda.driver import INSTALL_TORCH, wait_for_gpu
from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.feed import feeding
from underclock.hw.lockstep import RankPace
from underclock.records.latencies import Domain

_IN_A_ROW = 10  # small kernels between two events: 0.2 ms, to which gaps add about 1 %
_SAMPLES = 10  # in a launch of the feed, of which a few wait in the queue: 6 ms ahead
_COPIED = 256 * 2**20  # bytes
_SIDE = 4096  # of the hot product's matrices: 0.2 ms on an H200


class CudaSmallKernels:
    """Small kernels on PyTorch's current device; ``core_mhz`` is its highest core clock."""

    def __init__(self, core_mhz: int, torch: Any = None) -> None:
        try:
            self._torch = torch or import_torch()
        except NotSupportedError as exc:
            raise NotSupportedError(
                f"latency is read from small kernels, which PyTorch with CUDA runs: {exc}",
                hint=INSTALL_TORCH,
            ) from exc
        self._cycles = round(SMALL_S * core_mhz * 1e6)

    def run(self, during: Callable[[], None], domain: Domain, hot_s: float = 0.0) -> Floats:
        """Run them while something is done."""
        torch, clock = self._torch, SystemClock()
        graph, _kept = self._captured(domain)
        product = self._product() if hot_s else None
        anchor = torch.cuda.Event(enable_timing=True)
        begun_s: list[float] = []
        timed: list[tuple[Any, Any, bool]] = []

        def launch(stream: Any) -> None:
            with torch.cuda.stream(stream):
                if not begun_s:
                    anchor.record(stream)
                    anchor.synchronize()
                    begun_s.append(clock.now_s())
                for _ in range(_SAMPLES):
                    hot = product is not None and (clock.now_s() - begun_s[0]) % (2 * hot_s) < hot_s
                    if hot and product is not None:
                        product()
                    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    first.record(stream)
                    graph.replay()
                    last.record(stream)
                    timed.append((first, last, hot))

        with feeding(torch, launch, 1, RankPace()) as feed:
            during()
        feed.progress()  # raises where a launch failed
        rows = [
            (begun_s[0] + 1e-3 * anchor.elapsed_time(a), 1e-3 * a.elapsed_time(b), hot)
            for a, b, hot in timed
        ]
        return np.array(rows, dtype=np.float64).reshape(-1, 3)

    def _captured(self, domain: Domain) -> tuple[Any, object]:
        torch = self._torch
        work: Callable[[], object] = partial(torch.cuda._sleep, self._cycles)  # noqa: SLF001
        times = _IN_A_ROW
        if domain is Domain.MEMORY:
            one, other = (torch.zeros(_COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
            work, times = partial(one.copy_, other), 1
        graph = torch.cuda.CUDAGraph()
        work()  # loaded before it is captured
        wait_for_gpu(torch)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(times):
                work()
        return graph, work

    def _product(self) -> Callable[[], object]:
        """Return what launches a product on random numbers: zeros would draw far less power."""
        torch = self._torch
        a, b = (torch.randn(_SIDE, _SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        out = torch.mm(a, b)
        wait_for_gpu(torch)
        return partial(torch.mm, a, b, out=out)

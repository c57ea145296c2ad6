"""What a kernel runs with on a real GPU: a hot companion, and idling, as nodes for graphs.

The companion is a large matrix product on random numbers: zeros would draw far less power. Idling
is one thread that counts core cycles, so it takes a little longer where the clock is lower.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from underclock.errors import NoRoomError
from underclock.hw.cuda.driver import check, cuda
from underclock.hw.cuda.graphs import GraphNode, walk
from underclock.hw.rounds import Round

_SIDES = (8192, 4096)  # of the matrices; the smaller where the larger does not fit
_MATRICES = 3
_BYTES = 2  # of a bf16
_MIB = 2**20


class CudaCompany:
    """Captures each once, and keeps it as long as it lives.

    Attributes:
        note: What a reader of the numbers must know; empty where there is nothing.
    """

    def __init__(self, torch: Any) -> None:
        self.note = ""
        self._torch = torch
        self._kept: list[object] = []  # graphs and operands, which nodes point into
        self._hot: list[GraphNode] = []
        self._idling: dict[int, list[GraphNode]] = {}

    def beside(self, round_: Round) -> dict[int, list[GraphNode]]:
        """Return what runs beside the kernels of a round: the nodes of a launch of each place.

        Raises:
            NoRoomError: The hot companion does not fit into the GPU's memory.
        """
        mix = round_.mix
        places: dict[int, list[GraphNode]] = {}
        if mix.hot:
            places[round_.hot] = self.hot()
        if mix.idle_s:
            idle = self.idling(mix.idle_s / mix.pieces)
            places |= dict.fromkeys(range(round_.idle, round_.idle + mix.pieces), idle)
        return places

    def hot(self) -> list[GraphNode]:
        """Return the nodes of one launch of the companion.

        Raises:
            NoRoomError: It does not fit into the GPU's memory.
        """
        if not self._hot:
            side, work = first_that_fits(self._torch, _SIDES, self._product)
            self._hot = self._capture(work)
            if side != _SIDES[0]:
                self.note = (
                    f"the hot companion is a product of {side}x{side} matrices: one of "
                    f"{_SIDES[0]}x{_SIDES[0]} did not fit into memory beside the step"
                )
        return self._hot

    def idling(self, idle_s: float) -> list[GraphNode]:
        """Return the nodes that idle for so long at the GPU's highest clock."""
        cycles = max(1, round(idle_s * self._highest_hz()))
        if cycles not in self._idling:
            idle = self._torch.cuda._sleep  # noqa: SLF001 - it has no other
            self._idling[cycles] = self._capture(functools.partial(idle, cycles))
        return self._idling[cycles]

    def _product(self, side: int) -> Callable[[], object]:
        torch = self._torch
        random = torch.Generator(device="cuda")  # the user's own stays as it is
        random.manual_seed(0)
        a, b = (
            torch.randn(side, side, dtype=torch.bfloat16, device="cuda", generator=random)
            for _ in range(2)
        )
        out = torch.empty_like(a)

        def work() -> object:
            with torch.no_grad():
                return torch.mm(a, b, out=out)

        work()  # the library chooses its kernel and takes its workspace outside the capture
        torch.cuda.synchronize()
        return work

    def _capture(self, work: Callable[[], object]) -> list[GraphNode]:
        torch = self._torch
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        # What the user's other threads ask of the GPU meanwhile is no part of it.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
        self._kept += [graph, work]
        return list(walk(int(graph.raw_cuda_graph()), lambda _address: False))

    @staticmethod
    def _highest_hz() -> float:
        driver = cuda()
        device = check("find the GPU", driver.cuCtxGetDevice())
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE
        khz = check("read the highest clock", driver.cuDeviceGetAttribute(attribute, device))
        return float(khz) * 1e3


def first_that_fits(
    torch: Any, sides: Iterable[int], make: Callable[[int], Callable[[], object]]
) -> tuple[int, Callable[[], object]]:
    """Make a product as large as memory allows.

    Args:
        torch: PyTorch.
        sides: Of its matrices, largest first.
        make: Allocates one of a side.

    Raises:
        NoRoomError: Even the smallest does not fit.
    """
    for side in sides:
        try:
            return side, make(side)
        except torch.OutOfMemoryError:
            pass  # and nothing of it is kept: its traceback would keep what was allocated
        torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    raise NoRoomError(
        f"the hot companion does not fit into memory: a product of {side}x{side} matrices takes "
        f"{_MATRICES * _BYTES * side**2 / _MIB:.0f} MiB beside the step, and {free / _MIB:.0f} of "
        f"{total / _MIB:.0f} MiB are free",
        hint="lower the batch, or end other processes on this GPU; idling needs no memory",
    )

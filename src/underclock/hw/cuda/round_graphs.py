"""What a round launches as nodes of graphs, co-load included, and which launch each node serves.

Co-load is a heater and idling. The heater is a large matrix product on random numbers:
zeros would draw far less power. Idling is one thread that counts core cycles, so it takes a little
longer where the clock is lower.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from underclock.errors import NoRoomError
from underclock.hw.cuda.capture import GraphNode, walk
from underclock.hw.cuda.driver import check, cuda, wait_for_gpu
from underclock.hw.cuda.durations import GraphLaunch, places_of
from underclock.hw.rounds import Round, Turn
from underclock.records.work import LaunchGroup

_SIDES = (8192, 4096)  # of the heater's matrices; the smaller where the larger does not fit
_MATRICES = 3
_BYTES = 2  # of a bf16
_MIB = 2**20

Places = dict[int, list[GraphNode]]
"""Nodes of a launch of each place of a round."""
Parts = list[tuple[int, list[GraphNode]]]
"""Of a round in turn: the place of each, and its nodes."""


def parts_of(turns: Sequence[Turn], places: Places) -> Parts:
    """Return what turns launch, one by one."""
    return [(turn.place, places[turn.place]) for turn in turns for _ in range(turn.times)]


def flat(parts: Parts) -> list[GraphNode]:
    """Return the nodes of parts in turn."""
    return [node for _, nodes in parts for node in nodes]


def step_graphs(
    nodes: Sequence[GraphNode], ends: Sequence[int], groups: Sequence[LaunchGroup]
) -> tuple[GraphLaunch, ...]:
    """Describe the graphs of a whole step; those that do no work are left out."""
    places = places_of(groups)
    graphs = []
    for begin, end in pairwise([0, *ends]):
        graph = GraphLaunch(
            nodes=tuple(node.node for node in nodes[begin:end]),
            places=tuple(places.get(index) for index in range(begin, end)),
            times={
                place: 1 for place, group in enumerate(groups) if begin <= group.nodes[-1] < end
            },
        )
        if graph.working:
            graphs.append(graph)
    return tuple(graphs)


def in_pieces(
    nodes: Sequence[GraphNode],
    groups: Sequence[LaunchGroup],
    round_: Round,
    coload: Places,
) -> tuple[list[GraphNode], GraphLaunch]:
    """Put co-load between the launches of a step; return what runs, and its graph."""
    places = places_of(groups)
    step = [(node, places.get(index)) for index, node in enumerate(nodes)]
    launches = step * round_.mix.launches
    runs: list[tuple[GraphNode, int | None]] = []
    begin = 0
    for piece, after in enumerate(round_.mix.after):
        steps, launch = divmod(after - 1, len(groups))
        end = max(begin, len(nodes) * steps + groups[launch].nodes[-1] + 1)
        runs += launches[begin:end]
        for place, each in parts_of(round_.coload(piece), coload):
            runs += [(node, place) for node in each]
        begin = end
    runs += launches[begin:]
    graph = GraphLaunch(
        nodes=tuple(node.node for node, _ in runs),
        places=tuple(place for _, place in runs),
        times=round_.launches(),
    )
    return [node for node, _ in runs], graph


def graph_of(parts: Parts) -> GraphLaunch:
    """Describe a graph that launches parts of a round in turn, each with its place."""
    return GraphLaunch(
        nodes=tuple(node.node for node in flat(parts)),
        places=tuple(place for place, nodes in parts for _ in nodes),
        times=Counter(place for place, _ in parts),
    )


class CudaCoLoad:
    """Captures each once, and keeps it as long as it lives; notes what a reader must know."""

    def __init__(self, torch: Any, notes: dict[str, str]) -> None:
        self._torch, self._notes = torch, notes
        self._kept: list[object] = []  # graphs and operands, which nodes point into
        self._hot: list[GraphNode] = []
        self._idling: dict[int, list[GraphNode]] = {}

    def beside(self, round_: Round) -> Places:
        """Return what runs with the kernels of a round: the nodes of a launch of each place."""
        mix = round_.mix
        places: Places = {}
        if mix.hot:
            places[round_.hot] = self.hot()
        if mix.idle_s:
            idle = self.idling(mix.idle_s / mix.pieces)
            places |= dict.fromkeys(range(round_.idle, round_.idle + mix.pieces), idle)
        return places

    def hot(self) -> list[GraphNode]:
        """Return the nodes of one launch of the heater."""
        if not self._hot:
            side, work = first_that_fits(self._torch, _SIDES, self._product)
            self._hot = self._capture(work)
            if side != _SIDES[0]:
                self._notes["co-load"] = (
                    f"the heater is a product of {side}x{side} matrices: one of "
                    f"{_SIDES[0]}x{_SIDES[0]} did not fit into memory with the step"
                )
        return self._hot

    def idling(self, idle_s: float) -> list[GraphNode]:
        """Return the nodes that idle for so long at the GPU's highest clock."""
        driver = cuda()
        device = check("find the GPU", driver.cuCtxGetDevice())
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE
        khz = check("read the highest clock", driver.cuDeviceGetAttribute(attribute, device))
        cycles = max(1, round(idle_s * float(khz) * 1e3))
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
        wait_for_gpu(torch)
        return work

    def _capture(self, work: Callable[[], object]) -> list[GraphNode]:
        torch = self._torch
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        # What the user's other threads ask of the GPU meanwhile is no part of it.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
        self._kept += [graph, work]
        return list(walk(int(graph.raw_cuda_graph()), lambda _address: False))


def first_that_fits(
    torch: Any, sides: Iterable[int], make: Callable[[int], Callable[[], object]]
) -> tuple[int, Callable[[], object]]:
    """Make a product as large as memory allows."""
    for side in sides:
        try:
            return side, make(side)
        except torch.OutOfMemoryError:
            pass  # and nothing of it is kept: its traceback would keep what was allocated
        torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    raise NoRoomError(
        f"the heater does not fit into memory: a product of {side}x{side} matrices takes "
        f"{_MATRICES * _BYTES * side**2 / _MIB:.0f} MiB besides the step, and {free / _MIB:.0f} of "
        f"{total / _MIB:.0f} MiB are free",
        hint="lower the batch, or end other processes on this GPU; idling needs no memory",
    )

"""The nodes of captured CUDA graphs, read; and what a round launches as nodes, co-load included.

Co-load is a heater and idling. The heater is a large matrix product on random numbers:
zeros would draw far less power. Idling is one thread that counts core cycles, so it takes a little
longer where the clock is lower.
"""

import ctypes
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from underclock.errors import NoRoomError, NotSupportedError
from underclock.hw.base import Round, Turn
from underclock.hw.cuda.driver import check, cuda, demangled, wait_for_gpu
from underclock.hw.cuda.durations import GraphLaunch, places_of
from underclock.records.work import LaunchGroup, Node, NodeKind

_POINTER = 8
_MOST_PARAMETERS = 512


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node of a live graph."""

    node: Node  # what it is
    handle: Any  # the driver's own; valid as long as its graph
    words: tuple[int, ...]  # 8-byte words of its parameters, in order: pointers and all else


def walk(graph: int, is_device_pointer: Any) -> tuple[GraphNode, ...]:
    """Read the nodes of a captured graph, in the order in which they were captured."""
    driver = cuda()
    handle = driver.CUgraph(graph)
    _, count = check("count the graph's nodes", driver.cuGraphGetNodes(handle))
    handles, _ = check("list the graph's nodes", driver.cuGraphGetNodes(handle, count))
    return tuple(_read(driver, node, is_device_pointer) for node in handles[:count])


def cleared_before(nodes: Sequence[GraphNode]) -> tuple[tuple[int, ...], ...]:
    """Return for each node the earlier memsets whose memory its parameters point into."""
    # The last of those of the same memory counts: start -> where it ends, and which node.
    last: dict[int, tuple[int, int]] = {}
    memsets_before: list[tuple[int, ...]] = []
    for index, node in enumerate(nodes):
        if node.node.kind is NodeKind.MEMSET:
            memsets_before.append(())
            last[node.words[0]] = (node.words[0] + node.node.bytes, index)
            continue
        words = set(node.words)
        spans = [(range(start, end), which) for start, (end, which) in last.items()]
        memsets_before.append(
            tuple(which for span, which in spans if any(word in span for word in words))
        )
    return tuple(memsets_before)


def _read(driver: Any, handle: Any, is_device_pointer: Any) -> GraphNode:
    kind = check("read a node's kind", driver.cuGraphNodeGetType(handle))
    kinds = driver.CUgraphNodeType
    if kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
        return _kernel(driver, handle, is_device_pointer)
    if kind == kinds.CU_GRAPH_NODE_TYPE_MEMSET:
        set_ = check("read a memset", driver.cuGraphMemsetNodeGetParams(handle))
        size = int(set_.width) * int(set_.elementSize) * max(1, int(set_.height))
        node = Node(kind=NodeKind.MEMSET, bytes=size)
        return GraphNode(node, handle, (int(set_.dst),))
    if kind == kinds.CU_GRAPH_NODE_TYPE_MEMCPY:
        copy = check("read a copy", driver.cuGraphMemcpyNodeGetParams(handle))
        size = int(copy.WidthInBytes) * max(1, int(copy.Height)) * max(1, int(copy.Depth))
        node = Node(kind=NodeKind.COPY, bytes=size)
        return GraphNode(node, handle, (int(copy.srcDevice), int(copy.dstDevice)))
    orders = (
        kinds.CU_GRAPH_NODE_TYPE_EMPTY,
        kinds.CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        kinds.CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    )
    if kind in orders:
        return GraphNode(Node(kind=NodeKind.OTHER), handle, ())
    raise NotSupportedError(
        f"the captured step has a {kind.name} node, which cannot be launched by itself",
        hint="leave host callbacks, conditional nodes and allocations out of the step",
    )


def _kernel(driver: Any, handle: Any, is_device_pointer: Any) -> GraphNode:
    params = check("read a kernel", driver.cuGraphKernelNodeGetParams(handle))
    function, kernel = int(params.func or 0), int(params.kern or 0)
    name, sizes = _function(function, kernel)
    values: tuple[bytes, ...] = ()
    if parameters := int(params.kernelParams or 0):
        pointers = (ctypes.c_void_p * len(sizes)).from_address(parameters)
        values = tuple(map(ctypes.string_at, pointers, sizes))
    words = tuple(
        int.from_bytes(value[at : at + _POINTER], "little")
        for value in values
        for at in range(0, len(value) - _POINTER + 1, _POINTER)
    )
    node = Node(
        kind=NodeKind.KERNEL,
        function=name,
        grid=(int(params.gridDimX), int(params.gridDimY), int(params.gridDimZ)),
        block=(int(params.blockDimX), int(params.blockDimY), int(params.blockDimZ)),
        shared_bytes=int(params.sharedMemBytes),
        attributes=_attributes(driver, handle),
        parameters=_digest(values, is_device_pointer),
    )
    return GraphNode(node, handle, words)


@cache
def _function(function: int, kernel: int) -> tuple[str, tuple[int, ...]]:
    driver = cuda()
    if function:
        handle, name, info = driver.CUfunction(function), driver.cuFuncGetName, "cuFuncGetParamInfo"
    else:
        handle, name, info = driver.CUkernel(kernel), driver.cuKernelGetName, "cuKernelGetParamInfo"
    text = check("read a kernel's name", name(handle))
    mangled = text.decode() if isinstance(text, bytes) else str(text)
    sizes = []
    for index in range(_MOST_PARAMETERS):
        code, _, size = getattr(driver, info)(handle, index)
        if int(code) != 0:  # past the last parameter
            break
        sizes.append(int(size))
    return demangled(mangled), tuple(sizes)


def _digest(values: Iterable[bytes], is_device_pointer: Any) -> str:
    digest = hashlib.sha256()
    for value in values:
        for at in range(0, len(value), _POINTER):
            word = value[at : at + _POINTER]
            if len(word) == _POINTER and is_device_pointer(int.from_bytes(word, "little")):
                digest.update(b"*")
            else:
                digest.update(word)
        digest.update(b"|")
    return digest.hexdigest()[:16]


def _attributes(driver: Any, handle: Any) -> str:
    """Return the launch attributes that change what a launch costs, where they are set."""
    ids = driver.CUkernelNodeAttrID
    words = []
    value = check(
        "read a kernel's cluster",
        driver.cuGraphKernelNodeGetAttribute(handle, ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION),
    )
    cluster = (int(value.clusterDim.x), int(value.clusterDim.y), int(value.clusterDim.z))
    if cluster not in {(0, 0, 0), (1, 1, 1)}:
        words.append(f"cluster {'x'.join(map(str, cluster))}")
    value = check(
        "read whether a kernel is cooperative",
        driver.cuGraphKernelNodeGetAttribute(handle, ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE),
    )
    if int(value.cooperative):
        words.append("cooperative")
    return ", ".join(words)


@contextmanager
def chained(nodes: Sequence[GraphNode]) -> Iterator[Callable[[int], None]]:
    """Put nodes of a captured graph, which must outlive the block, into a graph of our own.

    What is yielded launches all of them once, on a stream.
    """
    driver = cuda()
    with ExitStack() as stack:
        graph = check("make a graph", driver.cuGraphCreate(0))
        stack.callback(driver.cuGraphDestroy, graph)
        last: list[Any] = []
        for node in nodes:
            added = _added(driver, graph, node, last)
            if added is not None:
                last = [added]
        executable = check("instantiate a graph", driver.cuGraphInstantiate(graph, 0))
        stack.callback(driver.cuGraphExecDestroy, executable)
        yield lambda stream: check(
            "launch a graph", driver.cuGraphLaunch(executable, driver.CUstream(stream))
        )


def _added(driver: Any, graph: Any, node: GraphNode, after: list[Any]) -> Any:
    """Add a node to a graph, after some nodes; return it, or ``None`` where it does no work."""
    if node.node.kind is NodeKind.KERNEL:
        params = check("read a kernel", driver.cuGraphKernelNodeGetParams(node.handle))
        added = check("add a kernel", driver.cuGraphAddKernelNode(graph, after, len(after), params))
        # Without the cluster attribute a cluster's kernel dies of an illegal instruction.
        check(
            "copy a kernel's attributes", driver.cuGraphKernelNodeCopyAttributes(added, node.handle)
        )
        return added
    context = check("find the context", driver.cuCtxGetCurrent())
    if node.node.kind is NodeKind.MEMSET:
        set_ = check("read a memset", driver.cuGraphMemsetNodeGetParams(node.handle))
        added = driver.cuGraphAddMemsetNode(graph, after, len(after), set_, context)
        return check("add a memset", added)
    if node.node.kind is NodeKind.COPY:
        copy = check("read a copy", driver.cuGraphMemcpyNodeGetParams(node.handle))
        added = driver.cuGraphAddMemcpyNode(graph, after, len(after), copy, context)
        return check("add a copy", added)
    return None


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
    nodes: Sequence[GraphNode], groups: Sequence[LaunchGroup], round_: Round, coload: Places
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

    def coload_nodes(self, round_: Round) -> Places:
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
            for side in _SIDES:
                try:
                    work = self._product(side)
                    break
                except self._torch.OutOfMemoryError:
                    pass  # and nothing of it is kept: its traceback would keep what was allocated
                self._torch.cuda.empty_cache()
            else:
                free, total = self._torch.cuda.mem_get_info()
                raise NoRoomError(
                    f"the heater does not fit into memory: a product of {side}x{side} matrices "
                    f"takes {_MATRICES * _BYTES * side**2 / _MIB:.0f} MiB besides the step, and "
                    f"{free / _MIB:.0f} of {total / _MIB:.0f} MiB are free",
                    hint="lower the batch, or end other processes on this GPU; idling needs no "
                    "memory",
                )
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

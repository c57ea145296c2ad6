"""A training step captured as CUDA graphs, whose nodes are read and launched again in our own."""

import ctypes
import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from underclock.errors import NotSupportedError
from underclock.hw.cuda.driver import check, cuda, demangled, wait_for_gpu
from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.operands import Memory
from underclock.hw.cuda.splitting import Parts, splitting
from underclock.hw.cuda.state import finally_unless_stuck
from underclock.hw.cuda.torch_step import StepFunction, memory_errors, reason_of, side_stream
from underclock.records.work import Node, NodeKind

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
        memsets_before.append(
            tuple(
                which
                for start, (end, which) in last.items()
                if any(start <= word < end for word in words)
            )
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


@dataclass(frozen=True, slots=True)
class Chain:
    """A graph of our own, ready to be launched."""

    executable: Any  # the driver's own; valid in the block of `chained`

    def launch(self, stream: int) -> None:
        """Launch all nodes once."""
        driver = cuda()
        check("launch a graph", driver.cuGraphLaunch(self.executable, driver.CUstream(stream)))


@contextmanager
def chained(nodes: Sequence[GraphNode]) -> Iterator[Chain]:
    """Put nodes of a captured graph, which must outlive the block, into a graph of our own."""
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
        yield Chain(executable)


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


_MOST_ALLOCATIONS = 1_000_000


class CannotCaptureError(Exception):
    """The step cannot become a CUDA graph; the message says why. Caught by the tracing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A captured step."""

    parts: Parts  # PyTorch's graphs; the nodes live as long as they
    nodes: tuple[GraphNode, ...]  # of all parts, in launch order
    ends: tuple[int, ...]  # where each part ends in them
    memory: Memory  # where its pointers point


@contextmanager
def captured(step: StepFunction, waiting: Sequence[str] = ()) -> Iterator[Captured]:
    """Capture a step that was warmed up; its graphs live until the block ends."""
    torch = import_torch()
    with capture(waiting) as taken:
        with side_stream(torch), taken.under_way():
            step()
        yield taken.captured()


@contextmanager
def capture(waiting: Sequence[str] = ()) -> Iterator["Capture"]:
    """Yield what captures one step; its graphs live until the block ends."""
    torch = import_torch()
    taken = Capture(torch, waiting)
    with finally_unless_stuck(functools.partial(_release, torch, taken.parts)):
        yield taken


class Capture:
    """Captures whatever runs in a block."""

    def __init__(self, torch: Any, waiting: Sequence[str] = ()) -> None:
        self.parts = Parts(torch)
        self._torch = torch
        self._waiting = waiting
        self._device = torch.cuda.current_device()
        self._made: list[tuple[int, int]] = []

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Capture what the block asks of the GPU, on the current stream; it is done as well."""
        torch, parts = self._torch, self.parts
        with (
            memory_errors(torch, "capturing the step"),
            _allocations(torch, self._device) as self._made,
        ):
            try:
                with splitting(torch, parts, waiting=self._waiting), streams_overridden(torch):
                    parts.begin()
                    try:
                        yield
                        parts.end()
                    except BaseException:
                        parts.abandon()  # on the stream it began on
                        raise
            except torch.OutOfMemoryError:
                _recover(torch)
                raise
            except Exception as exc:
                _recover(torch)
                raise CannotCaptureError(reason_of(exc)) from exc

    def captured(self) -> Captured:
        """Take what was captured apart."""
        memory = Memory.of(self._torch, self._device, self._made)
        graphs = [int(graph.raw_cuda_graph()) for graph in self.parts.graphs]
        each = [walk(graph, memory.holds) for graph in graphs]
        nodes = tuple(node for part in each for node in part)
        ends = tuple(accumulate(len(part) for part in each))
        return Captured(parts=self.parts, nodes=nodes, ends=ends, memory=memory)


def _release(torch: Any, parts: Parts) -> None:
    wait_for_gpu(torch)
    parts.release()
    torch.cuda.empty_cache()


def _recover(torch: Any) -> None:
    """Get PyTorch out of a capture that failed.

    It leaves its random generator believing that a capture is under way, and every later draw
    fails; a capture that succeeds sets that right.
    """
    wait_for_gpu(torch)
    parts = Parts(torch)  # with memory of its own: that of the earlier parts is given back
    with side_stream(torch):
        parts.begin()
        parts.end()
    _release(torch, parts)


@contextmanager
def _allocations(torch: Any, device: int) -> Iterator[list[tuple[int, int]]]:
    """Yield a list that holds, after the block, address and size of all it allocated."""
    made: list[tuple[int, int]] = []
    history = torch.cuda.memory  # its recorder is documented, underscores and all
    history._record_memory_history(context=None, max_entries=_MOST_ALLOCATIONS)  # noqa: SLF001
    try:
        yield made
        made += [
            (int(entry["addr"]), int(entry["size"]))
            for entry in history._snapshot()["device_traces"][device]  # noqa: SLF001
            if entry["action"] == "alloc"
        ]
    finally:
        history._record_memory_history(enabled=None)  # noqa: SLF001


@contextmanager
def streams_overridden(torch: Any) -> Iterator[None]:
    """Have gradients gathered on the stream that is captured, wherever else that was begun.

    PyTorch 2.13 can; older ones cannot, and there only what was made on our stream is captured.
    """
    override = getattr(torch.autograd.graph, "set_override_stale_capture_stream", None)
    if override is None:
        yield
        return
    before = torch._C._override_stale_capture_stream()  # noqa: SLF001 - nothing else says it
    override(True)
    try:
        yield
    finally:
        override(before)

"""The nodes of a captured CUDA graph, read, and launched again in graphs of our own."""

import ctypes
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from underclock.errors import NotSupportedError
from underclock.hw.cuda.driver import check, cuda, demangled
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

"""A GPU made up for the launcher: graphs that take the time their kernels are said to take.

As much of PyTorch and of cuda-bindings as launching needs; time passes when a graph is launched.
"""

import contextlib
import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from underclock.hw.cuda.capture import Captured, Parts
from underclock.hw.cuda.launcher import CudaLauncher, EagerLauncher
from underclock.hw.cuda.round_graphs import walk
from underclock.hw.cuda.state import Memory
from underclock.records import Kernel, Step
from underclock.records.work import LaunchGroup, Node, NodeKind, Traced

CYCLES_HZ = 1.98e9
PRODUCT_S = 2e-3
_functions = itertools.count(2**40)  # what the driver's names are remembered by, for all tests


@dataclass(eq=False)
class FakeKernel:
    """A kernel node: its name and how long it runs."""

    name: str
    takes_s: float
    function: int = field(default_factory=lambda: next(_functions))


@dataclass(eq=False)
class FakeGraph:
    """A graph, PyTorch's or the driver's own."""

    gpu: "FakeGpu"
    nodes: list[FakeKernel] = field(default_factory=list)

    def raw_cuda_graph(self) -> int:
        self.gpu.graphs[id(self)] = self
        return id(self)

    def replay(self) -> None:
        self.gpu.launch(self)


@dataclass(eq=False)
class FakeMoment:
    """A CUDA event, or a stream: both only tell the time."""

    gpu: "FakeGpu"
    at_s: float = 0.0
    cuda_stream: int = 7

    def record(self, _stream: object) -> None:
        self.at_s = self.gpu.now_s

    def query(self) -> bool:
        threading.Event().wait(2e-4)  # a real one takes a while to be done
        return True

    def elapsed_time(self, other: "FakeMoment") -> float:
        return 1e3 * (other.at_s - self.at_s)


@dataclass
class FakeClock:
    """The GPU's time, which passes as work is launched."""

    gpu: "FakeGpu"

    def now_s(self) -> float:
        return self.gpu.now_s

    def sleep_s(self, duration_s: float) -> None:
        self.gpu.sleep_s(duration_s)


@dataclass
class FakeDevice:
    """A default device: it tells which threads it was entered on."""

    type: str
    entered: set[int] = field(default_factory=set)

    def __enter__(self) -> None:
        self.entered.add(threading.get_ident())

    def __exit__(self, *_: object) -> None: ...


class FakeGpu:
    """Launches in turn, from any thread.

    Another thread's launches run while the first sleeps: a loaded machine then delays both, and
    what is looked at every few milliseconds of the GPU's time is seen as often there as anywhere.
    """

    def __init__(self, *, free_mib: int = 10_000) -> None:
        self.now_s = 0.0
        self.free = free_mib * 2**20
        self.graphs: dict[int, FakeGraph] = {}
        self.capturing: FakeGraph | None = None
        self.default_device = FakeDevice("cpu")
        self.restored = 0
        self.launched: list[tuple[float, list[FakeKernel]]] = []
        self.looks: list[bool] = []  # of the profiler; whether it was to leave the driver after
        self._passes = threading.Condition()
        self._wakes_s = math.inf

    def launch(self, graph: FakeGraph) -> None:
        with self._passes:
            if threading.current_thread() is not threading.main_thread():
                # Whoever does not sleep but waits for a launch must not wait for ever.
                self._passes.wait_for(lambda: self.now_s < self._wakes_s < math.inf, 1e-3)
            self.launched.append((self.now_s, graph.nodes))
            self.now_s += sum(node.takes_s for node in graph.nodes)
            self._passes.notify_all()

    def sleep_s(self, duration_s: float) -> None:
        """Sleep until launches have taken so long."""
        with self._passes:
            self._wakes_s = self.now_s + duration_s
            self._passes.notify_all()
            self._passes.wait_for(lambda: self.now_s >= self._wakes_s)
            self._wakes_s = math.inf

    def launch_kernel(self, name: str, takes_s: float) -> None:
        """Launch one kernel by itself, as a step does that is no graph."""
        self.launch(self.graph(FakeKernel(name, takes_s)))

    def run(self, kernel: FakeKernel) -> None:
        if self.capturing is not None:
            self.capturing.nodes.append(kernel)

    def wait(self, for_s: float) -> None:
        """Let the GPU wait for its host."""
        with self._passes:
            self.now_s += for_s
            self._passes.notify_all()

    def graph(self, *kernels: FakeKernel) -> FakeGraph:
        return FakeGraph(self, list(kernels))

    def launcher(self, **takes_s: float) -> CudaLauncher:
        """Return a launcher of a step that launches each of these kernels once."""
        graph = self.graph(*(FakeKernel(name, each_s) for name, each_s in takes_s.items()))
        nodes = walk(graph.raw_cuda_graph(), lambda _address: False)
        nothing = np.array([], dtype=np.uint64)
        memory = Memory(stretches=(), starts=nothing, ends=nothing)
        step = Step(
            name="step",
            kernels=tuple(Kernel(name=name) for name in takes_s),
            order=tuple(range(len(takes_s))),
        )
        groups = tuple(LaunchGroup(nodes=(index,), activity=None) for index in range(len(takes_s)))
        parts = Parts(fake_torch(self))
        parts.graphs.append(graph)
        snapshot: Any = SimpleNamespace(restore_contents=lambda: None)
        return CudaLauncher(
            captured=Captured(parts=parts, nodes=nodes, ends=(len(nodes),), memory=memory),
            traced=Traced(step=step, groups=groups),
            snapshot=snapshot,
            _torch=fake_torch(self),
            _clock=FakeClock(self),
        )

    def eager(self, run: Callable[[], object], *names: str) -> EagerLauncher:
        """Return a launcher of a step that is no graph, and launches these kernels in turn."""
        step = Step(
            name="step",
            kernels=tuple(Kernel(name=name) for name in names),
            order=tuple(range(len(names))),
            obstacle="the host waits in it",
        )
        groups = tuple(LaunchGroup(nodes=(index,), activity=None) for index in range(len(names)))
        snapshot: Any = SimpleNamespace(restore=self._restore)
        return EagerLauncher(
            run=run,
            traced=Traced(step=step, groups=groups),
            nodes=[Node(kind=NodeKind.KERNEL, function=name) for name in names],
            snapshot=snapshot,
            _torch=fake_torch(self),
            _clock=FakeClock(self),
        )

    @property
    def clock(self) -> FakeClock:
        """Its time."""
        return FakeClock(self)

    def _restore(self) -> None:
        self.restored += 1

    @contextlib.contextmanager
    def capture(self, graph: FakeGraph, *, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        self.capturing = graph
        yield
        self.capturing = None


class FakeOutOfMemoryError(RuntimeError):
    pass


def fake_torch(gpu: FakeGpu) -> Any:
    """Return as much of PyTorch as the launcher uses."""

    def randn(rows: int, columns: int, **_: object) -> int:
        gpu.free -= 2 * rows * columns
        if gpu.free < 0:
            gpu.free += 2 * rows * columns
            raise FakeOutOfMemoryError
        return rows

    def product(side: int, _other: int, *, out: int) -> None:
        assert out == side
        gpu.run(FakeKernel("product", PRODUCT_S))

    @contextlib.contextmanager
    def profile(**_: object) -> Iterator[Any]:
        gpu.looks.append(os.environ.get("TEARDOWN_CUPTI") == "1")
        first = len(gpu.launched)
        profiled = SimpleNamespace()
        yield profiled
        shown = [
            event
            for launch, (at_s, nodes) in enumerate(gpu.launched[first:])
            for event in _events(launch, at_s, nodes)
        ]
        profiled.profiler = SimpleNamespace(
            kineto_results=SimpleNamespace(events=lambda: shown[3:-2])  # cut at both ends
        )

    cuda = SimpleNamespace(
        CUDAGraph=lambda **_: FakeGraph(gpu),
        Event=lambda **_: FakeMoment(gpu),
        Stream=lambda: FakeMoment(gpu),
        current_device=lambda: 0,
        current_stream=lambda: FakeMoment(gpu),
        empty_cache=lambda: None,
        graph=gpu.capture,
        graph_pool_handle=lambda: (0, 1),
        mem_get_info=lambda: (gpu.free, 80 * 2**30),
        set_device=lambda _device: None,
        stream=lambda _stream: contextlib.nullcontext(),
        synchronize=lambda _device=None: None,
        _sleep=lambda cycles: gpu.run(FakeKernel("spin", cycles / CYCLES_HZ)),
    )
    return SimpleNamespace(
        OutOfMemoryError=FakeOutOfMemoryError,
        Generator=lambda **_: SimpleNamespace(manual_seed=lambda _seed: None),
        autograd=SimpleNamespace(
            DeviceType=SimpleNamespace(CUDA="cuda"), _profiler_enabled=lambda: False
        ),
        bfloat16="bf16",
        cuda=cuda,
        get_default_device=lambda: gpu.default_device,
        is_grad_enabled=lambda: True,
        set_grad_enabled=contextlib.nullcontext,
        empty_like=lambda like: randn(like, like),
        mm=product,
        no_grad=contextlib.nullcontext,
        profiler=SimpleNamespace(
            profile=profile, ProfilerActivity=SimpleNamespace(CUDA="gpu", CPU="host")
        ),
        randn=randn,
    )


def _events(launch: int, at_s: float, nodes: list[FakeKernel]) -> Iterator[Any]:
    for node in nodes:
        yield _event(launch, at_s, node)
        at_s += node.takes_s


def _event(launch: int, at_s: float, node: FakeKernel) -> Any:
    return SimpleNamespace(
        name=lambda: node.name,
        device_type=lambda: "cuda",
        is_user_annotation=lambda: False,
        correlation_id=lambda: launch,
        start_ns=lambda: round(at_s * 1e9),
        duration_ns=lambda: round(node.takes_s * 1e9),
    )


def fake_driver(gpu: FakeGpu) -> ModuleType:
    """Return as much of cuda-bindings' driver module as graphs need."""
    names: dict[int, str] = {}

    def params(node: FakeKernel) -> tuple[int, Any]:
        names[node.function] = node.name
        sizes = dict.fromkeys(("gridDimX", "gridDimY", "gridDimZ"), 1)
        sizes |= dict.fromkeys(("blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes"), 1)
        return 0, SimpleNamespace(func=node.function, kern=0, kernelParams=0, node=node, **sizes)

    def nodes_of(handle: int, count: int = 0) -> tuple[int, list[FakeKernel], int]:
        nodes = gpu.graphs[handle].nodes
        return 0, nodes[:count], len(nodes)

    def add(graph: FakeGraph, _after: object, _count: int, params: Any) -> tuple[int, FakeKernel]:
        graph.nodes.append(params.node)
        return 0, params.node

    def launch(graph: FakeGraph, _stream: object) -> tuple[int]:
        gpu.launch(graph)
        return (0,)

    kinds = ("KERNEL", "MEMSET", "MEMCPY", "EMPTY", "EVENT_RECORD", "WAIT_EVENT")
    one = SimpleNamespace(x=1, y=1, z=1)
    driver = ModuleType("cuda.bindings.driver")
    contents: dict[str, Any] = {
        "CUgraph": lambda handle: handle,
        "CUstream": lambda stream: stream,
        "CUfunction": lambda function: function,
        "CUgraphNodeType": SimpleNamespace(
            **{f"CU_GRAPH_NODE_TYPE_{kind}": kind for kind in kinds}
        ),
        "CUkernelNodeAttrID": SimpleNamespace(
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION=0, CU_LAUNCH_ATTRIBUTE_COOPERATIVE=1
        ),
        "CUdevice_attribute": SimpleNamespace(CU_DEVICE_ATTRIBUTE_CLOCK_RATE=13),
        "cuCtxGetDevice": lambda: (0, 0),
        "cuDeviceGetAttribute": lambda _attribute, _device: (0, round(CYCLES_HZ / 1e3)),
        "cuFuncGetName": lambda function: (0, names[function].encode()),
        "cuFuncGetParamInfo": lambda _function, _index: (1, 0, 0),
        "cuGraphAddKernelNode": add,
        "cuGraphCreate": lambda _flags: (0, FakeGraph(gpu)),
        "cuGraphDestroy": lambda _graph: (0,),
        "cuGraphExecDestroy": lambda _graph: (0,),
        "cuGraphGetNodes": nodes_of,
        "cuGraphInstantiate": lambda graph, _flags: (0, graph),
        "cuGraphKernelNodeCopyAttributes": lambda _to, _from: (0,),
        "cuGraphKernelNodeGetAttribute": lambda _node, _which: (
            0,
            SimpleNamespace(clusterDim=one, cooperative=0),
        ),
        "cuGraphKernelNodeGetParams": params,
        "cuGraphLaunch": launch,
        "cuGraphNodeGetType": lambda _node: (0, "KERNEL"),
    }
    vars(driver).update(contents)
    return driver


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    # The import system's way to put a library in the place of another.
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    bindings: Any = ModuleType("cuda.bindings")
    bindings.driver = fake_driver(gpu)
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings.driver)
    return gpu

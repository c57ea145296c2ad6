"""What runs: kernels, the step they make up, and the nodes and activities of a trace."""

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from underclock.records.common import SCHEMAS, Record, check_not_negative, check_positive
from underclock.units import member

_MOST_FLOPS, _MOST_BYTES = 1e18, 1e15  # of one launch: a quarter of an hour on the fastest GPU
_LEAST_WAITED = 1e-6  # of a launch: no less, so that what is a rate of its time stays one


_SIZE = re.compile(r"[A-Za-z_]\w*=[0-9]{1,18}", re.ASCII)
ASSUMED = "assumed "
"""What the functions of kernels begin with that no GPU was seen to run."""


class Pass(StrEnum):
    """The part of a step that a kernel belongs to: of training, or of serving a model."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    OTHER = "other"
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"  # prefill and decode in one launch, as with chunked prefill


SERVING = (Pass.PREFILL, Pass.DECODE, Pass.MIXED)
"""The phases of serving: a step is of one of them, whole."""


class Kind(StrEnum):
    """What a kernel mostly does: matrix products, moving memory, or moving it between GPUs."""

    GEMM = "gemm"
    MEMORY = "mem"
    COLLECTIVE = "collective"


class Launch(Record, frozen=True, kw_only=True):
    """How a traced kernel is launched, and by what: all that decides its cost but the GPU."""

    # demangled name of the GPU function; ``memset`` or ``copy`` where none runs; after ``assumed``
    # what it would do, where no GPU was seen
    function: str
    grid: tuple[int, int, int] = (1, 1, 1)  # blocks in x, y, z; ``block``: threads of one
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0  # dynamic shared memory of a block
    attributes: str = ""  # launch attributes that are not at their default, as text
    operator: str = ""  # innermost operator that launched it; empty when unknown
    # its input tensors as ``dtype[sizes]``, strides added where they are not dense. Where the data
    # decides a size, that of the launch measured and the range: ``97(12-431)``
    shapes: str = ""
    # path of the module it ran for, every layer number a ``*``; empty when unknown
    module: str = ""
    served_by: tuple[str, ...] = ()  # memsets, copies and kernels that run before it on its behalf
    identity: str  # hash under which equal invocations share measurements


class Kernel(Record, frozen=True, kw_only=True, rename={"pass_": "pass"}):
    """One distinct kernel of a step and how often the step runs it."""

    name: str  # unique within its step
    kind: Kind | None = None  # what bounds it by design; ``None`` when unknown
    pass_: Pass = Pass.OTHER  # part of the step (``pass`` in files)
    section: str = ""  # finer part of the step, in the workload's own words
    shape: str = ""  # problem size as text, e.g. ``6144x40960x2048``
    count: int = 1  # invocations per step
    flops: float | None = None  # floating-point operations of one invocation; ``None`` when unknown
    # least bytes of DRAM traffic of a launch; of a collective what a rank sends; ``None``: unknown
    bytes_moved: float | None = None
    # how a traced kernel is launched; ``None`` for one known by its sizes only
    launch: Launch | None = None
    # share of its launches' time for which the step waits; the rest is overlapped. Of a profile, so
    # noisy: it is no part of what a kernel is
    waited_for: float = 1.0

    def __post_init__(self) -> None:
        """Read kind and pass given as text; reject nameless kernels, impossible quantities."""
        if self.kind is not None:
            msgspec.structs.force_setattr(self, "kind", member(Kind, self.kind, "kind"))
        msgspec.structs.force_setattr(self, "pass_", member(Pass, self.pass_, "pass"))
        if not self.name:
            raise ValueError("a kernel needs a name")
        check_positive(self, "count", "bytes_moved")
        check_not_negative(self, "flops")
        for name, most in (("flops", _MOST_FLOPS), ("bytes_moved", _MOST_BYTES)):
            if (getattr(self, name) or 0) > most:
                raise ValueError(f"{name} of one launch is {getattr(self, name):g}, over {most:g}")
        if not 0.0 <= self.waited_for <= 1.0:
            raise ValueError(f"waited_for must be from 0 to 1, got {self.waited_for}")

    @property
    def waited_count(self) -> float:
        """How many launches' time a step waits for."""
        return self.count * max(self.waited_for, _LEAST_WAITED)

    @property
    def overlapped(self) -> bool:
        """Whether a step waits for none of it: it runs at its neighbours' clocks."""
        return self.waited_for <= _LEAST_WAITED


class StepSource(Record, frozen=True, kw_only=True):
    """Where the function is that runs a traced step, or the script whose step it is."""

    file: str  # its file, relative to the folder of the file that says so
    function: str = ""  # its name there; empty for a script
    sha256: str
    # first step of a script that was looked at, and the last; ``None`` for a function
    steps: tuple[int, int] | None = None
    # of a script; of a function the sizes it is called with, as ``NAME=N``
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.file:
            raise ValueError("a step's source needs a file")
        if self.steps is None and not self.function.isidentifier():
            raise ValueError(f"a step's source needs a function or steps of a script, got {self}")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256 must be 64 hexadecimal digits, got {self.sha256!r}")
        if self.steps is None and not all(map(_SIZE.fullmatch, self.arguments)):
            raise ValueError(f"a function's sizes are NAME=N, got {self.arguments}")

    @property
    def sizes(self) -> dict[str, int]:
        """What a function is called with; none of a script."""
        pairs = (text.split("=") for text in self.arguments if self.steps is None)
        return {name: int(number) for name, number in pairs}

    def __str__(self) -> str:
        if self.steps is None:
            sizes = (f"--size {text}" for text in self.arguments)
            return " ".join([f"{self.file}:{self.function}", *sizes])
        return " ".join([f"{self.file} --step {self.steps[0]}", *self.arguments])


class Step(Record, frozen=True, kw_only=True, tag_field="kind", tag="step"):
    """The kernels of one training step, or of a table of them.

    Attributes:
        kernels: Distinct kernels, in order of first launch.
        order: The launch sequence, as indices into ``kernels``; empty of a table, where it is
            unknown.
        modules: Path of the module that each launch ran for, layer numbers and all, after those
            that called it (`launches.module_calls`; older files have the one path); empty where it
            ran for none; no paths where they are unknown.
        parameters: What it was built with (batch, sequence, …).
        source: Of a traced step, to run it again; ``None`` for any other.
        obstacle: Why a traced step's kernels cannot be isolated; empty when they can.
        data_sizes: Numbers that came out of a traced step's data; they differ in another run.
    """

    schema: int = SCHEMAS["step"]
    name: str
    kernels: tuple[Kernel, ...]
    order: tuple[int, ...] = ()
    modules: tuple[str, ...] = ()
    parameters: dict[str, int] = msgspec.field(default_factory=dict)
    source: StepSource | None = None
    obstacle: str = ""
    data_sizes: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.kernels:
            raise ValueError("a step needs at least one kernel")
        twice = [n for n, c in Counter(k.name for k in self.kernels).items() if c > 1]
        if twice:
            raise ValueError(f"kernel names must be unique; repeated: {twice[0]!r}")
        if self.modules and len(self.modules) != len(self.order):
            raise ValueError(
                f"{len(self.order)} launches ran for {len(self.modules)} modules, one each is meant"
            )
        launches = Counter(self.order)
        outside = launches.keys() - set(range(len(self.kernels)))
        if outside:
            raise ValueError(
                f"the launch order names kernel {min(outside)}, but {len(self.kernels)} are listed"
            )
        for index, kernel in enumerate(self.kernels):
            if self.order and launches[index] != kernel.count:
                raise ValueError(
                    f"{kernel.name!r} has count {kernel.count} but is launched {launches[index]} x"
                )

    @property
    def is_assumed(self) -> bool:
        """Whether no GPU was seen to run it, only PyTorch's operators."""
        return any(
            each.launch and each.launch.function.startswith(ASSUMED) for each in self.kernels
        )

    @property
    def fingerprint(self) -> str:
        """Short hash of everything that decides the step's cost, but noise of a profile."""
        kernels = msgspec.to_builtins(self.kernels)
        for kernel in kernels:
            del kernel["waited_for"]
            # Steps that were never traced keep the fingerprint they had before tracing existed.
            if kernel["launch"] is None:
                del kernel["launch"]
        body = msgspec.json.encode((kernels, self.order))
        return hashlib.sha256(body).hexdigest()[:16]


# Prefixes of the annotations in a profile that say what runs.
MODULE_MARK = "underclock.module:"
PIECE_MARK = "underclock.piece: "  # which pass of which microbatch
LAUNCH_MARK = "underclock.launch:"  # which operator is handed to the device
_CALLS = " > "


class NodeKind(StrEnum):
    """What a node of a CUDA graph does."""

    KERNEL = "kernel"
    MEMSET = "memset"
    COPY = "copy"
    OTHER = "other"  # orders its neighbours and does no work: empty, event


class Node(Record, frozen=True, kw_only=True):
    """One node of a captured CUDA graph, in launch order."""

    kind: NodeKind
    function: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    attributes: str = ""  # launch attributes that are not at their default, as text
    bytes: int = 0  # that a memset or copy writes
    parameters: str = ""  # hash of its parameters, pointers left out


class TracedActivity(Record, frozen=True, kw_only=True):
    """One thing the GPU did in a profiled run of the step, and what asked for it."""

    kind: NodeKind
    function: str = ""  # demangled name of the GPU function; empty for a memset or copy
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    start_s: float
    duration_s: float
    operator: str = ""  # innermost operator that launched it; empty when unknown
    shapes: str = ""  # the operator's input tensors, as in `records.Launch`
    module: str = ""  # path of the module it ran for; empty when unknown
    # paths of the modules whose calls were open around that one's, outermost first
    callers: tuple[str, ...] = ()
    pass_: Pass = Pass.OTHER
    device: int = 0
    stream: int = 0
    waited_for: float = 1.0


def module_calls(text: str) -> tuple[str, ...] | None:
    """Return the modules whose calls were open at a launch, outermost first, as a step has them.

    ``None`` where it names the innermost module alone.
    """
    first, *calls = text.split(_CALLS)
    paths = [first]
    for other in calls:
        paths.append(paths[-1] + other if other.startswith(".") else other)
    return tuple(paths) if calls else None


def module_calls_text(paths: Sequence[str]) -> str:
    """Return modules, outermost first, as a step says them: ``Gpt > blocks.2 > .attention``."""
    short = [
        path.removeprefix(outer) if path.startswith(f"{outer}.") else path
        for outer, path in itertools.pairwise(paths)
    ]
    return _CALLS.join([*paths[:1], *short])


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator as it was handed to the device."""

    name: str  # with its namespace, ``aten::addmm``
    shapes: str  # its input tensors, as in `records.Launch`
    elements: int  # of the largest thing that it reads or writes
    bytes_moved: int  # of all tensors that it reads or writes, each once; what it changes, twice
    flops: float | None  # of products, convolutions and attention; ``None`` of all else


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchGroup:
    """What is measured as one launch: a kernel with what runs before it to serve it."""

    nodes: tuple[int, ...]  # indices into the graph's nodes; the group is named after the last
    # the activity of the last node; ``None`` where the profile has none
    activity: TracedActivity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A step and where its kernels are in the graph."""

    step: Step  # the step
    groups: tuple[LaunchGroup, ...]  # one per launch, as ``step.order``
    # the launch that stands for a kernel whose launches are not all alike
    medians: Mapping[int, int] = field(default_factory=dict)

    def launch_of(self, kernel: int) -> int:
        """Return the launch that is measured for a kernel: the first, if all are alike."""
        median = self.medians.get(kernel)
        return self.step.order.index(kernel) if median is None else median


def busy_s(activities: Iterable[TracedActivity]) -> float:
    """Return for how long at least one of them ran, in s, whatever runs side by side."""
    busy, until_s = 0.0, float("-inf")
    for one in sorted(activities, key=lambda each: each.start_s):
        end_s = one.start_s + one.duration_s
        busy += max(0.0, end_s - max(until_s, one.start_s))
        until_s = max(until_s, end_s)
    return busy

"""A user's training step, warmed up and profiled, on the stream on which it is captured.

PyTorch's profiler looks on with modules named, our hooks kept quiet, and nothing stays behind. A
step's operators are seen as PyTorch hands them to whatever device it runs on: a CPU will do.
"""

import functools
import json
import math
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from underclock.errors import MeasurementError, NoMemoryError, UsageError
from underclock.hw.base import SystemClock
from underclock.hw.cuda import PIPELINE_METHODS, paths_below, put
from underclock.hw.cuda.driver import installed, wait_for_gpu
from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.lockstep import is_distributed, meet
from underclock.records.work import LAUNCH_MARK, MODULE_MARK, PIECE_MARK, Operator

StepFunction = Callable[[], object]

_TEARDOWN = "TEARDOWN_CUPTI"  # read by PyTorch's profiler when it ends
_OURS = (  # what we do brings PyTorch to say
    r"Using `torch\.compile\(module\)` when there are global hooks on modules",
    r".*Profiler clears events",
    r"The AccumulateGrad node's stream does not match the stream",  # ours is another than DDP's
)
_WARM_UPS = 3  # as PyTorch advises before a capture
_WARM_UPS_AMONG_RANKS = 11  # DDP times its first ten runs with events, which no capture survives


def warm_up(step: StepFunction) -> float:
    """Run a step on a stream of its own, as a capture will; return what its quickest run took."""
    torch, clock = import_torch(), SystemClock()
    check_free(torch)
    quickest_s = math.inf
    with side_stream(torch), memory_errors(torch, "running the step"):
        done = 0
        # A step may make its job's ranks meet as it first runs.
        while done < (_WARM_UPS_AMONG_RANKS if is_distributed(torch) else _WARM_UPS):
            done += 1
            wait_for_gpu(torch)
            begun_s = clock.now_s()
            with step_errors(torch.OutOfMemoryError):
                step()
            wait_for_gpu(torch)
            quickest_s = min(quickest_s, clock.now_s() - begun_s)
    return quickest_s


@contextmanager
def step_errors(*passing: type[Exception]) -> Iterator[None]:
    """Say where a step fails that is not yet looked at; errors of other kinds pass."""
    before = sys.exc_info()[1]
    try:
        yield
    except passing:
        raise
    except Exception as exc:
        reason = reason_of(exc, before)
        raise MeasurementError(
            f"the step failed before it was looked at: {type(exc).__name__}: {reason}",
            hint="a step is a function that takes nothing and trains once; run it by itself first",
        ) from exc


def check_free(torch: Any) -> None:
    """Refuse to look at a step where something else does, or would be in the way."""
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in {"", "0"}:
        raise UsageError(
            "CUDA_LAUNCH_BLOCKING is set, under which the host waits for every kernel",
            hint="unset it: a step is captured as it runs without",
        )
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "a CUDA graph is being captured on this stream already",
            hint="trace the step outside of torch.cuda.graph",
        )
    if torch.autograd._profiler_enabled():  # noqa: SLF001 - there is no other way to ask
        raise UsageError(
            "a profiler of PyTorch's is active, and there can be one only",
            hint="trace the step outside of it",
        )


def profile(step: StepFunction) -> Mapping[str, Any]:
    """Run a step once under PyTorch's profiler; return its trace in the Chrome format."""
    torch = import_torch()
    with side_stream(torch), memory_errors(torch, "profiling the step"), recorded() as trace:
        meet(torch, SystemClock())
        step()
        wait_for_gpu(torch)
    return trace


@functools.cache
def _stream_of(torch: Any, device: int) -> Any:
    """Return our stream on a device, always the same: what DDP keeps of one fits no other."""
    return torch.cuda.Stream(device)


@contextmanager
def side_stream(torch: Any) -> Iterator[None]:
    """Run the block on our stream of the current device; wait for it and give back its memory."""
    stream = _stream_of(torch, torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
    wait_for_gpu(torch)
    torch.cuda.empty_cache()  # memory that is cached for this stream serves no other


@contextmanager
def memory_errors(torch: Any, doing: str) -> Iterator[None]:
    """Say what did not fit into the GPU's memory, and what to do."""
    try:
        yield
    except torch.OutOfMemoryError as exc:
        free, total = torch.cuda.mem_get_info()
        raise NoMemoryError(
            f"the GPU ran out of memory while {doing}: {free / 2**30:.1f} of "
            f"{total / 2**30:.1f} GiB were free",
            hint="a captured step and a copy of its state must fit: lower the batch, or end other "
            "processes",
        ) from exc


def reason_of(exc: BaseException, before: BaseException | None = None) -> str:
    """Say what failed, and on which line of the user's."""
    chain: list[BaseException] = []
    cause: BaseException | None = exc
    while cause is not None and cause is not before:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    first = chain[-1]  # what failed first; the rest is the capture coming down around it
    lines = str(first).strip().splitlines()
    frames = [
        frame
        for frame in traceback.extract_tb(first.__traceback__)
        if "/torch/" not in frame.filename and "underclock" not in frame.filename
    ]
    at = f", at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{(lines[0] if lines else type(first).__name__).rstrip('.')}{at}"


@contextmanager
def recorded(host_only: Any = None, most_events: float = math.inf) -> Iterator[Mapping[str, Any]]:
    """Yield a mapping that is, after the block, PyTorch's trace of it in the Chrome format.

    PyTorch is given where no GPU is to be looked at. More than ``most_events`` are not read.
    """
    torch = host_only or import_torch()
    kinds = torch.profiler.ProfilerActivity
    some = [kinds.CPU] if host_only else [kinds.CPU, kinds.CUDA]
    config = None
    if is_distributed(torch):  # then collectives overlap the rest: ask what waits for which stream
        config = torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)  # noqa: SLF001
    seen = torch.profiler.profile(activities=some, record_shapes=True, experimental_config=config)
    trace: dict[str, Any] = {}
    with named_modules(torch), _named_microbatches(torch), seen:
        yield trace
    if len(seen.profiler.kineto_results.events()) > most_events:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        trace |= json.loads(path.read_bytes())


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to ourselves what PyTorch has to say of our hooks and streams; all else is said."""
    with warnings.catch_warnings():
        keep_quiet()
        yield


def keep_quiet() -> None:
    """As `quiet`, for the rest of this process."""
    for words in _OURS:
        warnings.filterwarnings("ignore", message=words)


@contextmanager
def profiler_detaches(*, detaches: bool) -> Iterator[None]:
    """Say whether PyTorch's profiler leaves the GPU's driver alone after use, unless the user does.

    Where it stays attached, every launch of the process takes longer from then on (low-rank
    training step on an H200, bound by the host: 8 to 36 %, measured by us). Where it detaches, it
    does so some time later, in a call of the thread that launches, and takes the timestamps from
    the next look (pytorch/kineto#1554); with CUDA before 12.6 the look after that crashes.
    """
    if _TEARDOWN in os.environ:
        yield
        return
    os.environ[_TEARDOWN] = str(int(detaches))
    try:
        yield
    finally:
        os.environ.pop(_TEARDOWN, None)


def detach(torch: Any) -> None:
    """Have PyTorch's profiler leave the GPU's driver alone, while nothing is launched."""
    with (
        profiler_detaches(detaches=True),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True),
    ):
        wait_for_gpu(torch)


@contextmanager
def named_modules(torch: Any) -> Iterator[None]:
    """Annotate every module's forward with its path, as long as the block runs."""
    from torch.nn.modules import module as hooks  # noqa: PLC0415 - the user's own

    paths: dict[int, str] = {}
    running: list[Any] = []

    def begin(module: Any, _inputs: object) -> None:
        if torch.compiler.is_compiling():
            return
        if id(module) not in paths:
            for inner, path in paths_below(module).items():
                paths.setdefault(inner, path)
        annotation = torch.profiler.record_function(MODULE_MARK + paths[id(module)])
        annotation.__enter__()
        running.append(annotation)

    def end(_module: Any, _inputs: object, _outputs: object) -> None:
        if running and not torch.compiler.is_compiling():
            running.pop().__exit__(None, None, None)

    handles = [
        hooks.register_module_forward_pre_hook(begin),
        # Also when forward raises, as recomputation does on purpose once it has what it needs.
        hooks.register_module_forward_hook(end, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _named_microbatches(torch: Any) -> Iterator[None]:
    """Annotate what stages of PyTorch's pipelines do, as `core.tracing.rank_trace` reads it."""
    # Some of its schedules say nothing themselves (1F1B), some no stage (GPipe).
    pipelining = sys.modules.get("torch.distributed.pipelining")
    if pipelining is None:
        yield
        return
    every = pipelining.PipelineStage.__mro__
    stages = next(each for each in every if "forward_one_chunk" in vars(each))

    def annotated(inner: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(inner)
        def run(self: Any, microbatch: int, *args: Any, **kwargs: Any) -> Any:
            words = f"{PIECE_MARK}{what} mb={microbatch} stage={self.stage_index}"
            with torch.profiler.record_function(words):
                return inner(self, microbatch, *args, **kwargs)

        return run

    with ExitStack() as stack:
        for name, what in PIPELINE_METHODS.items():
            stack.callback(put(stages, name, annotated(getattr(stages, name), what)))
        yield


_NO_WORK = {  # besides views: what allocates only, and what a host does
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_"),
    *("_unsafe_view", "_reshape_alias", "lift_fresh", "_local_scalar_dense", "record_stream"),
    *("is_same_size", "wait_tensor", "_wrap_tensor_autograd"),
}
_COLLECTIVES = {"_c10d_functional", "c10d"}
_AS_NCCL = {  # of a functional collective, what PyTorch names it in a profile where NCCL runs it
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "_allgather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
}
_GATHERS = {"embedding", "index", "index_select", "gather", "nll_loss_forward"}
_MADE_ANEW = {"copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_"}
_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "int64": "i64",
    "int32": "i32",
    "uint8": "u8",
    "int8": "i8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


@contextmanager
def operators_seen() -> Iterator[tuple[Mapping[str, Any], list[Operator]]]:
    """Yield what holds, after the block, PyTorch's trace of it and its operators.

    An optimizer that leaves it open runs as it would on a GPU, with all parameters at once.
    """
    torch = installed()
    operators: list[Operator] = []
    with recorded(torch) as trace, _optimizers_as_on_gpu(), _mode(torch, operators):
        yield trace, operators


def _mode(torch: Any, operators: list[Operator]) -> Any:
    from torch._subclasses import FakeTensor  # noqa: PLC0415 - the user's own
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415 - the user's own
    from torch.utils.flop_counter import flop_registry  # noqa: PLC0415 - the user's own

    plain = torch.Tensor.__torch_dispatch__

    class Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if any(issubclass(each, FakeTensor) for each in types):
                return function(*args, **kwargs)  # a call for shapes only
            if any(each.__torch_dispatch__ is not plain for each in types):
                return NotImplemented  # a tensor spread over ranks: what it does here comes next
            name = function._schema.name  # noqa: SLF001 - there is no other way to ask
            bare = name.partition("::")[2]
            ours = function.is_view or bare in _NO_WORK or name.startswith(("profiler::", "prim::"))
            # The steps that an optimizer counts are the host's on a GPU too.
            counts = bare.startswith("_foreach_") and all(each.dim() == 0 for each in args[0])
            if ours or counts:
                return function(*args, **kwargs)
            with torch.profiler.record_function(f"{LAUNCH_MARK}{len(operators)}"):
                result = function(*args, **kwargs)
            packet = getattr(torch.ops.aten, bare.replace("_for_cpu", ""), None)
            count = flop_registry.get(packet)
            flops = None if count is None else float(count(*args, **kwargs, out_val=result))
            operators.append(_operator(torch, function, args, kwargs, result, flops))
            return result

    return Noting()  # type: ignore[no-untyped-call]


def _operator(
    torch: Any, function: Any, args: Any, kwargs: Any, result: Any, flops: float | None
) -> Operator:
    name = function._schema.name.replace("_for_cpu", "")  # noqa: SLF001
    space, _, bare = name.rpartition("::")
    if space in _COLLECTIVES:
        return _collective(torch, bare, [*args, *kwargs.values()], result)
    given = [*args, *kwargs.values()]
    made = list(result) if isinstance(result, tuple | list) else [result]
    read = [each for each in (_tensors(torch, one) for one in given) if each]
    new = [
        each
        for each in (_tensors(torch, one) for one in made)
        if each and not any(each[0] is other for tensors in read for other in tensors)
    ]
    sizes, written = ([sum(map(_bytes, each)) for each in some] for some in (read, new))
    if bare in _GATHERS and sizes:  # of a table it reads what it is asked for only
        sizes[0] = min(sizes[0], sum(written))
    changed = 0 if bare in _MADE_ANEW else sum(_changed(torch, function, args, kwargs))
    elements = max((sum(t.numel() for t in each) for each in read + new), default=0)
    shapes, moved = ", ".join(map(_shape, read)), sum(sizes) + changed + sum(written)
    return Operator(name=name, shapes=shapes, elements=elements, bytes_moved=moved, flops=flops)


def _collective(torch: Any, bare: str, given: list[Any], result: Any) -> Operator:
    """Return a collective as a GPU's trace has it; what it returns may be what it was given."""
    group = next((each for each in given if isinstance(each, torch.ScriptObject)), given[-1])
    if isinstance(group, torch.ScriptObject):
        group = torch.distributed.ProcessGroup.unbox(group)
    elif isinstance(group, str):
        group = torch.distributed.distributed_c10d._resolve_process_group(group)  # noqa: SLF001
    tensors = [each for each in (_tensors(torch, one) for one in given) if each]
    made = _tensors(torch, result)
    # What writes into a tensor that it is given has that one first.
    sent, received = (tensors[-1], tensors[0]) if len(tensors) > 1 else (tensors[0], made)
    both = sent, received or sent
    elements = [sum(each.numel() for each in some) for some in both]
    dtypes = [str(some[0].dtype).removeprefix("torch.") for some in both]
    texts = [f"{_DTYPES.get(d, d)}[{count}]" for d, count in zip(dtypes, elements, strict=True)]
    name = f"nccl::{_AS_NCCL.get(bare, bare.rstrip('_'))}"
    shapes = f"{texts[0]} to {texts[1]} among {group.size()} ranks"
    moved = sum(sum(map(_bytes, some)) for some in both)
    return Operator(name=name, shapes=shapes, elements=max(elements), bytes_moved=moved, flops=None)


def _changed(torch: Any, function: Any, args: Any, kwargs: Any) -> Iterator[int]:
    for at, argument in enumerate(function._schema.arguments):  # noqa: SLF001
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            yield sum(map(_bytes, _tensors(torch, value)))


def _tensors(torch: Any, value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [each for each in value if torch.is_tensor(each)]
    return [value] if torch.is_tensor(value) else []


def _bytes(tensor: Any) -> int:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return int(math.prod(size for size, stride in sizes if stride) * tensor.element_size())


def _shape(tensors: list[Any]) -> str:
    if len(tensors) > 1:
        return f"{len(tensors)} tensors[{sum(tensor.numel() for tensor in tensors)}]"
    tensor = tensors[0]
    dtype = str(tensor.dtype).removeprefix("torch.")
    text = f"{_DTYPES.get(dtype, dtype)}[{'x'.join(map(str, tensor.shape))}]"
    return text if tensor.is_contiguous() else f"{text}@{'x'.join(map(str, tensor.stride()))}"


@contextmanager
def _optimizers_as_on_gpu() -> Iterator[None]:
    """Have optimizers take all parameters at once where the user leaves it open, as on a GPU."""
    from torch.optim import optimizer as hooks  # noqa: PLC0415 - the user's own

    opened: list[Any] = []

    def choose(optimizer: Any, *_: object) -> None:
        for group in optimizer.param_groups:
            if group.get("foreach", True) is None and not group.get("fused"):
                group["foreach"] = True
                opened.append(group)

    handle = hooks.register_optimizer_step_pre_hook(choose)
    try:
        yield
    finally:
        handle.remove()
        for group in opened:
            group["foreach"] = None

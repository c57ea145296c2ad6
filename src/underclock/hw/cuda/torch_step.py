"""A user's training step, warmed up and profiled, on the stream on which it is captured.

PyTorch's profiler looks on with modules named, our hooks kept quiet, and nothing left behind.
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
from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.driver import wait_for_gpu
from underclock.hw.lockstep import is_distributed, meet
from underclock.records.work import MODULE_MARK, PIECE_MARK

StepFunction = Callable[[], object]

_TEARDOWN = "TEARDOWN_CUPTI"  # read by PyTorch's profiler when it ends
_OURS = (  # what we do brings PyTorch to say
    r"Using `torch\.compile\(module\)` when there are global hooks on modules",
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
def recorded(host_only: Any = None) -> Iterator[Mapping[str, Any]]:
    """Yield a mapping that is, after the block, PyTorch's trace of it in the Chrome format.

    PyTorch is given where a GPU is not to be looked at, for there may be none.
    """
    torch = host_only or import_torch()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if not host_only:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    seen = torch.profiler.profile(
        activities=activities,
        record_shapes=True,
        acc_events=True,
        # What waits for which stream; asked for only where collectives overlap the rest.
        experimental_config=(
            torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)  # noqa: SLF001
            if is_distributed(torch)
            else None
        ),
    )
    trace: dict[str, Any] = {}
    with named_modules(torch), named_microbatches(torch), seen:
        yield trace
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
def named_microbatches(torch: Any) -> Iterator[None]:
    """Annotate what stages of PyTorch's pipelines do, as `core.tracing.rank_trace` reads it.

    Some of its schedules say nothing themselves (1F1B), some no stage (GPipe).
    """
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

"""PyTorch's profiler looking on: modules named, our hooks kept quiet, nothing left behind."""

import functools
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.module_paths import paths_below
from underclock.hw.cuda.state import finally_unless_stuck
from underclock.records.launches import MODULE_MARK

_TEARDOWN = "TEARDOWN_CUPTI"  # read by PyTorch's profiler when it ends
_OURS = (  # what we do brings PyTorch to say
    r"Using `torch\.compile\(module\)` when there are global hooks on modules",
    r"The AccumulateGrad node's stream does not match the stream",  # ours is another than DDP's
)


@contextmanager
def recorded(host_only: Any = None) -> Iterator[Mapping[str, Any]]:
    """Yield a mapping that is, after the block, PyTorch's trace of it in the Chrome format.

    Args:
        host_only: PyTorch, where a GPU is not to be looked at, for there may be none.
    """
    torch = host_only or import_torch()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if not host_only:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    seen = torch.profiler.profile(
        activities=activities,
        record_shapes=True,
        acc_events=True,
        # What waits for which stream; asked for only where collectives run beside the rest.
        experimental_config=(
            torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)  # noqa: SLF001
            if is_distributed(torch)
            else None
        ),
    )
    trace: dict[str, Any] = {}
    with named_modules(torch), seen:
        yield trace
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        trace |= json.loads(path.read_bytes())


def is_distributed(torch: Any) -> bool:
    """Whether this process trains together with others."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to ourselves what PyTorch has to say of our hooks and streams; all else is said."""
    with warnings.catch_warnings():
        for words in _OURS:
            warnings.filterwarnings("ignore", message=words)
        yield


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


@contextmanager
def detached_after(torch: Any) -> Iterator[None]:
    """Have PyTorch's profiler leave the GPU's driver alone after the block that it looks on in.

    Looks inside leave it attached, for they follow one another. It detaches after a last one, at
    nothing: else every launch of the user's would take longer, a step of 5389 of them by 43 %
    (LSTM, bound by the host, on an H200, measured by us).
    """
    with finally_unless_stuck(functools.partial(detach, torch)):
        yield


def detach(torch: Any) -> None:
    """Have PyTorch's profiler leave the GPU's driver alone, while nothing is launched."""
    with (
        profiler_detaches(detaches=True),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True),
    ):
        torch.cuda.synchronize()


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

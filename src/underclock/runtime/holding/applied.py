"""applied: a plan held while a block of this process trains."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from underclock.errors import UsageError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import gpu_count, nvml_session
from underclock.records import Plan
from underclock.runtime.holding.run import HeldRun, HowToRun, held_run
from underclock.runtime.trainer.marking import RUN, attach
from underclock.store import as_record

_RANK = "LOCAL_RANK"


@contextmanager
def applied(plan: Plan | str | Path, how: HowToRun | None = None) -> Iterator[HeldRun]:
    """Hold a plan's clocks while the block trains with PyTorch; give them back after it.

    Marks begin with the second step that an optimiser takes in the block. Each process of a job
    holds its own GPU. After the block one line on stderr says how it went, and what the block was
    given has a ``summary``.

    Args:
        how: By default on the GPU that this process trains on.

    Raises:
        UsageError: A plan without a schedule, no PyTorch, a GPU that somebody else sets, or a
            process that `underclock run` holds already.
        DataError: The plan is of another GPU, board, driver or limit.
        DeviceError: The GPU does not answer, or clocks may not be set.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise UsageError(
            "nothing can be held before PyTorch is there", hint="import torch before the block"
        )
    if os.environ.get(RUN):
        raise UsageError(
            "`underclock run` holds a plan in this process already",
            hint="start the script without it, or take the block away",
        )
    with held_run(as_record(plan, Plan), how or HowToRun(gpus=(_own_gpu(torch),))) as held:
        held.start(os.getpid())
        marker = attach(torch, str(held.run.path), rank=0)
        try:
            yield held
        finally:
            if marker is not None:
                marker.detach()


def _own_gpu(torch: Any) -> str:  # noqa: ANN401 - PyTorch, of any version
    """Return the GPU that this process trains on, as the driver counts."""
    if not torch.cuda.is_available():
        return f"nvml:{os.environ.get(_RANK, '0')}"
    wanted = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    with nvml_session():
        for index in range(gpu_count()):
            if NvmlGpu(index).uuid().removeprefix("GPU-") == wanted:
                return f"nvml:{index}"
    raise UsageError(
        f"the driver does not list GPU-{wanted}, on which this process trains",
        hint="name it: applied(plan, HowToRun(gpus=('nvml:0',)))",
    )

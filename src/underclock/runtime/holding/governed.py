"""governor: a serving plan's clocks, held step by step while a block of this process serves."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from underclock.errors import DataError, UsageError
from underclock.hw.gpu_names import GpuKind, parse_gpu
from underclock.hw.nvml import NvmlGpu, listed_clocks
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.ways_to_set import settable_gpu
from underclock.records import GpuInfo
from underclock.records.planned import check_clocks
from underclock.records.serving import ServingPlan
from underclock.runtime.conductor.starting import Conducting
from underclock.runtime.holding.fixed import Holding
from underclock.runtime.trainer.notes import Hook
from underclock.runtime.undo.armed import restore
from underclock.runtime.undo.ownership import runtime_folder
from underclock.store import as_record
from underclock.units import parse_duration

_WORK = "underclock.runtime.conductor.governing:begin"


@contextmanager
def governor(
    plan: ServingPlan | str | Path,
    *,
    gpu: str = "nvml:0",
    latency: str = "150ms",
    anyway: bool = False,
) -> Iterator[Hook]:
    """Hold a serving plan's clocks, phase by phase, for the length of a block.

    The block says which step begins, and that one was late, through the hook that it is given. The
    clocks are given back however the block, this process or the one that sets them ends.

    Args:
        plan: A table of clocks by phase, batch and context, or the file of one.
        gpu: Where; a real GPU, or one that `underclock simulate` serves.
        latency: What a change takes, as ``underclock latency`` measures it, e.g. ``6ms``; by
            default the longest that is reported.
        anyway: Whether another board of the plan's model will do.

    Raises:
        UsageError: The GPU cannot be set from here, or somebody else sets it.
        DataError: The plan is for another GPU, or holds clocks that this one does not list.
        DeviceError: The driver refuses.
    """
    plan = as_record(plan, ServingPlan)
    name = parse_gpu(gpu)
    if name.kind is not GpuKind.REAL:
        raise UsageError(
            f"{gpu!r} is gone with this process, so nothing can be held on it",
            hint="name a real GPU (nvml:0), or one served by `underclock simulate`",
        )
    latency_s = parse_duration(latency)
    with ExitStack() as stack:
        stack.enter_context(nvml_session())
        opened = NvmlGpu(name.index)
        warnings = _other_gpu(plan, opened.info(), anyway=anyway)
        held = ((_of(each.pass_, each.batch), each.chosen.clocks) for each in plan.buckets)
        check_clocks(held, listed_clocks(opened))
        file = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".json"))
        file.write(msgspec.json.encode(plan))
        file.flush()
        reads, writes = os.pipe()
        stack.callback(os.close, writes)
        try:
            conductor = Conducting.start(
                [opened.uuid()],
                work=_WORK,
                options={"plan": file.name, "latency_s": latency_s},
                rescue=lambda: restore(runtime_folder(), [opened.uuid()], settable_gpu),
                trainer_pid=os.getpid(),
                told_on=reads,
            )
        finally:
            os.close(reads)
        stack.callback(conductor.close)
        holding = Holding(opened, {}, warnings, conductor)
        stack.callback(holding.end)
        holding.begin()
        yield Hook(writes)


def _other_gpu(plan: ServingPlan, gpu: GpuInfo, *, anyway: bool) -> tuple[str, ...]:
    """Refuse a plan of another GPU; return what the reader must be told of another board."""
    if plan.gpu.name != gpu.name:
        raise DataError(
            f"the plan is for {plan.gpu.name}, this is {gpu.name}",
            hint="clocks mean nothing on another GPU model: plan on its own samples",
        )
    if not plan.gpu.is_another_board(gpu):
        return ()
    words = (
        f"the plan was made on board {plan.gpu.uuid}, and this is board {gpu.uuid}: boards of one "
        "model differ by a few per cent"
    )
    if not anyway:
        raise DataError(words, hint="plan on this board's own samples, or say anyway=True")
    return (words,)


def _of(phase: str, batch: int) -> str:
    return f"{phase} of {batch}"

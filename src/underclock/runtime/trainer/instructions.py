"""Instructions of a job's rank in a live iteration: callbacks at their begin and end.

A microbatch's forward, backward and gradients of weights are methods of a stage of
`torch.distributed.pipelining`; where a job has none of these, ranges that people put are taken
(`record_function`, NVTX), as a trace of the job takes them: ``forward mb=3``. Standard library
only: this is loaded into the training process, and PyTorch is the user's.
"""

from __future__ import annotations

import gc
import re
import sys

from underclock.hw.cuda import PIPELINE_METHODS, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BEGINS, ENDS = "begins", "ends"
"""An instruction such as the forward of a microbatch begins, or ends."""

_STAGES, _SCHEDULES = "torch.distributed.pipelining.stage", "torch.distributed.pipelining.schedules"
_OPTIMIZER = "optimizer"
_RANGE = re.compile(
    r"\b(forward|fwd|backward|bwd|weights|wgrad)\b.*?\b(?:mb|microbatch)[ =:]*\d", re.IGNORECASE
)
_SHORT = {"fwd": "forward", "bwd": "backward", "wgrad": "weights"}


def watch(
    torch: Any, counted: Callable[[], Any], tell: Callable[[str, str], None]
) -> list[Callable[[], None]]:
    """Have instructions call back: an event, and kind and chunk as ``forward 0``.

    A rank may have an optimizer for each chunk; the steps of the one that is returned count. What
    takes the hooks away again is returned.
    """
    from torch.optim.optimizer import (  # noqa: PLC0415 - the user's own
        register_optimizer_step_pre_hook,
    )

    def optimizer_begins(optimizer: Any, *_: object) -> None:
        if counted() is optimizer:
            tell(BEGINS, _OPTIMIZER)

    undo = [register_optimizer_step_pre_hook(optimizer_begins).remove]
    stage = getattr(sys.modules.get(_STAGES), "_PipelineStageBase", None)
    if stage is not None:
        return undo + [_around(stage, name, kind, tell) for name, kind in PIPELINE_METHODS.items()]
    return undo + _ranges(torch, tell)


def _around(
    stages: Any, name: str, kind: str, tell: Callable[[str, str], None]
) -> Callable[[], None]:
    """Tell of one of a stage's methods; return what puts it back."""
    inner = getattr(stages, name)

    def around(stage: Any, *args: Any, **kwargs: Any) -> Any:
        path = f"{kind} {stage.stage_index // stage.group_size}"
        tell(BEGINS, path)
        result = inner(stage, *args, **kwargs)
        tell(ENDS, path)
        return result

    return put(stages, name, around)


def _ranges(torch: Any, tell: Callable[[str, str], None]) -> list[Callable[[], None]]:
    function = torch.autograd.profiler.record_function
    enter, leave = function.__enter__, function.__exit__
    open_ranges: list[str] = []

    def entered(range_: Any) -> Any:
        _tell_of(BEGINS, range_.name, tell)
        return enter(range_)

    def left(range_: Any, *args: Any) -> Any:
        result = leave(range_, *args)
        _tell_of(ENDS, range_.name, tell)
        return result

    undo = [put(function, "__enter__", entered), put(function, "__exit__", left)]
    nvtx = getattr(torch.cuda, "nvtx", None)
    if nvtx is None:
        return undo
    push, pop = nvtx.range_push, nvtx.range_pop

    def pushed(name: str, *args: Any) -> Any:
        open_ranges.append(name)
        _tell_of(BEGINS, name, tell)
        return push(name, *args)

    def popped(*args: Any) -> Any:
        result = pop(*args)
        if open_ranges:
            _tell_of(ENDS, open_ranges.pop(), tell)
        return result

    return [*undo, put(nvtx, "range_push", pushed), put(nvtx, "range_pop", popped)]


def _tell_of(event: str, name: str, tell: Callable[[str, str], None]) -> None:
    if found := _RANGE.search(name):
        kind = found[1].lower()
        tell(event, f"{_SHORT.get(kind, kind)} 0")


def schedule_of() -> str:
    """Say which pipeline schedule runs in this process, as far as it is PyTorch's."""
    kind = getattr(sys.modules.get(_SCHEDULES), "_PipelineSchedule", None)
    if kind is None:
        return "this is none of PyTorch's"
    names = {type(each).__name__ for each in gc.get_objects() if issubclass(type(each), kind)}
    return f"this is {', '.join(sorted(names)) or 'none of PyTorch'}"

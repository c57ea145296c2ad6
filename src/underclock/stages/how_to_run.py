"""How a plan is to be held, and what is checked of that before anything begins."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from underclock.errors import UsageError
from underclock.hw.nvml import NvmlGpu, listed_clocks
from underclock.hw.nvml_calls import is_simulated, nvml_session
from underclock.records import Plan
from underclock.runtime.undo.processes import say
from underclock.stages.gpu_names import GpuKind, parse_gpu
from underclock.stages.sources import check_clocks, check_to_hold

if TYPE_CHECKING:
    from underclock.stages.held_run import Ran

_ELSEWHERE = "`underclock refine` measures the plan again here, or say --anyway"
_WINDOW = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToRun:
    """How a plan is held.

    Attributes:
        gpus: The GPU of each local rank, in their order.
        dry: Do all but set clocks.
        log: File for a line of JSON for each step; it is appended to.
        anyway: Whether another board or driver than the plan's will do.
        arms: Ways of choosing clocks that take turns, as after ``--arms``; empty to hold the plan.
        window: Steps that the guard judges together, 0 for no guard; by default 20, and none where
            arms take turns.
        metrics_port: On which Prometheus may ask this machine; ``None`` for no such thing.
        live_s: Every so often ``tell`` hears how the last steps went; ``None`` for never.
        tell: Told what a reader should know as it goes on; by default stderr is.
        ended: Told at the end how it went, whatever ended it; by default ``tell`` has one line.
    """

    gpus: tuple[str, ...] = ("nvml:0",)
    dry: bool = False
    log: Path | None = None
    anyway: bool = False
    arms: str = ""
    window: int | None = None
    metrics_port: int | None = None
    live_s: float | None = None
    tell: Callable[[str], None] = say
    ended: "Callable[[Ran], None] | None" = None


def guard_window(how: HowToRun) -> int:
    """Return how many steps a guard judges together; 0 for no guard.

    Raises:
        UsageError: So few that nothing can be judged, or beside arms.
    """
    if how.window is None:
        return 0 if how.arms else _WINDOW
    if how.arms and how.window:
        raise UsageError(
            "a guard takes the plan back where it slows the job, and arms are compared by letting "
            "it be: one run cannot do both",
            hint="leave out --guard or --arms",
        )
    if how.window < 0 or how.window == 1:
        raise UsageError(
            f"a guard cannot judge {how.window} steps together", hint="take 20, or 0 for no guard"
        )
    return how.window


def checked_gpus(plan: Plan, how: HowToRun) -> tuple[tuple[tuple[str, int], ...], bool]:
    """Return UUID and index of each GPU, and whether another process simulates them.

    Raises:
        DataError: The plan is not of one of them.
        UsageError: No such GPU, or one twice.
    """
    names = [parse_gpu(text) for text in how.gpus]
    for name in names:
        if name.kind is not GpuKind.REAL:
            raise UsageError(
                f"{name.text} exists in one process only, and training is another",
                hint="serve it: underclock simulate rtx3080ti --socket PATH, then "
                "UNDERCLOCK_SIMULATOR=PATH underclock run --gpu nvml:0 …",
            )
    indices = [name.index for name in names]
    if len(set(indices)) < len(indices):
        raise UsageError(
            f"a GPU is named twice: {' '.join(how.gpus)}", hint="name one for each local rank"
        )
    pairs = dict.fromkeys(plan.schedule.clocks if plan.schedule else ())
    held = [("a part of the step", pair) for pair in pairs]
    with nvml_session():
        found = []
        for index in indices:
            gpu = NvmlGpu(index)
            for sentence in check_to_hold(
                plan, gpu.info(), plan.limit_w, anyway=how.anyway, hint=_ELSEWHERE
            ):
                how.tell(sentence)
            check_clocks(held, listed_clocks(gpu))
            found.append((gpu.uuid(), index))
        return tuple(found), is_simulated()

"""What one GPU is held at by a controller of its own, until that is ended.

For `holding` that is a plan's best fixed clocks, for `applied` its schedule while a block trains,
for a `governor` the clocks of a serving plan, step by step.
"""

import atexit
import contextlib
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import msgspec

from underclock.errors import DataError, DeviceError, UnderclockError, UsageError
from underclock.hw.base import GpuKind, parse_gpu
from underclock.hw.nvml import NvmlGpu, listed_clocks
from underclock.hw.nvml_calls import gpu_count, nvml_session
from underclock.records import AUTO, Clocks, Plan, ThrottleReason
from underclock.records.planned import check_clocks
from underclock.records.serving import ServingPlan
from underclock.runtime.controller.starting import HURRIED_S, ControllerProcess
from underclock.runtime.holding.run import HeldRun, HowToRun, held_run
from underclock.runtime.trainer.marking import RUN, attach
from underclock.runtime.trainer.notes import Hook
from underclock.runtime.undo.ownership import say
from underclock.store import as_record
from underclock.units import Domain, parse_duration

_HOLD = "underclock.runtime.controller.process:hold"
_GOVERN = "underclock.runtime.controller.governor:begin"
_ELSEWHERE = "plan on this GPU's own samples, or say --anyway"
_SAME_W = 0.5

Settings = dict[Domain, int]


class Holding:
    """What is held on one GPU, by a controller of its own, for the length of a block."""

    def __init__(
        self,
        gpu: NvmlGpu,
        asked: Settings,
        warnings: tuple[str, ...],
        *,
        work: str,
        options: Mapping[str, Any],
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start the controller, and wait until the driver has accepted all of it."""
        self.asked, self._gpu, self._over = asked, gpu, False
        self._controller = ControllerProcess.start(
            [gpu.uuid()], work=work, options=options, stdin=stdin
        )
        try:
            armed = self._controller.armed()
        except BaseException:
            self._controller.close()
            raise
        self.warnings = (*warnings, *armed["notes"])
        self.recovered = tuple(line for one in armed["recovered"] for line in one["done"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            self._controller.close()

    @property
    def pid(self) -> int:
        """The process that holds it."""
        return self._controller.process.pid

    def in_force(self, setting: Domain) -> str:
        """Read back what is in force; an idle GPU does not show its clocks."""
        observed, reasons = self._gpu.observed(), self._gpu.throttle_reasons()
        mhz = observed.core_mhz if setting is Domain.CORE else observed.mem_mhz
        if mhz == self.asked[setting]:
            return f"runs at {mhz} MHz"
        if reasons is None:
            return f"runs at {mhz} MHz, and the driver does not say why"
        if reasons & ThrottleReason.GPU_IDLE:
            return f"runs at {mhz} MHz, idle: whether the lock is followed shows under load"
        return f"runs at {mhz} MHz, for the reasons {reasons.name or 'none'}: it is overruled"

    def wait(self) -> str:
        """Wait until a person or the driver ends it; return why."""
        ended = self._controller.ended(math.inf)
        self._over = True
        return str(ended["why"])

    def end(self) -> tuple[str, ...]:
        """Give everything back; return what was put back, as sentences.

        Raises:
            UnderclockError: Something stays set; the error says what.
        """
        if self._over:
            return ()
        self._over = True
        (undone,) = self._controller.end(HURRIED_S)["undone"]
        if undone["failed"]:
            raise UnderclockError(
                "; ".join(undone["failed"]),
                hint="it is tried again for 15 s; `underclock restore` after that",
            )
        return tuple(undone["done"])


def _index_of(gpu: str) -> int:
    name = parse_gpu(gpu)
    if name.kind is not GpuKind.REAL:
        raise UsageError(
            f"{gpu!r} is gone with this process, so there is nothing to hold on it",
            hint="name a real GPU (nvml:0), or one served by `underclock simulate`",
        )
    return name.index


@contextmanager
def holding(
    plan: Plan | str | Path, *, gpu: str = "nvml:0", anyway: bool = False
) -> Iterator[Holding]:
    """Hold what a plan sets for the whole job, for the length of a block.

    That is its best fixed clocks and, of a plan for a power limit, that limit. It is given back
    however the block, this process or the one that holds it ends.

    Args:
        gpu: Where; a real GPU, or one that `underclock simulate` serves.

    Raises:
        UsageError: The plan has nothing to hold, the GPU cannot be set from here, or another
            program sets it.
        DataError: The plan is for another GPU.
        DeviceError: The driver refuses.
    """
    plan = as_record(plan, Plan)
    index = _index_of(gpu)
    with nvml_session():
        opened = NvmlGpu(index)
        opened.check_whole()
        info = opened.info()
        warnings = plan.check_to_hold(info, anyway=anyway, hint=_ELSEWHERE, any_limit=True)
        limit_w, found_w = plan.gpu.power_limit_w, info.power_limit_w
        if limit_w and found_w and abs(limit_w - found_w) > _SAME_W:
            words = (
                f"the plan was made at a power limit of {limit_w:g} W, this GPU has {found_w:g} W: "
                "its clocks are worth something else here"
            )
            warnings = (*warnings, words)
        fixed = plan.fixed or Clocks()
        values = {Domain.CORE: fixed.core_mhz, Domain.MEMORY: fixed.mem_mhz}
        asked = {setting: value for setting, value in values.items() if value is not None}
        if not asked:
            why = (
                "no fixed clock keeps its time budget"
                if plan.fixed is None
                else "its best fixed clocks are auto"
            )
            raise UsageError(
                f"the plan for {plan.workload} has nothing to hold: {why}",
                hint="plan with a larger --max-slowdown, or for a power limit",
            )
        check_clocks([("the whole job", plan.fixed or AUTO)], listed_clocks(opened))
        options = {opened.uuid(): {str(setting): value for setting, value in asked.items()}}
        with Holding(opened, asked, warnings, work=_HOLD, options=options) as held:
            yield held


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
    clocks are given back however the block, this process or the one that sets them ends. Where that
    one ends first, serving goes on at auto, and a sentence on stderr at the end says so.

    Args:
        plan: A table of clocks by phase, batch and context, or the file of one.
        gpu: Where; a real GPU, or one that `underclock simulate` serves.
        latency: What a change takes, e.g. ``6ms``, or a file of a `LatencyTable`; by
            default the longest that is reported.
        anyway: Whether another board of the plan's model will do.

    Raises:
        UsageError: The GPU cannot be set from here, or another program sets it.
        DataError: The plan is for another GPU, or holds clocks that this one does not list.
        DeviceError: The driver refuses.
    """
    plan = as_record(plan, ServingPlan)
    index, latency_s = _index_of(gpu), parse_duration(latency)
    with ExitStack() as stack:
        stack.enter_context(nvml_session())
        opened = NvmlGpu(index)
        opened.check_whole()
        info, warnings = opened.info(), tuple[str, ...]()
        if plan.gpu.name != info.name:
            raise DataError(
                f"the plan is for {plan.gpu.name}, this is {info.name}",
                hint="clocks mean nothing on another GPU model: plan on its own samples",
            )
        if plan.gpu.is_another_board(info):
            words = (
                f"the plan was made on board {plan.gpu.uuid}, and this is board {info.uuid}: "
                "boards of one model differ by a few per cent"
            )
            if not anyway:
                raise DataError(words, hint="plan on this board's own samples, or say anyway=True")
            warnings = (words,)
        held = ((f"{b.pass_} of {b.batch}", b.chosen.clocks) for b in plan.buckets)
        check_clocks(held, listed_clocks(opened))
        file = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".json"))
        file.write(msgspec.json.encode(plan))
        file.flush()
        reads, writes = os.pipe()
        hook = Hook(writes, reads)
        stack.callback(os.close, reads)
        stack.callback(os.close, writes)
        options = {"plan": file.name, "latency_s": latency_s, "index": index}
        governing = stack.enter_context(
            Holding(opened, {}, warnings, work=_GOVERN, options=options, stdin=reads)
        )
        try:
            yield hook
        finally:
            try:
                governing.end()
            except UnderclockError as exc:  # it is said, for a server goes on
                say(f"clocks were not governed to the end: {exc}; {exc.hint}")
            if hook.unknown:
                say(
                    f"{hook.unknown} steps ran at auto, for no plan can have their phase, batch or "
                    f"context; the first: {hook.first_unknown}"
                )


_RANK, _WORLD = "LOCAL_RANK", "WORLD_SIZE"


@contextmanager
def applied(
    plan: Plan | str | Path | None = None, how: HowToRun | None = None
) -> Iterator[HeldRun]:
    """Hold a plan's clocks while the block trains with PyTorch; give them back after it.

    Marks begin with the second step that an optimiser takes in the block. Each process of a job
    holds its own GPU. After the block one line on stderr says how it went, and what the block was
    given has a ``summary``.

    Args:
        plan: Without one what the GPU draws is counted, or clocks are learned (``how.learn``).
        how: By default on the GPU that this process trains on.

    Raises:
        UsageError: A plan without a schedule, no PyTorch, a GPU that another program sets,
            or a process that `underclock run` holds already.
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
    how = how or HowToRun()
    if how.learn and int(os.environ.get(_WORLD, "1")) > 1:
        raise UsageError(
            "each rank would learn clocks of its own, and the slowest would hold up all",
            hint="have one controller learn for all: underclock run -- torchrun … train.py",
        )
    with ExitStack() as stack:
        made = None if plan is None else as_record(plan, Plan)
        held = stack.enter_context(
            held_run(made, how if how.gpus else replace(how, gpus=(_own_gpu(torch),)))
        )
        held.start(os.getpid())
        marker = attach(torch, str(held.run.path), rank=0)
        if marker is not None:
            stack.callback(marker.detach)
        # Whose block never ends, as where a step raises in a notebook, ends before its process has
        # closed its files.
        atexit.register(stack.close)
        stack.callback(atexit.unregister, stack.close)
        yield held


def _own_gpu(torch: Any) -> str:  # noqa: ANN401 - PyTorch, of any version
    """Return the GPU that this process trains on, as the driver counts."""
    if not torch.cuda.is_available():
        return f"nvml:{os.environ.get(_RANK, '0')}"
    wanted = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    with nvml_session():
        for index in range(gpu_count()):
            with contextlib.suppress(DeviceError):  # one that does not answer is not this one
                if NvmlGpu(index).uuid().removeprefix("GPU-") == wanted:
                    return f"nvml:{index}"
    raise UsageError(
        f"the driver does not list GPU-{wanted}, on which this process trains",
        hint="name it: applied(plan, HowToRun(gpus=('nvml:0',)))",
    )

"""The one registry from what a user writes after ``--gpu`` to something that measures.

`gpu_names` takes a name apart and says what the GPU behind it can do; here it is opened.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from underclock.errors import UsageError
from underclock.gpus.models import GpuModel, gpu_model, name_of_model
from underclock.hw.base import (
    Capability,
    Clock,
    GpuKind,
    GpuName,
    Launcher,
    Measurer,
    SystemClock,
    parse_gpu,
)
from underclock.hw.lockstep import LeadersLeases, LeadingRank, StoreLine
from underclock.hw.measurer import BRISK, QUICK, GpuMeasurer, ReplayMeasurer
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import SIMULATOR, Value, is_simulated, nvml_session
from underclock.hw.simulated.driver import simulated_rig
from underclock.records import Evidence, MeasurementSettings, Step
from underclock.runtime.undo.guarded_gpu import guarded
from underclock.store import kind_of, read_samples, read_table
from underclock.tracing.held import algorithm_notes, held_launcher, may_lock, real_notes
from underclock.tracing.job_files import ProcessRank
from underclock.tracing.source import StepFile, StepFunction
from underclock.units import Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGpu:
    """A GPU, real or simulated, that is open."""

    gpu: NvmlGpu  # reads it, and locks its clocks
    clock: Clock  # its time
    evidence: Evidence
    launcher: Launcher | None  # runs kernels on it; None where none were to run
    notes: tuple[str, ...] = ()  # what a reader of numbers taken on it must know
    model: GpuModel | None = None  # what it is made of; None of a real one
    step: Step | None = None  # what runs on it, as it was captured now; None where it runs any step
    # leads the other ranks of the step; None where there are none
    leader: LeadingRank | None = None


@contextmanager
def open_gpu(
    name: GpuName,
    *,
    seed: int = 0,
    runs: bool = False,
    step: Step | None = None,
    run: StepFunction | StepFile | None = None,
    anew: bool = False,
) -> Iterator[OpenGpu]:
    """Open a GPU to read it, and where wanted to run the kernels of a step.

    With ``anew`` it may launch other numbers of kernels than when it was traced.
    """
    name.need(Capability.READ)
    if name.is_simulated:
        with simulated_rig(gpu_model(name.name), seed=seed, unit=name.unit) as rig:
            yield OpenGpu(
                gpu=rig.gpu,
                clock=rig.clock,
                evidence=Evidence.SIMULATED,
                launcher=rig.launcher if runs else None,
                model=rig.device.model,
            )
        return
    with nvml_session(), ExitStack() as stack:
        rank = ProcessRank.needed(step, os.environ) if step is not None and runs else None
        if rank is not None and not rank.leads:
            raise UsageError(
                f"rank {rank.number} cannot measure: the first of {rank.world} ranks does",
                hint="under `underclock measure` further ranks follow it; other commands run "
                "steps of one rank only",
            )
        gpu = NvmlGpu(name.index if rank is None else rank.gpu(name.index))
        gpu.write = stack.enter_context(guard_of(gpu))
        evidence = Evidence.SIMULATED if is_simulated() else Evidence.MEASURED
        opened = OpenGpu(gpu=gpu, clock=SystemClock(), evidence=evidence, launcher=None)
        if not runs:
            yield opened
            return
        leader = LeadingRank(StoreLine().say) if rank is not None else None
        with held_launcher(gpu, step, run, anew=anew, pace=leader) as (launcher, changes):
            notes = (*real_notes(gpu), *algorithm_notes(changes))
            now = launcher.traced.step
            with leader.leading(now.kernels) if leader is not None else nullcontext():
                yield replace(opened, launcher=launcher, notes=notes, step=now, leader=leader)


def guard_of(gpu: NvmlGpu) -> AbstractContextManager[Callable[[Domain, Value], None]]:
    """Return what sets a GPU: guarded, unless it is simulated here and ends with this process."""
    ends_with_us = is_simulated() and not os.environ.get(SIMULATOR)
    return nullcontext(gpu.write) if ends_with_us else guarded(gpu.uuid)


def in_virtual_time(spec: str) -> str:
    """Return what a ``--gpu`` option names; of a served simulated GPU, its like in a process.

    A served GPU runs in real time, for trainers; the same model and unit measures alike in
    virtual time, and runs nothing on it.
    """
    name = parse_gpu(spec)
    if name.kind is not GpuKind.REAL or not os.environ.get(SIMULATOR):
        return spec
    with nvml_session():
        served = NvmlGpu(name.index).info().name
    if known := name_of_model(served):
        return f"sim:{known}" + (f"#{name.index}" if name.index else "")
    hint = "measure on the model that is served: --gpu sim:FILE.json"
    raise UsageError(f"{spec} is a served {served}, which no simulated GPU is called", hint=hint)


@contextmanager
def open_measurer(
    spec: str,
    *,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    step: Step | None = None,
    run: StepFunction | StepFile | None = None,
    anew: bool = False,
) -> Iterator[Measurer]:
    """Open what a ``--gpu`` option names, to measure on it: a table too.

    Clocks that are held on it are given back at the end, whatever happens.
    """
    name = parse_gpu(spec)
    if name.kind is GpuKind.REPLAYED:
        table = Path(name.name)
        yield ReplayMeasurer((read_table if kind_of(table) == "samples" else read_samples)(table))
        return
    with open_gpu(name, seed=seed, runs=True, step=step, run=run, anew=anew) as opened:
        if opened.launcher is None:
            raise AssertionError("it was opened to run kernels")
        model = opened.model
        measurer = GpuMeasurer(
            opened.gpu,
            opened.launcher,
            opened.clock,
            evidence=opened.evidence,
            measuring=measuring or default_measuring(spec),
            may_lock=name.is_simulated or may_lock(),
            notes=opened.notes,
            step=opened.step,
        )
        if model is not None and model.throughput is None:
            measurer.own = model.calibration.source, tuple(item.kernel for item in model.own)
        if opened.leader is not None:
            measurer.leases = LeadersLeases(opened.gpu, opened.leader)
        with measurer.leases:
            yield measurer


def default_measuring(spec: str, *, adaptive: bool = False) -> MeasurementSettings:
    """Return how long to wait and measure by default: as in the paper, or briefly."""
    if parse_gpu(spec).kind is GpuKind.REAL:
        return QUICK
    return BRISK if adaptive else MeasurementSettings()

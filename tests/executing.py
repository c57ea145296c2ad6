"""execute: run a step under a schedule of clocks, and see what it really takes."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from simulated_steps import execute as conduct
from underclock.app.backends import open_rig
from underclock.gpus.models import SwitchingModel
from underclock.hw.base import Capability
from underclock.hw.gpu_names import parse_gpu
from underclock.records import Clocks, Evidence, GpuInfo, Step
from underclock.records.latencies import LatencyTable
from underclock.runtime.simulated import Scheduled

OFF_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What a step under a schedule of clocks took. Changes of core and of memory count apart.

    Attributes:
        evidence: Of every number.
        workload: Name of the step.
        fingerprint: Of the step.
        steps: How many were run; what follows is their mean.
        time_s: Of a step.
        energy_j: Of a step.
        time_range_s: Least and greatest of the steps.
        energy_range_j: Least and greatest of the steps.
        planned: Changes that the schedule asks for in a step.
        switches: Of which so many happened; newer ones overtook the others.
        early: Of those, so many came before their launch began, by more than ``off_s``.
        late: Of those, so many came after their launch began, by more than ``off_s``.
        off_s: A change this far off is not counted as either.
    """

    evidence: Evidence
    gpu: GpuInfo
    workload: str
    fingerprint: str
    steps: int
    time_s: float
    energy_j: float
    time_range_s: tuple[float, float]
    energy_range_j: tuple[float, float]
    planned: int
    switches: float
    early: float
    late: float
    off_s: float
    warnings: tuple[str, ...] = ()


def execute(  # noqa: PLR0913 - no two of them belong together, and three have defaults
    step: Step,
    clocks: Sequence[Clocks],
    *,
    gpu: str,
    latency: LatencyTable | None,
    predicted_s: Sequence[float],
    switching: SwitchingModel | None = None,
    steps: int = 5,
    seed: int = 0,
) -> Execution:
    """Run a step on a simulated GPU, changing clocks as a schedule says.

    The GPU has switching delays of its own; the latencies are only what the runtime believes, and
    asks ahead by.

    Args:
        step: What runs.
        clocks: One setting for each launch of its order.
        gpu: ``sim:NAME`` or ``sim:NAME#UNIT``.
        latency: How long changes are believed to take; ``None`` takes them as free and instant.
        predicted_s: How long each launch is believed to take at its clocks, stalls apart.
        switching: How long changes do take; by default as the simulated GPU has it.
        steps: How many are measured, after the GPU is warm.
        seed: Of the GPU's noise and of the jitter of its switching.

    Raises:
        ValueError: Not one setting and one duration for each of two launches or more, or a number
            that makes no sense.
        UsageError: No such GPU, a table, a kernel whose cost is unknown, or clocks that the GPU
            does not list.
        NotSupportedError: A real GPU, which nothing here can drive, or one that takes no such lock.
        NotPermittedError: This process may not lock clocks.
        DataError: The latencies are another GPU's, or lack a clock that changes.
    """
    name = parse_gpu(gpu)
    name.need(Capability.SCHEDULE)
    with open_rig(name, seed=seed, switching=switching) as rig:
        info = rig.gpu.info()
        warnings = () if latency is None else latency.check_gpu(info)
        done = conduct(
            rig,
            [step.kernels[index] for index in step.order],
            Scheduled(clocks=tuple(clocks), table=latency, predicted_s=tuple(predicted_s)),
            steps=steps,
        )
    return Execution(
        evidence=Evidence.SIMULATED,
        gpu=info,
        workload=step.name,
        fingerprint=step.fingerprint,
        steps=steps,
        time_s=statistics.fmean(done.time_s),
        energy_j=statistics.fmean(done.energy_j),
        time_range_s=(min(done.time_s), max(done.time_s)),
        energy_range_j=(min(done.energy_j), max(done.energy_j)),
        planned=done.planned,
        switches=statistics.fmean(done.switches),
        early=done.early(OFF_S) / steps,
        late=done.late(OFF_S) / steps,
        off_s=OFF_S,
        warnings=warnings,
    )

"""Plans of jobs of eight simulated GPUs, and runs every plan on them. Writes docs/evidence/cluster.

OMP_NUM_THREADS=1 python studies/cluster.py
OMP_NUM_THREADS=1 python studies/cluster.py --parts cells --schedules 1f1b --draws 20
"""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from underclock.arrays import Floats
from underclock.campaign.turns import switching_model
from underclock.core.job.planning import JobGoal, plan_job
from underclock.core.job.schedules import Shape, pipeline
from underclock.gpus.models import GpuModel, gpu_model
from underclock.hw.simulated.cluster import Board, Link, boards_of, piece_of
from underclock.hw.simulated.costs import Work
from underclock.records import Evidence, GpuInfo, Strategy
from underclock.records.job import Job, JobPlan, Profile, ProfileRow, RankClocks, Waiting
from underclock.records.latencies import LatencyTable
from underclock.runtime.simulated.job import Iteration, SimulatedJob
from underclock.runtime.simulated.profiling import profiled_in, settled
from underclock.workloads import workload

RANKS, LAYERS, MICROBATCHES, BATCH = 8, 24, 16, 16
LATENCIES_S = (1e-3, 6e-3, 20e-3)
SPREADS = (0.0, 0.03)
BUDGET = 0.01
WITHIN_TIME, WITHIN_ENERGY, SHARE, WITHIN_STRAGGLED = 0.003, 0.005, 0.95, 0.002
LINK = Link(bytes_per_s=25e9, latency_s=20e-6)
ACTIVATION_BYTES = 2.0 * BATCH * 1024 * 2048
GRADIENT_BYTES = 2.0 * 2 * 12 * 2048**2 * LAYERS / 4  # of a stage of four, there and back
JITTER = 0.1  # of the delay of a change
SETTLE, LOOK = 6, 6  # iterations until clocks and heat are there, and those that are reported
AGREE = 10  # draws that are executed too
"""GPT-3 XL in as many stages as ranks; the model says what a stage's layers take."""


def latencies(latency_s: float) -> LatencyTable:
    """Return what changes take: a third of it the call, the rest scatters."""
    call_s, delay_s = 0.3 * latency_s, 0.7 * latency_s
    return LatencyTable.constant(delay_s, call_s=call_s, jitter_s=JITTER * delay_s)


@dataclasses.dataclass(frozen=True)
class Laid:
    """A job that nobody has measured, and what its instructions are on a board."""

    job: Job
    work: Mapping[str, Work]
    model: GpuModel

    def running(self, latency_s: float, boards: Sequence[Board]) -> SimulatedJob:
        """Run it."""
        return SimulatedJob(self.job, self.work, boards, latencies(latency_s))

    def boards(self, latency_s: float, *, seed: int, spread: float = 0.0) -> tuple[Board, ...]:
        """Draw boards that switch in so long."""
        model = dataclasses.replace(self.model, switching=switching_model(latencies(latency_s)))
        return boards_of(model, len(self.job.ranks), seed=seed, spread=spread)

    def clocks_mhz(self) -> tuple[int, ...]:
        """Return every third clock from about half the highest one."""
        table = self.model.core_mhz
        return tuple(mhz for mhz in table if mhz > 0.53 * table[-1])[::-3][::-1]

    def measured(self, *, seed: int, spread: float = 0.0) -> "Laid":
        """Return it with profiles measured in it, on boards that are drawn."""
        boards = self.boards(LATENCIES_S[0], seed=seed, spread=spread)
        job = profiled_in(self.running(LATENCIES_S[0], boards), self.clocks_mhz())
        return dataclasses.replace(self, job=job)


def laid(schedule: str, *, gpu: str = "a100", stages: int = RANKS, data: int = 1) -> Laid:
    """Lay GPT-3 XL out over stages, with layers spread evenly."""
    model, step = gpu_model(gpu), workload("gpt3-xl", {"batch": BATCH})
    chunks = 2 if schedule == "interleaved" else 1
    layers = LAYERS / stages / chunks

    def piece(section: str, part: Callable[[str], bool]) -> Work:
        kernels = [kernel for kernel in step.kernels if part(kernel.name)]
        return piece_of(model, kernels, {section: layers})

    kinds = {"forward": piece("Lf", bool), "backward": piece("Lb", bool)}
    if schedule == "zero-bubble":
        kinds |= {
            "backward": piece("Lb", lambda name: not _of_weights(name)),
            "weights": piece("Lb", _of_weights),
        }
    work = {f"stage {s} {kind}": kinds[kind] for s in range(stages * chunks) for kind in kinds}
    unknown = Profile(rows=(ProfileRow(time_s=0.03, energy_j=10.0),), auto=0)
    shape = Shape(
        stages=stages,
        microbatches=MICROBATCHES,
        chunks=chunks,
        data=data,
        transfer_s=(LINK.takes_s(ACTIVATION_BYTES),),
        reduce_s=LINK.takes_s(GRADIENT_BYTES) if data > 1 else 0.0,
    )
    job = pipeline(
        schedule,
        shape,
        dict.fromkeys(work, unknown),
        waiting=dict.fromkeys(range(stages), (Waiting(power_w=80.0),)),
        gpu=GpuInfo(name=model.name),
        workload="gpt3-xl",
        evidence=Evidence.SIMULATED,
    )
    return Laid(job, work, model)


def _of_weights(name: str) -> bool:
    return any(part in name for part in ("wgrad", "bias", "reduce_add"))


@dataclasses.dataclass(frozen=True)
class Ran:
    """What iterations truly took, in the mean; energies by the boards' counters."""

    time_s: float
    energy_j: Floats  # of each rank

    @classmethod
    def of(cls, some: Sequence[Iteration]) -> "Ran":
        """Take the mean of some iterations."""
        return cls(
            statistics.fmean(each.time_s for each in some),
            np.mean([each.counted_j for each in some], axis=0),
        )

    @property
    def whole_j(self) -> float:
        """Of all ranks."""
        return float(self.energy_j.sum())


def ran(running: SimulatedJob, clocks: tuple[RankClocks, ...] | None) -> Ran:
    """Run clocks, or auto, until they have settled, and then for the record."""
    if clocks is None:
        running.hold()
    else:
        running.follow(clocks)
    settled(running, SETTLE)
    return Ran.of([running.iterate() for _ in range(LOOK)])


@dataclasses.dataclass(frozen=True)
class Cell:
    """One plan and what became of it."""

    schedule: str
    latency_s: float
    spread: float
    plan: JobPlan
    auto: Ran
    planned: Ran

    @property
    def time_off(self) -> float:
        """Executed over planned, less one."""
        return self.planned.time_s / self.plan.promise.time_s - 1.0

    @property
    def energy_off(self) -> float:
        """Executed over planned, less one."""
        return self.planned.whole_j / self.plan.promise.energy_j - 1.0

    @property
    def auto_off(self) -> tuple[float, float]:
        """Auto executed over planned, less one: time and energy."""
        cost = self.plan.arm(Strategy.AUTO).cost
        if cost is None:
            raise AssertionError("every plan has it")
        return self.auto.time_s / cost.time_s - 1.0, self.auto.whole_j / cost.energy_j - 1.0


def cells(schedules: Sequence[str]) -> Iterator[Cell]:
    """Plan and run every schedule, latency and spread; boards that differ are each measured."""
    for schedule, (at, spread) in itertools.product(schedules, enumerate(SPREADS)):
        known = laid(schedule).measured(seed=at, spread=spread)
        for latency_s in LATENCIES_S:
            plan = plan_job(known.job, JobGoal(max_slowdown=BUDGET, latency_s=latency_s))
            running = known.running(latency_s, known.boards(latency_s, seed=at, spread=spread))
            auto = ran(running, None)
            cell = Cell(schedule, latency_s, spread, plan, auto, ran(running, plan.clocks))
            print(
                f"{schedule:12} {latency_s * 1e3:4g} ms {spread:4.0%}  planned "
                f"{plan.promise.time_change:+.2%} {plan.promise.energy_change:+.2%}  off "
                f"{cell.time_off:+.2%} {cell.energy_off:+.2%}, auto {cell.auto_off[0]:+.2%} "
                f"{cell.auto_off[1]:+.2%}",
                flush=True,
            )
            yield cell

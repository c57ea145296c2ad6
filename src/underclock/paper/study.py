"""The study of arXiv 2601.08539 from end to end: search, choose, validate, carry over, compare.

J. Spaan, K.-H. Chen, A.-L. Varbanescu: Reducing Compute Waste in LLMs through Kernel-Level DVFS.

`quoted.csv` holds every quoted number in the order of the paper, `table1.csv` its Table 1; Tables 1
and 2 are complete, figures have the numbers that the text gives. All are for comparison and never
fitted. Costs are sums of isolated kernels and clocks change for free, both as in the paper. Changes
are in percent here and named ``_pct``, as the paper prints them; everywhere else they are
fractions.
"""

import csv
import itertools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from underclock.app.backends import open_measurer
from underclock.app.doctor import GpuFinding, examine
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.arrays import Floats
from underclock.campaign.grid import Campaign, Grid
from underclock.campaign.progress import Tally
from underclock.core.planning.best_choice import Goal
from underclock.core.statistics.verdict import count_within, pair_changes
from underclock.core.step.cost_table import waited_counts
from underclock.errors import UsageError
from underclock.hw.base import Measurer, parse_gpu
from underclock.records import (
    AUTO,
    Aggregate,
    Choice,
    Clocks,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Kernel,
    Kind,
    Objective,
    Pass,
    Plan,
    Record,
    SampleSet,
    Step,
)
from underclock.tracing.held import trace
from underclock.units import parse_mhz


class Change(NamedTuple):
    """Of time and energy of the step against auto, in percent."""

    time_pct: float
    energy_pct: float


class QuotedNumber(Record, frozen=True, kw_only=True):
    """One number that is quoted from the paper, and ours."""

    group: str
    name: str
    unit: str  # of all three numbers; empty for a count
    paper: float
    ours: float | None = None  # ``None`` where there is none
    difference: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedKernel:
    """One row of Table 1: the kernel-level, global, strict choice."""

    section: str
    kernel: str
    invocations: int
    clocks: Clocks
    change: Change


def _rows(file: str) -> list[dict[str, str]]:
    text = (resources.files("underclock.paper") / file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


QUOTED = {
    row["name"]: msgspec.convert(row, QuotedNumber, strict=False) for row in _rows("quoted.csv")
}
"""Every number by its name, without one of ours."""


TABLE2 = tuple(
    itertools.product(
        (Granularity.PASS, Granularity.KERNEL),
        (Objective.EDP, Objective.WASTE),
        (Aggregate.LOCAL, Aggregate.GLOBAL),
    )
)
"""Its ways of choosing."""
REPEATS = int(QUOTED["repeats"].paper)  # of choices measured again
BATCH_SIZE = int(QUOTED["batch"].paper)

# That batch's clocks elsewhere. For the smallest batches only the extremes are given.
BATCH = (8,)
TENSOR_PARALLEL = (4, 8, 16)

# In launch order; changes are in percent of the kernel's own.
TABLE1 = tuple(
    PublishedKernel(
        section=row["section"],
        kernel=row["kernel"],
        invocations=int(row["invocations"]),
        clocks=Clocks(core_mhz=parse_mhz(row["core_mhz"]), mem_mhz=parse_mhz(row["mem_mhz"])),
        change=Change(time_pct=float(row["time_pct"]), energy_pct=float(row["energy_pct"])),
    )
    for row in _rows("table1.csv")
)

PAPERS_GPU = "sim:rtx3080ti#smooth"
PAPERS_BOARD = "sim:rtx3080ti#paper"
WORKLOAD = "gpt3-xl"
_SECOND_GPU = "sim:a4000#smooth"
_BATCHES = (1, 2, 4, 8, 16, 24, 32, BATCH_SIZE)
_BOTH = "kernels that lower both clocks"
_CORE, _MEMORY = frozenset({"core"}), frozenset({"memory"})
_SACRIFICED_PCT = 5.0  # far from both the GEMMs that get faster and those that get 9 % slower
_Ours = dict[str, float | None]
"""Our numbers by their names in the paper; ``None`` where there are none."""


class Study(Record, frozen=True, kw_only=True):
    """The paper's study on a simulated GPU."""

    evidence: Evidence  # of every number that is not the paper's
    gpu: GpuInfo
    calibration: str  # how far to trust the simulation
    second: str  # the same of the paper's second GPU
    kernels: int
    same: int  # kernels of Table 1 whose choices lower the same clocks, of so many ``kernels``
    overlapping: int  # kernels whose choices lower at least one clock in common, or none
    quoted: tuple[QuotedNumber, ...]
    warnings: tuple[str, ...] = ()

    @property
    def agreement(self) -> str:
        """How often the same clocks are lowered, in a sentence."""
        return (
            f"{self.same} of {self.kernels} kernels ({self.same / self.kernels:.0%}) lower exactly "
            f"the clocks that the paper lowers; {self.overlapping} share one clock in common"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Where the study is run, and how."""

    gpu: str = PAPERS_GPU
    grid: Grid = Grid.COARSE
    seed: int = 0
    progress: Callable[[Tally], None] = lambda _tally: None

    def note(self, doing: str) -> None:
        """Say what is being done."""
        self.progress(Tally(done=0, total=1, gpu_s=0.0, doing=doing))


def run_study(conditions: Conditions) -> Study:
    """Run the paper's study on a simulated GPU.

    Raises:
        UsageError: Not a simulated GPU, or no such model.
        DeviceError, MeasurementError: From the GPU.
    """
    gpu, second_gpu = simulated_gpu(conditions.gpu), simulated_gpu(_SECOND_GPU)
    step = before_optimizer(trace(WORKLOAD))
    samples = _search(step, conditions, conditions.gpu)
    plans = {
        (objective, aggregate): plan(
            samples,
            Goal(objective=objective, aggregate=aggregate, max_slowdown=0.0),
            latency="free",
            raw=True,
        )
        for objective in (Objective.EDP, Objective.WASTE)
        for aggregate in Aggregate
    }
    discovered = plans[Objective.WASTE, Aggregate.GLOBAL]  # the paper's best: per kernel, strict
    second = _search(step, conditions, _SECOND_GPU)
    again = plan(second, Goal(max_slowdown=0.0), latency="free", raw=True)
    ours = _change("RTX A4000, searched again", _percent(again.promise))
    for granularity, objective, aggregate in TABLE2:
        strategy = Goal(granularity=granularity, aggregate=aggregate).chosen
        cost = plans[objective, aggregate].arm(strategy).cost
        if cost is None:
            raise AssertionError("auto itself meets a strict budget")
        ours |= _change(f"{granularity}-level, {objective}, {aggregate}", _percent(cost))
    auto = {s.kernel: s.observed or AUTO for s in samples.samples if s.asked == AUTO}
    rows = table1_rows(discovered, auto)
    ours |= _table1(rows) | _validation(discovered, conditions) | _transfers(discovered, conditions)
    # Which clocks the paper's choices lower depends on those that the GPU at hand runs at.
    counted = {_BOTH: sum(theirs == _CORE | _MEMORY for *_, theirs in rows)}
    other = f"the paper measured an RTX 3080 Ti; ours are of {conditions.gpu}"
    quoted = []
    for number in QUOTED.values():
        if number.name in ours:
            paper, own = float(counted.get(number.name, number.paper)), ours[number.name]
            found = None if own is None else float(own)
            off = None if found is None else found - paper
            quoted.append(msgspec.structs.replace(number, paper=paper, ours=found, difference=off))
    return Study(
        evidence=samples.evidence,
        gpu=samples.gpu,
        calibration=gpu.calibration,
        second=f"{again.gpu.name}: {second_gpu.calibration}",
        kernels=len(rows),
        same=sum(mine == theirs for _, _, mine, theirs in rows),
        overlapping=sum(mine == theirs or bool(mine & theirs) for _, _, mine, theirs in rows),
        quoted=tuple(quoted),
        warnings=discovered.warnings
        + (() if conditions.gpu in {PAPERS_GPU, PAPERS_BOARD} else (other,)),
    )


def basis_of(group: str, name: str) -> str:
    """Return what a number of ours rests on: Table 1, to which the GPUs were fitted, or nothing.

    Kernel-level choices of Table 2 follow partly from Table 1, which has those of one of them.
    """
    if group == "Table 1":
        return "fitted"
    return "informed" if group == "Table 2" and name.startswith("kernel") else "predicted"


def simulated_gpu(gpu: str) -> GpuFinding:
    """Return what is known of a simulated GPU.

    Raises:
        UsageError: Not a simulated GPU, or no such model.
    """
    if not parse_gpu(gpu).is_simulated:
        raise UsageError(
            f"the paper's study needs GPU time at every clock pair; {gpu!r} is not simulated",
            hint=f"--gpu {PAPERS_GPU}; plan a table with `underclock plan`",
        )
    return examine(gpu).gpus[0]


def _search(step: Step, conditions: Conditions, gpu: str) -> SampleSet:
    """Measure every kernel alone at every clock pair."""
    with tempfile.TemporaryDirectory(prefix="underclock-") as folder:
        return measure(
            step,
            gpu=gpu,
            to=Path(folder) / "samples.db",
            campaign=Campaign(grid=conditions.grid, in_situ=False),
            seed=conditions.seed,
            progress=conditions.progress,
        )


def before_optimizer(step: Step) -> Step:
    """Return the step without its optimizer, which the paper leaves as it is."""
    kept = [i for i, kernel in enumerate(step.kernels) if kernel.pass_ is not Pass.OPTIMIZER]
    place = {old: new for new, old in enumerate(kept)}
    return Step(
        name=step.name,
        kernels=tuple(step.kernels[i] for i in kept),
        order=tuple(place[i] for i in step.order if i in place),
        parameters=step.parameters,
    )


def _alone(
    measurer: Measurer, kernels: Sequence[Kernel], clocks: Sequence[Clocks], repeat: int
) -> Floats:
    """Measure kernels alone at their clocks; return times in s, energies in J. Shape (2, K)."""
    costs = np.zeros((2, len(kernels)))
    for setting in dict.fromkeys(clocks):
        with measurer.hold(setting):
            for k, kernel in enumerate(kernels):
                if clocks[k] == setting:
                    reading = measurer.measure([kernel], repeat)
                    costs[:, k] = reading.time_s, reading.energy_j
    return costs


def _validation(discovered: Plan, conditions: Conditions) -> _Ours:
    """Measure auto and the discovered clocks again in turns, and compare all pairs of runs."""
    kernels, counts = discovered.step.kernels, waited_counts(discovered.step.kernels)
    arms = {
        "auto": [discovered.baseline] * len(kernels),
        "plan": [discovered.kernels[kernel.name].clocks for kernel in kernels],
    }
    runs: dict[str, list[Floats]] = {name: [] for name in arms}
    with open_measurer(
        conditions.gpu,
        seed=conditions.seed + 1,  # another noise than that of the search
        step=discovered.step,
    ) as measurer:
        conditions.note("warming the GPU to a steady temperature")
        measurer.warm([discovered.step.kernels[index] for index in discovered.step.order])
        for repeat in range(REPEATS):
            conditions.note(f"run {repeat + 1} of auto and the plan")
            for name in list(arms)[:: -1 if repeat % 2 else 1]:
                costs = _alone(measurer, kernels, arms[name], repeat)
                runs[name].append((costs * counts).sum(axis=1))
    auto, planned = (np.stack(each) for each in runs.values())
    time, energy = (pair_changes(auto[:, n], planned[:, n]) for n in (0, 1))
    promised = discovered.promise.energy_change
    mean = Change(100.0 * float(time.mean()), 100.0 * float(energy.mean()))
    return {
        "repeats": REPEATS,
        "pairs": time.size,
        **_change("mean of all pairs", mean),
        "discovered energy": 100.0 * promised,
        "pairs that reach that energy": count_within(energy, promised),
    }


def _transfers(discovered: Plan, conditions: Conditions) -> _Ours:
    """Measure the discovered clocks, and auto, at other batches and under tensor parallelism."""
    sizes = [(batch, 1) for batch in _BATCHES]
    sizes += [(BATCH_SIZE, degree) for degree in (2, *TENSOR_PARALLEL)]
    found: dict[tuple[int, int], Change] = {}
    seed = conditions.seed + 2  # neither the noise of the search nor that of the validation
    with open_measurer(conditions.gpu, seed=seed) as measurer:
        conditions.note("warming the GPU to a steady temperature")
        measurer.warm([discovered.step.kernels[index] for index in discovered.step.order])
        for batch, degree in sizes:
            conditions.note(f"the discovered clocks at batch {batch}, {degree} GPUs")
            step = trace(WORKLOAD, batch=batch, tp=degree, collectives=0)
            kernels = before_optimizer(step).kernels
            counts = np.array([k.count for k in kernels])
            # A kernel that the discovered clocks lack is at auto.
            known = discovered.kernels
            planned = [known[k.name].clocks if k.name in known else AUTO for k in kernels]
            before, after = (
                (_alone(measurer, kernels, clocks, 0) * counts).tolist()
                for clocks in ([AUTO] * len(kernels), planned)
            )
            ratios = (math.fsum(b) / math.fsum(a) for a, b in zip(before, after, strict=True))
            found[batch, degree] = Change(*(100.0 * (ratio - 1.0) for ratio in ratios))
    smallest = [found[size] for size in sizes if size[0] < min(BATCH)]
    ours: _Ours = {
        "smaller batches: greatest time": max(each.time_pct for each in smallest),
        "smaller batches: least energy": min(each.energy_pct for each in smallest),
    }
    for batch in BATCH:
        ours |= _change(f"batch {batch}", found[batch, 1])
    for degree in TENSOR_PARALLEL:
        ours |= _change(f"tensor parallel {degree}", found[BATCH_SIZE, degree])
    return ours


def _percent(change: Cost | Choice) -> Change:
    return Change(100.0 * change.time_change, 100.0 * change.energy_change)


def _change(name: str, ours: Change) -> _Ours:
    return {f"{name}: time": ours.time_pct, f"{name}: energy": ours.energy_pct}


def table1_rows(
    discovered: Plan, auto: Mapping[str, Clocks]
) -> list[tuple[str, Choice, frozenset[str], frozenset[str]]]:
    """Put our kernel-level, global, strict choices next to the paper's, by clocks read under auto.

    Returns:
        Of each kernel its name, our choice, and which clocks that and the paper's lower.

    Raises:
        ValueError: The plan is of other kernels than Table 1.
    """
    kernels = discovered.step.kernels
    if len(kernels) != len(TABLE1):
        raise ValueError(f"Table 1 has {len(TABLE1)} kernels, the step has {len(kernels)}")
    rows = []
    for kernel, paper in zip(kernels, TABLE1, strict=True):
        if ((kernel.kind is Kind.GEMM) is not (paper.kernel == "GEMM")) or (
            kernel.count != paper.invocations
        ):
            raise ValueError(
                f"Table 1 has {paper.invocations} x {paper.kernel} where the step has "
                f"{kernel.count} x {kernel.name}"
            )
        choice = discovered.kernels[kernel.name]
        ours, papers = (_lowered(one.clocks, auto[kernel.name]) for one in (choice, paper))
        rows.append((paper.kernel, choice, ours, papers))
    return rows


def _table1(rows: Sequence[tuple[str, Choice, frozenset[str], frozenset[str]]]) -> _Ours:
    sacrificed, lowered, slow_core = list[Choice](), list[Choice](), list[Choice]()
    for kernel, choice, lowers, _ in rows:
        if kernel != "GEMM":
            slow_core += [choice] * (lowers == _CORE)
        elif _percent(choice).time_pct > _SACRIFICED_PCT:
            sacrificed.append(choice)
        elif lowers == _MEMORY:
            lowered.append(choice)
    cores = [float(each.clocks.core_mhz) for each in slow_core if each.clocks.core_mhz is not None]
    ours: _Ours = {"sacrificed GEMMs": len(sacrificed)}
    for group, some in (
        ("memory-lowered GEMMs", lowered),
        ("sacrificed GEMMs", sacrificed),
        ("core-lowered others", slow_core),
    ):
        ours |= _ends(group, "time", [_percent(choice).time_pct for choice in some])
        ours |= _ends(group, "energy", [_percent(choice).energy_pct for choice in some])
    ours |= _ends("core-lowered others", "clock", cores)
    return ours | {_BOTH: sum(lowers == _CORE | _MEMORY for _, _, lowers, _ in rows)}


def _ends(group: str, of: str, ours: Sequence[float]) -> _Ours:
    """Return the least and the greatest of a group, which may be empty with us."""
    return {
        f"{group}: least {of}": min(ours, default=None),
        f"{group}: greatest {of}": max(ours, default=None),
    }


def _lowered(chosen: Clocks, auto: Clocks) -> frozenset[str]:
    """Return which clocks a choice holds below those that were read under auto."""
    # 9501 MHz is a memory clock lowered only where auto runs a faster one. What was not read is not
    # lowered.
    both = (_CORE, chosen.core_mhz, auto.core_mhz), (_MEMORY, chosen.mem_mhz, auto.mem_mhz)
    lower = (name for name, held, read in both if held is not None and held < (read or 0))
    return frozenset().union(*lower)

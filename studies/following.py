"""Plans GPT-3 XL for clocks that take 6 ms ± 1 ms to change, and follows the plans from marks.

Writes docs/evidence/following.md:

    OMP_NUM_THREADS=1 python studies/following.py

Cells are kept line by line, and a run goes on where the last one stopped; ``--fresh`` begins anew.
"""

import argparse
import dataclasses
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from executed import WORKLOAD, samples_of
from pages import fill, markdown, percent
from simulated_steps import Executed, execute
from underclock import trace
from underclock.app.planning import plan
from underclock.app.switching import Switching
from underclock.campaign.turns import course_of
from underclock.core.planning.goal import Goal
from underclock.gpus.models import Latency, SwitchingModel, gpu_model
from underclock.hw.simulated.rig import simulated_rig
from underclock.records import AUTO, Kernel, Plan, Strategy
from underclock.records.latencies import LatencyTable
from underclock.runtime.simulated import Scheduled, StepLengths

CELLS = (
    ("rtx3080ti", 0.01),
    ("rtx3080ti", 0.0),
    ("a100", 0.01),
    ("h200", 0.01),
    ("a40", 0.01),
)
CALL_S, DELAY_S, JITTER_S = 1.5e-3, 4.5e-3, 1e-3  # 6 ms ± 1 ms
LOOKS = Latency(shares=(0.0, 0.5, 0.99, 1.0), points_s=(0.0, 42e-6, 94e-6, 200e-6))  # as measured
VARYING = 0.1
WANTED, WITHIN = 0.95, 0.001
SEEDS, RUNS, STEPS = (1, 2, 3), 2, 5
WARM_S, AGAIN_S = 100.0, 3.0
LAYERS = 24
_ENOUGH = 3  # cells, for a page
HEADER = (
    *("GPU", "budget", "followed", "saving planned", "executed", "share", "time executed"),
    *("changes planned, done", "scatter", "reached"),
)
SHAPE = (0.78, 1.0, 1.55, 2.9, 3.5)  # of a call's duration over its median, as on an A800


@dataclasses.dataclass(frozen=True)
class Way:
    """How a plan is followed.

    Attributes:
        name: In the table.
        sparse: Whether only blocks' beginnings are marked, and are seen late.
        varying: Whether steps vary in length.
        scatter: Whether calls scatter as on an A800.
    """

    name: str
    sparse: bool = False
    varying: bool = False
    scatter: bool = False


WAYS = (
    Way("every launch seen"),
    Way("marks at blocks", sparse=True),
    Way("marks at blocks, steps vary by 10 %", sparse=True, varying=True),
    Way(
        "marks at blocks, steps vary by 10 %, calls scatter as on an A800",
        sparse=True,
        varying=True,
        scatter=True,
    ),
)


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One plan followed in one way, with one seed.

    Attributes:
        gpu: Which.
        budget: Of time.
        way: How; empty for auto.
        seed: Of all noise.
        time_s: Of a step of usual length.
        energy_j: Of the same.
        planned: Changes in a step.
        done: Which happened, on average.
        off_s: Standard deviation of when changes happened.
    """

    gpu: str
    budget: float
    way: str
    seed: int
    time_s: float
    energy_j: float
    planned: int
    done: float
    off_s: float

    @property
    def key(self) -> tuple[str, float, str, int]:
        """What it is a cell of."""
        return self.gpu, self.budget, self.way, self.seed


def believed() -> LatencyTable:
    """Return what planner and machine are told."""
    return LatencyTable.constant(DELAY_S, call_s=CALL_S, jitter_s=JITTER_S)


def hidden(*, scatter: bool) -> SwitchingModel:
    """Return what the GPU really does."""
    return SwitchingModel(
        setter=Latency(
            shares=(0.0, 0.5, 0.75, 0.99, 1.0),
            points_s=tuple(CALL_S * (part if scatter else 1.0) for part in SHAPE),
        ),
        core_s=DELAY_S,
        mem_s=DELAY_S,
        target_spread=0.0,
        jitter=JITTER_S / DELAY_S,
        mem_stall_s=0.0,
    )


def launches() -> list[Kernel]:
    """Return the step's kernels in launch order."""
    step = trace(WORKLOAD)
    return [step.kernels[index] for index in step.order]


def block_marks(kernels: list[Kernel]) -> tuple[int, ...]:
    """Return where blocks begin, forward and backward: what module hooks of a trainer see."""
    marks = {0}
    for section in dict.fromkeys(kernel.section for kernel in kernels):
        inside = [at for at, kernel in enumerate(kernels) if kernel.section == section]
        first = kernels[inside[0]].name
        if Counter(kernels[at].name for at in inside)[first] == LAYERS:
            marks |= {at for at in inside if kernels[at].name == first}
    return tuple(sorted(marks))


def followed(
    gpu: str, scheduled: Scheduled, switching: SwitchingModel, seed: int
) -> list[Executed]:
    """Run a step under a schedule, begun anew some times at its own heat."""
    kernels = launches()
    if not scheduled.predicted_s:
        scheduled = dataclasses.replace(scheduled, predicted_s=(5e-3,) * len(kernels))
    model = dataclasses.replace(gpu_model(gpu), switching=switching)
    with simulated_rig(model, seed=seed) as rig:
        return [
            execute(rig, kernels, scheduled, steps=STEPS, warm_s=AGAIN_S if run else WARM_S)
            for run in range(RUNS)
        ]


def ran(key: tuple[str, float, str, int], done: list[Executed]) -> Ran:
    """Return the means, for a step of usual length."""
    gpu, budget, way, seed = key
    length = sum(each for one in done for each in one.lengths)
    misses = [miss_s for one in done for miss_s in one.misses_s]
    return Ran(
        gpu=gpu,
        budget=budget,
        way=way,
        seed=seed,
        time_s=sum(each for one in done for each in one.time_s) / length,
        energy_j=sum(each for one in done for each in one.energy_j) / length,
        planned=done[0].planned,
        done=statistics.fmean(count for one in done for count in one.switches),
        off_s=statistics.pstdev(misses) if misses else 0.0,
    )


def planned(gpu: str, budget: float, folder: Path) -> Plan:
    """Plan once, or read what was planned."""
    kept = folder / f"{gpu}.{budget}.plan.json"
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=Plan)
    made = plan(
        samples_of(gpu, folder),
        Goal(max_slowdown=budget),
        switching=Switching(latencies=believed(), curve=False),
    )
    kept.write_bytes(msgspec.json.encode(made))
    return made


def missing(gpu: str, budget: float, folder: Path, known: set[object]) -> Iterator[Ran]:
    """Run what was not run yet of a cell."""
    course = course_of(planned(gpu, budget, folder))
    if course is None:
        raise AssertionError("a traced step has an order")
    marks = block_marks(launches())
    for seed in SEEDS:
        key = gpu, 0.0, "", seed
        if key not in known:
            auto = Scheduled(clocks=(AUTO,) * len(course.clocks))
            yield ran(key, followed(gpu, auto, hidden(scatter=False), seed))
        for way in WAYS:
            key = gpu, budget, way.name, seed
            if key in known:
                continue
            scheduled = dataclasses.replace(
                course.scheduled,
                marks=marks if way.sparse else None,
                looks=LOOKS if way.sparse else None,
                lengths=StepLengths(spread=VARYING if way.varying else 0.0, seed=seed),
            )
            yield ran(key, followed(gpu, scheduled, hidden(scatter=way.scatter), seed))


def shown(values: list[float], digits: int = 2) -> str:
    """Write a mean and the least and greatest."""
    low, high = (percent(each, digits) for each in (min(values), max(values)))
    return f"{percent(statistics.fmean(values), digits)} ({low} … {high})"


def cell_rows(made: Plan, budget: float, runs: dict[object, Ran], gpu: str) -> list[list[str]]:
    """Return a row for each way of following."""
    cost = made.arm(Strategy.ACHIEVABLE).cost
    if cost is None:
        return []
    rows = []
    for way in WAYS:
        times, energies, some = [], [], []
        for seed in SEEDS:
            one, auto = runs[gpu, budget, way.name, seed], runs[gpu, 0.0, "", seed]
            times.append(one.time_s / auto.time_s - 1.0)
            energies.append(one.energy_j / auto.energy_j - 1.0)
            some.append(one)
        saved = statistics.fmean(energies)
        share = saved / cost.energy_change if cost.energy_change else 1.0
        reached = share >= WANTED and statistics.fmean(times) <= budget + WITHIN
        rows.append(
            [
                f"`sim:{gpu}`",
                f"{budget:.0%}",
                way.name,
                percent(cost.energy_change),
                shown(energies),
                f"{share:.1%}",
                shown(times),
                f"{some[0].planned}, {statistics.fmean(each.done for each in some):.0f}",
                f"{1e3 * statistics.fmean(each.off_s for each in some):.1f} ms",
                "yes" if reached else "**no**",
            ]
        )
    return rows


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "following")
    parser.add_argument("--cells", type=int, default=len(CELLS), help="the first so many")
    parser.add_argument("--fresh", action="store_true", help="forget what was planned and run")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    kept = given.folder / "following.jsonl"
    if given.fresh:
        for old in (kept, *given.folder.glob("*.plan.json")):
            old.unlink(missing_ok=True)
    lines = kept.read_text().splitlines() if kept.exists() else ()
    runs: dict[object, Ran] = {
        one.key: one for one in (msgspec.json.decode(line, type=Ran) for line in lines)
    }
    rows = []
    for gpu, budget in CELLS[: given.cells]:
        with kept.open("ab") as file:
            for one in missing(gpu, budget, given.folder, set(runs)):
                runs[one.key] = one
                file.write(msgspec.json.encode(one) + b"\n")
                file.flush()
        more = cell_rows(planned(gpu, budget, given.folder), budget, runs, gpu)
        rows += more
        print(*(" | ".join(row) for row in more), sep="\n", flush=True)
    repeats = f"Means of {len(SEEDS)} seeds of {RUNS} runs of {STEPS} steps each."
    whole = given.cells >= _ENOUGH
    fill("following", {"table": markdown([HEADER, *rows])}, repeats=repeats, whole=whole)


if __name__ == "__main__":
    main()

"""Plans of jobs of eight simulated GPUs, and runs every plan on them. Writes docs/evidence/cluster.

OMP_NUM_THREADS=1 python studies/cluster.py
OMP_NUM_THREADS=1 python studies/cluster.py --quick    # 1F1B alone, 20 draws of boards, printed
OMP_NUM_THREADS=1 python studies/cluster.py --helped   # watts that a policy moves, alone
"""

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from job_costs import instruction_costs
from pages import fill, markdown, percent
from simulated_jobs.cluster import Board, Link, boards_of, piece_of
from simulated_jobs.job import Iteration, SimulatedJob
from simulated_jobs.policed import policed
from simulated_jobs.profiling import profiled_in, settled
from underclock.arrays import Floats
from underclock.campaign.turns import switching_model
from underclock.core.job.network import network_of
from underclock.core.job.planning import JobGoal, plan_job
from underclock.core.job.schedules import SCHEDULES, Layout, pipeline
from underclock.core.job.timeline import auto_clocks
from underclock.gpus.models import GpuModel, gpu_model
from underclock.hw.simulated.costs import Work
from underclock.hw.simulated.faults import Fault, FaultKind, FaultScript
from underclock.records import Cost, Evidence, GpuInfo, Strategy
from underclock.records.job import Job, JobPlan, Profile, ProfileRow, RankClocks, Waiting
from underclock.records.latencies import LatencyTable
from underclock.runtime.policy import watts as watts_
from underclock.runtime.policy.job import JobPolicy
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
AGREE = 6  # draws that are executed too
LEARNT, WATCHED, WITHIN_ITERATIONS = 50, 40, 20  # iterations until a plan is held; after a fault
SLOWER = (0.05, 0.10)
LIMIT_W = 450.0  # of each board of a node of eight that shares a budget


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
    shape = Layout(
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


def planned(job: Job, *, latency_s: float, budget: float = BUDGET, spread: float = 0.0) -> JobPlan:
    """Plan a job; of its frontier few points are wanted."""
    goal = JobGoal(max_slowdown=budget, latency_s=latency_s, board_spread=spread, points=3)
    return plan_job(job, goal)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One plan and what became of it."""

    schedule: str
    latency_s: float
    spread: float
    promise: Cost
    auto_cost: Cost
    auto: Ran
    ran: Ran

    @property
    def time_off(self) -> float:
        """Executed over planned, less one."""
        return self.ran.time_s / self.promise.time_s - 1.0

    @property
    def energy_off(self) -> float:
        """Executed over planned, less one."""
        return self.ran.whole_j / self.promise.energy_j - 1.0

    @property
    def auto_off(self) -> tuple[float, float]:
        """Auto executed over planned, less one: time and energy."""
        cost = self.auto_cost
        return self.auto.time_s / cost.time_s - 1.0, self.auto.whole_j / cost.energy_j - 1.0


def cells(schedule: str) -> Iterator[Cell]:
    """Plan and run every latency and spread; boards that differ are each measured."""
    for at, spread in enumerate(SPREADS):
        known = laid(schedule).measured(seed=at, spread=spread)
        for latency_s in LATENCIES_S:
            plan = planned(known.job, latency_s=latency_s)
            running = known.running(latency_s, known.boards(latency_s, seed=at, spread=spread))
            auto = ran(running, None)
            ours = ran(running, plan.clocks)
            auto_cost = plan.arm(Strategy.AUTO).cost or plan.promise
            yield Cell(schedule, latency_s, spread, plan.promise, auto_cost, auto, ours)


@dataclasses.dataclass(frozen=True)
class Draws:
    """A plan that allows for boards that differ, on boards that are drawn."""

    schedule: str
    latency_s: float
    promise: Cost
    auto_s: Floats
    time_s: Floats
    executed: Floats  # over what was evaluated: auto's time, the plan's, and energy over promised

    @property
    def kept(self) -> float:
        """Share of draws in which the budget holds."""
        return float(np.mean(self.time_s <= self.auto_s * (1.0 + BUDGET) * (1.0 + 1e-9)))


def draws(schedule: str, count: int) -> Iterator[Draws]:
    """Plan on one board's profiles, and look at boards that are drawn; some are run."""
    spread = SPREADS[1]
    known = laid(schedule).measured(seed=0)
    network = network_of(known.job)
    every = [each for rank in known.job.ranks for each in rank.instructions]
    runs = np.array([each.profile is not None for each in every])
    for latency_s in LATENCIES_S:
        plan = planned(known.job, latency_s=latency_s, spread=spread)
        some = [known.boards(latency_s, seed=1000 + d, spread=spread) for d in range(count)]
        slow = np.array([[board.slowness for board in boards] for boards in some])
        factors = np.where(runs, slow[:, network.rank], 1.0)
        auto_s, time_s = (
            network.iteration_s(instruction_costs(known.job, clocks, latency_s)[0] * factors)
            for clocks in (auto_clocks(known.job), plan.clocks)
        )
        executed = []
        for at, boards in enumerate(some[:AGREE]):
            running = known.running(latency_s, boards)
            auto, ours = ran(running, None), ran(running, plan.clocks)
            executed.append(
                (
                    auto.time_s / auto_s[at] - 1.0,
                    ours.time_s / time_s[at] - 1.0,
                    ours.whole_j / plan.promise.energy_j - 1.0,
                )
            )
        yield Draws(schedule, latency_s, plan.promise, auto_s, time_s, np.array(executed))


@dataclasses.dataclass(frozen=True)
class Straggled:
    """What a slower replica did to a job, and the job to it."""

    title: str
    healthy: Ran
    slowed: Ran  # before anybody does anything
    after: Ran
    ordered: int | None  # iterations until the others had another plan
    words: str
    made: Ran | None = None  # a plan made for that time, executed on boards that are well
    locks: int = 0  # clocks that are set after the end

    @property
    def others(self) -> slice:
        """Ranks of the first replica."""
        return slice(0, len(self.healthy.energy_j) // 2)

    def others_j(self, of: Ran) -> float:
        """Return what they took, against before anybody was slow."""
        return float(of.energy_j[self.others].sum() / self.healthy.energy_j[self.others].sum()) - 1


def straggled(
    known: Laid, plan: JobPlan, title: str, fault: Callable[[SimulatedJob], None]
) -> Straggled:
    """Run a plan under its policy until it is held, let something happen, and see."""
    latency_s = LATENCIES_S[1]
    running = known.running(latency_s, known.boards(latency_s, seed=0))
    policy = JobPolicy(plan, window=8)
    iterations = policed(running, policy)
    settled_at(running, iterations, LEARNT - LOOK)
    healthy = Ran.of(list(itertools.islice(iterations, LOOK)))
    before = policy.order.generation
    fault(running)
    seen, ordered = [], None
    for at, each in enumerate(itertools.islice(iterations, WATCHED), start=1):
        seen.append(each)
        if ordered is None and policy.order.generation != before:
            ordered = at
    running.end()
    return Straggled(
        title,
        healthy,
        Ran.of(seen[1 : 1 + LOOK]) if len(seen) > LOOK else Ran.of(seen),
        Ran.of(seen[-LOOK:]),
        ordered,
        policy.order.words if ordered else "",
        locks=sum(board.gpu.core_lock is not None for board in running.boards),
    )


def settled_at(running: SimulatedJob, iterations: Iterator[Iteration], count: int) -> None:
    """Let iterations pass, with boards as warm as each would make them in time."""
    for each in itertools.islice(iterations, count):
        for board, energy_j in zip(running.boards, each.energy_j, strict=True):
            board.settle_heat(energy_j / each.time_s)


def stragglers() -> Iterator[Straggled]:
    """Slow a replica, all of it or one of its boards, and let other things happen."""
    known = laid("1f1b", stages=RANKS // 2, data=2).measured(seed=0)
    latency_s, half = LATENCIES_S[1], RANKS // 2
    plan = plan_job(known.job, JobGoal(max_slowdown=BUDGET, latency_s=latency_s, points=100))
    auto_s = plan.promise.time_s / (1.0 + plan.promise.time_change)

    def weak(by: float, ranks: Sequence[int]) -> Callable[[SimulatedJob], None]:
        def slow(running: SimulatedJob) -> None:
            for rank in ranks:
                running.boards[rank].slowness *= 1.0 + by

        return slow

    def hot(running: SimulatedJob) -> None:
        gpu = running.boards[half].gpu
        running.boards[half].warm_air(30.0)
        FaultScript([Fault(at_s=gpu.now_s, kind=FaultKind.SOFT_SLOWDOWN)]).arm([gpu])

    def refused(running: SimulatedJob) -> None:
        gpu = running.boards[half].gpu
        kind = FaultKind.PERMISSION_REVOKED
        FaultScript([Fault(at_s=gpu.now_s, for_s=5.0, kind=kind)]).arm([gpu])

    for by in SLOWER:
        each = straggled(known, plan, f"replica {by:.0%} slower", weak(by, range(half, RANKS)))
        budget = each.slowed.time_s / auto_s - 1.0
        made = planned(known.job, latency_s=latency_s, budget=budget)
        boards = known.boards(latency_s, seed=0)
        yield dataclasses.replace(each, made=ran(known.running(latency_s, boards), made.clocks))
    for title, fault in (
        ("one board 10% slower", weak(0.10, [half + 1])),
        ("a hot board: 30 °C warmer air, three quarters of its clock", hot),
        ("a link five times as slow", lambda running: running.slow_link(half, half + 1, 5.0)),
        ("a board that refuses locks for 5 s", refused),
        ("a rank that dies", lambda running: running.kill(half, 0.3)),
    ):
        yield straggled(known, plan, title, fault)


@dataclasses.dataclass(frozen=True)
class Watts:
    """A node of eight boards that share a power budget, one of which is weak."""

    title: str
    ran: Ran
    limit_w: float  # of the weak board

    def power_w(self, ranks: Sequence[int]) -> float:
        """Return what some ranks drew."""
        return float(self.ran.energy_j[list(ranks)].sum()) / self.ran.time_s


_WEAK = RANKS // 2 + 1  # the board that is held down


def _limited(
    known: Laid, latency_s: float, by: float = 0.0, weak_w: float = LIMIT_W
) -> tuple[Board, ...]:
    """Return boards under the node's limit, of which one is slower or has another limit."""
    boards = known.boards(latency_s, seed=0)
    for at, board in enumerate(boards):
        board.gpu.limit_power(weak_w if at == _WEAK else LIMIT_W)
    boards[_WEAK].slowness *= 1.0 + by
    return boards


def _limited_job(latency_s: float) -> Laid:
    """Return two replicas whose profiles were measured under the node's limit."""
    bare = laid("1f1b", gpu="h200", stages=RANKS // 2, data=2)
    running = bare.running(latency_s, _limited(bare, latency_s))
    return dataclasses.replace(bare, job=profiled_in(running, bare.clocks_mhz()))


def watts() -> Iterator[Watts]:
    """Move what others save to a weak board that its power limit holds down."""
    latency_s = LATENCIES_S[1]
    known = _limited_job(latency_s)

    def running(by: float, weak_w: float) -> SimulatedJob:
        return known.running(latency_s, _limited(known, latency_s, by, weak_w))

    healthy = ran(running(0.0, LIMIT_W), None)
    yield Watts("all well, at auto", healthy, LIMIT_W)
    for by in SLOWER:
        limit_w = LIMIT_W
        each = ran(running(by, limit_w), None)
        yield Watts(f"{by:.0%} weaker, all at auto", each, limit_w)
        for turn in range(2):
            budget = max(each.time_s / healthy.time_s - 1.0, 0.0)
            plan = planned(known.job, latency_s=latency_s, budget=budget)
            clocks = list(plan.clocks)
            clocks[_WEAK] = auto_clocks(known.job)[_WEAK]
            each = ran(running(by, limit_w), tuple(clocks))
            words = "as slow" if not turn else f"as slow, again ({turn})"
            yield Watts(f"{by:.0%} weaker, others {words}", each, limit_w)
            others_w = each.energy_j.sum() / each.time_s - each.energy_j[_WEAK] / each.time_s
            limit_w = min(known.model.limit_w[2], RANKS * LIMIT_W - float(others_w))
            moved = ran(running(by, limit_w), tuple(clocks))
            yield Watts(f"{by:.0%} weaker, their watts moved to it", moved, limit_w)
            each = moved


@dataclasses.dataclass(frozen=True)
class Helped:
    """What became of a job whose one board is held down, with watts moved to it or without."""

    title: str
    well: Ran  # under the plan, before
    before: Ran  # before anybody does anything
    after: Ran
    limits_w: tuple[float, ...]  # in the end
    budget_w: float
    words: str

    def row(self) -> tuple[str, ...]:
        """Return what the table says of it."""
        least_w, weak_w = min(self.limits_w[: RANKS // 2]), self.limits_w[_WEAK]
        return (
            self.title,
            *(percent(each.time_s / self.well.time_s - 1.0) for each in (self.before, self.after)),
            *(
                percent(each.whole_j / self.well.whole_j - 1.0)
                for each in (self.before, self.after)
            ),
            f"{weak_w:.0f} W",
            f"{least_w:.0f} W",
            f"{sum(self.limits_w):.0f} of {self.budget_w:.0f} W",
        )


_HELD_W = 350.0  # that one board is limited to
_MOVED = 80  # iterations after something happened


def helped() -> Iterator[Helped]:
    """Let a live run's policy move watts to a board that its power limit holds down, or not."""
    latency_s = LATENCIES_S[1]
    known = _limited_job(latency_s)
    plan = plan_job(known.job, JobGoal(max_slowdown=BUDGET, latency_s=latency_s, points=100))

    def held(board: Board) -> None:
        board.gpu.limit_power(_HELD_W)

    def slower(board: Board) -> None:
        board.slowness *= 1.10

    for title, fault in (
        (f"one board limited to {_HELD_W:.0f} W", held),
        ("one board 10% slower", slower),
    ):
        for moves in (False, True):
            running = known.running(latency_s, _limited(known, latency_s))
            policy = JobPolicy(plan, window=8)
            settled_at(running, iterations := policed(running, policy), LEARNT - LOOK)
            well = Ran.of(list(itertools.islice(iterations, LOOK)))
            fault(running.boards[_WEAK])
            boards = [
                watts_.NodeGpu(
                    limit_w=board.gpu.limit_w,
                    range_w=known.model.limit_w[1:],
                    needs_w=watts_.needs_of(plan, policy.points, rank),
                )
                for rank, board in enumerate(running.boards)
            ]
            budget_w = sum(board.limit_w for board in boards)
            node = watts_.NodeWatts(boards, first=0, budget_w=budget_w, chosen=policy.chosen)
            node.ordered(policy.order.points, policy.order.slow)
            iterations = policed(running, policy, node if moves else None)
            seen = list(itertools.islice(iterations, LOOK))
            settled_at(running, iterations, _MOVED)
            after = Ran.of(list(itertools.islice(iterations, LOOK)))
            yield Helped(
                f"{title}, {'watts moved' if moves else 'no watts moved'}",
                well,
                Ran.of(seen),
                after,
                tuple(board.gpu.limit_w for board in running.boards),
                budget_w,
                policy.order.words,
            )
            running.end()


def helped_table(some: Sequence[Helped]) -> str:
    """Return what the policy's watts buy."""
    head = (
        "what happens under the plan",
        "time, before orders",
        "after",
        "energy, before orders",
        "after",
        "limit of that board",
        "least of the others",
        "limits of the node",
    )
    said = "\n".join(f"- {each.title}: {each.words}" for each in some)
    return f"{markdown([head, *(each.row() for each in some)])}\n\nThe last order:\n\n{said}"


def _pair(time: float, energy: float) -> str:
    return f"{percent(time)}, {percent(energy)}"


_SHOWN: Mapping[str, Callable[[Cell], str]] = {
    "Planned, time and energy against auto": lambda c: _pair(
        c.promise.time_change, c.promise.energy_change
    ),
    "Executed, time and energy against auto executed": lambda c: _pair(
        c.ran.time_s / c.auto.time_s - 1.0, c.ran.whole_j / c.auto.whole_j - 1.0
    ),
    "Executed over planned, time and energy": lambda c: _pair(c.time_off, c.energy_off),
}


def cell_tables(some: Sequence[Cell]) -> str:
    """Return executed against planned, a row for each schedule and spread."""
    heads = [f"{each * 1e3:g} ms" for each in LATENCIES_S]
    tables = []
    for title, words in _SHOWN.items():
        rows: list[list[str]] = [["schedule, spread of boards", *heads]]
        for key, of in itertools.groupby(some, lambda c: (c.schedule, c.spread)):
            rows.append([f"{key[0]}, {key[1]:.0%}", *(words(cell) for cell in of)])
        tables.append(f"{title}:\n\n{markdown(rows)}")
    return "\n\n".join(tables)


def draw_table(some: Sequence[Draws]) -> str:
    """Return what became of plans that allow for boards that differ."""
    head = (
        "schedule, latency",
        "planned",
        "budget kept",
        "mean time over promise",
        "executed over evaluated, greatest",
        "energy executed over promise, mean",
    )
    rows: list[Sequence[object]] = [head]
    rows += (
        (
            f"{each.schedule}, {each.latency_s * 1e3:g} ms",
            _pair(each.promise.time_change, each.promise.energy_change),
            f"{each.kept:.1%}",
            percent(float(each.time_s.mean()) / each.promise.time_s - 1.0),
            f"{np.abs(each.executed[:, :2]).max():.2%}",
            percent(float(each.executed[:, 2].mean())),
        )
        for each in some
    )
    return markdown(rows)


def straggler_table(some: Sequence[Straggled]) -> str:
    """Return what happened, and what came of it."""
    head = (
        "what happens to replica 1",
        "time, before",
        "iterations to another order",
        "time, after over before",
        "energy of replica 0, before",
        "after",
        "of a plan made for that time",
        "clocks left",
    )
    rows: list[Sequence[object]] = [head]
    for each in some:
        ended = each.made is not None or "dies" not in each.title
        rows.append(
            (
                each.title,
                percent(each.slowed.time_s / each.healthy.time_s - 1.0) if ended else "never ends",
                each.ordered or "none",
                percent(each.after.time_s / each.slowed.time_s - 1.0) if ended else "",
                percent(each.others_j(each.slowed)) if ended else "",
                percent(each.others_j(each.after)) if ended else "",
                percent(each.others_j(each.made)) if each.made else "",
                each.locks,
            )
        )
    said = "\n".join(f"- {each.title}: {each.words or 'no order'}" for each in some)
    return f"{markdown(rows)}\n\nWhat the policy said:\n\n{said}"


def watt_table(some: Sequence[Watts]) -> str:
    """Return what moving watts buys."""
    head = ("", "time", "energy", "node", "weak board", "its limit")
    rows: list[Sequence[object]] = [head]
    well = some[0].ran
    for each in some:
        drawn = [each.power_w(ranks) for ranks in (range(RANKS), [RANKS // 2 + 1])]
        change = (each.ran.time_s / well.time_s - 1.0, each.ran.whole_j / well.whole_j - 1.0)
        watts_ = [f"{w:.0f} W" for w in (*drawn, each.limit_w)]
        rows.append((each.title, *map(percent, change), *watts_))
    return markdown(rows)


def summary(
    of_cells: Sequence[Cell], of_draws: Sequence[Draws], of_stragglers: Sequence[Straggled]
) -> str:
    """Return figures against those wanted."""
    lines = []
    for name, within, off in (
        ("time", WITHIN_TIME, [each.time_off for each in of_cells]),
        ("energy", WITHIN_ENERGY, [each.energy_off for each in of_cells]),
    ):
        worst = max(range(len(off)), key=lambda at: abs(off[at]))
        cell = of_cells[worst]
        lines.append(
            f"- executed against planned, {name}: {sum(abs(o) <= within for o in off)} of "
            f"{len(off)} cells within {within:.1%}; worst {percent(off[worst])} of {cell.schedule} "
            f"at {cell.latency_s * 1e3:g} ms and {cell.spread:.0%}"
        )
    kept = min(of_draws, key=lambda each: each.kept)
    lines.append(
        f"- budget of {BUDGET:.0%} kept in at least {kept.kept:.1%} of {len(kept.time_s)} draws of "
        f"boards ({kept.schedule} at {kept.latency_s * 1e3:g} ms); wanted {SHARE:.0%}"
    )
    for each in of_stragglers:
        if each.made is None:
            continue
        lines.append(
            f"- {each.title}: the others' energy {percent(each.others_j(each.after))}, "
            f"{percent(each.others_j(each.made))} under a plan made for that time; ordered after "
            f"{each.ordered} iterations (wanted {WITHIN_ITERATIONS}); the job's time "
            f"{percent(each.after.time_s / each.slowed.time_s - 1.0)} "
            f"(wanted within {WITHIN_STRAGGLED:.1%})"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the study, or some of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help="1F1B alone, 20 draws, printed")
    parser.add_argument("--helped", action="store_true", help="only watts that a policy moves")
    options = parser.parse_args()
    if options.helped:
        fill("cluster", {"helped": helped_table(list(helped()))})
        return
    if options.quick:
        print(cell_tables(list(cells("1f1b"))), draw_table(list(draws("1f1b", 20))), sep="\n\n")
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        slow = pool.submit(_listed, stragglers)
        moved, by_policy = pool.submit(_listed, watts), pool.submit(_listed, helped)
        drawn = [pool.submit(_listed, draws, each, options.draws) for each in options.schedules]
        planned_ = [pool.submit(_listed, cells, each) for each in options.schedules]
        of_cells = [cell for some in planned_ for cell in some.result()]
        of_draws = [each for some in drawn for each in some.result()]
        of_stragglers, of_watts = slow.result(), moved.result()
    fill(
        "cluster",
        {
            "summary": summary(of_cells, of_draws, of_stragglers),
            "cells": cell_tables(of_cells),
            "draws": draw_table(of_draws),
            "stragglers": straggler_table(of_stragglers),
            "watts": watt_table(of_watts),
            "helped": helped_table(by_policy.result()),
        },
        repeats=f"Each run is {LOOK} iterations after {SETTLE} of settling, by one seed.",
        whole=len(options.schedules) == len(SCHEDULES),
    )


def _listed(function: Callable[..., Iterator[Any]], *args: object) -> list[Any]:
    return list(function(*args))


if __name__ == "__main__":
    main()

"""The plan of a job: ways of choosing clocks side by side, and the chosen one at every time.

A way with more freedom is never worse than one with less: what was found with less is a candidate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Ints
from underclock.core.job.hulls import checked_energy, rows_left_out, usable
from underclock.core.job.network import network_of
from underclock.core.job.relaxation import Relaxation
from underclock.core.job.sharing import shared
from underclock.core.job.tables import Choice, JobTable, table_of, total
from underclock.errors import UsageError
from underclock.records.choices import Arm, Cost, Status, Strategy
from underclock.records.job import Job, JobPlan, JobPoint, RankClocks
from underclock.units import as_fraction, format_percent

_PROVEN = 1e-6
_ROUNDING = 1e-9  # of a time


@dataclass(frozen=True, kw_only=True)
class JobGoal:
    """What a job's plan has to keep.

    Attributes:
        max_slowdown: Time budget of the iteration, as a fraction above auto; ``"1%"`` is read too.
        latency_s: What a change of clocks takes, at most.
        min_dwell_s: Least time between changes.
        board_spread: Standard deviation of boards' speed, as a fraction.
        confidence: With which the budget is to hold.
        points: Of the frontier that is stored.
    """

    max_slowdown: float = 0.0
    latency_s: float = 0.0
    min_dwell_s: float = 0.0
    board_spread: float = 0.0
    confidence: float = 0.95
    points: int = 20

    def __post_init__(self) -> None:
        """Read fractions given as text, and reject what means nothing.

        Raises:
            UsageError: One of them means nothing.
        """
        for name in ("max_slowdown", "board_spread", "confidence"):
            object.__setattr__(self, name, as_fraction(getattr(self, name), name))
        if not -1.0 < self.max_slowdown < 1.0:
            raise UsageError(
                f"max_slowdown must be above -1 and below 1, got {self.max_slowdown}",
                hint="write for example --max-slowdown 1%",
            )


def plan_job(job: Job, goal: JobGoal) -> JobPlan:
    """Choose clocks for every instruction of every rank.

    Args:
        job: To plan.
        goal: What to keep.

    Raises:
        DataError: Ranks wait in a circle, or energies are not known.
    """
    checked_energy(job)
    full = table_of(job, network_of(job))
    table, stands = shared(job, full)
    return _Planner(job, goal, full, (table, stands)).plan()


class _Planner:
    """One plan in the making: what has been found so far, and how to find more."""

    def __init__(
        self, job: Job, goal: JobGoal, full: JobTable, one_of_each: tuple[JobTable, Ints]
    ) -> None:
        self.job, self.goal, self.full = job, goal, full
        self.table, self.stands = table, _ = one_of_each
        keep = [usable(job.profiles[name]) for _, name in table.pairs]
        self.rows = np.zeros(table.time_s.shape, dtype=bool)
        for at, each in enumerate(keep):
            self.rows[at, : len(each)] = each
        self.auto = Choice.rows(np.where(table.pair >= 0, table.auto[table.pair], 0))
        self.auto_s, self.auto_j = total(table, self.auto)
        self.budget_s = self.auto_s * (1.0 + goal.max_slowdown)
        self.warnings = list(rows_left_out(job))

    def plan(self) -> JobPlan:
        """Return the plan."""
        found: dict[Strategy, Choice] = {Strategy.AUTO: self.auto}
        arms = [Arm.of(Strategy.AUTO, self.cost(self.auto), Status.BASELINE)]
        plain = self.rows & ~self.table.inside
        program = self.program(plain)
        [least] = program.solved([self.budget_s])
        bound_j = least.bound_j if least else None
        fixed = self.best(self.fixed(plain))
        mixed = self.best([*([fixed] if fixed else []), *([least.choice] if least else [])])
        for name, choice in ((Strategy.BEST_FIXED, fixed), (Strategy.INSTRUCTION, mixed)):
            if choice is None or bound_j is None:
                arms.append(Arm.of(name, None, Status.INFEASIBLE))
                continue
            cost = self.cost(choice)
            gap = max(0.0, 1.0 - bound_j / cost.energy_j)
            status = Status.OPTIMAL if gap <= _PROVEN else Status.BOUNDED
            arms.append(Arm.of(name, cost, status, gap))
            found[name] = choice
        if Strategy.INSTRUCTION not in found:
            change = self.program(plain).range_s[0] / self.auto_s - 1.0
            self.warnings.append(
                f"no clocks meet {format_percent(self.goal.max_slowdown)} time: the least is "
                f"{format_percent(change)}, so nothing is set"
            )
        chosen = Strategy.INSTRUCTION if Strategy.INSTRUCTION in found else Strategy.AUTO
        points = self.frontier(program, found[chosen])
        return JobPlan(
            evidence=self.job.evidence,
            job=self.job,
            max_slowdown=self.goal.max_slowdown,
            confidence=self.goal.confidence,
            latency_s=self.goal.latency_s,
            board_spread=self.goal.board_spread,
            chosen=chosen,
            arms=tuple(arms),
            clocks=self.clocks(found[chosen]),
            frontier=points,
            warnings=(*self.job.warnings, *self.warnings),
        )

    def program(self, rows: Bools) -> Relaxation:
        """Return the linear program with what waiting draws at least."""
        wait_w = np.array(
            [
                min(
                    (
                        float(self.table.wait_w[at][rows[at]].min())
                        for at, (of, _) in enumerate(self.table.pairs)
                        if of == rank
                    ),
                    default=self.table.auto_wait_w[rank],
                )
                for rank in range(len(self.table.rank_weight))
            ]
        )
        return Relaxation.of(self.table, rows, wait_w)

    def fixed(self, rows: Bools) -> list[Choice]:
        """Return choices of one clock for all ranks."""
        table, choices = self.table, [self.auto]
        for clocks in np.unique(table.first[rows & (table.first > 0)]):
            row = table.at_clocks[:, clocks]
            at = np.arange(len(row))
            if (table.first[at, row] == clocks).all():
                choices.append(Choice.rows(np.where(table.pair >= 0, row[table.pair], 0)))
        return choices

    def best(self, choices: Sequence[Choice]) -> Choice | None:
        """Return the choice of least energy that keeps the budget."""
        costs = [(self.cost(choice), choice) for choice in choices]
        kept = [each for each in costs if each[0].time_s <= self.budget_s * (1.0 + _ROUNDING)]
        return min(kept, key=lambda each: each[0].energy_j)[1] if kept else None

    def cost(self, choice: Choice) -> Cost:
        """Return what a choice costs, against auto."""
        time_s, energy_j = total(self.table, choice, self.goal.latency_s)
        return Cost(
            time_s=time_s,
            energy_j=energy_j,
            time_change=time_s / self.auto_s - 1.0,
            energy_change=energy_j / self.auto_j - 1.0,
        )

    def clocks(self, choice: Choice) -> tuple[RankClocks, ...]:
        """Return a choice as clocks of all ranks of the job."""
        return choice.spread(self.stands).clocks(self.full)

    def frontier(self, program: Relaxation, chosen: Choice) -> tuple[JobPoint, ...]:
        """Return plans from the fastest to the one of least energy, the chosen one among them."""
        least_s, most_s = program.range_s
        part = np.linspace(0.0, 1.0, self.goal.points) ** 2
        times_s = least_s + part * (most_s - least_s)
        answers = [each for each in program.solved(times_s.tolist()) if each]
        points = [self.point(each.choice, each.bound_j) for each in answers]
        at_s = self.cost(chosen).time_s
        [answer] = program.solved([max(at_s, least_s)])
        ours = self.point(chosen, answer.bound_j if answer else None)
        return cleaned(points, ours)

    def point(self, choice: Choice, bound_j: float | None) -> JobPoint:
        """Return a choice as a point of the frontier."""
        cost = self.cost(choice)
        gap = None if bound_j is None else max(0.0, 1.0 - bound_j / cost.energy_j)
        return JobPoint(cost=cost, gap=gap, clocks=self.clocks(choice))


def cleaned(points: Sequence[JobPoint], chosen: JobPoint) -> tuple[JobPoint, ...]:
    """Return the points that no other beats, fastest first, and the chosen one."""
    kept: list[JobPoint] = []
    for point in sorted((*points, chosen), key=lambda each: each.cost.time_s):
        if point is chosen or not kept or point.cost.energy_j < kept[-1].cost.energy_j:
            kept.append(point)
    return tuple(kept)

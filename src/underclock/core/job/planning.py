"""The plan of a job: ways of choosing clocks side by side, and the chosen one at every time.

A way with more freedom is never worse than one with less: what was found with less is a candidate,
as is what was found for less time, or for clocks that change later.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from underclock.arrays import Bools, Ints
from underclock.core.job.clock_choices import ENOUGH, Found, Ways
from underclock.core.job.monte_carlo import Scatter, reserved, scatters
from underclock.core.job.tables import JobTable, RowChoice, shared, table_of
from underclock.core.planning.best_choice import DEFAULT_SLOWDOWN
from underclock.core.planning.latency_constrained import LATENCIES_S
from underclock.errors import DataError, UsageError
from underclock.records.choices import Arm, Status, Strategy
from underclock.records.job import (
    COMPUTES,
    InstructionKind,
    Job,
    JobPlan,
    JobPoint,
    Profile,
    Rank,
    RankClocks,
)
from underclock.records.outcomes import TOLERANCE
from underclock.units import as_fraction, format_percent

_PROVEN = 1e-6
_FEWEST, _MOST_STORED = 5, 100_000  # points of a frontier, and instructions of all of them
_ROUNDING = 1e-9  # of a time
_DEVIATIONS = (0.0, 0.7, 1.4, 2.1, 2.8)  # of what is off, for which room is left
_AIMS = 3  # of each
_NEAR = 3e-4  # of auto's time: so much below the budget is near enough
_CLOSER = 1e-6  # of a time
_SHARED = (Strategy.BEST_FIXED, Strategy.RANK, Strategy.DIRECTION)  # ways that share clocks
_PART = 0.5  # of an iteration: who changes clocks more slowly changes none


@dataclass(frozen=True, kw_only=True)
class JobGoal:
    """What a job's plan has to keep."""

    # time budget of the iteration, as a fraction above auto; ``"1%"`` is read too
    max_slowdown: float = DEFAULT_SLOWDOWN
    latency_s: float = 0.0  # what a change of clocks takes, at most
    min_dwell_s: float = 0.0  # least time between changes
    board_spread: float = 0.0  # standard deviation of boards' speed, as a fraction
    confidence: float = 0.95  # with which the budget is to hold
    points: int = 20  # of the frontier that is stored, at most: fewer of thousands of instructions

    def __post_init__(self) -> None:
        """Read fractions given as text, and reject what means nothing.

        Raises:
            UsageError: One of them means nothing.
        """
        for name in ("max_slowdown", "board_spread", "confidence"):
            object.__setattr__(self, name, as_fraction(getattr(self, name), name))
        for name, least, most, example in (
            ("max_slowdown", -0.999, 0.999, "--max-slowdown 1%"),
            ("board_spread", 0.0, 0.3, "board_spread=0.03"),
            ("confidence", 0.5, 0.999, "--confidence 95%"),
            ("latency_s", 0.0, 1e6, "--latency 6ms"),
            ("min_dwell_s", 0.0, 1e6, "min_dwell_s=0.05"),
            ("points", 2, 1000, "20 points"),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and least <= value <= most):
                raise UsageError(
                    f"{name} must be from {least:g} to {most:g}, got {value}",
                    hint=f"write for example {example}",
                )


def plan_job(job: Job, goal: JobGoal) -> JobPlan:
    """Choose clocks for every instruction of every rank.

    Raises:
        DataError: Ranks wait in a circle, or energies are not known.
    """
    every = (each.profile for rank in job.ranks for each in rank.instructions)
    used = {name for name in every if name is not None}
    if not used:
        raise DataError(
            "no instruction of this job has a profile, so no clocks can be chosen",
            hint="say what instructions cost at several clocks: --profile profile.csv",
        )
    for name in sorted(used):
        if not job.profiles[name].has_energy:
            raise DataError(
                f"profile {name!r} says what takes how long, and not what it takes of energy",
                hint="give a profile with energy per clock (stage,instruction,frequency,time,"
                "energy), or samples of one stage",
            )
    # Equal ranks are looked at once.
    full = table_of(job)
    table, stands = shared(job, full)
    kinds = np.array([kind for rank in job.ranks for kind in _directions(rank)])
    ways = Ways(
        table=table,
        kinds=tuple(kinds[np.unique(stands, return_index=True)[1]].tolist()),
        latency_s=goal.latency_s,
        dwell_s=goal.min_dwell_s,
    )
    rows = np.zeros(table.time_s.shape, dtype=bool)
    for at, (_, name) in enumerate(table.pairs):
        kept = usable(job.profiles[name])
        rows[at, : len(kept)] = kept
    certain = not scatters(table, goal.board_spread)
    scatter = Scatter(
        table=table if certain else full,
        stands=np.arange(len(table.pair)) if certain else stands,
        auto=ways.auto,
        board_spread=goal.board_spread,
        latency_s=goal.latency_s,
    )
    return _Planner(job, goal, full, stands, rows, ways, scatter).plan()


@dataclass(frozen=True)
class _Planner:
    """One plan in the making."""

    job: Job
    goal: JobGoal
    full: JobTable  # the job as numbers
    stands: Ints  # which planned instruction stands for each of the job, (n,)
    rows: Bools  # that may be used, (P, R)
    ways: Ways
    scatter: Scatter

    @property
    def budget_s(self) -> float:
        """What an iteration may take where nothing scatters."""
        return self.ways.cost(self.ways.auto)[0] * (1.0 + self.goal.max_slowdown)

    def plan(self) -> JobPlan:
        """Return the plan."""
        found, points = self.compare()
        arms = [self.scatter.arm(Strategy.AUTO, self.ways.auto, Status.BASELINE, None)]
        for name in (*_SHARED, *self.free):
            best = found.get(name)
            if best is None:
                arms.append(Arm(name, None, Status.INFEASIBLE))
                continue
            gap = self.gap(best)
            status = Status.OPTIMAL if gap is not None and gap <= _PROVEN else Status.BOUNDED
            arms.append(self.scatter.arm(name, best.choice, status, gap))
        finest = list(self.free)[-1]
        chosen = finest if finest in found else Strategy.AUTO
        ours = found.get(chosen, Found(choice=self.ways.auto, bound_j=None))
        warnings = [*self.job.warnings]
        beaten: dict[tuple[int, int], list[str]] = {}
        for of_what, profile in self.job.profiles.items():
            if out := int((~usable(profile)).sum()):
                beaten.setdefault((out, len(profile.rows)), []).append(of_what)
        warnings += [
            f"{out} of {count} rows left out of {', '.join(of)}: a lower clock is as fast there, "
            "and takes no more"
            for (out, count), of in beaten.items()
        ]
        if chosen is Strategy.AUTO:
            auto_s = self.budget_s / (1.0 + self.goal.max_slowdown)
            fastest = self.ways.range_s(self.free[finest])[0] / auto_s
            warnings.append(
                f"no clocks meet {format_percent(self.goal.max_slowdown)} time: the least is "
                f"{format_percent(fastest - 1.0)}, so nothing is set"
            )
        return JobPlan(
            evidence=self.job.evidence,
            job=self.job,
            max_slowdown=self.goal.max_slowdown,
            confidence=self.goal.confidence,
            latency_s=self.goal.latency_s,
            board_spread=self.goal.board_spread,
            chosen=chosen,
            arms=tuple(arms),
            clocks=self.clocks(ours.choice),
            frontier=self.stored(points, ours),
            warnings=tuple(warnings),
        )

    @cached_property
    def free(self) -> dict[Strategy, Bools]:
        """Rows that each way may use which chooses for every instruction, the finest way last."""
        plain = {Strategy.INSTRUCTION: self.rows & ~self.ways.table.inside}
        return plain | ({Strategy.KERNEL: self.rows} if self.ways.table.inside.any() else {})

    def compare(self) -> tuple[dict[Strategy, Found], list[Found]]:
        """Return the clocks of every way that has some, bounded, and the frontier's."""
        finest, aims = list(self.free)[-1], {n: self.aimed(rows) for n, rows in self.free.items()}
        # Clocks from the fastest to those of least energy.
        ways, aim_s = aims[finest]
        least_s, most_s = ways.range_s(self.free[finest])
        most = max(_FEWEST, _MOST_STORED // len(self.full.pair))
        part = np.linspace(0.0, 1.0, min(self.goal.points, most)) ** 2
        times_s = (least_s + part * (most_s - least_s)).tolist()
        points = [each for each in ways.free(self.free[finest], times_s, aim_s) if each]
        own: dict[Strategy, Found | None] = {}
        for name, (ways, aim_s) in aims.items():
            [own[name]] = ways.free(self.free[name], [aim_s], aim_s)
        slower = self.slower(own[finest])
        ways, aim_s = aims[Strategy.INSTRUCTION]
        found: dict[Strategy, Found] = {}
        for name in (*_SHARED, *self.free):
            candidates = [*(each.choice for each in found.values()), ways.auto]
            if name is Strategy.BEST_FIXED:
                candidates += ways.fixed()
            elif name in own:
                candidates += [each.choice for each in (own[name],) if each]
            else:
                candidates += [each for each in (ways.grouped(name, aim_s),) if each]
            candidates += [each.choice for each in points if name is finest]
            candidates += [slower[name].choice] if name in slower else []
            best, least = self.best(candidates), own.get(name, own[Strategy.INSTRUCTION])
            if best is not None:
                found[name] = Found(choice=best, bound_j=least.bound_j if least else None)
        return found, points

    def slower(self, own: Found | None) -> Mapping[Strategy, Found]:
        """Return what each way finds where changes take longer, for that keeps these rules too."""
        # Nothing where what was found is proven to be near enough to the least.
        gap = self.gap(own) if own else None
        if self.scatter.certain and (gap is None or gap <= ENOUGH):
            return {}
        latency_s, most_s = self.goal.latency_s, _PART * self.budget_s
        longer_s = [each_s for each_s in LATENCIES_S if latency_s < each_s < most_s]
        if not longer_s:
            return {}
        goal = replace(self.goal, latency_s=longer_s[0])
        ways = replace(self.ways, latency_s=longer_s[0])
        scatter = replace(self.scatter, latency_s=longer_s[0], _known={})
        return replace(self, goal=goal, ways=ways, scatter=scatter).compare()[0]

    def aimed(self, rows: Bools) -> tuple[Ways, float]:
        """Return what finds clocks that keep the budget in the draws, and the time to aim at."""
        # Room is left after each instruction, for what it may be off by, where auto has some; for
        # what then still overruns the budget the aim is lower, down to auto's time, and for what
        # then stays well below it higher again.
        if self.scatter.certain:
            return self.ways, self.budget_s
        slower = 1.0 + self.goal.max_slowdown
        least_s = min(self.budget_s, self.budget_s / slower)
        known, error_s = np.isfinite(self.ways.table.time_s), self.ways.table.time_error_s
        error = float((error_s[known] / self.ways.table.time_s[known]).mean())
        off = math.hypot(self.goal.board_spread, error) * math.sqrt(2.0)
        tried: list[tuple[float, Ways, float]] = []
        for deviations in _DEVIATIONS:
            table = reserved(self.ways.table, self.ways.auto, deviations * off, slower)
            ways, aim_s = replace(self.ways, table=table), self.budget_s
            for _ in range(_AIMS):
                [found] = ways.free(rows, [aim_s], aim_s)
                over = math.inf if found is None else self.over(found.choice)
                kept = found is not None and over <= 0.0
                energy_j = self.scatter.cost(found.choice).energy_j if found and kept else math.inf
                tried.append((energy_j, ways, aim_s))
                if found is None or -_NEAR <= over <= 0.0:
                    break
                next_s = aim_s * (1.0 - over - _CLOSER)
                aim_s = min(max(next_s, least_s), self.budget_s)
                if aim_s == tried[-1][2]:
                    break
        _, ways, aim_s = min(tried[::-1], key=lambda each: each[0])
        return ways, aim_s

    def over(self, choice: RowChoice) -> float:
        """Return by how much of auto's time a choice overruns the budget, with confidence."""
        # Where times have errors, the budget is kept to within the resolution of those errors.
        budget = self.goal.max_slowdown
        if not self.scatter.certain and not self.goal.board_spread:
            budget += TOLERANCE
        return self.scatter.over(choice, budget, self.goal.confidence)

    def best(self, choices: Iterable[RowChoice]) -> RowChoice | None:
        """Return the choice of least energy that keeps the budget; ``None`` where none does."""
        most_s = self.budget_s * (1.0 + _ROUNDING)
        soon = [each for each in choices if self.ways.cost(each)[0] <= most_s]
        ranked = sorted(soon, key=lambda each: self.scatter.cost(each).energy_j)
        return next((each for each in ranked if self.over(each) <= 0.0), None)

    def gap(self, of: Found) -> float | None:
        """Return how far a choice may be from the least, as a fraction, where nothing scatters."""
        energy_j = self.ways.cost(of.choice)[1]
        return None if of.bound_j is None else max(0.0, 1.0 - of.bound_j / energy_j)

    def stored(self, points: Sequence[Found], ours: Found) -> tuple[JobPoint, ...]:
        """Return the points that no other beats, fastest first, and the chosen one."""
        kept: list[JobPoint] = []
        for each in sorted((*points, ours), key=lambda each: self.scatter.cost(each.choice).time_s):
            cost = self.scatter.cost(each.choice)
            if each is ours or not kept or cost.energy_j < kept[-1].cost.energy_j:
                gap = self.gap(each)
                kept.append(JobPoint(cost=cost, gap=gap, clocks=self.clocks(each.choice)))
        return tuple(kept)

    def clocks(self, choice: RowChoice) -> tuple[RankClocks, ...]:
        """Return a choice as clocks of all ranks of the job."""
        return choice.spread(self.stands).clocks(self.full)


def _directions(rank: Rank) -> Iterator[InstructionKind]:
    """Yield what each instruction does; the rest of a pass is of the pass's direction."""
    pass_ = InstructionKind.OTHER
    for each in rank.instructions:
        if each.kind is InstructionKind.REST:
            yield pass_
            continue
        pass_ = each.kind if each.kind in COMPUTES else pass_
        yield each.kind


def usable(profile: Profile) -> Bools:
    """Return which rows of a profile may be planned with. Shape (R,).

    A row is left out where a lower core clock is as fast and takes no more: its clock was asked for
    and not reached, or it goes backwards. Rows that change clocks inside have no one clock, and
    stay. So does auto.
    """
    rows = profile.rows
    core_mhz = np.array([row.core_mhz or np.inf for row in rows])
    time_s = np.array([row.time_s for row in rows])
    energy_j = np.array([row.energy_j for row in rows])
    inside = np.array([bool(row.inside) for row in rows])
    beaten = (time_s[None] <= time_s[:, None]) & (energy_j[None] <= energy_j[:, None])
    beaten &= (core_mhz[None] < core_mhz[:, None]) & ~inside[None]
    kept: Bools = ~beaten.any(axis=1) | inside
    kept[profile.auto] = True
    return kept

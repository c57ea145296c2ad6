"""The strategies of a plan, side by side: auto, one fixed clock, per pass, per kernel.

Every strategy solves the same problem on other groups (`groups`) with the same objective, so their
figures can be compared line by line.

Shape letters: K kernels, G groups, S settings.
"""

import dataclasses
import math
from dataclasses import dataclass

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.costs.beside import run_beside
from underclock.core.costs.groups import Grouped, grouped
from underclock.core.costs.step import against_auto, step_cost
from underclock.core.costs.table import CostTable
from underclock.core.knapsack import Exact, Problem, Solution
from underclock.core.knapsack.frontier import least_product, subsampled, supported
from underclock.core.knapsack.problem import INFEASIBLE, solution_of
from underclock.core.model.predicted_change import TWO_SIDED, PredictedChange
from underclock.core.planning.aim import Aim
from underclock.core.planning.chance_constraint import (
    Candidate,
    Choose,
    RiskModel,
    within_confidence,
)
from underclock.core.planning.fastest import fastest, fastest_alone
from underclock.core.planning.goal import Goal
from underclock.core.planning.under_cap import (
    Proof,
    as_it_runs,
    cheapest_within,
    is_held,
    proof_of_held,
)
from underclock.records import (
    TOLERANCE,
    Aggregate,
    Arm,
    Choice,
    Clocks,
    Cost,
    Granularity,
    Objective,
    Status,
    Strategy,
)

# Of expected costs a proof to the last joule proves nothing: past so many labels, a gap is stated.
_LABELS, _FEW_LABELS = 200_000, 20_000
_FRONTIER_POINTS = 200
_ROUNDING = 1e-12  # relative; a kernel may take exactly its auto time
TIME_POWER = {Objective.EDP: 1, Objective.ED2P: 2}
"""How often time counts in the objectives that are products with energy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedStrategies:
    """Every strategy, costed.

    Attributes:
        arms: In order of freedom.
        settings: Setting per kernel of each feasible strategy. Shapes (K,).
    """

    arms: tuple[Arm, ...]
    settings: dict[Strategy, Ints]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStrategies(SolvedStrategies):
    """Every strategy, and what other budgets would bring.

    Attributes:
        fastest_change: Least time change any choice of the goal's strategy can reach.
        frontier: Of the goal's granularity.
    """

    fastest_change: float
    frontier: tuple[Cost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What one strategy solves: who shares clocks, who keeps the budget, what is minimised.

    Attributes:
        groups: Who shares clocks.
        aggregate: Who keeps the budget.
        goal: What is minimised.
        max_slowdown: Its budget, or an aim below it.
        priced_s: What each setting of a group takes of that beside its time. Shape (G, S).
    """

    groups: Grouped
    aggregate: Aggregate
    goal: Goal
    max_slowdown: float
    priced_s: Floats | None = None

    @property
    def is_settled(self) -> bool:
        """Whether costs are already what the cap makes of them: those of one clock for all."""
        return self.goal.granularity is Granularity.STEP

    @property
    def problem(self) -> Problem:
        """The groups' costs, without a time budget."""
        time_s = self.groups.time_s
        if self.priced_s is not None:
            time_s = time_s + self.priced_s
        return Problem(time_s=time_s, energy_j=self.groups.energy_j)

    def aimed(self, table: CostTable, aim: Aim) -> "_Task":
        """Return the same task with an aim for a budget."""
        priced_s = None
        if aim.prices is not None:
            priced_s = table.auto_time_s * self.groups.added(aim.prices)
        return dataclasses.replace(self, max_slowdown=aim.slowdown, priced_s=priced_s)


def compare_strategies(
    table: CostTable, goal: Goal, risk: RiskModel | None = None
) -> ComparedStrategies:
    """Choose clocks by each of the strategies, and look at other budgets.

    Args:
        table: What every kernel costs.
        goal: What to minimise.
        risk: As of `solve_strategies`.
    """
    solved = solve_strategies(table, goal, risk)
    groups = grouped(table, goal.granularity)
    frontier = _frontier(table, groups)
    # Under a cap the frontier begins with the fastest choice that the cap leaves alone.
    held = table.power_cap is not None and goal.aggregate is Aggregate.GLOBAL
    return ComparedStrategies(
        arms=solved.arms,
        settings=solved.settings,
        fastest_change=frontier[0].time_change
        if held
        else _fastest_change(table, groups, goal.aggregate),
        frontier=frontier,
    )


def one_clock_only(compared: ComparedStrategies) -> ComparedStrategies:
    """Leave the strategies away that give parts of a step clocks of their own."""
    kept = (Strategy.AUTO, Strategy.BEST_FIXED)
    return dataclasses.replace(
        compared,
        arms=tuple(arm for arm in compared.arms if arm.name in kept),
        settings={name: each for name, each in compared.settings.items() if name in kept},
    )


def solve_strategies(
    table: CostTable, goal: Goal, risk: RiskModel | None = None
) -> SolvedStrategies:
    """Choose clocks by each of the strategies.

    Args:
        table: What every kernel costs.
        goal: What to minimise.
        risk: How sure costs are. With it every strategy keeps the time budget with 95 % confidence
            and says its intervals; ``None`` takes costs as certain.
    """
    freedom = {
        Strategy.BEST_FIXED: (Granularity.STEP, Aggregate.GLOBAL),
        Strategy.PASS: (Granularity.PASS, goal.aggregate),
        Strategy.KERNEL_LOCAL: (Granularity.KERNEL, Aggregate.LOCAL),
        Strategy.KERNEL_GLOBAL: (Granularity.KERNEL, Aggregate.GLOBAL),
    }
    auto = np.full(len(table.kernels), table.baseline)
    arms = [Arm.of(Strategy.AUTO, _cost(table, auto), Status.BASELINE)]
    settings = {Strategy.AUTO: auto}
    for strategy, (granularity, aggregate) in freedom.items():
        task = _Task(
            groups=grouped(table, granularity),
            aggregate=aggregate,
            goal=dataclasses.replace(goal, granularity=granularity),
            max_slowdown=goal.max_slowdown,
        )
        candidate = _choose(table, task, risk)
        if candidate is None:
            arms.append(Arm.of(strategy, None, Status.INFEASIBLE))
            continue
        setting, proof = as_neighbours(table, candidate.setting), candidate.proof
        settings[strategy] = setting
        arm = Arm.of(strategy, _cost(table, setting), proof.status, proof.gap)
        arms.append(arm if risk is None else with_intervals(arm, risk.predicted_change(setting)))
    return SolvedStrategies(arms=tuple(arms), settings=settings)


def choose_kernels(table: CostTable, goal: Goal, risk: RiskModel) -> Ints | None:
    """Return the setting of each kernel under a budget they keep together; nearly the best."""
    groups = grouped(table, Granularity.KERNEL)
    task = _Task(
        groups=groups, aggregate=Aggregate.GLOBAL, goal=goal, max_slowdown=goal.max_slowdown
    )
    candidate = _choose(table, task, risk, Exact(max_labels=_FEW_LABELS))
    return None if candidate is None else candidate.setting


def as_neighbours(table: CostTable, setting: Ints) -> Ints:
    """Return a choice in which what runs beside others has the clocks of what it runs beside.

    A kernel has one setting, and its launches may have several neighbours: most of their time
    decides. Where the order is not known, all of the step does.

    Args:
        table: What every kernel costs.
        setting: Of each kernel. Shape (K,).
    """
    beside = run_beside(table.kernels)
    if not beside.any():
        return setting
    near_s = np.zeros((len(setting), len(setting)))  # of neighbours, column by column
    if table.power_cap is None:
        near_s[:] = table.time_s[:, table.baseline]
    else:
        order = table.power_cap.order
        at_auto_s = table.launches.time_s[:, table.baseline]
        others = np.flatnonzero(~beside[order])
        for launch in np.flatnonzero(beside[order]).tolist():
            # The launch before it, round the end of the step; the first has the last before it.
            neighbour = order[others[np.searchsorted(others, launch) - 1]]
            near_s[order[launch], neighbour] += at_auto_s[neighbour]
    found: Ints = setting.copy()
    for k in np.flatnonzero(beside).tolist():
        found[k] = np.bincount(setting[~beside], weights=near_s[k, ~beside]).argmax()
    return found


def with_intervals(arm: Arm, change: PredictedChange) -> Arm:
    """Return an arm with the 95 % intervals of its changes."""
    return msgspec.structs.replace(
        arm,
        time_interval=_interval(change.time_change, change.time_spread),
        energy_interval=_interval(change.energy_change, change.energy_spread),
    )


def _interval(mean: float, spread: float) -> tuple[float, float]:
    return mean - TWO_SIDED * spread, mean + TWO_SIDED * spread


def choices(table: CostTable, setting: Ints) -> dict[str, Choice]:
    """Return the clocks of every kernel and what they do to it."""
    by_kernel = {}
    for k, (kernel, s) in enumerate(zip(table.kernels, setting.tolist(), strict=True)):
        clocks = table.settings[s]
        auto_s = float(table.time_s[k, table.baseline])
        auto_j = float(table.energy_j[k, table.baseline])
        by_kernel[kernel.name] = Choice(
            core_mhz=clocks.core_mhz,
            mem_mhz=clocks.mem_mhz,
            # What runs beside others is not changed by clocks that are theirs.
            time_change=0.0 if kernel.runs_beside else float(table.time_s[k, s] / auto_s) - 1.0,
            energy_change=0.0 if kernel.runs_beside else float(table.energy_j[k, s] / auto_j) - 1.0,
            auto_time_s=auto_s,
            auto_energy_j=auto_j,
        )
    return by_kernel


def cost_of(table: CostTable, wanted: dict[str, Clocks]) -> Cost:
    """Cost given clocks on a table.

    Args:
        table: What every kernel costs.
        wanted: Clocks of every kernel of the table.

    Raises:
        KeyError: A kernel without clocks, or clocks at which it was not measured. The argument is
            the kernel's name.
    """
    columns = []
    for k, kernel in enumerate(table.kernels):
        column = table.column(wanted[kernel.name])
        if column is None or not math.isfinite(table.time_s[k, column]):
            raise KeyError(kernel.name)
        columns.append(column)
    return _cost(table, np.array(columns))


def _choose(
    table: CostTable,
    task: _Task,
    risk: RiskModel | None,
    exact: Exact = Exact(max_labels=_LABELS),  # noqa: B008 - frozen
) -> Candidate | None:
    """Return the best choice; ``None`` where nothing keeps the time budget.

    Only the waste objective has a time budget, so for the others risk plays no part.
    """
    goal = task.goal
    if goal.objective is Objective.TIME:
        return _fastest(table, task, exact if risk is not None else Exact())
    if goal.objective is not Objective.WASTE:
        return _free(table, task, Exact())
    solver = Exact() if risk is None else exact
    seen: list[Candidate] = []

    def within(aim: Aim) -> Candidate | None:
        candidate = _free(table, task.aimed(table, aim), solver)
        seen.extend([] if candidate is None else [candidate])
        return candidate

    def below(aim: Aim) -> Candidate | None:
        return _below(table, task, solver, aim)

    def best(choose: Choose) -> Candidate | None:
        if risk is not None:
            together = task.aggregate is Aggregate.GLOBAL
            return within_confidence(
                goal.max_slowdown, choose, risk, tolerance_of(table), priced=together
            )
        return choose(Aim(slowdown=goal.max_slowdown))

    candidate = best(within)
    if task.aggregate is Aggregate.GLOBAL and any(_is_held(table, task, each) for each in seen):
        candidate = _better(table, candidate, best(below), goal.max_slowdown, risk)
    if candidate is not None and _is_held(table, task, candidate):
        asked = as_it_runs(table, task.groups, candidate.setting)
        candidate = dataclasses.replace(candidate, setting=asked)
    # Auto is as fast as auto, whatever else is unsure.
    if goal.max_slowdown >= 0 and (candidate is None or _costs_more(table, candidate, risk)):
        return _auto(table, task)
    return candidate


def tolerance_of(table: CostTable) -> float:
    """Return to what a time budget is kept: a step's to what it can be told, others exactly."""
    return 0.0 if table.power_cap is None else TOLERANCE


def _costs_more(table: CostTable, candidate: Candidate, risk: RiskModel | None) -> bool:
    """Whether a choice is expected to take more energy than auto."""
    if risk is None:
        return _cost(table, candidate.setting).energy_change > _ROUNDING
    return risk.predicted_change(candidate.setting).energy_change > 0.0


def _is_held(table: CostTable, task: _Task, candidate: Candidate) -> bool:
    cap = table.power_cap
    if cap is None or task.is_settled:
        return False
    return is_held(table, candidate.setting[cap.order])


def _better(
    table: CostTable,
    free: Candidate | None,
    below: Candidate | None,
    max_slowdown: float,
    risk: RiskModel | None,
) -> Candidate | None:
    """Return the better of a choice made without a cap and one made below it, as they settle."""
    if risk is None and free is not None:
        # Nobody looked at how it settles.
        late = _cost(table, free.setting).time_change > max_slowdown + _ROUNDING
        free = None if late else free
    kept = [each for each in (free, below) if each is not None]
    return min(kept, key=lambda each: _cost(table, each.setting).energy_j, default=None)


def _fastest(table: CostTable, task: _Task, exact: Exact) -> Candidate | None:
    """Return the choice of least time under the power cap; auto where it gains nothing."""
    if task.is_settled:
        choice = solution_of(task.problem, task.groups.time_s.argmin(axis=1))
        return Candidate(setting=task.groups.spread(choice.choice), proof=_proof(choice))
    alone = task.aggregate is Aggregate.LOCAL
    fast = fastest_alone(table, task.groups) if alone else fastest(table, task.groups, exact)
    if fast is None:
        return _auto(table, task)
    if fast.cost.time_s >= table.auto_time_s:
        return dataclasses.replace(_auto(table, task), proof=fast.proof)
    return Candidate(setting=fast.setting, proof=fast.proof)


def _free(table: CostTable, task: _Task, exact: Exact) -> Candidate | None:
    """Return the best choice of expected costs, whatever its windows."""
    solution = _solve(table, task, exact)
    if solution.status is Status.INFEASIBLE:
        return None
    free = Candidate(setting=task.groups.spread(solution.choice), proof=_proof(solution))
    if not _is_held(table, task, free):
        return free
    if task.aggregate is Aggregate.GLOBAL and task.goal.objective is Objective.WASTE:
        proof = proof_of_held(table, task.groups, exact, free.setting)
    else:
        proof = Proof(status=Status.BOUNDED, gap=None)
    return dataclasses.replace(free, proof=proof)


def _below(table: CostTable, task: _Task, exact: Exact, aim: Aim) -> Candidate | None:
    """Return the choice whose step settles best within an aim."""
    below = cheapest_within(table, task.groups, exact, aim)
    if below.choice is not None:
        setting = task.groups.spread(below.choice)
    else:
        fast = fastest(table, task.groups, exact)
        if fast is None or fast.cost.time_change + aim.paid(fast.setting) > aim.slowdown:
            return None
        setting = fast.setting
    return Candidate(setting=setting, proof=proof_of_held(table, task.groups, exact, setting))


def _proof(solution: Solution) -> Proof:
    return Proof(status=solution.status, gap=solution.gap)


def _auto(table: CostTable, task: _Task) -> Candidate:
    choice = np.full(len(task.groups.time_s), table.baseline)
    return Candidate(
        setting=task.groups.spread(choice), proof=Proof(status=Status.OPTIMAL, gap=0.0)
    )


def _solve(table: CostTable, task: _Task, exact: Exact) -> Solution:
    goal, problem = task.goal, task.problem
    if task.aggregate is Aggregate.LOCAL or goal.objective is Objective.ENERGY:
        return _solve_alone(problem, task.groups.auto_s(table), goal, task.max_slowdown)
    if goal.objective in TIME_POWER:
        return least_product(problem, power=TIME_POWER[goal.objective])
    budget_s = table.auto_time_s * (1.0 + task.max_slowdown)
    return exact.solve(dataclasses.replace(problem, budget_s=budget_s))


def _solve_alone(problem: Problem, auto_s: Floats, goal: Goal, max_slowdown: float) -> Solution:
    """Let every group choose for itself; of equals the faster."""
    cost = problem.energy_j.copy()
    if goal.objective in TIME_POWER:
        cost = cost * problem.time_s ** TIME_POWER[goal.objective]
    if goal.objective is Objective.WASTE:
        limit_s = auto_s * (1.0 + max_slowdown) * (1.0 + _ROUNDING)
        cost[problem.time_s > limit_s[:, None]] = math.inf
    least = cost.min(axis=1)
    if not np.isfinite(least).all():
        return INFEASIBLE
    choice = np.where(cost == least[:, None], problem.time_s, math.inf).argmin(axis=1)
    return solution_of(problem, choice)


def _fastest_change(table: CostTable, groups: Grouped, aggregate: Aggregate) -> float:
    """Return the least time change that any choice can reach; alone, of the slowest group."""
    fastest_s = groups.time_s.min(axis=1)
    if aggregate is Aggregate.LOCAL:
        return float((fastest_s / groups.auto_s(table)).max()) - 1.0
    return math.fsum(fastest_s) / table.auto_time_s - 1.0


def _cost(table: CostTable, setting: Ints) -> Cost:
    if table.power_cap is not None:
        return step_cost(table, setting[table.power_cap.order])
    rows = np.arange(len(table.kernels))
    return against_auto(
        table, math.fsum(table.time_s[rows, setting]), math.fsum(table.energy_j[rows, setting])
    )


def _frontier(table: CostTable, groups: Grouped) -> tuple[Cost, ...]:
    """Return choices that no mixture of others beats, and of a step those within its power."""
    times_s, energies_j = supported(Problem(time_s=groups.time_s, energy_j=groups.energy_j))
    if table.power_cap is not None:
        # Time rises and power falls along the frontier.
        first = int(np.argmax(energies_j <= table.power_cap.limit_w * times_s))
        times_s, energies_j = times_s[first:], energies_j[first:]
    if table.heat is not None and table.power_cap is not None:
        # A point of the frontier is many settings; where most time is spent they are near boost.
        means_w: Floats = energies_j / times_s
        w_per_c = np.full_like(means_w, table.heat.w_per_c[table.power_cap.boost])
        energies_j = times_s * (means_w + table.heat.extra_w(means_w, table.auto_w, w_per_c))
    time_s, energy_j = subsampled(times_s, energies_j, _FRONTIER_POINTS)
    return tuple(
        against_auto(table, s, j) for s, j in zip(time_s.tolist(), energy_j.tolist(), strict=True)
    )

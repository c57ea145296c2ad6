"""Policies as rivals behind one interface: from costs and a goal to what each of them holds.

A policy is a function of a `Contest`, which judges what it chooses. What plans have as arms is
taken from them; the others are written after the papers that they are named by.

What changes clocks inside the step has a second choice, for clocks that take time to change. Then
launches share clocks in stretches that last as long as any change takes, which is what Wang et al.
(ASPLOS 2025) do too: the same policy picks for stretches what it picks for kernels, changes of
clocks are counted, and where it has a budget it aims lower until they fit.

Shape letters: K kernels, S settings, n launches, G groups.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.cost_estimate import CostEstimate, LimitedEstimate
from underclock.core.model.predicted_change import PredictedChange
from underclock.core.planning.achievable import achieved
from underclock.core.planning.best_choice import TIME_POWER, tolerance_of
from underclock.core.planning.chance_constraint import Aim, Candidate, Proof, within_confidence
from underclock.core.planning.choices import as_neighbours
from underclock.core.planning.contest import SMALL, Contest, certain
from underclock.core.planning.strategies import solve_strategies
from underclock.core.solvers import Effort, Problem, SequenceProblem, least_product, searched, solve
from underclock.core.step.under_cap import against_auto, grouped
from underclock.records import Arm, Granularity, Objective, Status, Strategy
from underclock.records.rivals import Rival, RivalChoice

_ROUNDS = 6  # of aims below a budget
_LIMIT_STEP = 0.01  # of the GPU's own power limit
_LEAST_LIMIT = 0.5  # of it, where the GPU does not say how low it goes
_STEPS, _COUNTED = 2000, 1000  # of a controller, and the last of them
_WAITED = 20  # steps after one that was late before it tries a lower clock again
_NOISE = 0.002  # of the time of a step, as the controller sees it: assumed


_UNPROVEN = Proof(status=Status.BOUNDED, gap=None)


def nothing(name: Strategy) -> RivalChoice:
    """Return the choice of a policy that finds nothing within the budget."""
    return RivalChoice(arm=Arm.of(name, None, Status.INFEASIBLE), keeps_budget=False)


def _of_arm(contest: Contest, name: Strategy) -> RivalChoice:
    """Return the choice of an arm of plans."""
    setting = contest.solved.settings.get(name)
    if setting is None:
        return nothing(name)
    arm = next(arm for arm in contest.solved.arms if arm.name is name)
    return contest.of_kernels(name, setting, Proof(status=arm.status, gap=arm.gap))


def _one_clock(contest: Contest, name: Strategy) -> Rival:
    """Nothing is set, or the best pair of clocks for the whole step."""
    choice = _of_arm(contest, name)
    return Rival(name=name, free=choice, achievable=choice)


def _power_limit(contest: Contest, name: Strategy) -> Rival:
    """The power limit under which auto takes least energy within the budget.

    What the cap makes of the step under it is by `LimitedEstimate`, here against auto as it was
    measured: what is missed of its power the cap makes good by time.
    """
    table, risk, own_w = contest.table, contest.risk, contest.gpu.power_limit_w
    if not isinstance(risk, CostEstimate) or table.power_cap is None or own_w is None:
        why = "costs are of kernels alone: a limit holds a step as it runs"
        return Rival(name=name, note=why)
    least_w = (contest.gpu.power_range_w or (_LEAST_LIMIT * own_w, own_w))[0]
    own = _of_arm(contest, Strategy.AUTO)
    found, at_w = _named(own, name) if own.keeps_budget else nothing(name), None
    for limit_w in np.arange(own_w, least_w - SMALL, -_LIMIT_STEP * own_w).tolist():
        limited = LimitedEstimate.of(risk, limit_w, own_w)
        auto_s, auto_j = limited.table.auto_time_s, limited.table.auto_energy_j
        cost = against_auto(table, auto_s, auto_j)
        spread = risk.predicted_schedule(limited.at_auto)
        slower = limited.s_per_w * spread.energy_spread
        change = dataclasses.replace(
            certain(cost),
            time_spread=math.hypot(spread.time_spread, slower),
            energy_spread=math.hypot(spread.energy_spread, slower),
        )
        baseline = table.settings[table.baseline]
        choice = contest.judged(Arm.of(name, cost, Status.BOUNDED), change, [baseline])
        if choice.keeps_budget and auto_j < (found.arm.energy_j or math.inf):
            found, at_w = choice, limit_w
    return Rival(name=name, free=found, achievable=found, power_limit_w=at_w)


def _feedback(contest: Contest, name: Strategy) -> Rival:
    """One core clock, lowered while steps keep the budget and raised after one that did not.

    The idea is that of BatchDVFS (Nabavinejad, Reda and Ebrahimi, IEEE TPDS 2022): watch a running
    server, and move its clock and its batch one after the other until a target is just met. There
    that is a power cap; here the batch is given, and the target is the time of a step. Auto is the
    highest clock, and after a late step it waits before it tries again. The choice is the mean
    over its steps, those that were late too.
    """
    table = contest.table
    groups = grouped(table, Granularity.STEP)
    (time_s,) = groups.time_s
    known = [s for s in np.flatnonzero(np.isfinite(time_s)).tolist() if s != table.baseline]
    fastest = min(known, key=lambda s: time_s[s], default=table.baseline)
    memory = table.settings[fastest].mem_mhz
    ladder = [s for s in known if table.settings[s].mem_mhz == memory]
    ladder.sort(key=lambda s: table.settings[s].core_mhz or 0)
    ladder.append(table.baseline)
    visits = _visits(time_s[ladder], table.auto_time_s * (1.0 + contest.goal.max_slowdown), contest)
    rungs = np.flatnonzero(visits)
    weights = visits[rungs] / visits.sum()
    settings = [np.full(len(table.kernels), ladder[rung]) for rung in rungs.tolist()]
    changes = [contest.change_of(setting) for setting in settings]
    # Clocks next to each other are wrong together: their deviations add up.
    mean = PredictedChange(
        time_change=float(weights @ [each.time_change for each in changes]),
        energy_change=float(weights @ [each.energy_change for each in changes]),
        time_spread=float(weights @ [each.time_spread for each in changes]),
        energy_spread=float(weights @ [each.energy_spread for each in changes]),
    )
    cost = against_auto(
        table,
        table.auto_time_s * (1.0 + mean.time_change),
        table.auto_energy_j * (1.0 + mean.energy_change),
    )
    longest = rungs[np.argsort(-visits[rungs], kind="stable")]
    held = [table.settings[ladder[rung]] for rung in longest.tolist()]
    choice = contest.judged(Arm.of(name, cost, Status.GIVEN), mean, held)
    return Rival(name=name, free=choice, achievable=choice)


def _visits(time_s: Floats, target_s: float, contest: Contest) -> Ints:
    """Return how many steps a controller runs at each rung of a ladder, slowest first."""
    random = np.random.default_rng(contest.seed)
    seen = random.normal(1.0, _NOISE, _STEPS)
    visits = np.zeros(len(time_s), dtype=np.int64)
    rung, waits = len(time_s) - 1, 0
    for step, noise in enumerate(seen.tolist()):
        visits[rung] += step >= _STEPS - _COUNTED
        if time_s[rung] * noise > target_s:
            rung, waits = min(rung + 1, len(time_s) - 1), _WAITED
        elif waits:
            waits -= 1
        else:
            rung = max(rung - 1, 0)
    return visits


def _least_product(contest: Contest, name: Strategy) -> Rival:
    """Every kernel's clocks at the least product of the step's energy and time, whatever that is.

    Horowitz, Indermaur and Gonzalez (1994) weigh energy and delay so; ED²P counts time twice.
    """
    objective = Objective(name.value)
    goal = dataclasses.replace(contest.goal, objective=objective, granularity=Granularity.KERNEL)
    solved = solve_strategies(contest.table, goal, contest.risk)
    arm = next(arm for arm in solved.arms if arm.name is Strategy.KERNEL_GLOBAL)
    free = contest.of_kernels(
        name, solved.settings[arm.name], Proof(status=arm.status, gap=arm.gap)
    )

    def pick(problem: Problem) -> Ints:
        return least_product(problem, power=TIME_POWER[objective]).choice

    achievable = _followed(contest, name, stretches, pick, in_budget=False)
    return Rival(name=name, free=free, achievable=achievable)


def _genetic(contest: Contest, name: Strategy) -> Rival:
    """Every kernel's clocks by a genetic search, as in Wang et al. (ASPLOS 2025)."""
    table, goal = contest.table, contest.goal
    groups = grouped(table, Granularity.KERNEL)

    def within(aim: Aim) -> Candidate | None:
        budget_s = table.auto_time_s * (1.0 + aim.slowdown)
        problem = Problem(time_s=groups.time_s, energy_j=groups.energy_j, budget_s=budget_s)
        found = searched(problem, contest.seed)
        return None if found is None else Candidate(setting=found, proof=_UNPROVEN)

    best = within_confidence(
        goal.max_slowdown, within, contest.risk, tolerance_of(table), priced=False
    )
    free = nothing(name)
    if best is not None:
        free = contest.of_kernels(name, as_neighbours(table, best.setting), _UNPROVEN)
    free = _no_worse(contest, name, free)

    def pick(problem: Problem) -> Ints | None:
        return searched(problem, contest.seed, contest.problem)

    return Rival(name=name, free=free, achievable=_followed(contest, name, stretches, pick))


def _passes(contest: Contest, name: Strategy) -> Rival:
    """One pair of clocks a pass."""
    kernels = contest.table.kernels
    names = list(dict.fromkeys(kernel.pass_ for kernel in kernels))
    of_kernel = np.array([names.index(kernel.pass_) for kernel in kernels])

    def members(problem: SequenceProblem) -> Ints:
        """Give each stretch to the pass that most of it belongs to."""
        stretch, of_launch = stretches(problem), of_kernel[problem.order]
        shares_s = np.zeros((int(stretch.max()) + 1, len(names)))
        np.add.at(shares_s, (stretch, of_launch), problem.time_s.min(axis=1)[problem.order])
        belongs: Ints = np.unique(shares_s.argmax(axis=1)[stretch], return_inverse=True)[1]
        return belongs

    def pick(problem: Problem) -> Ints | None:
        found = solve(problem, Effort.PLAN)
        return None if found.status is Status.INFEASIBLE else found.choice

    return Rival(
        name=name, free=_of_arm(contest, name), achievable=_followed(contest, name, members, pick)
    )


def _kernels(contest: Contest, name: Strategy) -> Rival:
    """Ours: one pair of clocks a kernel, together within the budget; a schedule that is solved."""
    free, problem, table = _of_arm(contest, name), contest.problem, contest.table
    if problem is None:
        return Rival(name=name, free=free)
    risk = contest.risk if isinstance(contest.risk, CostEstimate) else None
    starts = list(contest.solved.settings.values())

    def within(budget_s: float) -> Ints | None:
        aimed = dataclasses.replace(problem, budget_s=budget_s)
        arm, schedule, _ = achieved(table, aimed, starts, risk, Effort.QUICK)
        stays = arm.cost is None or (schedule.choice == table.baseline).all()
        return None if stays else schedule.choice

    return Rival(name=name, free=free, achievable=_aimed(contest, problem, name, within))


def _power_profile(contest: Contest, name: Strategy) -> Rival:
    """NVIDIA's own workload power profiles, as far as the driver lists any."""
    if contest.profiles is None:
        why = "--gpu asks a GPU's driver which power profiles it lists"
    elif not contest.profiles:
        why = "this GPU's driver lists no power profiles"
    else:
        listed = ", ".join(contest.profiles)
        why = f"the driver lists {listed}; no sample was taken under one, and none is set"
    return Rival(name=name, note=why)


def _followed(
    contest: Contest,
    name: Strategy,
    members: Callable[[SequenceProblem], Ints],
    pick: Callable[[Problem], Ints | None],
    *,
    in_budget: bool = True,
) -> RivalChoice | None:
    """Return what a policy holds of launches that share clocks for long enough.

    Args:
        members: Says which launches share clocks. Shape (n,).
        pick: Says at which setting each group runs within a budget. Shape (G,).
        in_budget: Whether the policy knows of the budget.
    """
    problem = contest.problem
    if problem is None:
        return None
    member = members(problem)
    costs = np.zeros((2, int(member.max()) + 1, problem.time_s.shape[1]))
    np.add.at(costs[0], member, problem.time_s[problem.order])
    np.add.at(costs[1], member, problem.energy_j[problem.order])
    if not np.isfinite(costs[0]).any(axis=1).all():
        return _no_worse(contest, name, nothing(name))

    def within(budget_s: float) -> Ints | None:
        picked = pick(Problem(time_s=costs[0], energy_j=costs[1], budget_s=budget_s))
        return None if picked is None else picked[member]

    if in_budget:
        return _aimed(contest, problem, name, within)
    choice = within(math.inf)
    return None if choice is None else contest.of_launches(problem, name, choice)[0]


def _aimed(
    contest: Contest,
    problem: SequenceProblem,
    name: Strategy,
    within: Callable[[float], Ints | None],
) -> RivalChoice:
    """Return a choice for launches that keeps the budget, or one pair of clocks.

    Args:
        within: Chooses within a time in s, as if costs were certain and changes took nothing;
            each choice that is late lowers the next one's.
    """
    late, found = 0.0, nothing(name)
    for _ in range(_ROUNDS):
        choice = within(contest.table.auto_time_s * (1.0 + contest.goal.max_slowdown - late))
        if choice is None:
            break
        met, over = contest.of_launches(problem, name, choice)
        if met.keeps_budget:
            found = met
            break
        late += over + SMALL
    return _no_worse(contest, name, found)


def _no_worse(contest: Contest, name: Strategy, found: RivalChoice) -> RivalChoice:
    """Return a choice, or one pair of clocks, or auto, where that takes less in the budget."""
    simpler = [_of_arm(contest, each) for each in (Strategy.AUTO, Strategy.BEST_FIXED)]
    kept = [each for each in (found, *simpler) if each.keeps_budget]
    best = min(kept, key=lambda each: each.arm.energy_j or math.inf, default=found)
    return _named(best, name)


def _named(choice: RivalChoice, name: Strategy) -> RivalChoice:
    arm = msgspec.structs.replace(choice.arm, name=name)
    return msgspec.structs.replace(choice, arm=arm)


def stretches(problem: SequenceProblem) -> Ints:
    """Return in which stretch each launch lies, each as long as any change of clocks. Shape (n,).

    They begin where clocks may change; the last is part of another where it is too short.
    """
    needs_s = float(problem.dwell_s.max())
    member = np.zeros(len(problem.order), dtype=np.int64)
    lasts_s, last = 0.0, 0
    least_s = problem.time_s.min(axis=1)[problem.order]
    for launch, each_s in enumerate(least_s.tolist()):
        if launch and lasts_s >= needs_s and not problem.blocked[launch]:
            lasts_s, last = 0.0, last + 1
        member[launch] = last
        lasts_s += each_s
    if problem.blocked[0]:
        member[member == last] = 0
    elif lasts_s < needs_s:
        member[member == last] = max(0, last - 1)
    return member


POLICIES: dict[Strategy, Callable[[Contest, Strategy], Rival]] = {
    Strategy.AUTO: _one_clock,
    Strategy.BEST_FIXED: _one_clock,
    Strategy.POWER_LIMIT: _power_limit,
    Strategy.POWER_PROFILE: _power_profile,
    Strategy.FEEDBACK: _feedback,
    Strategy.EDP: _least_product,
    Strategy.ED2P: _least_product,
    Strategy.GENETIC: _genetic,
    Strategy.PASS: _passes,
    Strategy.KERNEL_GLOBAL: _kernels,
}
"""Every policy, the simplest first, and how it chooses."""

CHANGES_CLOCKS = frozenset(
    {Strategy.EDP, Strategy.ED2P, Strategy.GENETIC, Strategy.PASS, Strategy.KERNEL_GLOBAL}
)
"""Those that change clocks inside a step."""


def compete(contest: Contest, names: Sequence[Strategy] = tuple(POLICIES)) -> tuple[Rival, ...]:
    """Return what policies come to."""
    return tuple(POLICIES[name](contest, name) for name in names)

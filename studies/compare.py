"""Compare ways of choosing clocks on the costs that a plan of the same samples stands on.

    python studies/compare.py samples.db --max-slowdown 1% [--policy NAME] [--latency 6ms] [--json]

Exit code 6: no policy keeps the time budget. What changes clocks inside the step has a second
choice, ``achievable``, for clocks that take time to change. Launches then share clocks in stretches
that last as long as any change takes, as in Wang et al. (ASPLOS 2025); a policy that has a budget
aims lower until the changes fit.

Shape letters: K kernels, S settings, n launches, G groups.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from pages import markdown, percent, run_command
from underclock.app.options import FRACTION, baseline_option, file_argument, json_option
from underclock.app.planning import KNOWN, costs_of, switching_of
from underclock.arrays import Floats, Ints
from underclock.core.model.costs import Costs, PredictedChange
from underclock.core.planning.best_choice import (
    TIME_POWER,
    Goal,
    choice_cost,
    with_intervals,
)
from underclock.core.planning.chance_constraint import room
from underclock.core.planning.clock_changes import sequence_problem
from underclock.core.planning.latency_constrained import achieved, settled_cost
from underclock.core.planning.strategies import solve_strategies
from underclock.core.solvers import (
    Effort,
    Problem,
    SequenceProblem,
    costed,
    least_product,
    solve,
)
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_capped_step import against_auto, grouped
from underclock.core.step.whole_step import as_one, is_only_whole
from underclock.errors import DataError, InfeasibleError, UsageError
from underclock.records import (
    TOLERANCE,
    Accounting,
    Arm,
    Clocks,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Objective,
    Record,
    SampleSet,
    Status,
    Strategy,
)
from underclock.store import SampleSource, read_samples
from underclock.units import format_percent, name_hint

_SMALL = 1e-6  # of auto's time: to what a search keeps a budget
_ROUNDS = 6  # of aims below a budget
_STEPS, _COUNTED = 2000, 1000  # of a controller, and the last of them
_WAITED = 20  # steps after a late one before the controller tries a lower clock again
_NOISE = 0.002  # of the time of a step, as the controller sees it: assumed
_ARM = Strategy.KERNEL_GLOBAL  # the output gives every arm its policy's name


class Choice(Record, frozen=True, kw_only=True):
    """What a policy holds, longest first, and what that costs; ``kernels`` where one pair each."""

    arm: Arm
    keeps_budget: bool
    clocks: tuple[Clocks, ...] = ()
    kernels: dict[str, Clocks] = msgspec.field(default_factory=dict)


class Rival(Record, frozen=True, kw_only=True):
    """One policy: its choice with free changes of clocks, and as this GPU changes them."""

    name: str
    free: Choice | None = None
    achievable: Choice | None = None
    note: str = ""


class Comparison(Record, frozen=True, kw_only=True):
    """Policies on the same costs; ``latency`` in words, ``None`` where it is not known."""

    evidence: Evidence
    gpu: GpuInfo
    workload: str
    accounting: Accounting
    max_slowdown: float
    latency: str | None = None
    seed: int = 0
    rivals: tuple[Rival, ...]
    warnings: tuple[str, ...] = ()


_NOTHING = Choice(arm=Arm(_ARM, None, Status.INFEASIBLE), keeps_budget=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What every policy is given, and how its choice is judged: as a plan keeps a budget.

    Attributes:
        risk: How sure costs are; ``None`` where they are taken as certain.
        arms: Of a plan on the same costs.
        settings: Of each kernel, by strategy. Shape (K,).
        problem: The step as clocks can follow it; ``None`` where that is not known.
        seed: Of what searches at random.
    """

    table: CostTable
    goal: Goal
    risk: Costs | None
    gpu: GpuInfo
    arms: tuple[Arm, ...]
    settings: dict[Strategy, Ints]
    problem: SequenceProblem | None = None
    seed: int = 0

    def lateness(self, change: PredictedChange) -> float:
        """Return by how much a change overruns the budget as a plan has to keep it."""
        margin = room(change.time_spread, TOLERANCE)
        return change.time_change + margin - self.goal.max_slowdown

    def judged(self, arm: Arm, change: PredictedChange, clocks: Iterable[Clocks]) -> Choice:
        """Return a choice whose change is known."""
        return Choice(
            arm=arm if self.risk is None else with_intervals(arm, change),
            keeps_budget=self.lateness(change) <= _SMALL,
            clocks=tuple(dict.fromkeys(clocks)),
        )

    def change_of(self, setting: Ints) -> PredictedChange:
        """Return what a setting for each kernel, (K,), changes."""
        if self.risk is None:
            return _certain(choice_cost(self.table, setting))
        return self.risk.predicted_change(setting)

    def of_kernels(self, setting: Ints, status: Status, gap: float | None) -> Choice:
        """Return the choice of a setting for each kernel. Shape (K,)."""
        cost, change = choice_cost(self.table, setting), self.change_of(setting)
        longest = np.argsort(-self.table.time_s[np.arange(len(setting)), setting], kind="stable")
        held = [self.table.settings[s] for s in setting.tolist()]
        arm = Arm(_ARM, cost, status, gap)
        found = self.judged(arm, change, (held[k] for k in longest.tolist()))
        names = (kernel.name for kernel in self.table.kernels)
        return msgspec.structs.replace(found, kernels=dict(zip(names, held, strict=True)))

    def of_launches(self, problem: SequenceProblem, choice: Ints) -> tuple[Choice, float]:
        """Return the choice of a setting for each launch, (n,), and by how much it is late."""
        cost = settled_cost(self.table, problem, costed(problem, choice))
        time_spread, energy_spread = self._spreads(problem, choice)
        change = dataclasses.replace(
            _certain(cost), time_spread=time_spread, energy_spread=energy_spread
        )
        lasts_s = np.bincount(
            choice, problem.time_s[problem.order, choice], len(self.table.settings)
        )
        held = [self.table.settings[s] for s in np.argsort(-lasts_s) if lasts_s[s] > 0.0]
        return self.judged(Arm(_ARM, cost, Status.BOUNDED), change, held), self.lateness(change)

    def _spreads(self, problem: SequenceProblem, choice: Ints) -> tuple[float, float]:
        """Return the deviations of a schedule's change of time and of energy."""
        if self.risk is None:
            return 0.0, 0.0
        if self.table.power_cap is not None:
            change = self.risk.predicted_schedule(choice)
            return change.time_spread, change.energy_spread
        launches = np.zeros((2, *self.table.time_s.shape))
        np.add.at(launches[0], (problem.order, choice), 1.0)
        np.add.at(launches[1, :, self.table.baseline], problem.order, 1.0)
        return self.risk.change_spread(*launches)

    def of_arm(self, name: Strategy) -> Choice:
        """Return the choice of an arm of plans."""
        setting = self.settings.get(name)
        if setting is None:
            return _NOTHING
        arm = next(arm for arm in self.arms if arm.name is name)
        return self.of_kernels(setting, arm.status, arm.gap)

    def no_worse(self, found: Choice) -> Choice:
        """Return a choice, or one pair of clocks, or auto, where that takes less in the budget."""
        simpler = [self.of_arm(each) for each in (Strategy.AUTO, Strategy.BEST_FIXED)]
        kept = [each for each in (found, *simpler) if each.keeps_budget]
        return min(
            kept,
            key=lambda each: each.arm.cost.energy_j if each.arm.cost else math.inf,
            default=found,
        )


def _certain(cost: Cost) -> PredictedChange:
    return PredictedChange(
        time_change=cost.time_change,
        energy_change=cost.energy_change,
        time_spread=0.0,
        energy_spread=0.0,
    )


def _one_clock(contest: Contest, name: str) -> Rival:
    """Auto, or the best pair of clocks for the whole step."""
    choice = contest.of_arm(Strategy(name))
    return Rival(name=name, free=choice, achievable=choice)


def _feedback(contest: Contest, name: str) -> Rival:
    """One core clock, lowered while steps keep the budget and raised after a late one.

    The idea is that of BatchDVFS (Nabavinejad, Reda and Ebrahimi, IEEE TPDS 2022), which moves
    clock and batch of a server until a target is just met. Here the batch is given, and the target
    is the time of a step. Auto is the highest clock, and after a late step the controller waits
    before it tries again. The choice is the mean over its steps, the late ones too.
    """
    table = contest.table
    (time_s,) = grouped(table, Granularity.STEP).time_s
    known = [s for s in np.flatnonzero(np.isfinite(time_s)).tolist() if s != table.baseline]
    fastest = min(known, key=lambda s: time_s[s], default=table.baseline)
    memory = table.settings[fastest].mem_mhz
    ladder = [s for s in known if table.settings[s].mem_mhz == memory]
    ladder.sort(key=lambda s: table.settings[s].core_mhz or 0)
    ladder.append(table.baseline)
    target_s = table.auto_time_s * (1.0 + contest.goal.max_slowdown)
    visits = _visits(time_s[ladder], target_s, contest.seed)
    rungs = np.flatnonzero(visits)
    weights = visits[rungs] / visits.sum()
    settings = [np.full(len(table.kernels), ladder[rung]) for rung in rungs.tolist()]
    changes = [contest.change_of(setting) for setting in settings]
    # Neighbouring clocks are wrong together: their deviations add up.
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
    choice = contest.judged(Arm(_ARM, cost, Status.GIVEN), mean, held)
    return Rival(name=name, free=choice, achievable=choice)


def _visits(time_s: Floats, target_s: float, seed: int) -> Ints:
    """Return how many steps a controller runs at each rung of a ladder, slowest first."""
    seen = np.random.default_rng(seed).normal(1.0, _NOISE, _STEPS)
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


def _least_product(contest: Contest, name: str) -> Rival:
    """Every kernel's clocks at the least product of the step's energy and time (or time squared).

    Horowitz, Indermaur and Gonzalez (1994) weigh energy and delay so.
    """
    objective = Objective(name)
    goal = dataclasses.replace(contest.goal, objective=objective, granularity=Granularity.KERNEL)
    arms, settings = solve_strategies(contest.table, goal, contest.risk)
    arm = next(arm for arm in arms if arm.name is Strategy.KERNEL_GLOBAL)
    free = contest.of_kernels(settings[arm.name], arm.status, arm.gap)

    def pick(problem: Problem) -> Ints:
        return least_product(problem, power=TIME_POWER[objective]).choice

    achievable = _followed(contest, stretches, pick, in_budget=False)
    return Rival(name=name, free=free, achievable=achievable)


def _passes(contest: Contest, name: str) -> Rival:
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

    free = contest.of_arm(Strategy.PASS)
    return Rival(name=name, free=free, achievable=_followed(contest, members, pick))


def _kernels(contest: Contest, name: str) -> Rival:
    """Ours: one pair of clocks a kernel, together within the budget; a schedule that is solved."""
    free, problem, table = contest.of_arm(Strategy.KERNEL_GLOBAL), contest.problem, contest.table
    if problem is None:
        return Rival(name=name, free=free)
    risk = None if table.power_cap is None else contest.risk
    starts = list(contest.settings.values())

    def within(budget_s: float) -> Ints | None:
        aimed = dataclasses.replace(problem, budget_s=budget_s)
        arm, schedule, _ = achieved(table, aimed, starts, risk, Effort.QUICK)
        stays = arm.cost is None or (schedule.choice == table.baseline).all()
        return None if stays else schedule.choice

    return Rival(name=name, free=free, achievable=_aimed(contest, problem, within))


def _followed(
    contest: Contest,
    members: Callable[[SequenceProblem], Ints],
    pick: Callable[[Problem], Ints | None],
    *,
    in_budget: bool = True,
) -> Choice | None:
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
        return contest.no_worse(_NOTHING)

    def within(budget_s: float) -> Ints | None:
        picked = pick(Problem(time_s=costs[0], energy_j=costs[1], budget_s=budget_s))
        return None if picked is None else picked[member]

    if in_budget:
        return _aimed(contest, problem, within)
    choice = within(math.inf)
    return None if choice is None else contest.of_launches(problem, choice)[0]


def _aimed(
    contest: Contest, problem: SequenceProblem, within: Callable[[float], Ints | None]
) -> Choice:
    """Return a choice for launches that keeps the budget, or one pair of clocks.

    Args:
        within: Chooses within a time in s, as if costs were certain and changes took nothing;
            each choice that is late lowers the next one's.
    """
    late, found = 0.0, _NOTHING
    for _ in range(_ROUNDS):
        choice = within(contest.table.auto_time_s * (1.0 + contest.goal.max_slowdown - late))
        if choice is None:
            break
        met, over = contest.of_launches(problem, choice)
        if met.keeps_budget:
            found = met
            break
        late += over + _SMALL
    return contest.no_worse(found)


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


POLICIES: dict[str, tuple[str, Callable[[Contest, str], Rival]]] = {
    "auto": ("auto", _one_clock),
    "best_fixed": ("best fixed clock", _one_clock),
    "feedback": ("feedback (BatchDVFS)", _feedback),
    "edp": ("EDP, each kernel", _least_product),
    "ed2p": ("ED²P, each kernel", _least_product),
    "pass": ("pass-level", _passes),
    "kernel_global": ("kernel, global (ours)", _kernels),
}
"""Every policy by name, the simplest first: what it is called, and how it chooses."""
_IN_STEP = frozenset({"edp", "ed2p", "pass", "kernel_global"})  # change clocks inside


def compare(
    samples: SampleSource,
    max_slowdown: float = 0.0,
    *,
    policies: Sequence[str] = (),
    latency: str = KNOWN,
    baseline: Clocks | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare policies on the costs that plans of the same samples stand on.

    Args:
        max_slowdown: Time budget, as a fraction above auto.
        policies: Which; all of them unless given.
        latency: What changing clocks takes, as `underclock plan --latency` takes it.
        baseline: The clocks to call auto, where a table has no auto rows.

    Raises:
        UsageError: There is no such policy.
        DataError: The samples cannot be planned on, or are at one pair of clocks only.
    """
    for each in policies:
        if each not in POLICIES:
            raise UsageError(f"there is no policy {each!r}", hint=name_hint(each, POLICIES))
    given = read_samples(samples)
    visited = {window.asked for window in given.windows}
    if len(visited) == 1 and not any(window.in_company for window in given.windows):
        raise DataError(f"all samples are at {visited.pop()}: policies have nothing to choose")
    whole = is_only_whole(given)
    sample_set = as_one(given) if whole else given
    contest, said = _contest(given, sample_set, max_slowdown, latency, baseline, samples)
    contest = dataclasses.replace(contest, seed=seed)
    why = "the step ran whole only, which tells nothing of its kernels"
    return Comparison(
        evidence=given.evidence,
        gpu=given.gpu,
        workload=given.workload,
        accounting=contest.table.accounting,
        max_slowdown=contest.goal.max_slowdown,
        latency=said,
        seed=seed,
        rivals=tuple(
            Rival(name=name, note=why)
            if whole and name in _IN_STEP
            else POLICIES[name][1](contest, name)
            for name in policies or POLICIES
        ),
        warnings=contest.table.warnings,
    )


def _contest(
    given: SampleSet,
    sample_set: SampleSet,
    max_slowdown: float,
    latency: str,
    baseline: Clocks | None,
    source: SampleSource,
) -> tuple[Contest, str | None]:
    """Return what every policy is given, and which latency that is, in words."""
    goal = Goal(max_slowdown=max_slowdown)
    table, risk = costs_of(sample_set, baseline, raw=None, isolated=False)
    problem = switching = None
    # A table has no order of launches, and neither has a step that ran whole only.
    if sample_set.order == given.order and (given.order or latency != KNOWN):
        switching = switching_of(latency, given, goal, source)
    if switching is not None and switching.is_known:
        switching.latencies.check_gpu(given.gpu)
        problem = sequence_problem(table, given.order, switching.rules(goal.max_slowdown))
    arms, settings = solve_strategies(table, goal, risk)
    contest = Contest(
        table=table,
        goal=goal,
        risk=risk,
        gpu=given.gpu,
        arms=arms,
        settings=settings,
        problem=problem,
    )
    return contest, None if switching is None or problem is None else switching.wording


def _lines(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    yield ("policy", "time", "energy", "budget", "clocks")
    for rival in comparison.rivals:
        twice = rival.achievable is not None and rival.achievable != rival.free
        for choice in (rival.free, rival.achievable if twice else None):
            if choice is None:
                continue
            changes = choice.arm.time_change, choice.arm.energy_change
            title = POLICIES[rival.name][0]
            clocks = f"{len(choice.clocks)} pairs" if choice.clocks[1:] else choice.clocks
            yield (
                title if choice is rival.free else f"{title}, achievable",
                *("none" if each is None else percent(each) for each in changes),
                "kept" if choice.keeps_budget else "over",
                clocks if isinstance(clocks, str) else "".join(map(str, clocks)),
            )


def json_of(comparison: Comparison) -> bytes:
    """Return a comparison as JSON, every arm under its policy's name."""
    body = msgspec.to_builtins(comparison)
    for rival in body["rivals"]:
        for choice in filter(None, (rival["free"], rival["achievable"])):
            choice["arm"]["name"] = rival["name"]
    return msgspec.json.encode(body)


@click.command()
@file_argument("samples")
@click.option("--max-slowdown", type=FRACTION, default=0.0, help="Time budget: 1% or 0.01.")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Of several, repeat it.")
@click.option("--latency", default=KNOWN, show_default=True, help="As for `underclock plan`.")
@baseline_option
@click.option("--seed", default=0, help="Of what searches at random.")
@json_option
def command(*, samples: Path, as_json: bool, **asked: Any) -> None:  # noqa: ANN401 - of `compare`
    """Compare ways of choosing clocks on SAMPLES: a samples file, or a CSV table of a sweep."""
    found = compare(samples, **asked)
    if as_json:
        print(json_of(found).decode())
    else:
        notes = [f"{POLICIES[each.name][0]}: {each.note}" for each in found.rivals if each.note]
        title = f"{found.workload} on {found.gpu.name}, {found.evidence}, budget "
        print(title + format_percent(found.max_slowdown), markdown(_lines(found)), *notes, sep="\n")
    if not any(
        choice.keeps_budget
        for rival in found.rivals
        for choice in (rival.free, rival.achievable)
        if choice is not None
    ):
        sys.exit(InfeasibleError.exit_code)


if __name__ == "__main__":
    run_command(command)

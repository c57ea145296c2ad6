"""compare: samples in, ways of choosing clocks as rivals out, all on the same costs."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from underclock.app.backends import open_gpu
from underclock.app.planning import costs_of
from underclock.app.switching import KNOWN, switching_of
from underclock.core.planning.contest import Contest
from underclock.core.planning.goal import Goal
from underclock.core.planning.rivals import CHANGES_CLOCKS, POLICIES, compete
from underclock.core.planning.sequence import sequence_problem
from underclock.core.planning.strategies import solve_strategies
from underclock.core.step.whole import as_one, is_only_whole
from underclock.errors import DataError, UsageError
from underclock.hw.gpu_names import parse_gpu
from underclock.records import Clocks, SampleSet, Strategy
from underclock.records.rivals import Comparison, Rival
from underclock.store import SampleSource, read_samples
from underclock.units import name_hint

if TYPE_CHECKING:
    from underclock.core.inference.joint import JointCosts
    from underclock.core.model.cost_estimate import CostEstimate


def compare(
    samples: SampleSource,
    max_slowdown: float | str = 0.0,
    *,
    policies: Sequence[str] = (),
    latency: str = "known",
    baseline: Clocks | None = None,
    gpu: str | None = None,
    seed: int = 0,
) -> Comparison:
    """Set policies side by side on the costs that plans of the same samples stand on.

    Args:
        samples: Samples, a samples file, a CSV table, or a DataFrame with the columns of one.
        max_slowdown: Time budget, as a fraction above auto, or as text: ``"1%"``.
        policies: Which, by the names of `Strategy`; all of them unless given.
        latency: What changing clocks takes, as `underclock plan --latency` takes it.
        baseline: The clocks to call auto, where a table has no auto rows.
        gpu: Whose driver to ask which power profiles it lists; nothing is set.
        seed: Of what searches at random.

    Raises:
        UsageError: There is no such policy.
        DataError: The samples cannot be planned on, or are at one pair of clocks only.
    """
    for each in policies:
        if each not in POLICIES:
            raise UsageError(f"there is no policy {each!r}", hint=name_hint(each, POLICIES))
    names = [Strategy(each) for each in policies] or list(POLICIES)
    given = read_samples(samples)
    _check_choosable(given)
    whole = is_only_whole(given)
    sample_set = as_one(given) if whole else given
    contest, said = _contest(given, sample_set, max_slowdown, latency, baseline, samples)
    contest = dataclasses.replace(contest, seed=seed, profiles=_profiles(gpu))
    rivals = compete(contest, [name for name in names if not (whole and name in CHANGES_CLOCKS)])
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
            next((rival for rival in rivals if rival.name is name), Rival(name=name, note=why))
            for name in names
        ),
        warnings=contest.table.warnings,
    )


def _check_choosable(sample_set: SampleSet) -> None:
    """Refuse samples at one pair of clocks, of which every policy makes the same."""
    visited = {window.asked for window in sample_set.windows}
    if len(visited) == 1 and not any(window.in_company for window in sample_set.windows):
        raise DataError(
            f"all samples are at {visited.pop()}, so there is nothing for policies to choose",
            hint="measure at other clocks too, with `underclock measure`",
        )


def _contest(
    given: SampleSet,
    sample_set: SampleSet,
    max_slowdown: float | str,
    latency: str,
    baseline: Clocks | None,
    source: SampleSource,
) -> tuple[Contest, str | None]:
    """Return what every policy is given, and which latency that is, in words."""
    goal = Goal(max_slowdown=max_slowdown)  # type: ignore[arg-type]
    costs = costs_of(sample_set, baseline, raw=None, isolated=False)
    problem = switching = None
    # Of a table nobody knows the order of launches, nor of kernels that never ran by themselves.
    if sample_set.order == given.order and (given.order or latency != KNOWN):
        switching = switching_of(latency, given, goal, source)
    if switching is not None and switching.is_known:
        switching.latencies.check_gpu(given.gpu)
        problem = sequence_problem(costs.table, given.order, switching.rules(goal.max_slowdown))
    contest = Contest(
        table=costs.table,
        goal=goal,
        risk=cast("CostEstimate | JointCosts | None", costs.risk),  # under no other limit
        gpu=given.gpu,
        solved=solve_strategies(costs.table, goal, costs.risk),
        problem=problem,
    )
    return contest, None if switching is None or problem is None else switching.wording


def _profiles(gpu: str | None) -> tuple[str, ...] | None:
    """Return the power profiles that a GPU's driver lists, read only; ``None`` without one."""
    if gpu is None:
        return None
    with open_gpu(parse_gpu(gpu)) as opened:
        return opened.gpu.power_profiles()

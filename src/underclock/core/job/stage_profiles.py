"""Profiles of a pipeline stage: the cost of each instruction at every clock.

A stage's step is the forward and backward pass of one microbatch and the optimizer, traced and
measured as any step. An instruction costs the sum of its launches, under a power cap within that
step, with the same clock before and after it; one longer than the cap's averaging window is capped
by its own power. Kernels measured alone are capped one by one. Errors are those of changes against
auto, whose own row has none: what all rows share is no error of a choice between them.

Inside an instruction, stretches of launches may have clocks of their own, each at least as long as
one change takes. Of these schedules those are kept that save more than one change between two
constant clocks.

A job made of traces has durations only: `with_profiles` puts profiles of stages into it.

Shape letters: I instructions, K kernels, S settings, n launches of the step, m of an instruction.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from underclock.arrays import Floats, Ints
from underclock.core.model.costs import Costs
from underclock.core.planning.clock_changes import Rules, sequence_problem
from underclock.core.solvers import Problem, costed, once_through, supported
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_capped_step import (
    fixed_part_costs,
    heat_w,
    nearest_settings,
    settled_step,
)
from underclock.errors import DataError
from underclock.records import Clocks, Pass, Segment
from underclock.records.job import (
    COMPUTES,
    Instruction,
    InstructionKind,
    Job,
    Profile,
    ProfileRow,
    whole_of,
)
from underclock.units import format_percent

_KINDS = {
    Pass.FORWARD: InstructionKind.FORWARD,
    Pass.BACKWARD: InstructionKind.BACKWARD,
    Pass.OPTIMIZER: InstructionKind.OPTIMIZER,
}
_POINTS = 24  # prices of time at which clocks inside are sought
_LEAST, _HIGHEST = 1e-2, 4.0  # of auto's power; of what the steepest part of plain rows pays
_WORTH = 1e-3  # of an instruction's energy: what switching inside it must save
_ON = 1.0 + 1e-9  # of a hull
_ONE_STRETCH = 0.9  # of the launches of a forward: fewer than that together are of several


def stage_profiles(
    table: CostTable, order: Sequence[int], risk: Costs | None = None, rules: Rules | None = None
) -> tuple[dict[InstructionKind, Profile], tuple[str, ...]]:
    """Make profiles of a stage's instructions from what its kernels cost; and warnings.

    Args:
        table: What every kernel costs at every setting.
        order: The launch sequence, as indices into the table's kernels; empty where unknown.
        risk: How sure that is; ``None`` takes it as certain.
        rules: What changes of clocks inside an instruction take; ``None`` leaves them away. Budget
            and number of switches are not looked at.

    Raises:
        DataError: The step has no forward or no backward, or those of several microbatches; or
            clocks are to change inside and the order of launches is unknown.
    """
    if rules is not None and not order:
        raise DataError(
            "clocks are to change inside instructions, and the order in which these launch their "
            "kernels is unknown",
            hint="give samples of a traced step, or leave --latency away: one clock for each",
        )
    stage = _Stage(table, order, risk)
    # Time and energy with one setting for all launches. Shapes (I, S).
    if table.power_cap is not None:
        time_s, energy_j = fixed_part_costs(table, stage.member)
    else:
        counts, launch = np.zeros((len(stage.kinds), len(table.kernels))), table.launches
        np.add.at(counts, (stage.member, stage.order), 1.0)
        time_s, energy_j = (
            np.stack([row[row > 0.0] @ each[row > 0.0] for row in counts])
            for each in (launch.time_s, launch.energy_j)
        )
    warnings = list(stage.warnings)
    profiles = {}
    for i, kind in enumerate(stage.kinds):
        known = np.flatnonzero(np.isfinite(time_s[i])).tolist()
        launches = int((stage.member == i).sum())
        rows = [
            stage.row(i, np.full(launches, s), float(time_s[i, s]), float(energy_j[i, s]))
            for s in known
        ]
        if rules is not None:
            rows += stage.inside(i, rules, time_s[i], energy_j[i])
        profiles[kind] = Profile(rows=tuple(rows), auto=known.index(table.baseline))
    if rules is not None and not any(switch.total_s for switch in rules.latencies.switches):
        warnings.append("clocks change inside instructions as if that took no time: a bound")
    return profiles, tuple(warnings)


class _Stage:
    """A stage's step as instructions; what has no pass of its own goes with its neighbour's."""

    def __init__(self, table: CostTable, order: Sequence[int], risk: Costs | None) -> None:
        self.table, self.risk, kernels = table, risk, table.kernels
        launched = [kernels[k] for k in order] or [k for k in kernels for _ in range(k.count)]
        passes = {kernel.pass_ for kernel in kernels}
        for wanted in (Pass.FORWARD, Pass.BACKWARD):
            if wanted not in passes:
                raise DataError(
                    f"the step has no {wanted} pass, so it is no stage of a pipeline that trains",
                    hint="trace a step that runs one microbatch forward and backward; a table's "
                    "kernels need their pass",
                )
        found = [_KINDS.get(kernel.pass_) for kernel in launched]
        first = next(kind for kind in found if kind is not None)
        within = list(
            itertools.accumulate(found, lambda before, here: here or before, initial=first)
        )
        self.kinds = kinds = [kind for kind in _KINDS.values() if kind in within]
        # Instruction and kernel of each launch. Shapes (n,).
        self.member = np.array([kinds.index(kind) for kind in within[1:] if kind], dtype=np.int64)
        self.order = np.array(order, dtype=np.int64)
        if not order:
            self.order = np.repeat(np.arange(len(kernels)), [kernel.count for kernel in kernels])
        is_forward = (self.member == 0).tolist()
        runs = [len(list(run)) for is_one, run in itertools.groupby(is_forward) if is_one]
        if order and max(runs) < _ONE_STRETCH * sum(is_forward):
            raise DataError(
                f"forward and backward take turns: {len(runs)} stretches of forward in one step",
                hint="trace a step of one microbatch: gradient accumulation is the schedule's",
            )
        self.warnings = list(table.warnings)
        if Pass.COMMUNICATION in passes:
            self.warnings.append(
                "collectives of the step count with the pass that they run in, so those after the "
                "last backward with every microbatch's"
            )
        if table.power_cap is None:
            self.warnings.append(
                "instructions are sums of kernels measured alone: no cap, no heat of the step"
            )

    @cached_property
    def at_auto(self) -> Ints:
        """Setting that is most like auto, of each launch. Shape (n,)."""
        table, auto = self.table, np.full(len(self.order), self.table.baseline)
        if table.power_cap is None:
            return auto
        return nearest_settings(table, settled_step(table, auto), table.power_cap.boost)

    def row(self, i: int, choice: Ints, time_s: float, energy_j: float) -> ProfileRow:
        """Return a way to run an instruction, a setting for each launch, (m,), with its errors."""
        own, settings, time, energy = self.member == i, self.table.settings, 0.0, 0.0
        if self.risk is not None and (choice != self.table.baseline).any():
            auto, ran = self.at_auto[own], choice
            if self.table.power_cap is not None:  # what the cap holds is auto
                core = np.array([each.core_mhz or 0 for each in settings])
                memory = np.array([each.mem_mhz or 0 for each in settings])
                held = (core[choice] > core[auto]) & (memory[choice] == memory[auto])
                ran = np.where(held, auto, choice)
            launches = np.zeros((2, *self.table.time_s.shape))
            for each, at in zip(launches, (ran, auto), strict=True):
                np.add.at(each, (self.order[own], at), 1.0)
            time, energy = self.risk.change_spread(*launches)
        alike = bool((choice == choice[0]).all())
        clocks = settings[choice[0]] if alike else Clocks()
        runs = () if alike else itertools.groupby(choice.tolist())
        return ProfileRow(
            core_mhz=clocks.core_mhz,
            mem_mhz=clocks.mem_mhz,
            time_s=time_s,
            energy_j=energy_j,
            time_error_s=time * time_s,
            energy_error_j=energy * energy_j,
            inside=tuple(Segment(launches=len(list(run)), clocks=settings[s]) for s, run in runs),
        )

    def inside(self, i: int, rules: Rules, plain_s: Floats, plain_j: Floats) -> list[ProfileRow]:
        """Return rows whose clocks change inside, where that saves more than mixing plain rows."""
        problem = sequence_problem(self.table, self.order[self.member == i].tolist(), rules)
        hull_s, hull_j = supported(Problem(time_s=plain_s[None], energy_j=plain_j[None]))
        most_w = float((-np.diff(hull_j) / np.diff(hull_s)).max(initial=0.0))
        locked_s = np.where(plain_j > _ON * np.interp(plain_s, hull_s, hull_j), math.inf, plain_s)
        locked_s[self.table.baseline] = math.inf
        cheapest = once_through(problem)
        found: dict[float, tuple[float, float, Ints]] = {}

        def look(price_w: float) -> None:
            choice = cheapest(price_w)
            if choice is None:
                return
            cost = costed(problem, choice)
            # The wrap is no change here: what follows is another instruction.
            wrap = choice[-1], choice[0]
            time_s = cost.time_s - float(problem.switch_time_s[wrap])
            energy_j = cost.energy_j - float(problem.switch_energy_j[wrap])
            nearest = int(np.abs(locked_s - time_s).argmin())
            if self.table.power_cap is not None:
                # What the cap and heat leave of it; the rest of the step is taken to run at one
                # setting, the nearest.
                own, launches = self.member == i, self.table.launches
                whole = np.full(len(own), nearest)
                whole[own] = choice
                settled, at = settled_step(self.table, whole), (self.order[own], choice)
                settled_s = math.fsum(settled.time_s[own])
                time_s += settled_s - math.fsum(launches.time_s[at])
                energy_j += math.fsum(settled.energy_j[own]) - math.fsum(launches.energy_j[at])
                energy_j += heat_w(self.table, whole, settled) * settled_s
            found[price_w] = time_s, energy_j, choice

        least_w = _LEAST * self.table.auto_w
        look(least_w)
        look(max(least_w, _HIGHEST * most_w))
        for _ in range(_POINTS - len(found)):
            # A price between those two whose schedules are furthest apart.
            prices_w = sorted(found)
            apart_s = np.abs(np.diff([found[each][0] for each in prices_w]))
            if not apart_s.any():
                break
            at = int(apart_s.argmax())
            look(math.sqrt(prices_w[at] * prices_w[at + 1]))
        rows, seen = [], set()
        for time_s, energy_j, choice in found.values():
            mixed_j = math.inf if time_s < hull_s[0] else float(np.interp(time_s, hull_s, hull_j))
            known = choice.tobytes() in seen or bool((choice == choice[0]).all())
            seen.add(choice.tobytes())
            if energy_j < (1.0 - _WORTH) * mixed_j and not known:
                rows.append(self.row(i, choice, time_s, energy_j))
        return rows


_NEAR = 0.05  # of a time: what stages and traces may differ by unsaid


def with_profiles(job: Job, profiles: Mapping[str, Profile]) -> Job:
    """Give instructions what they cost at every clock, by profiles, ``stage 0 forward`` say.

    At auto an instruction takes what was traced: all of its rows are longer or shorter by as much,
    and take more or less energy. What no profile is of takes its time whatever the clocks.

    Raises:
        DataError: What belongs to a microbatch has no profile.
    """
    every = {each for rank in job.ranks for each in rank.instructions}
    named = {each.profile for each in every if each.kind in COMPUTES and each.profile}
    missing = {whole_of(name) for name in named} - {*profiles}
    if missing:
        raise DataError(
            f"there is no profile of {min(missing)!r}, which was traced",
            hint=f"profiles are of {', '.join(sorted(profiles))}: give samples or rows of it too",
        )
    used = {}
    for name, traced in job.profiles.items():
        if (whole := profiles.get(whole_of(name))) is not None:
            ratio = _auto_s(traced) / _auto_s(whole)
            used[name] = replace(whole, rows=tuple(row.scaled(ratio) for row in whole.rows))

    def costed(each: Instruction) -> Instruction:
        if each.profile is None or each.profile in used:
            return each
        return replace(each, profile=None, time_s=_auto_s(job.profiles[each.profile]))

    ranks = tuple(
        replace(rank, instructions=tuple(map(costed, rank.instructions))) for rank in job.ranks
    )
    off = {
        name: _auto_s(job.profiles[name]) / _auto_s(profiles[name]) - 1.0
        for name in used
        if name in profiles
    }
    words = tuple(
        f"{name} takes {format_percent(off[name])} against its samples, which are taken to be as "
        "much off at every clock"
        for name in sorted(off)
        if abs(off[name]) > _NEAR
    )
    fixed = sorted(job.profiles.keys() - used.keys())
    if fixed:
        words += (
            f"no profile is of {', '.join(fixed)}: as long at all clocks, at what waiting draws",
        )
    return replace(job, ranks=ranks, profiles=used, warnings=(*job.warnings, *words))


def _auto_s(profile: Profile) -> float:
    return profile.rows[profile.auto].time_s

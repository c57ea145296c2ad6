"""A plan as controllers hold it: of a job, for each rank a schedule over its instructions.

Instructions are what launches are to a step, so the same machine follows them: what an instruction
takes, a second clock from its share on, and what the rank waits after it, are launches of their
own. Every plan of the frontier has the same ones, so that one can take the place of another.
"""

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile
from typing import TYPE_CHECKING

import msgspec

from underclock.errors import UsageError
from underclock.records import AUTO, Clocks, ClockSchedule, Segment
from underclock.records.common import Record
from underclock.records.job import (
    COMPUTES,
    TALKS,
    Held,
    Instruction,
    InstructionKind,
    JobPlan,
    Rank,
    RankClocks,
)
from underclock.records.latencies import LatencyTable
from underclock.runtime.machine.timetable import Timetable, timetable_of
from underclock.runtime.trainer.instructions import BEGINS, ENDS
from underclock.runtime.trainer.marks import STEP
from underclock.runtime.trainer.sites import MarkSite

if TYPE_CHECKING:
    from underclock.arrays import Floats

_LEAST_S = 1e-6  # of a launch that may take no time at all
_SEEN = {InstructionKind.FORWARD, InstructionKind.BACKWARD, InstructionKind.WEIGHTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """One plan of the frontier, as far as iterations show it."""

    time_s: float  # of an iteration
    busy_s: tuple[float, ...]  # what each rank computes in it
    clocks: tuple[RankClocks, ...]  # of each rank; none at auto


def planned_points(plan: JobPlan) -> tuple[tuple[PlannedPoint, ...], int]:
    """Return the plans that may be held, fastest first, and which of them is the chosen one."""
    made = [(point.cost.time_s, point.clocks) for point in plan.frontier]
    if plan.clocks not in [clocks for _, clocks in made]:
        made.append((plan.promise.time_s, plan.clocks))
    made.sort(key=lambda each: each[0])
    points = tuple(
        PlannedPoint(time_s=time_s, busy_s=busy_s(plan, clocks), clocks=clocks)
        for time_s, clocks in made
    )
    return points, [point.clocks for point in points].index(plan.clocks)


def busy_s(plan: JobPlan, clocks: tuple[RankClocks, ...] | None) -> tuple[float, ...]:
    """Return what each rank computes in an iteration under some clocks, ``None`` being auto."""
    return tuple(
        math.fsum(
            sum(pieces_s(plan, instruction, None if clocks is None else clocks[at][which]))
            for which, instruction in enumerate(rank.instructions)
            if instruction.kind in COMPUTES
        )
        for at, rank in enumerate(plan.job.ranks)
    )


def pieces_s(plan: JobPlan, instruction: Instruction, held: Held | None) -> tuple[float, ...]:
    """Return what an instruction takes by each row that it is held at, or as it is, or at auto."""
    if instruction.profile is None:
        return (instruction.time_s or 0.0,)
    profile = plan.job.profiles[instruction.profile]
    held = held or Held(row=profile.auto)
    return tuple(share * profile.rows[at].time_s for at, share in held.parts)


class RankPart(Record, frozen=True, kw_only=True):
    """What the controller of one rank is given; of a plan for one GPU, three are empty."""

    busy: tuple[int, ...] = ()  # launches that begin what it computes
    # launches from one mark up to another in which it communicates
    quiet: tuple[tuple[int, int], ...] = ()
    # what each launch computes at auto; 0 where it waits or communicates
    auto_s: tuple[float, ...] = ()
    # what can be seen of its iterations, and the launch that comes next
    sites: tuple[MarkSite, ...]
    schedules: tuple[ClockSchedule, ...]  # by plan of the frontier, fastest first

    @property
    def marks(self) -> tuple[int, ...]:
        """Launch index of each mark."""
        return tuple(site.launch for site in self.sites)

    def timetable(self, point: int) -> Timetable:
        """Return what the machine follows under a plan of the frontier."""
        made = timetable_of(self.schedules[point], self.marks)
        return dataclasses.replace(made, busy=frozenset(self.busy), quiet=self.quiet)


def parts_of(plan: JobPlan) -> tuple[RankPart, ...]:
    """Return the part of each rank; this loads NumPy."""
    import numpy as np  # noqa: PLC0415 - a controller reads what came of this, and starts at once

    from underclock.core.job.network import network_of  # noqa: PLC0415

    network, (points, chosen) = network_of(plan.job), planned_points(plan)
    held_rows = (
        plan.job.profiles[instruction.profile].rows[at]
        for point in points
        for rank, some in zip(plan.job.ranks, point.clocks, strict=True)
        for instruction, held in zip(rank.instructions, some, strict=True)
        if held is not None and instruction.profile is not None
        for at, _ in held.parts
    )
    if any(row.inside for row in held_rows):
        raise UsageError(
            "the job's plan changes clocks inside of instructions, and only their begins are "
            "marked",
            hint="plan it with one clock, or two in turn, for each instruction",
        )
    taken_s = np.array(
        [
            [
                sum(pieces_s(plan, instruction, held))
                for rank, some in zip(plan.job.ranks, point.clocks, strict=True)
                for instruction, held in zip(rank.instructions, some, strict=True)
            ]
            for point in points
        ]
    )
    begins_s, iterations_s = network.begins_s(taken_s), network.iteration_s(taken_s)
    ends_s = network.ends_s(taken_s)
    firsts = np.searchsorted(network.rank, np.arange(len(plan.job.ranks) + 1))
    return tuple(
        _Laid(
            plan,
            rank,
            [point.clocks[at] for point in points],
            (begins_s[:, first:end], ends_s[:, first:end], iterations_s),
        ).part(chosen)
        for at, (rank, (first, end)) in enumerate(
            zip(plan.job.ranks, pairwise(firsts), strict=True)
        )
    )


def observed_part() -> RankPart:
    """Return the part of a GPU without a plan: steps are seen, and no clock is asked for."""
    schedule = ClockSchedule(
        segments=(Segment(launches=2, clocks=AUTO),),
        switches=0,
        latency="0s",
        latencies=LatencyTable.constant(_LEAST_S),
        launch_s=(_LEAST_S,) * 2,  # of no plan a mark comes too early
    )
    return RankPart(sites=(MarkSite(launch=0, event=STEP),), schedules=(schedule,))


def digest_of(plan: Record | None) -> str:
    """Return a digest of a plan, or of none, in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(plan, order="deterministic")).hexdigest()


class _Laid:
    """A rank's instructions, laid out as launches.

    Those of its first stream: before the first it waits, each is followed by what it waits.
    """

    def __init__(
        self,
        plan: JobPlan,
        rank: Rank,
        clocks: Sequence[RankClocks],
        times: "tuple[Floats, Floats, Floats]",
    ) -> None:
        self._plan, self._rank, self._clocks = plan, rank, clocks
        self._begins_s, self._ends_s, self._iterations_s = times
        self._main = [at for at, each in enumerate(rank.instructions) if each.stream == 0]
        self._splits = {
            at for some in clocks for at, held in enumerate(some) if held and held.then is not None
        }
        self._first: dict[int, int] = {}  # launch of each instruction, and the one after it
        self._after: dict[int, int] = {}
        launches = 1
        for at in self._main:
            self._first[at] = launches
            self._after[at] = launches + 1 + (at in self._splits)
            launches = self._after[at] + 1
        self._launches = launches
        self._talking = {self._first[at] for at in self._main if self._talks(at)}

    def part(self, chosen: int) -> RankPart:
        """Return what its controller is given."""
        sites = tuple(self._sites())
        schedules = tuple(self._schedule(point) for point in range(len(self._clocks)))
        busy = [at for at in self._main if self._rank.instructions[at].kind in COMPUTES]
        return RankPart(
            sites=sites,
            busy=tuple(self._first[at] for at in busy),
            quiet=tuple(self._quiet([site.launch for site in sites], chosen)),
            auto_s=self._auto_s(chosen),
            schedules=schedules,
        )

    def _talks(self, at: int) -> bool:
        return self._rank.instructions[at].kind in TALKS

    def _lasts_s(self, point: int) -> list[float]:
        """Return what each launch takes under a plan of the frontier."""
        begins_s, ends_s = self._begins_s[point], self._ends_s[point]
        lasts_s = [0.0] * self._launches
        last = self._main[-1]
        lasts_s[0] = self._iterations_s[point] - ends_s[last] + begins_s[self._main[0]]
        for at, following in pairwise([*self._main, -1]):
            if at in self._splits:
                held = self._clocks[point][at]
                each_s = pieces_s(self._plan, self._rank.instructions[at], held)
                halves_s = (0.5 * each_s[0], 0.5 * each_s[0])
                lasts_s[self._first[at] : self._after[at]] = each_s if each_s[1:] else halves_s
            else:
                lasts_s[self._first[at]] = ends_s[at] - begins_s[at]
            if following >= 0:
                lasts_s[self._after[at]] = begins_s[following] - ends_s[at]
        return [max(float(each_s), _LEAST_S) for each_s in lasts_s]

    def _schedule(self, point: int) -> ClockSchedule:
        """Return clocks over launches.

        A rank waits at the clock of what it ran before, as plans have it, up to a change's latency
        before what comes next is due. Where it waits no longer than that clocks change as what was
        before ends: how long a rank waits is known worse than when it ends. So do they where it
        communicates first, for no call may fall into that.
        """
        lasts_s = self._lasts_s(point)
        clocks = [Clocks()] * self._launches
        aims_s = [0.0] * self._launches
        runs = [at for at in self._main if self._clocks[point][at] is not None]
        for at, following in zip(runs, [*runs[1:], *runs[:1]], strict=True):
            first, then = self._pairs(point, at)
            clocks[self._first[at]] = first
            clocks[self._first[at] + 1 : self._after[at]] = [then] * (at in self._splits)
            wrapped = self._launches if following <= at else 0
            between = range(self._after[at], self._first[following] + wrapped)
            talks = any(each % self._launches in self._talking for each in between)
            to, _ = self._pairs(point, following)
            gap_s = sum(lasts_s[each % self._launches] for each in between)
            at_once = talks or gap_s <= self._plan.latency_s
            for each in between:
                clocks[each % self._launches] = to if at_once else then
            if not at_once:
                aims_s[self._first[following]] = -self._plan.latency_s
        begins = [at for at in range(self._launches) if at == 0 or clocks[at] != clocks[at - 1]]
        segments = [
            Segment(launches=end - first, clocks=clocks[first], aim_s=aims_s[first])
            for first, end in pairwise([*begins, self._launches])
        ]
        half_s = 0.5 * self._plan.latency_s  # which part is the call the controller learns
        return ClockSchedule(
            segments=tuple(segments),
            switches=sum(a != b for a, b in zip(clocks, [clocks[-1], *clocks[:-1]], strict=True)),
            latency=f"{self._plan.latency_s:g} s",
            latencies=LatencyTable.constant(half_s, call_s=half_s),
            launch_s=tuple(lasts_s),
        )

    def _pairs(self, point: int, at: int) -> tuple[Clocks, Clocks]:
        """Return the clocks by which an instruction begins and ends."""
        held, name = self._clocks[point][at], self._rank.instructions[at].profile
        if held is None or name is None:
            raise AssertionError("it is among those that have clocks")
        rows = self._plan.job.profiles[name].rows
        return rows[held.parts[0][0]].clocks, rows[held.parts[-1][0]].clocks

    def _sites(self) -> Iterator[MarkSite]:
        """Yield what is seen: instructions begin and end, the optimizer begins and is done."""
        some = self._rank.instructions
        seen = [at for at in self._main if some[at].kind in _SEEN]
        totals = Counter((some[at].kind, some[at].chunk) for at in seen)
        counts: Counter[tuple[InstructionKind, int]] = Counter()
        yield MarkSite(launch=0, event=STEP)
        for before, at in pairwise([-1, *self._main]):
            if some[at].kind is InstructionKind.OPTIMIZER:
                yield MarkSite(launch=self._first[at], event=BEGINS, path=str(some[at].kind))
            if some[at].kind not in _SEEN:
                continue
            key = some[at].kind, some[at].chunk
            # Activations are computed again inside of what PyTorch takes for the backward.
            again = before >= 0 and some[before].kind is InstructionKind.RECOMPUTE
            later = self._main[self._main.index(at) + 1 :]
            rest = takewhile(lambda each: some[each].kind is InstructionKind.REST, later)
            *_, ends = at, *rest
            for event, launch in (
                (BEGINS, self._first[before if again else at]),
                (ENDS, self._after[ends]),
            ):
                yield MarkSite(
                    launch=launch,
                    event=event,
                    path=f"{key[0]} {key[1]}",
                    occurrence=counts[key],
                    total=totals[key],
                )
            counts[key] += 1

    def _quiet(self, marks: list[int], chosen: int) -> Iterator[tuple[int, int]]:
        """Yield stretches between marks in which it communicates, joined."""
        begins_s, ends_s = self._begins_s[chosen], self._ends_s[chosen]
        talks: set[int] = set()
        for which, each in enumerate(self._rank.instructions):
            if not self._talks(which):
                continue
            if each.stream == 0:
                talks.add(self._first[which])
                continue
            for at in self._main:
                if begins_s[at] < ends_s[which] and ends_s[at] > begins_s[which]:
                    talks.add(self._first[at])
                    if ends_s[at] < ends_s[which]:
                        talks.add(self._after[at])
        spans = pairwise([*marks, self._launches])
        for is_quiet, some in groupby(spans, lambda span: not talks.isdisjoint(range(*span))):
            if is_quiet:
                (first, end), *more = some
                yield first, more[-1][1] if more else end

    def _auto_s(self, chosen: int) -> tuple[float, ...]:
        """Return what each launch computes at auto, cut where the chosen plan cuts it."""
        work_s = [0.0] * self._launches
        for at in self._main:
            name, held = self._rank.instructions[at].profile, self._clocks[chosen][at]
            if name is None or held is None:
                continue
            profile = self._plan.job.profiles[name]
            auto_s = profile.rows[profile.auto].time_s
            share = held.share if held.then is not None else 0.5 if at in self._splits else 1.0
            work_s[self._first[at]] = share * auto_s
            if at in self._splits:
                work_s[self._first[at] + 1] = (1.0 - share) * auto_s
        return tuple(work_s)

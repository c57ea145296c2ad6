"""Runs a job on simulated boards, each rank's clocks asked for as its conductor would.

Each rank has a machine of its own, which sees its instructions begin and knows what they take as
planned, not what they do take. Instructions are gone through in the order in which ranks wait for
one another, so each board is at a time of its own until the iteration ends.

A rank waits at the clock of what it ran before, as plans have it, up to a change's latency before
what comes next is due: clocks that come late are slack's then, and nobody's time. Where it waits no
longer than that, or has to communicate first, clocks change as what was before ends: how long it
waits is known worse than when it begins to, and no call may fall into a transfer.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from job_costs import instruction_costs
from simulated_jobs.cluster import Board
from underclock.arrays import Floats
from underclock.core.job.network import network_of
from underclock.core.job.timeline import auto_clocks
from underclock.errors import DataError
from underclock.hw.simulated.costs import Work
from underclock.records import AUTO, Clocks
from underclock.records.job import Held, Instruction, Job, ProfileRow, RankClocks
from underclock.records.latencies import Domain, LatencyTable
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import Timetable, timetable
from underclock.runtime.simulated import Asker
from underclock.runtime.trainer.page import STEPS

_LEAST_S = 1e-6  # of a launch in a timetable
_PARTS = 3  # of an instruction there: by one row, by the next, and until the next instruction
_NOTICED_S = 1.0  # until others know of a rank that died; assumed
_GIVEN_BACK_S = 1.0  # until clocks that were given back are the driver's


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """What an iteration truly did. Shape letters: R ranks, n instructions.

    Attributes:
        time_s: Until the last rank had ended, or until it was noticed that one never will.
        energy_j: Of each rank; the truth. Shape (R,).
        counted_j: As counters show it, which have gains of their own. Shape (R,).
        ran_j: What each instruction took of that on its board; 0 beside others. Shape (n,).
        begins_s: Of each instruction, from the iteration's beginning; infinite where it never did.
            Shape (n,).
        ends_s: Likewise. Shape (n,).
    """

    time_s: float
    energy_j: Floats
    counted_j: Floats
    ran_j: Floats
    begins_s: Floats
    ends_s: Floats

    @property
    def ended(self) -> bool:
        """Whether every rank did all that it had to."""
        return bool(np.isfinite(self.ends_s).all())


class SimulatedJob:
    """A job that runs, iteration after iteration, at clocks that may change between them.

    Args:
        job: What is run.
        work: What each of its profiles is on a board.
        boards: One for each rank; nothing else runs on them.
        latencies: What conductors believe that changes of clocks take.

    Raises:
        DataError: A profile is no work, or there is not one board for each rank.
    """

    def __init__(
        self,
        job: Job,
        work: Mapping[str, Work],
        boards: Sequence[Board],
        latencies: LatencyTable,
    ) -> None:
        missing = sorted(job.profiles.keys() - work.keys())
        if missing or len(boards) != len(job.ranks):
            raise DataError(
                f"{len(boards)} boards for {len(job.ranks)} ranks, and no work for {missing}",
                hint="give every rank a board, and every profile what it runs",
            )
        self.job = job
        self.boards = tuple(boards)
        self._work = work
        self._latencies = latencies
        self._network = network_of(job)
        self._every = [each for rank in job.ranks for each in rank.instructions]
        by_activity = np.argsort(self._network.activity, kind="stable")
        firsts = np.searchsorted(
            self._network.activity[by_activity], np.arange(len(self._network.waits))
        )
        self._members = [part.tolist() for part in np.split(by_activity, firsts[1:])]
        self._ranks = self._network.rank.tolist()
        self._slow: dict[frozenset[int], float] = {}
        self._dies_s = [math.inf] * len(boards)
        self._askers: list[Asker] = []
        self._count = 0
        self._ran_j = np.zeros(len(self._every))
        self._lines = [_Line(job, rank) for rank in range(len(job.ranks))]
        for board, table in zip(self.boards, self._timetables(auto_clocks(job)), strict=True):
            self._askers.append(Asker(board.gpu, Machine(table)))

    def follow(self, clocks: Sequence[RankClocks]) -> None:
        """Have every rank follow clocks from now on.

        Raises:
            DataError: Clocks change inside an instruction otherwise than from one row to another.
        """
        for asker, table in zip(self._askers, self._timetables(clocks), strict=True):
            if table.changes:
                asker.machine.follow(table)
            else:
                asker.machine.hold(table.clocks[0])
            asker.look_ahead()

    def hold(self, clocks: Clocks = AUTO) -> None:
        """Have every rank hold clocks whatever it runs, from now on."""
        for asker in self._askers:
            asker.machine.hold(clocks)
            asker.look_ahead()

    def slow_link(self, rank: int, other: int, factor: float) -> None:
        """Let transfers between two ranks take that many times as long as they should."""
        self._slow[frozenset((rank, other))] = factor

    def kill(self, rank: int, after_s: float) -> None:
        """Let a rank die some time from now; its watcher gives its clocks back."""
        board = self.boards[rank]
        self._dies_s[rank] = board.now_s + after_s

    @property
    def disturbed(self) -> int:
        """How many calls were made while their rank was in a transfer, of all ranks."""
        return sum(asker.disturbed for asker in self._askers)

    @property
    def refusals(self) -> int:
        """How many calls the driver refused, of all ranks."""
        return sum(asker.refusals for asker in self._askers)

    def iterate(self) -> Iteration:
        """Run one iteration, from when all boards have come to one time.

        Where a rank died, the others wait for it until that is noticed, and then hold auto.
        """
        began_s = self._meet()
        before = [(board.gpu.energy_j, board.counted_j) for board in self.boards]
        for board in self.boards:
            board.draw_noise()
        begins, ends = (np.full(len(self._every), math.inf) for _ in range(2))
        ended = [math.inf] * len(self._members)
        for at in self._network.order:
            begin_s = began_s
            for on, lag_s in self._network.waits[at]:
                slow = self._slowness(self._members[at] + self._members[on]) if lag_s else 1.0
                begin_s = max(begin_s, ended[on] + lag_s * slow)
            ended[at] = self._perform(self._members[at], begin_s)
            begins[self._members[at]], ends[self._members[at]] = begin_s, ended[at]
        self._count += 1
        if max(ended) == math.inf:
            self._notice()
        now_s = self._meet()
        energy_j = np.array([(board.gpu.energy_j, board.counted_j) for board in self.boards])
        energy_j -= np.array(before)
        return Iteration(
            time_s=now_s - began_s,
            energy_j=energy_j[:, 0],
            counted_j=energy_j[:, 1],
            ran_j=self._ran_j.copy(),
            begins_s=begins - began_s,
            ends_s=ends - began_s,
        )

    def end(self) -> None:
        """Stop asking, and give every clock back."""
        for asker, board in zip(self._askers, self.boards, strict=True):
            asker.stop()
            board.gpu.lock_core(None)
            board.gpu.lock_mem(None)
            board.wait_until(board.now_s + _GIVEN_BACK_S)

    def _perform(self, members: Sequence[int], begin_s: float) -> float:
        """Run what begins together; return when it ends, infinity where it never does."""
        ends_s = begin_s
        slow = self._slowness(members)
        for i in members:
            each, rank = self._every[i], self._ranks[i]
            if each.time_s is not None:
                ends_s = max(ends_s, begin_s + each.time_s * slow)
            ends_s = math.inf if ends_s > self._dies_s[rank] else ends_s
        for i in members:
            each, rank = self._every[i], self._ranks[i]
            if each.stream:
                continue
            board, asker, line = self.boards[rank], self._askers[rank], self._lines[rank]
            before_j = board.counted_j
            if each.profile is None:
                asker.talks = each.meeting is not None
                board.wait_until(min(begin_s, self._dies_s[rank]) if begin_s < math.inf else 0.0)
                before_j = board.counted_j
                board.wait_until(min(ends_s, self._dies_s[rank]) if ends_s < math.inf else 0.0)
                asker.talks = False
            elif begin_s < math.inf:
                board.wait_until(min(begin_s, self._dies_s[rank]))
                before_j = board.counted_j
                self._mark(rank, line.words[i])
                ended = board.run(self._work[each.profile], self._dies_s[rank])
                ends_s = board.now_s if ended else math.inf
                self._mark(rank, line.words[i] + 1)
            self._ran_j[i] = board.counted_j - before_j
        return ends_s

    def _mark(self, rank: int, word: int) -> None:
        if self.boards[rank].now_s < self._dies_s[rank]:
            self._askers[rank].shows(word, self._count % STEPS)

    def _slowness(self, members: Sequence[int]) -> float:
        """Return by how much the slowest link between ranks of instructions is slower."""
        if not self._slow:
            return 1.0
        ranks = {self._ranks[i] for i in members}
        return max((by for both, by in self._slow.items() if both <= ranks), default=1.0)

    def _notice(self) -> None:
        """Have a rank's death noticed: its clocks are given back, and the others' too."""
        died_s = min(self._dies_s)
        for board, dies_s, asker in zip(self.boards, self._dies_s, self._askers, strict=True):
            board.wait_until(min(dies_s, died_s + _NOTICED_S))
            if dies_s < math.inf:
                asker.stop()
                board.gpu.lock_core(None)
                board.gpu.lock_mem(None)
        self.hold()
        for board in self.boards:
            board.wait_until(died_s + _NOTICED_S + _GIVEN_BACK_S)

    def _meet(self) -> float:
        """Bring all boards to one time; return it."""
        now_s = max(board.now_s for board in self.boards)
        for board in self.boards:
            board.wait_until(now_s)
        return now_s

    def _timetables(self, clocks: Sequence[RankClocks]) -> list[Timetable]:
        """Return what each rank's conductor goes by."""
        duration_s, _ = instruction_costs(self.job, tuple(clocks))
        begins_s = self._network.begins_s(duration_s)
        whole_s = float(self._network.iteration_s(duration_s))
        return [
            line.timetable(some, begins_s, duration_s, whole_s, self._latencies)
            for line, some in zip(self._lines, clocks, strict=True)
        ]


class _Line:
    """One rank's instructions as launches of a timetable: `_PARTS` for each that has a profile.

    Marks are seen where each begins and where it ends.
    """

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        self._instructions = job.ranks[rank].instructions
        self.first = sum(len(each.instructions) for each in job.ranks[:rank])
        self._runs: list[int] = []
        talks: set[int] = set()  # after which of them it communicates
        for i, each in enumerate(self._instructions):
            if each.profile is not None and each.stream == 0:
                self._runs.append(i)
            elif each.meeting is not None and each.stream == 0:
                talks.add(len(self._runs) - 1)
        if not self._runs:
            raise DataError(
                f"rank {rank} runs nothing whose clocks matter",
                hint="a job that is planned has a profile for what each rank computes",
            )
        count = len(self._runs)
        self._talks = {at % count for at in talks}
        self.words = {self.first + i: 2 * at + 1 for at, i in enumerate(self._runs)}
        """Of the mark where each begins; where it ends is the next."""
        self._marks = [_PARTS * at + part for at in range(count) for part in (0, _PARTS - 1)]

    def timetable(
        self,
        clocks: RankClocks,
        begins_s: Floats,
        duration_s: Floats,
        whole_s: float,
        latencies: LatencyTable,
    ) -> Timetable:
        """Return the timetable of clocks, with what everything takes as planned."""
        begins = [float(begins_s[self.first + i]) for i in self._runs]
        held = [_rows(self._job, self._instructions[i], clocks[i]) for i in self._runs]
        launch_s: list[float] = []
        aims_s: list[float] = []
        order: list[Clocks] = []
        for at, (first, then, share) in enumerate(held):
            takes_s = float(duration_s[self.first + self._runs[at]])
            first_s = share * first.time_s
            next_s = begins[at + 1] if at + 1 < len(begins) else begins[0] + whole_s
            parts_s = (first_s, takes_s - first_s, next_s - begins[at] - takes_s)
            launch_s += [max(part_s, _LEAST_S) for part_s in parts_s]
            following = held[(at + 1) % len(held)][0].clocks
            change = latencies.from_anywhere(Domain.CORE, following.core_mhz)
            at_once = at in self._talks or parts_s[2] <= change.total_s
            order += [first.clocks, then.clocks, following if at_once else then.clocks]
            aims_s += [0.0 if at_once else -change.total_s, 0.0, 0.0]
        aims_s = aims_s[-_PARTS:] + aims_s[:-_PARTS]  # each is of the gap before
        made = timetable(order, latencies, launch_s, self._marks, aims_s)
        return dataclasses.replace(made, busy=frozenset(self._marks[::2]))


def _rows(
    job: Job, instruction: Instruction, held: Held | None
) -> tuple[ProfileRow, ProfileRow, float]:
    """Return by which rows an instruction runs, first and then, and the share of the first.

    Raises:
        DataError: Nothing is held, or clocks change inside a row.
    """
    rows = () if instruction.profile is None else job.profiles[instruction.profile].rows
    if held is None or not rows:
        raise DataError(
            f"the {instruction} has no clocks", hint="give one for each that has a profile"
        )
    first, then = rows[held.row], rows[held.row if held.then is None else held.then]
    if first.inside or then.inside:
        raise DataError(
            f"clocks change inside the {instruction} as its kernels do",
            hint="simulated ranks run instructions as one piece: plan one clock, or two, for each",
        )
    return first, then, held.share

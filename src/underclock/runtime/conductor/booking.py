"""What a conductor writes into the user's ledger: what each GPU drew, and what auto would have.

Of a run it is told the lines of the log, and nothing else; there is no second meter. Its thread
writes every few minutes and `close` once more, so a slow disk keeps no clock waiting. What cannot
be written is told once, and the run goes on.
"""

import atexit
import contextlib
import datetime as dt
import math
import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from underclock.errors import UnderclockError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import is_simulated, nvml_session
from underclock.ledger.entries import OTHERWISE, LedgerEntry, SavedAgainst, hashed
from underclock.ledger.store import ledger_path, write_entries
from underclock.records import Evidence, Plan
from underclock.records.job import JobPlan
from underclock.records.runs import ArmLine, Line, RunLine, StepLine
from underclock.runtime.conductor.process import Work, hold
from underclock.runtime.machine.steps import State
from underclock.runtime.policy.arms import CANNOT_TELL, ArmName
from underclock.runtime.policy.guard import Stage
from underclock.runtime.policy.parts import digest_of
from underclock.runtime.undo.armed import Armed
from underclock.runtime.undo.processes import say

EVERY_S = 300.0
"""Between writings; a conductor that is killed loses as much."""
_WEAKEST = (Evidence.SIMULATED, Evidence.REPLAYED, Evidence.MEASURED)
_AT_AUTO = {stage.name.lower() for stage in Stage if stage.at_auto}
_HELD = {str(ArmName.PLAN), str(ArmName.BEST_FIXED)}
_JOB_NAMES = (("UNDERCLOCK_JOB", ""), ("SLURM_JOB_ID", "slurm "))
_LEAST_END_S = 5.0  # that the last writing waits for the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedRun:
    """What is known of a run before its first step."""

    gpus: tuple[tuple[str, str], ...]  # UUID and model of each local rank's
    ranks: tuple[int, ...]  # of the job, that they are
    job: str
    workload: str
    plan: str  # digest
    evidence: Evidence  # of the plan
    promise: float | None  # change of energy; None for none
    interval: tuple[float, float] | None  # of it
    sets_nothing: bool  # whether it leaves all clocks to the driver, and so saves nothing
    other_board: bool  # whether the plan was made on one, of whose like the interval says nothing
    began_s: float  # since 1970

    @classmethod
    def of(
        cls,
        plan: Plan | JobPlan,
        gpus: Sequence[tuple[str, str]],
        first: int,
        environment: Mapping[str, str],
    ) -> "BookedRun":
        """Return it of a plan, held on some GPUs.

        Args:
            gpus: UUID and model of each.
            first: Rank of the first of them.
            environment: Of the job.
        """
        arm = plan.headline if isinstance(plan, Plan) else plan.arm(plan.chosen)
        rank = environment.get("RANK", "")
        if rank.isdecimal() and len(gpus) == 1 and not first:
            first = int(rank)  # each rank of the job holds its own
        named = [mark + environment[name] for name, mark in _JOB_NAMES if environment.get(name)]
        return cls(
            gpus=tuple(gpus),
            ranks=tuple(range(first, first + len(gpus))),
            job=named[0] if named else plan.workload,
            workload=plan.workload,
            plan=digest_of(plan)[:16],
            evidence=plan.evidence,
            promise=arm.energy_change,
            interval=arm.energy_interval,
            sets_nothing=isinstance(plan, Plan)
            and plan.schedule is not None
            and all(clocks.is_auto for clocks in plan.schedule.clocks),
            other_board=isinstance(plan, Plan)
            and any({plan.gpu.uuid} - {None, u} for u, _ in gpus),
            began_s=dt.datetime.now(tz=dt.UTC).timestamp(),
        )

    def entry(self, gpu: int, evidence: Evidence, **drawn: Any) -> LedgerEntry:  # noqa: ANN401
        """Return the entry of one of its GPUs.

        Args:
            evidence: Of the run; a promise's may be weaker.
            drawn: What remains of an entry's fields.
        """
        uuid, name = self.gpus[gpu]
        if drawn["against"] is SavedAgainst.PROMISE:
            evidence = min(evidence, self.evidence, key=_WEAKEST.index)
        return LedgerEntry(
            job=self.job,
            workload=self.workload,
            gpu=hashed(uuid),
            gpu_name=name,
            rank=self.ranks[gpu],
            began_s=self.began_s,
            plan=self.plan,
            evidence=evidence,
            **drawn,
        )


@dataclass(slots=True)
class _Drawn:
    """What steps of one GPU drew in one arm."""

    steps: int = 0
    energy_j: float | None = None  # of those whose energy is known, if any is


@dataclass(slots=True)
class RunTally:
    """Sums up the lines of a run's log, as they come."""

    booked: BookedRun
    number: str = field(default_factory=lambda: secrets.token_hex(8))  # of the run
    _run: RunLine | None = None
    _drawn: defaultdict[tuple[int, str], _Drawn] = field(
        default_factory=lambda: defaultdict(_Drawn)
    )
    _arms: list[ArmLine] = field(default_factory=list)

    def add(self, line: Line) -> None:
        """Take note of a line."""
        if isinstance(line, StepLine):
            drawn = self._drawn[line.gpu, self.counted_as(line)]
            drawn.steps += line.steps
            if line.energy_j is not None:
                drawn.energy_j = (drawn.energy_j or 0.0) + line.steps * line.energy_j
        elif isinstance(line, ArmLine):
            self._arms.append(line)
        elif isinstance(line, RunLine):
            self._run = line

    def counted_as(self, line: StepLine) -> str:
        """Return the arm that a step counts for; empty where nobody can tell what it saved.

        A promise is of steps that followed the plan throughout. Where arms took turns, what they
        differ by was told of all their steps.
        """
        if self._run is not None and self._run.arms:
            return line.arm
        if line.arm in _AT_AUTO:
            return str(ArmName.AUTO)
        follows = line.state == State.FOLLOWING and line.arm == ArmName.PLAN
        return str(ArmName.PLAN) if follows else ""

    def entries(self, lasted_s: float) -> tuple[LedgerEntry, ...]:
        """Return an entry for each GPU; none of a run that set nothing."""
        if self._run is None or self._run.dry:
            return ()
        return tuple(self._entry(self._run, gpu, lasted_s) for gpu in range(len(self.booked.gpus)))

    def _entry(self, run: RunLine, gpu: int, lasted_s: float) -> LedgerEntry:
        mine = {arm: drawn for (whose, arm), drawn in list(self._drawn.items()) if whose == gpu}
        besides = mine.pop("", _Drawn())
        energy_j = _sum_j(mine.values())
        changes, untold = self._changes(run, gpu)
        if energy_j is None:
            untold = CANNOT_TELL + _why_unknown(mine, besides)
        held = [drawn for arm, drawn in mine.items() if arm in _HELD]
        auto_j = [(energy_j or 0.0) + saved_j for saved_j in _saved(changes, mine)]
        return self.booked.entry(
            gpu,
            run.evidence,
            run=self.number,
            lasted_s=lasted_s,
            steps=sum(drawn.steps for drawn in (besides, *mine.values())),
            held_steps=sum(drawn.steps for drawn in held),
            energy_j=energy_j,
            held_j=None if energy_j is None else _sum_j(held) or 0.0,
            auto_j=None if untold else auto_j[1],
            auto_interval_j=None if untold else (auto_j[0], auto_j[2]),
            against=SavedAgainst.BLOCKS if run.arms else SavedAgainst.PROMISE,
            untold=untold,
            untold_j=besides.energy_j or 0.0,
        )

    def _changes(self, run: RunLine, gpu: int) -> tuple[dict[str, "_Change"], str]:
        """Return how each arm differs from auto, or why that is not known."""
        booked = self.booked
        arms = _HELD - {str(ArmName.PLAN)} if booked.sets_nothing else _HELD
        if booked.sets_nothing and ArmName.BEST_FIXED not in run.arms.split(","):
            return {}, ""
        if run.arms:
            return _compared([line for line in self._arms if line.gpu == gpu and line.arm in arms])
        if booked.promise is None or booked.interval is None or booked.other_board:
            doubt = "was made on another board" if booked.other_board else "has no interval"
            return {}, f"{CANNOT_TELL}the plan's promise {doubt}: --arms auto,plan tells"
        return {str(ArmName.PLAN): (booked.interval[0], booked.promise, booked.interval[1])}, ""


def _compared(lines: Sequence[ArmLine]) -> tuple[dict[str, "_Change"], str]:
    """Return how arms of one GPU differed from auto, or why that is not known."""
    if not lines:
        return {}, f"{CANNOT_TELL}no round of its arms was compared before this was written"
    changes = {}
    for line in lines:
        if line.verdict.startswith(CANNOT_TELL):
            return {}, line.verdict
        if line.energy_change is None or line.energy_interval is None:
            return {}, f"{CANNOT_TELL}what steps drew is not known"
        low, high = line.energy_interval
        changes[line.arm] = low, line.energy_change, high
    return changes, ""


_Change = tuple[float, float, float]  # low end, mean, high end of a fraction of auto


def _saved(changes: Mapping[str, _Change], drawn: Mapping[str, _Drawn]) -> _Change:
    """Return the saving's low end, mean and high end in J: the greater the change, the less.

    Steps that drew ``E`` at a change of ``c`` would have drawn ``E / (1 + c)`` at auto. Arms of one
    run share its auto, so that their errors are added.
    """
    ends = [0.0, 0.0, 0.0]
    for arm, each in changes.items():
        held_j = drawn.get(arm, _Drawn()).energy_j or 0.0
        for place, change in enumerate(reversed(each)):
            ends[place] += held_j * (1.0 / (1.0 + change) - 1.0)
    return ends[0], ends[1], ends[2]


def _sum_j(drawn: Iterable[_Drawn]) -> float | None:
    known_j = [each.energy_j for each in drawn if each.energy_j is not None]
    return math.fsum(known_j) if known_j else None


def _why_unknown(drawn: Mapping[str, _Drawn], besides: _Drawn) -> str:
    if drawn:
        return "what steps drew is not known"
    return OTHERWISE if besides.steps else "no step was seen"


class AppliedTally:
    """What a GPU drew while clocks are held for whatever runs: no step is seen of it.

    Raises:
        DeviceError: Its counter cannot be read.
    """

    def __init__(self, booked: BookedRun, index: int) -> None:
        self._booked, self._index, self._number = booked, index, secrets.token_hex(8)
        self._energy_j, self._last_j = 0.0, self._counter_j()
        self._evidence = Evidence.SIMULATED if is_simulated() else Evidence.MEASURED

    def _counter_j(self) -> float:
        with nvml_session():
            return NvmlGpu(self._index).energy_j()

    def add(self, line: Line) -> None:
        """Take note of nothing: there are no lines."""

    def entries(self, lasted_s: float) -> tuple[LedgerEntry, ...]:
        """Return its entry, with what the counter climbed as far as it can be read."""
        with contextlib.suppress(UnderclockError):
            now_j = self._counter_j()
            self._energy_j += max(0.0, now_j - self._last_j)  # it begins anew with the driver
            self._last_j = now_j
        entry = self._booked.entry(
            0,
            self._evidence,
            run=self._number,
            lasted_s=lasted_s,
            steps=0,
            held_steps=0,
            energy_j=self._energy_j,
            held_j=self._energy_j,
            auto_j=None,
            auto_interval_j=None,
            against=SavedAgainst.PROMISE,
            untold=f"{CANNOT_TELL}`apply` sees no steps: what ran, and at auto, is not known",
        )
        return (entry,)


def hold_booked(gpus: Mapping[str, Armed], options: Mapping[str, Any]) -> Work:
    """Hold what `process.hold` does, and write it into the user's ledger.

    Args:
        gpus: By UUID.
        options: ``set``: as of `process.hold`; ``booked``: fields of a `BookedRun`; ``index``: of
            its GPU.
    """
    work = hold(gpus, options["set"])
    path = ledger_path(os.environ)
    if path is not None:
        with contextlib.suppress(UnderclockError):  # a GPU without a counter
            tally = AppliedTally(msgspec.convert(options["booked"], BookedRun), options["index"])
            atexit.register(Booking(path, tally).close)  # after everything was undone
    return work


class Booking:
    """Writes a run into the ledger as it goes on."""

    def __init__(
        self, path: Path, tally: RunTally | AppliedTally, *, every_s: float = EVERY_S
    ) -> None:
        self._path, self._tally, self._every_s = path, tally, every_s
        self._began_s = time.monotonic()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, line: Line) -> None:
        """Take note of a line of the log."""
        with self._lock:
            self._tally.add(line)

    def close(self) -> None:
        """Write what it came to."""
        self._ended.set()
        self._thread.join(_LEAST_END_S)
        self._write()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._write()

    def _write(self) -> None:
        with self._lock:
            entries = self._tally.entries(time.monotonic() - self._began_s)
        if not entries:
            return
        try:
            write_entries(self._path, entries)
        except UnderclockError as exc:
            if not self._failed:
                say(f"this run is not in the ledger: {exc}; {exc.hint}")
            self._failed = True

"""What a conductor writes into the user's ledger: what each GPU drew, and what auto would have.

Of a run it is told the lines of the log, and nothing else; there is no second meter. Its thread
writes now and then and `close` once more, so a slow disk keeps no clock waiting. What cannot be
written is told once, and the run goes on.
"""

import datetime as dt
import math
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from underclock.errors import UnderclockError
from underclock.ledger.entries import OTHERWISE, LedgerGpu, LedgerRun, SavedAgainst, hashed
from underclock.ledger.store import append_run
from underclock.records import Evidence, Plan
from underclock.records.job import JobPlan
from underclock.records.runs import ArmLine, Line, RunLine, StepLine
from underclock.runtime.machine.steps import State
from underclock.runtime.policy.arms import CANNOT_TELL, ArmName
from underclock.runtime.policy.guard import Stage
from underclock.runtime.policy.parts import digest_of
from underclock.runtime.undo.processes import say
from underclock.units import format_duration

EVERY_S = 900.0
"""Between writings; a conductor that is killed loses as much."""
_ALIKE = 0.1  # of the plan's step in time and energy: a promise is told of none further off
_WEAKEST = (Evidence.SIMULATED, Evidence.REPLAYED, Evidence.MEASURED)
_AT_AUTO = {stage.name.lower() for stage in Stage if stage.at_auto}
_AUTO, _PLAN, _FIXED = str(ArmName.AUTO), str(ArmName.PLAN), str(ArmName.BEST_FIXED)
_LEAST_END_S = 5.0  # that the last writing waits for the one before
_Change = tuple[float, float, float]  # low end, mean, high end of a fraction of auto


@dataclass(slots=True)
class _Drawn:
    """What steps of one GPU took in one arm."""

    steps: int = 0
    time_s: float = 0.0
    known: int = 0  # steps whose energy is known
    energy_j: float = 0.0  # of those


class RunTally:
    """Sums up the lines of a run's log, as they come.

    Args:
        plan: That is held.
        gpus: UUID and model of each local rank's GPU.
        first: Rank of the first of them.
        environment: Of the job.
    """

    def __init__(
        self,
        plan: Plan | JobPlan,
        gpus: Sequence[tuple[str, str]],
        first: int,
        environment: Mapping[str, str],
    ) -> None:
        rank = environment.get("RANK", "")
        if rank.isdecimal() and len(gpus) == 1 and not first:
            first = int(rank)  # each rank of the job holds its own
        self._plan, self._gpus, self._first = plan, gpus, first
        slurm = environment.get("SLURM_JOB_ID")
        self._job = environment.get("UNDERCLOCK_JOB") or (
            f"slurm {slurm}" if slurm else plan.workload
        )
        self._number = secrets.token_hex(8)
        self._began_s = dt.datetime.now(tz=dt.UTC).timestamp()
        self._run: RunLine | None = None
        self._drawn: defaultdict[tuple[int, str], _Drawn] = defaultdict(_Drawn)
        self._arms: list[ArmLine] = []

    def add(self, line: Line) -> None:
        """Take note of a line."""
        if isinstance(line, StepLine):
            drawn = self._drawn[line.gpu, self.counted_as(line)]
            drawn.steps += line.steps
            drawn.time_s += line.steps * line.time_s
            if line.energy_j is not None:
                drawn.known += line.steps
                drawn.energy_j += line.steps * line.energy_j
        elif isinstance(line, ArmLine):
            self._arms.append(line)
        elif isinstance(line, RunLine):
            self._run = line

    def counted_as(self, line: StepLine) -> str:
        """Return the arm that a step counts for; empty where it cannot be told what it saved.

        A promise is of steps that followed the plan throughout. Where arms took turns, what they
        differ by was told of all their steps.
        """
        if self._run is not None and self._run.arms:
            return line.arm
        if line.arm in _AT_AUTO:
            return _AUTO
        return _PLAN if line.state == State.FOLLOWING and line.arm == _PLAN else ""

    def run(self, lasted_s: float) -> LedgerRun | None:
        """Return the ledger's line; ``None`` of a run that set nothing."""
        run = self._run
        if run is None or run.dry:
            return None
        evidence = min(run.evidence, self._plan.evidence, key=_WEAKEST.index)
        return LedgerRun(
            run=self._number,
            job=self._job,
            plan=digest_of(self._plan)[:16],
            began_s=self._began_s,
            lasted_s=lasted_s,
            evidence=run.evidence if run.arms else evidence,
            against=SavedAgainst.BLOCKS if run.arms else SavedAgainst.PROMISE,
            gpus=tuple(self._gpu(run, gpu) for gpu in range(len(self._gpus))),
        )

    def _gpu(self, run: RunLine, gpu: int) -> LedgerGpu:
        mine = {arm: drawn for (whose, arm), drawn in self._drawn.items() if whose == gpu}
        besides = mine.pop("", _Drawn())
        changes, why = self._changes(run, gpu, mine.get(_PLAN, _Drawn()))
        is_known = any(drawn.known for drawn in mine.values())
        if not is_known:
            unseen = OTHERWISE if besides.steps else "no step was seen"
            why = "what steps drew is not known" if mine else unseen
        energy_j = math.fsum(drawn.energy_j for drawn in mine.values())
        auto_j = [energy_j + saved_j for saved_j in _saved(changes, mine)]
        return LedgerGpu(
            gpu=hashed(self._gpus[gpu][0]),
            name=self._gpus[gpu][1],
            rank=self._first + gpu,
            steps=sum(drawn.steps for drawn in (besides, *mine.values())),
            held_steps=sum(mine[arm].steps for arm in (_PLAN, _FIXED) if arm in mine),
            energy_j=energy_j if is_known else None,
            auto_j=None if why else auto_j[1],
            auto_interval_j=None if why else (auto_j[0], auto_j[2]),
            untold=f"{CANNOT_TELL}{why.removeprefix(CANNOT_TELL)}" if why else "",
            untold_j=besides.energy_j,
        )

    def _changes(self, run: RunLine, gpu: int, held: _Drawn) -> tuple[dict[str, _Change], str]:
        """Return how each arm differs from auto, or why that is not known."""
        plan = self._plan
        sets_nothing = (
            isinstance(plan, Plan)
            and plan.schedule is not None
            and all(clocks.is_auto for clocks in plan.schedule.clocks)
        )
        if sets_nothing and _FIXED not in run.arms.split(","):
            return {}, ""
        if run.arms:
            arms = {_FIXED} if sets_nothing else {_PLAN, _FIXED}
            return _compared([line for line in self._arms if line.gpu == gpu and line.arm in arms])
        arm = plan.headline if isinstance(plan, Plan) else plan.arm(plan.chosen)
        why = self._unlike(held)
        if arm.energy_change is None or arm.energy_interval is None:
            why = "the plan's promise has no interval"
        elif isinstance(plan, Plan) and {plan.gpu.uuid} - {None, self._gpus[gpu][0]}:
            why = "the plan's promise was made on another board"
        else:
            low, high = arm.energy_interval
            changes = {_PLAN: (low, arm.energy_change, high)}
        return ({}, f"{why}: --arms auto,plan tells") if why else (changes, "")

    def _unlike(self, held: _Drawn) -> str:
        """Say where steps were not the plan's own: of a job by their time alone."""
        plan = self._plan
        cost = plan.headline.cost if isinstance(plan, Plan) else plan.promise
        if not held.steps or cost is None:
            return ""
        seen_s, seen_j = held.time_s / held.steps, held.energy_j / max(held.known, 1)
        of_time = seen_s / cost.time_s
        of_energy = seen_j / cost.energy_j if isinstance(plan, Plan) and held.known else 1.0
        if max(abs(of_time - 1.0), abs(of_energy - 1.0)) <= _ALIKE:
            return ""
        return (
            f"steps took {format_duration(seen_s)} and {seen_j:.3g} J, and the plan is of one of "
            f"{format_duration(cost.time_s)} and {cost.energy_j:.3g} J"
        )


def _compared(lines: Sequence[ArmLine]) -> tuple[dict[str, _Change], str]:
    """Return how arms of one GPU differed from auto, or why that is not known."""
    if not lines:
        return {}, "no round of its arms was compared before this was written"
    changes = {}
    for line in lines:
        if line.verdict.startswith(CANNOT_TELL):
            return {}, line.verdict
        if line.energy_change is None or line.energy_interval is None:
            return {}, "what steps drew is not known"
        low, high = line.energy_interval
        changes[line.arm] = low, line.energy_change, high
    return changes, ""


def _saved(changes: Mapping[str, _Change], drawn: Mapping[str, _Drawn]) -> list[float]:
    """Return the saving's low end, mean and high end in J: the greater the change, the less.

    Steps that drew ``E`` at a change of ``c`` would have drawn ``E / (1 + c)`` at auto. Arms of one
    run share its auto, so that their errors are added.
    """
    ends = [0.0, 0.0, 0.0]
    for arm, each in changes.items():
        held_j = drawn[arm].energy_j if arm in drawn else 0.0
        for place, change in enumerate(reversed(each)):
            ends[place] += held_j * (1.0 / (1.0 + change) - 1.0)
    return ends


class Booking:
    """Writes a run into the ledger as it goes on."""

    def __init__(self, path: Path, tally: RunTally, *, every_s: float = EVERY_S) -> None:
        self._path, self._tally, self._every_s = path, tally, every_s
        self._began_s = time.monotonic()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._write_on, daemon=True)
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

    def _write_on(self) -> None:
        while not self._ended.wait(self._every_s):
            self._write()

    def _write(self) -> None:
        with self._lock:
            run = self._tally.run(time.monotonic() - self._began_s)
        try:
            if run is not None:
                append_run(self._path, run)
        except UnderclockError as exc:
            if not self._failed:
                say(f"this run is not in the ledger: {exc}; {exc.hint}")
            self._failed = True

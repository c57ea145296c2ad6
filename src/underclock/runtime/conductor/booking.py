"""What a conductor writes into the user's ledger: what each GPU drew, and what auto would have.

Of a run it is told the lines of the log, and nothing else; there is no second meter.
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
from underclock.ledger.runs import (
    OTHERWISE,
    LedgerGpu,
    LedgerRun,
    SavedAgainst,
    append_run,
    hashed,
)
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
_UNKNOWN = "what steps drew is not known"
_LEAST_END_S = 5.0  # that the last writing waits for the one before


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
        rank, slurm = environment.get("RANK", ""), environment.get("SLURM_JOB_ID")
        if rank.isdecimal() and len(gpus) == 1 and not first:
            first = int(rank)  # each rank of the job holds its own
        self._plan, self._gpus, self._first = plan, gpus, first
        usual = f"slurm {slurm}" if slurm else plan.workload
        self._job = environment.get("UNDERCLOCK_JOB") or usual
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
        weaker = min(run.evidence, self._plan.evidence, key=_WEAKEST.index)
        return LedgerRun(
            run=self._number,
            job=self._job,
            plan=digest_of(self._plan)[:16],
            began_s=self._began_s,
            lasted_s=lasted_s,
            evidence=run.evidence if run.arms else weaker,
            against=SavedAgainst.BLOCKS if run.arms else SavedAgainst.PROMISE,
            gpus=tuple(self._gpu(run, gpu) for gpu in range(len(self._gpus))),
        )

    def _gpu(self, run: RunLine, gpu: int) -> LedgerGpu:
        """Return what one GPU drew, and would have drawn at auto.

        Steps that drew ``E`` at a change of ``c`` would have drawn ``E / (1 + c)`` at auto: the
        greater the change, the less. Arms of one run share its auto, so their errors are added.
        """
        mine = {arm: drawn for (whose, arm), drawn in self._drawn.items() if whose == gpu}
        besides = mine.pop("", _Drawn())
        changes, why = self._changes(run, gpu, mine.get(_PLAN, _Drawn()))
        is_known = any(drawn.known for drawn in mine.values())
        if not is_known:
            unseen = OTHERWISE if besides.steps else "no step was seen"
            why = _UNKNOWN if mine else unseen
        energy_j = math.fsum(drawn.energy_j for drawn in mine.values())
        low_j, auto_j, high_j = (
            energy_j
            + math.fsum(
                mine[arm].energy_j * (1.0 / (1.0 + change[end]) - 1.0)
                for arm, change in changes.items()
                if arm in mine
            )
            for end in (2, 1, 0)
        )
        return LedgerGpu(
            gpu=hashed(self._gpus[gpu][0]),
            name=self._gpus[gpu][1],
            rank=self._first + gpu,
            steps=besides.steps + sum(drawn.steps for drawn in mine.values()),
            energy_j=energy_j if is_known else None,
            auto_j=None if why else auto_j,
            auto_interval_j=None if why else (low_j, high_j),
            untold=f"{CANNOT_TELL}{why.removeprefix(CANNOT_TELL)}" if why else "",
            untold_j=besides.energy_j,
        )

    def _changes(
        self, run: RunLine, gpu: int, held: _Drawn
    ) -> tuple[dict[str, tuple[float, float, float]], str]:
        """Return each arm's change of energy against auto: low end, mean, high end; or why not."""
        plan, arms = self._plan, {_PLAN, _FIXED}
        schedule = plan.schedule if isinstance(plan, Plan) else None
        if schedule is not None and all(clocks.is_auto for clocks in schedule.clocks):
            arms = {_FIXED}  # the plan is auto itself
            if _FIXED not in run.arms.split(","):
                return {}, ""
        if not run.arms:
            return self._promised(gpu, held)
        lines = [line for line in self._arms if line.gpu == gpu and line.arm in arms]
        changes, why = {}, "" if lines else "no round of its arms was compared yet"
        for line in lines:
            if line.verdict.startswith(CANNOT_TELL):
                why = why or line.verdict
            elif line.energy_change is None or line.energy_interval is None:
                why = why or _UNKNOWN
            else:
                low, high = line.energy_interval
                changes[line.arm] = low, line.energy_change, high
        return changes, why

    def _promised(
        self, gpu: int, held: _Drawn
    ) -> tuple[dict[str, tuple[float, float, float]], str]:
        """Return what the plan promises, if steps were those that it is of; a job's by time."""
        plan, tells = self._plan, "--arms auto,plan tells"
        is_job = isinstance(plan, JobPlan)
        arm = plan.arm(plan.chosen) if isinstance(plan, JobPlan) else plan.headline
        cost = plan.promise if isinstance(plan, JobPlan) else arm.cost
        if arm.energy_change is None or arm.energy_interval is None or cost is None:
            return {}, f"the plan's promise has no interval: {tells}"
        if isinstance(plan, Plan) and {plan.gpu.uuid} - {None, self._gpus[gpu][0]}:
            return {}, f"the plan's promise was made on another board: {tells}"
        seen_s = held.time_s / held.steps if held.steps else cost.time_s
        seen_j = held.energy_j / held.known if held.known else cost.energy_j
        off = (seen_s / cost.time_s - 1.0, 0.0 if is_job else seen_j / cost.energy_j - 1.0)
        if max(map(abs, off)) > _ALIKE:
            planned = f"{format_duration(cost.time_s)} and {cost.energy_j:.3g} J"
            seen = f"{format_duration(seen_s)} and {seen_j:.3g} J"
            return {}, f"steps took {seen}, and the plan is of one of {planned}: {tells}"
        low, high = arm.energy_interval
        return {_PLAN: (low, arm.energy_change, high)}, ""


class Booking:
    """Writes a run into the ledger as it goes on, by a thread: a slow disk keeps no clock waiting.

    What cannot be written is told once, and the run goes on.
    """

    def __init__(self, path: Path, tally: RunTally, *, every_s: float = EVERY_S) -> None:
        self._path, self._tally, self._every_s = path, tally, every_s
        self._began_s, self._failed = time.monotonic(), False
        self._lock, self._ended = threading.Lock(), threading.Event()
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

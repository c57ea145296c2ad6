"""What a controller writes into the user's ledger: what each GPU drew, and what auto would have.

It reads the lines of the log, and nothing else; there is no second meter.
"""

import datetime as dt
import math
import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from underclock.errors import UnderclockError
from underclock.ledger import (
    OTHER_STEPS,
    OTHERWISE,
    LedgerGpu,
    LedgerRun,
    SavedAgainst,
    append_run,
    hashed,
    ledger_path,
)
from underclock.records import Arm, Cost, Evidence, Plan
from underclock.records.job import JobPlan
from underclock.records.runs import ArmLine, Line, RunLine, StepLine
from underclock.records.serving import ServingPlan
from underclock.runtime.controller.gauges import TelemetryBuffer
from underclock.runtime.machine.timetable import State
from underclock.runtime.policy.arms import CANNOT_TELL, ArmName
from underclock.runtime.policy.guard import Stage
from underclock.runtime.policy.parts import digest_of
from underclock.runtime.undo.ownership import say
from underclock.units import format_duration

EVERY_S = 900.0
"""Between writings; a controller that is killed loses as much."""
_ALIKE = 0.1  # of the plan's step in time and energy: no promise holds further off
_WEAKEST = (Evidence.SIMULATED, Evidence.REPLAYED, Evidence.MEASURED)
_AT_AUTO = {stage.name.lower() for stage in Stage if stage.at_auto}
_AUTO, _PLAN, _FIXED = str(ArmName.AUTO), str(ArmName.PLAN), str(ArmName.BEST_FIXED)
_OTHER = "other"  # steps that followed the plan, and are not the plan's
_UNKNOWN = "what steps drew is not known"
_Changes = dict[str, tuple[float, float, float]]  # of energy by arm: low end, mean, high end
_LEAST_END_S = 5.0  # that the last writing waits for the one before


@dataclass(slots=True)
class _Drawn:
    steps: int = 0
    time_s: float = 0.0
    known: int = 0  # steps whose energy is known
    energy_j: float = 0.0  # of those


class RunTally:
    """Sums up the lines of a run's log, as they come.

    It is given UUID and model of each local rank's GPU, the rank of the first of them, and what the
    driver showed of a GPU so far, if that is known.
    """

    def __init__(
        self,
        plan: Plan | JobPlan | ServingPlan | None,
        gpus: Sequence[tuple[str, str]],
        first: int,
        environment: Mapping[str, str],
        shown: Callable[[int], TelemetryBuffer | None] = lambda _gpu: None,
    ) -> None:
        rank, slurm = environment.get("RANK", ""), environment.get("SLURM_JOB_ID")
        if rank.isdecimal() and len(gpus) == 1 and not first:
            first = int(rank)  # each rank of the job holds its own
        self._plan, self._gpus, self._first, self._shown = plan, gpus, first, shown
        self._arm: Arm | None = plan.headline if isinstance(plan, Plan) else None
        self._cost: Cost | None = None if self._arm is None else self._arm.cost
        if isinstance(plan, JobPlan):
            self._arm, self._cost = plan.arm(plan.chosen), plan.promise
        self._job = environment.get("UNDERCLOCK_JOB") or (f"slurm {slurm}" if slurm else "")
        self._number = secrets.token_hex(8)
        self._began_s = dt.datetime.now(tz=dt.UTC).timestamp()
        self._run: RunLine | None = None
        self._against = SavedAgainst.OBSERVED
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
            is_held = not line.dry and isinstance(self._plan, Plan | JobPlan)
            self._against = SavedAgainst.BLOCKS if line.arms else SavedAgainst.PROMISE
            self._against = self._against if is_held else SavedAgainst.OBSERVED

    def counted_as(self, line: StepLine) -> str:
        """Return the arm that a step counts for; empty where what it saved is not known.

        A promise is of steps that followed the plan throughout and took as long as the plan's.
        Where arms took turns, what they differ by is of all their steps.
        """
        if self._against is SavedAgainst.BLOCKS:
            return line.arm
        if line.arm in _AT_AUTO or self._against is SavedAgainst.OBSERVED:
            return _AUTO
        if line.state != State.FOLLOWING or line.arm != _PLAN:
            return ""
        is_plans = self._cost is None or abs(line.time_s / self._cost.time_s - 1.0) <= _ALIKE
        return _PLAN if is_plans else _OTHER

    def run(self, lasted_s: float) -> LedgerRun | None:
        """Return the ledger's line; ``None`` before the run began."""
        run, plan = self._run, self._plan
        if run is None:
            return None
        promise = [plan.evidence] if plan and self._against is SavedAgainst.PROMISE else []
        return LedgerRun(
            run=self._number,
            job=self._job or run.workload,
            plan="" if plan is None else digest_of(plan)[:16],
            began_s=self._began_s,
            lasted_s=lasted_s,
            evidence=min([run.evidence, *promise], key=_WEAKEST.index),
            against=self._against,
            gpus=tuple(self._gpu(run, gpu) for gpu in range(len(self._gpus))),
        )

    def _gpu(self, run: RunLine, gpu: int) -> LedgerGpu:
        """Return what one GPU drew, and would have drawn at auto.

        Steps that drew ``E`` at a change of ``c`` would have drawn ``E / (1 + c)`` at auto: the
        greater the change, the less. Arms of one run share its auto, so their errors are added.
        Steps are credited at most what the plan's save; what no step drew saves nothing.
        """
        mine = {arm: drawn for (whose, arm), drawn in self._drawn.items() if whose == gpu}
        shown, steps = self._shown(gpu), sum(drawn.steps for drawn in mine.values())
        seen_j = math.fsum(drawn.energy_j for drawn in mine.values())
        whole_j = None if shown is None else shown.energy_j
        guarded, other = mine.pop("", _Drawn()), mine.pop(_OTHER, _Drawn())
        untold_j = guarded.energy_j + other.energy_j
        changes, why = _Changes(), ""
        if self._against is not SavedAgainst.OBSERVED:
            changes, why = self._changes(run, gpu, mine.get(_PLAN, other))
            if not any(drawn.known for drawn in mine.values()):
                apart = OTHER_STEPS if other.steps else OTHERWISE
                unseen = (why or apart) if steps else "no step was seen"
                why = _UNKNOWN if mine else unseen
        most_j = math.inf
        if self._cost is not None and self._against is SavedAgainst.PROMISE:
            most_j = mine.get(_PLAN, other).known * self._cost.energy_j
        if (known := whole_j is not None or seen_j > 0.0) and why:
            untold_j = 0.0  # all of it is
        energy_j = max(seen_j, whole_j or 0.0) - untold_j
        low_j, auto_j, high_j = (
            energy_j
            + math.fsum(
                min(mine[arm].energy_j, most_j) * (1.0 / (1.0 + change[end]) - 1.0)
                for arm, change in changes.items()
                if arm in mine
            )
            for end in (2, 1, 0)
        )
        why = why if known else why or _UNKNOWN
        return LedgerGpu(
            gpu=hashed(self._gpus[gpu][0]),
            name=self._gpus[gpu][1],
            rank=self._first + gpu,
            steps=steps,
            energy_j=energy_j if known else None,
            auto_j=None if why else auto_j,
            auto_interval_j=None if why else (low_j, high_j),
            untold=f"{CANNOT_TELL}{why.removeprefix(CANNOT_TELL)}" if why else "",
            untold_j=untold_j,
            untold_why="; ".join(
                words for words, some in ((OTHERWISE, guarded), (OTHER_STEPS, other)) if some.steps
            ),
        )

    def _changes(self, run: RunLine, gpu: int, held: _Drawn) -> tuple[_Changes, str]:
        """Return each arm's change of energy against auto, or why there is none."""
        plan, arms = self._plan, {_PLAN, _FIXED}
        if isinstance(plan, Plan) and plan.sets_nothing:
            arms = {_FIXED}  # the plan is auto itself
            if _FIXED not in run.arms.split(","):
                return {}, ""
        if not run.arms:
            return self._promised(gpu, held)
        lines = [line for line in self._arms if line.gpu == gpu and line.arm in arms]
        changes, why = {}, "" if lines else "no round at auto and under the plan was compared yet"
        for line in lines:
            if line.verdict.startswith(CANNOT_TELL):
                why = why or line.verdict
            elif line.energy_change is None or line.energy_interval is None:
                why = why or _UNKNOWN
            else:
                low, high = line.energy_interval
                changes[line.arm] = low, line.energy_change, high
        return changes, why

    def _promised(self, gpu: int, held: _Drawn) -> tuple[_Changes, str]:
        """Return what the plan promises, if steps were those that it is of; a job's by time."""
        plan, arm, cost = self._plan, self._arm, self._cost
        hint = "--compare auto,plan measures it"
        shown = self._shown(gpu)
        if arm is None or arm.energy_change is None or arm.energy_interval is None or cost is None:
            return {}, f"the plan's promise has no interval: {hint}"
        if isinstance(plan, Plan) and {plan.gpu.uuid} - {None, self._gpus[gpu][0]}:
            return {}, f"the plan's promise was made on another board: {hint}"
        if shown is not None and shown.limits > 1:
            return {}, f"the power limit was changed, and the promise is for the first: {hint}"
        seen_s = held.time_s / held.steps if held.steps else cost.time_s
        seen_j = held.energy_j / held.known if held.known else cost.energy_j
        is_job = isinstance(plan, JobPlan)
        off = (seen_s / cost.time_s - 1.0, 0.0 if is_job else seen_j / cost.energy_j - 1.0)
        if max(map(abs, off)) > _ALIKE:
            planned = f"{format_duration(cost.time_s)} and {cost.energy_j:.3g} J"
            seen = f"{format_duration(seen_s)} and {seen_j:.3g} J"
            return {}, f"steps took {seen}, and the plan is of one of {planned}: {hint}"
        low, high = arm.energy_interval
        return {_PLAN: (low, arm.energy_change, high)}, ""


def booked(tally: RunTally) -> list["Booking"]:
    """Return what writes a run into the user's ledger; nothing where the user wants none."""
    path = ledger_path(os.environ)
    return [] if path is None else [Booking(path, tally)]


class Booking:
    """Writes a run into the ledger as it goes on, by a thread: a slow disk keeps no clock waiting.

    What cannot be written is said once, and the run goes on.
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

"""A campaign on many GPUs at once: one policy, workers that measure, a file for each.

Workers hand windows over, and only what is in its worker's file counts as done. So nothing is lost
with a worker, and a campaign that was cut off goes on from the files.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from underclock.campaign.handout import Handout
from underclock.campaign.progress import Tally
from underclock.campaign.provenance import check_same_campaign
from underclock.campaign.recording import Elsewhere, Gathered, WindowPolicy
from underclock.campaign.survey import Campaign, Points
from underclock.core.design.wanted import WHOLE_STEPS, Wanted
from underclock.errors import DataError, DeviceError, UnderclockError
from underclock.hw.base import Capability
from underclock.records import Evidence, MeasurementSettings, SampleSet, Window
from underclock.store import SampleFile

_STARTS = 2  # of a worker that never gets to a window


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A worker has opened its GPU.

    Attributes:
        header: Of its campaign.
        process: Its process, on its host.
    """

    worker: str
    header: SampleSet
    points: Points
    capabilities: frozenset[Capability]
    process: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A worker has taken what it was given.

    Attributes:
        windows: With the GPU time of each, warming up included.
        notes: What a reader of them must know.
    """

    worker: str
    windows: tuple[tuple[Window, float], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """A worker's process is gone, and with it what it had not handed over."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A worker's GPU, or what it was asked, is at fault: another would fare no better."""

    worker: str
    error: UnderclockError


Told = Joined | Answered | Died | Refused


class Workers(Protocol):
    """Processes that measure, each on a GPU of its own."""

    def start(self, worker: str) -> None:
        """Begin to open a worker's GPU; `told` says when it is open."""

    def take(self, worker: str, wanted: Sequence[Wanted]) -> None:
        """Begin to take windows; `told` brings them."""

    def told(self) -> Told:
        """Wait until something happens."""


class _Files:
    """A samples file of each worker, to which it is the only one that adds."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self._name: dict[str, str] = {}  # of each worker's file
        self._open: dict[str, SampleFile] = {}
        self._known: dict[str, SampleSet] = {}

    def open(self, worker: str, header: SampleSet) -> SampleFile:
        """Make a worker's file or go on with it.

        Raises:
            UsageError: It is of another campaign, or somebody else writes it.
        """
        name = _file_name(worker, header)
        self._name[worker] = name
        if name not in self._open:
            path = self._folder / name
            self._open[name] = self._stack.enter_context(
                SampleFile.open(path, writable=True)
                if path.exists()
                else SampleFile.create(path, header)
            )
        file = self._open[name]
        file.note(check_same_campaign(file.path, file.header, header))
        self._read(name)
        return file

    def add(self, told: Answered) -> None:
        """Write what a worker handed over."""
        name = self._name[told.worker]
        file = self._open[name]
        repeats = Counter(window.what for window in self._known[name].windows)
        for window, gpu_s in told.windows:
            file.append(msgspec.structs.replace(window, repeat=repeats[window.what]), gpu_s=gpu_s)
            repeats[window.what] += 1
        file.note(told.notes)
        self._read(name)

    def _read(self, name: str) -> None:
        self._known[name] = self._open[name].sample_set()

    @property
    def sample_sets(self) -> tuple[SampleSet, ...]:
        """What is in each file."""
        return tuple(self._known.values())

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the files are."""
        return tuple(file.path for file in self._open.values())


class TogetherRun:
    """One run of a campaign on many workers, which a later run can go on with.

    Args:
        folder: Of the workers' files.
        policy_of: Makes the policy, once all workers have joined.
        virtual: Whether each worker has a time of its own, as simulated GPUs do: then what ends
            first in that time is heard first, so that nothing follows from what comes later.
    """

    def __init__(
        self,
        workers: Workers,
        names: Sequence[str],
        folder: Path,
        campaign: Campaign,
        policy_of: Callable[[Gathered, Points], WindowPolicy],
        *,
        virtual: bool,
        progress: Callable[[Tally], None],
    ) -> None:
        self._workers, self._names, self._folder = workers, names, folder
        self._campaign, self._policy_of = campaign, policy_of
        self._virtual, self._progress = virtual, progress
        self._now_s = 0.0  # since the campaign began; workers that wait spend it too
        self._began_s: dict[str, float] = {}  # when workers began what they are at
        self._unheard: dict[str, Answered] = {}
        self._starts: Counter[str] = Counter()
        self._starting: set[str] = set()
        self._first: Joined | None = None

    def run(self) -> tuple[Path, ...]:
        """Take windows until the policy wants no more, or time or samples are spent.

        Returns:
            The workers' files.

        Raises:
            DataError: Workers have unlike GPUs, drivers or power limits.
            DeviceError: No worker is left.
            UnderclockError: As a worker said.
        """
        with ExitStack() as stack:
            self._files = _Files(stack, self._folder)
            joined_ = self._begin()
            first = joined_[0]
            measuring = first.header.measuring or MeasurementSettings()
            elsewhere = Elsewhere(capabilities=first.capabilities, measuring=measuring)
            gathered = Gathered(elsewhere, first.header, lambda: self._files.sample_sets)
            self._handout = Handout()
            for each in joined_:
                self._join(each, several=len({one.header.gpu.uuid for one in joined_}) > 1)
            policy = self._policy_of(gathered, first.points)
            while self._hand_out(policy):
                self._hear(self._told())
            return self._files.paths

    def _begin(self) -> list[Joined]:
        """Start all workers, and wait until each has joined, or died for good."""
        for name in self._names:
            self._start(name)
        joined_: list[Joined] = []
        gone = 0
        while len(joined_) + gone < len(self._names):
            told = self._workers.told()
            if isinstance(told, Joined):
                self._check(told)
                joined_.append(told)
            elif isinstance(told, Died):
                gone += not self._start(told.worker)
                if gone == len(self._names):
                    raise _nobody_left(told.why)
            elif isinstance(told, Refused):
                raise told.error
        return sorted(joined_, key=lambda each: self._names.index(each.worker))

    def _start(self, worker: str) -> bool:
        """Start a worker, unless it dies whenever it is started."""
        if self._starts[worker] >= _STARTS:
            return False
        self._starts[worker] += 1
        self._starting.add(worker)
        self._workers.start(worker)
        return True

    def _check(self, told: Joined) -> None:
        """Refuse a worker whose samples do not go with those of others."""
        self._starting.discard(told.worker)
        self._first = self._first or told
        if unlike := self._first.header.unlike(told.header):
            noun, mine, others = unlike
            raise DataError(
                f"workers {self._first.worker} and {told.worker} are of two {noun}: {mine} and "
                f"{others}",
                hint="measure GPUs that are alike together, and each other kind by itself",
            )

    def _join(self, told: Joined, *, several: bool) -> None:
        """Let a worker take windows."""
        file = self._files.open(told.worker, told.header)
        own: list[Wanted] = []
        if several and self._campaign.in_situ and told.header.order:
            own = [Wanted(timed=False)] * (WHOLE_STEPS - len(file.sample_set().in_situ))
        self._handout.join(told.worker, own)
        self._now_s = max(self._now_s, file.gpu_s)

    def _hand_out(self, policy: WindowPolicy) -> bool:
        """Give free workers something to do; return whether anything is to be waited for."""
        handout = self._handout
        taken = sum(len(each.windows) for each in self._files.sample_sets)
        most, spent_s = self._campaign.max_samples, self._now_s
        late = policy.limit_s is not None and spent_s >= policy.limit_s
        if late:
            handout.forget()
        while handout.short and not late:
            pending = handout.pending
            room = None if most is None else max(0, most - taken - len(pending))
            more = () if room == 0 else policy.next(spent_s, pending)[:room]
            if not more:
                break
            handout.want(more)
        for worker, wanted in handout.hand_out():
            self._began_s[worker] = spent_s
            self._workers.take(worker, wanted)
        self._progress(
            Tally(
                done=taken,
                total=policy.total or most,
                gpu_s=spent_s,
                doing=f"{len(self._handout.pending)} windows on {handout.workers} GPUs",
                time_limit_s=policy.limit_s,
            )
        )
        return bool(handout.busy or (self._starting and handout.pending))

    def _told(self) -> Told:
        """Return what happens next."""
        if not self._virtual:
            return self._workers.told()
        while len(self._unheard) < self._handout.busy or (self._starting and not self._unheard):
            told = self._workers.told()
            if not isinstance(told, Answered):
                return told
            self._unheard[told.worker] = told
        return self._unheard.pop(min(self._unheard.values(), key=self._ends_s).worker)

    def _ends_s(self, told: Answered) -> float:
        """Return when a worker was done with what it was at."""
        return self._began_s[told.worker] + sum(gpu_s for _, gpu_s in told.windows)

    def _hear(self, told: Told) -> None:
        """Take in what happened."""
        if isinstance(told, Answered):
            self._starts[told.worker] = 0
            self._files.add(told)
            self._now_s = max(self._now_s, self._ends_s(told))
            self._handout.done(told.worker)
        elif isinstance(told, Joined):
            self._check(told)
            self._join(told, several=False)
        elif isinstance(told, Died):
            self._starting.discard(told.worker)
            self._handout.lost(told.worker)
            if not (self._start(told.worker) or self._handout.workers or self._starting):
                raise _nobody_left(told.why)
        else:
            raise told.error


def _file_name(worker: str, header: SampleSet) -> str:
    """Return a name that a worker's file keeps: of a real GPU, which worker has it is chance."""
    if header.evidence is Evidence.SIMULATED or header.gpu.uuid is None:
        return f"{worker}.db"
    board = header.gpu.uuid.removeprefix("GPU-").partition("-")[0]
    return f"{worker.rpartition('-')[0]}-{board}.db"


def _nobody_left(why: str) -> DeviceError:
    return DeviceError(
        f"no worker is left: {why}",
        hint="what was measured is on file: the same command goes on from there",
    )

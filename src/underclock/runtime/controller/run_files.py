"""The files of one run: what the trainer reads, what the controller reads, and a page per GPU.

They lie in folders of their own, of names that cannot be foreseen, and go with the run. A run whose
launcher died leaves them; the next one tidies up.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from underclock.errors import DataError, UsageError
from underclock.learning.pieces import MOST_PLACES
from underclock.records import Kernel, Plan, Step
from underclock.records.common import Record
from underclock.records.job import JobPlan
from underclock.runtime.policy.parts import RankPart, digest_of
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.sites import sites_of
from underclock.runtime.undo.ownership import Process, runtime_folder
from underclock.store import kind_of, read_document, write_document

_SHM = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
_RUN, _PLAN, _PARTS, _STEPS = "run.json", "plan.json", "parts.json", "steps.jsonl"
_PREFIX = "run-"


class RunGpu(Record, frozen=True, kw_only=True):
    """One GPU of a run, for the local rank that stands at its place."""

    uuid: str
    index: int
    page: str
    # what it marks: as `MarkSite` has them, in its order of fields but the launch
    places: tuple[tuple[str, str, int, int], ...]
    marks: tuple[int, ...]  # launches of those
    # file of the step, where a simulated GPU is to run it; empty else, and without a plan
    step: str = ""
    # of that step, what can be seen of it: event, path, occurrence and launch of each
    sites: tuple[tuple[str, str, int, int], ...] = ()


class RunFile(Record, frozen=True, kw_only=True):
    """What a trainer reads of its run: `trainer.attach` reads it without msgspec."""

    version: int  # of the pages
    digest: str  # of the plan
    gpus: tuple[RunGpu, ...]
    world: int = 0  # ranks of the job that is planned; 0 for a plan of one GPU, held by any number
    first: int = 0  # rank of the job that is the first of this machine's
    schedule: str = ""  # name of the job's pipeline schedule; empty for none
    learns: bool = False  # whether trainers choose the places that they mark


class Run:
    """The files of a run."""

    def __init__(self, folder: Path, body: RunFile) -> None:
        self.folder, self.gpus, self.first = folder, body.gpus, body.first
        self._world = body.world

    @classmethod
    def create(
        cls,
        plan: Plan | JobPlan | None,
        parts: Sequence[RankPart],
        gpus: Sequence[tuple[str, int]],
        *,
        simulated: str,
        first: int = 0,
        step: Step | None = None,
        learns: bool = False,
    ) -> "Run":
        """Make them.

        Args:
            parts: Of each rank of a job; else the one that all GPUs have.
            first: Rank of the job that the first of the GPUs is of.
            simulated: The model that another process serves; empty for real GPUs.
            step: That a simulated GPU executes where there is no plan; ``None`` for nothing.
            learns: Whether trainers choose the places that they mark.

        Raises:
            UsageError: They cannot be written.
        """
        try:
            tidy()
            me = Process.of(os.getpid())
            if me is None:
                raise AssertionError("this process runs")
            folder = runtime_folder() / f"{_PREFIX}{me.pid}-{me.started}-{secrets.token_hex(8)}"
            folder.mkdir(mode=0o700)
            if plan is not None:
                write_document(folder / _PLAN, plan)
            (folder / _PARTS).write_bytes(msgspec.json.encode(parts))
            digest, job = digest_of(plan), plan.job if isinstance(plan, JobPlan) else None
            listed: list[RunGpu] = []
            sites: tuple[tuple[str, str, int, int], ...] = ()
            if simulated and learns and step is not None:
                seen = sites_of(step.modules, [step.kernels[kernel].pass_ for kernel in step.order])
                sites = tuple((s.event, s.path, s.occurrence, s.launch) for s in seen)
            (pages_in := _pages(folder)).mkdir(mode=0o700, exist_ok=pages_in == folder)
            for rank, (uuid, index) in enumerate(gpus):
                part = parts[first + rank if job else 0]
                file = folder / f"step{rank if job else 0}.json"
                if simulated and plan is not None and not file.exists():
                    step = _step(plan, part, simulated)
                if simulated and step is not None and not file.exists():
                    write_document(file, step)
                path = pages_in / f"{rank}.page"
                marks = tuple(range(MOST_PLACES)) if learns else part.marks
                Page.create(path, digest=bytes.fromhex(digest), marks=marks).close()
                listed.append(
                    RunGpu(
                        uuid=uuid,
                        index=index,
                        page=str(path),
                        places=tuple((s.event, s.path, s.occurrence, s.total) for s in part.sites),
                        marks=part.marks,
                        step=str(file) if file.exists() else "",
                        sites=sites,
                    )
                )
            body = RunFile(
                version=pages.VERSION,
                digest=digest,
                gpus=tuple(listed),
                world=len(job.ranks) if job else 0,
                first=first,
                schedule=job.schedule if job else "",
                learns=learns,
            )
            run = cls(folder, body)
            run.path.write_bytes(msgspec.json.encode(body))
        except OSError as exc:
            raise UsageError(
                f"cannot write the files of a run: {exc}",
                hint=f"see to {exc.filename or _SHM}: its disk may be full",
            ) from exc
        return run

    @property
    def path(self) -> Path:
        """What the trainer reads."""
        return self.folder / _RUN

    @property
    def steps(self) -> Path:
        """Where the controller notes steps, unless the user names a file."""
        return self.folder / _STEPS

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Return the files of a run that another process made.

        Raises:
            DataError: They are none.
        """
        try:
            body = msgspec.json.decode((folder / _RUN).read_bytes(), type=RunFile)
        except (OSError, msgspec.DecodeError) as exc:
            raise DataError(f"{folder} holds no run: {exc}") from exc
        return cls(folder, body)

    def plan(self) -> Plan | JobPlan | None:
        """Return what is held; ``None`` where nothing is."""
        return read_plan(self.folder / _PLAN) if (self.folder / _PLAN).exists() else None

    def parts(self) -> tuple[RankPart, ...]:
        """Return the part of each GPU of this run."""
        parts = msgspec.json.decode((self.folder / _PARTS).read_bytes(), type=tuple[RankPart, ...])
        count = len(self.gpus)
        return parts[self.first : self.first + count] if self._world else parts * count

    def pages(self) -> list[Page]:
        """Open the page of marks of each GPU of this run.

        Raises:
            DataError: One is none, or cannot be read.
        """
        try:
            return [Page.open(each.page) for each in self.gpus]
        except OSError as exc:
            raise DataError(
                f"cannot open the page of marks {exc.filename}: {exc.strerror}",
                hint="start the run anew",
            ) from exc

    def remove(self) -> None:
        """Remove them; who has a page mapped keeps it."""
        _remove(self.folder)


def read_plan(path: Path) -> Plan | JobPlan:
    """Return a plan of one GPU or of a job, whichever a file holds.

    Raises:
        DataError: It is neither, or cannot be read.
    """
    if kind_of(path) == "job plan":
        return read_document(path, JobPlan)
    return read_document(path, Plan)


def _step(plan: Plan | JobPlan, part: RankPart, model: str) -> Step:
    """Return what a simulated GPU runs: the plan's step, or work as long as a rank's at auto."""
    if isinstance(plan, Plan):
        return plan.step
    from underclock.hw.simulated.boards import flops_for  # noqa: PLC0415 - where it is needed

    lasts_s = sorted(set(part.auto_s))
    kernels = tuple(
        Kernel(name=f"{each_s:g} s", flops=flops, bytes_moved=1.0, count=part.auto_s.count(each_s))
        for each_s, flops in zip(lasts_s, flops_for(model, lasts_s), strict=True)
    )
    order = tuple(lasts_s.index(each_s) for each_s in part.auto_s)
    return Step(name=plan.workload, kernels=kernels, order=order)


def tidy() -> None:
    """Remove the files of runs whose launcher died."""
    for folder in runtime_folder().glob(f"{_PREFIX}*"):
        try:
            _, pid, started, _ = folder.name.split("-")
            lives = Process(int(pid), int(started)).lives
        except ValueError:
            continue
        if not lives:
            _remove(folder)


def _remove(folder: Path) -> None:
    for each in (_pages(folder), folder):
        with contextlib.suppress(OSError):
            if each.lstat().st_uid == os.geteuid():
                shutil.rmtree(each, ignore_errors=True)


def _pages(folder: Path) -> Path:
    """Return where a run's pages go: into memory, for a GPU can write nowhere else."""
    return _SHM / f"underclock-{folder.name}" if os.access(_SHM, os.W_OK) else folder

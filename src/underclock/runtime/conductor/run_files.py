"""The files of one run: what the trainer reads, what the conductor reads, and a page per GPU.

They lie in folders of their own, of names that nobody can foresee, and go with the run. A run whose
launcher died leaves them; the next one tidies up.
"""

import contextlib
import os
import secrets
import shutil
from pathlib import Path

import msgspec

from underclock.errors import DataError, UsageError
from underclock.records import Plan
from underclock.records.common import Record
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.sites import MarkedStep
from underclock.runtime.undo.ownership import runtime_folder
from underclock.runtime.undo.processes import Process
from underclock.store import read_document, write_document

_SHM = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
_RUN, _PLAN, _STEPS = "run.json", "plan.json", "steps.jsonl"
_PREFIX = "run-"


class RunGpu(Record, frozen=True, kw_only=True):
    """One GPU of a run, for the local rank that stands at its place.

    Attributes:
        uuid: Which GPU.
        index: As the driver counts.
        page: Its page of marks.
        step: File of the step, where a simulated GPU is to run it; empty else.
    """

    uuid: str
    index: int
    page: str
    step: str = ""


class RunFile(Record, frozen=True, kw_only=True):
    """What a trainer is told: `trainer.attach` reads it without msgspec.

    Attributes:
        version: Of the pages.
        digest: Of the plan and its mark sites.
        places: As `MarkSite` has them, in its order of fields but the launch.
        gpus: By local rank.
    """

    version: int
    digest: str
    places: tuple[tuple[str, str, int, int], ...]
    gpus: tuple[RunGpu, ...]


class Run:
    """The files of a run.

    Attributes:
        folder: Of all but the pages.
        gpus: By local rank.
    """

    def __init__(self, folder: Path, gpus: tuple[RunGpu, ...]) -> None:
        self.folder = folder
        self.gpus = gpus

    @classmethod
    def create(
        cls, plan: Plan, marked: MarkedStep, gpus: tuple[tuple[str, int], ...], *, simulated: bool
    ) -> "Run":
        """Make them.

        Raises:
            UsageError: They cannot be written.
        """
        try:
            tidy()
            folder = _new_folder()
            step = folder / "step.json"
            if simulated:
                from underclock.records import Step  # noqa: PLC0415 - only here

                whole = Step(name=plan.workload, kernels=plan.runs, order=plan.order)
                write_document(step, whole)
            write_document(folder / _PLAN, plan)
            told = []
            pages_in = _pages(folder)
            pages_in.mkdir(mode=0o700, exist_ok=pages_in == folder)
            for rank, (uuid, index) in enumerate(gpus):
                path = pages_in / f"{rank}.page"
                digest = bytes.fromhex(marked.digest)
                Page.create(path, digest=digest, marks=marked.marks).close()
                where = str(step) if simulated else ""
                told.append(RunGpu(uuid=uuid, index=index, page=str(path), step=where))
            run = cls(folder, tuple(told))
            body = RunFile(
                version=pages.VERSION,
                digest=marked.digest,
                places=tuple(
                    (site.event, site.path, site.occurrence, site.total) for site in marked.sites
                ),
                gpus=run.gpus,
            )
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
        """Where the conductor notes steps, unless it is told otherwise."""
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
        return cls(folder, body.gpus)

    def plan(self) -> Plan:
        """Return what is held."""
        return read_document(self.folder / _PLAN, Plan)

    def remove(self) -> None:
        """Remove them; who has a page mapped keeps it."""
        _remove(self.folder)


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
    """Remove what a run has, and nothing of other users."""
    for each in (_pages(folder), folder):
        with contextlib.suppress(OSError):
            if each.lstat().st_uid == os.geteuid():
                shutil.rmtree(each, ignore_errors=True)


def _new_folder() -> Path:
    me = Process.of(os.getpid())
    if me is None:
        raise AssertionError("this process runs")
    folder = runtime_folder() / f"{_PREFIX}{me.pid}-{me.started}-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    return folder


def _pages(folder: Path) -> Path:
    """Return where a run's pages go: into memory, for a GPU can write nowhere else."""
    return _SHM / f"underclock-{folder.name}" if os.access(_SHM, os.W_OK) else folder

"""What runs saved: a JSON line for each in the user's own file, and sums of those lines.

Measured, replayed and simulated joules are never added up, nor are savings against blocks at auto
and promised ones.

Intervals have independent parts. First, the error of a comparison: within one comparison errors are
taken as fully correlated, between comparisons as independent. A comparison is a run with blocks at
auto; all promises are one comparison, because plans share the errors of their models. Second, the
errors of energy counters and of heat in blocks, alike in all runs.
"""

import datetime as dt
import errno
import fcntl
import hashlib
import io
import math
import os
import stat
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec

from underclock.errors import DataError
from underclock.records.common import Evidence, Record, check_interval

LEDGER: Final = "UNDERCLOCK_LEDGER"
"""Names the file; empty for none."""
COUNTER = 0.05
"""Boards' sensors are off by up to so much of what they show (Yang et al., SC'24)."""
HEAT = 0.05
"""Blocks are shorter than heat takes, so both arms run at the heat of both: on simulated boards at
their cap that showed up to so much of a saving that was none (docs/evidence/ledger.md)."""
OTHERWISE = "clocks were neither auto nor as planned throughout"
OTHER_STEPS = "steps took over 10 % more or less than the plan's"
_BEGINS, _SQLITE = b'{"kind":"ledger"', b"SQLite format 3"
_ASIDE = f"name another file with {LEDGER}, or move it away: the next run begins a new one"
_WAITS, _WAIT_S = 200, 0.05  # for the lock; a process that holds it for longer was stopped
_DIGITS = 16  # as a step's fingerprint has
_Date = Annotated[float, msgspec.Meta(gt=0, le=253_402_300_800)]  # s since 1970, until year 9999
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]


class SavedAgainst(StrEnum):
    """What a saving is measured against."""

    BLOCKS = "blocks"  # at auto, in turns with the plan's in the same run
    PROMISE = "promise"  # of the plan, for the steps that ran under it
    OBSERVED = "observed"  # nothing: what was drawn is booked with a saving of 0


class LedgerGpu(Record, frozen=True, kw_only=True):
    """One GPU of one run."""

    gpu: str  # as `hashed` makes it of the board's UUID
    name: str
    rank: _Count
    steps: _Count
    # drawn in all of the run, but for untold_j; None where that is not known
    energy_j: _Amount | None
    # what energy_j would have been at auto, with its 95 % interval as far as the comparison goes;
    # None where that is unknown, as untold says
    auto_j: _Amount | None
    auto_interval_j: tuple[float, float] | None
    untold: str = ""
    untold_j: _Amount = 0.0  # drawn in steps whose saving is unknown, and untold_why
    untold_why: str = ""

    def __post_init__(self) -> None:
        if self.auto_j is not None:
            check_interval(self, "auto_interval_j", self.auto_j)
        if (None in {self.energy_j, self.auto_j, self.auto_interval_j}) != bool(self.untold):
            raise ValueError("a GPU of a run has a saving with an interval, or why it has none")


class LedgerRun(Record, frozen=True, kw_only=True, tag_field="kind", tag="ledger"):
    """One run: a line of the ledger, written again as the run goes on; the last one counts."""

    run: str
    job: str  # what the user calls it, or the batch system; else the workload
    plan: str  # digest of the plan; empty for none
    began_s: _Date  # seconds since 1970, UTC
    lasted_s: _Amount
    # of the saving: the weaker of the run's own and of what it is measured against
    evidence: Evidence
    against: SavedAgainst
    gpus: tuple[LedgerGpu, ...]


class SavedTotal(Record, frozen=True, kw_only=True):
    """What some runs saved together, all of one evidence and one comparison."""

    group: str  # job, GPU or month; empty for all
    evidence: Evidence
    against: SavedAgainst
    runs: int
    gpus: int
    gpu_s: float
    steps: int
    energy_j: float  # drawn where the saving is known, in gpu_s of GPUs' time
    saved_j: float  # of that against auto, with its 95 % interval; negative where more was drawn
    saved_interval_j: tuple[float, float]
    untold_j: float  # drawn where the saving is unknown, and why
    why: tuple[str, ...]


def hashed(uuid: str) -> str:
    """Return a board's identity without its serial number: a hash of its UUID."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:_DIGITS]


def totals(runs: Iterable[LedgerRun], by: str | None = None) -> tuple[SavedTotal, ...]:
    """Return sums of runs by ``job``, ``gpu`` or ``month`` (UTC, of their beginning), or of all."""
    parts: defaultdict[tuple[str, Evidence, SavedAgainst], list[tuple[LedgerRun, LedgerGpu]]]
    parts = defaultdict(list)
    for run, gpu in ((each, gpu) for each in runs for gpu in each.gpus):
        group = {
            "job": run.job,
            "gpu": f"{gpu.name} {gpu.gpu}",
            "month": dt.datetime.fromtimestamp(run.began_s, tz=dt.UTC).strftime("%Y-%m"),
            None: "",
        }[by]
        parts[group, run.evidence, run.against].append((run, gpu))
    return tuple(_total(*key, some) for key, some in sorted(parts.items()))


def _total(
    group: str,
    evidence: Evidence,
    against: SavedAgainst,
    parts: Sequence[tuple[LedgerRun, LedgerGpu]],
) -> SavedTotal:
    known = [(run, gpu) for run, gpu in parts if not gpu.untold]
    rest = [gpu for _, gpu in parts if gpu.untold or gpu.untold_j]
    energy_j = math.fsum(gpu.energy_j or 0.0 for _, gpu in known)
    saved_j = math.fsum(gpu.auto_j or 0.0 for _, gpu in known) - energy_j
    below: defaultdict[str, float] = defaultdict(float)  # half-widths of each comparison
    above: defaultdict[str, float] = defaultdict(float)
    for run, gpu in known:
        low_j, high_j = gpu.auto_interval_j or (0.0, 0.0)
        comparison = run.run if against is SavedAgainst.BLOCKS else ""
        below[comparison] += (gpu.auto_j or 0.0) - low_j
        above[comparison] += high_j - (gpu.auto_j or 0.0)
    alike_j = saved_j * math.hypot(COUNTER, HEAT if against is SavedAgainst.BLOCKS else 0.0)
    reach_j = [math.hypot(alike_j, *parts_j.values()) for parts_j in (below, above)]
    return SavedTotal(
        group=group,
        evidence=evidence,
        against=against,
        runs=len({run.run for run, _ in known}),
        gpus=len({gpu.gpu for _, gpu in known}),
        gpu_s=math.fsum(run.lasted_s for run, _ in known),
        steps=sum(gpu.steps for _, gpu in known),
        energy_j=energy_j,
        saved_j=saved_j,
        saved_interval_j=(saved_j - reach_j[0], saved_j + reach_j[1]),
        untold_j=math.fsum(e.untold_j + (e.energy_j or 0.0) * bool(e.untold) for e in rest),
        why=tuple(dict.fromkeys(gpu.untold or gpu.untold_why or OTHERWISE for gpu in rest)),
    )


def ledger_path(environment: Mapping[str, str]) -> Path | None:
    """Return where the ledger is; ``None`` where the user wants none."""
    named = environment.get(LEDGER)
    if named is not None:
        return Path(named) if named.strip() else None
    home = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "underclock" / "ledger.jsonl"


def append_run(path: Path, run: LedgerRun) -> None:
    """Append a run by one write, as jobs may at once; what was cut short is a line by itself."""
    line = msgspec.json.encode(run) + b"\n"
    with _opened(path, "a+") as file:
        for _ in range(_WAITS):  # nodes that share the file over a network need the lock
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_WAIT_S)  # noqa: TID251 - another process gives it back in real time
            except OSError:  # a file system without locks
                break
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            line = b"\n" + line
        if file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())


def read_runs(path: Path) -> tuple[tuple[LedgerRun, ...], tuple[str, ...]]:
    """Return all runs, none where there is no file yet, and sentences on what is not among them."""
    runs, bad, notes, lines = dict[str, LedgerRun](), list[str](), list[str](), list[bytes]()
    with suppress(FileNotFoundError), _opened(path, "r") as file:
        lines = file.readall().split(b"\n")
    old = path.with_suffix(".db")
    if old != path and old.is_file():
        notes.append(f"not counted: {old}, a ledger of an earlier underclock, which was SQLite")
    decoder = msgspec.json.Decoder(LedgerRun)
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                run = decoder.decode(line)
                runs[run.run] = run
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            bad.append(f"line {number} of {path} is no run: {exc}")
    if bad:
        more = f"; and {len(bad) - 1} more" if len(bad) > 1 else ""
        notes.append(f"not counted: {bad[0]}{more}")
    return tuple(runs.values()), tuple(notes)


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[io.FileIO]:
    """Open a ledger, or a file that may become one; what is none is refused without a wait."""
    try:
        if mode != "r":
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        opener = lambda name, flags: os.open(name, flags | os.O_NONBLOCK, 0o600)  # noqa: E731
        with io.FileIO(path, mode, opener=opener) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"the ledger {path} is no ordinary file", hint=_ASIDE)
            first = os.pread(file.fileno(), len(_BEGINS), 0)
            if first.startswith(_SQLITE):
                raise DataError(
                    f"{path} is a ledger of an earlier underclock, which was SQLite; now it is "
                    "JSON lines",
                    hint=_ASIDE,
                )
            if first != _BEGINS[: len(first)]:
                raise DataError(f"{path} is no ledger: it does not begin with a run", hint=_ASIDE)
            yield file
    except OSError as exc:
        if mode == "r" and isinstance(exc, FileNotFoundError):
            raise
        raise DataError(f"cannot use the ledger {path}: {exc.strerror}", hint=_ASIDE) from exc

"""Trace files of a job's ranks, one process each as ``torchrun`` starts them, and their job.

Each rank traces its own GPU. Rank 0 measures, and the other ranks run the step along with it.
"""

import contextlib
import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from underclock.core.tracing.job_traces import check_ranks, traced_job
from underclock.core.tracing.profile import ranks_of
from underclock.core.tracing.rank_trace import OWN, RankHead, RankTrace, rank_head, rank_trace
from underclock.core.tracing.recapture import difference
from underclock.errors import DataError, NotSupportedError, UsageError
from underclock.records import Step
from underclock.records.job import Job
from underclock.store import read_document
from underclock.units import format_percent

_RANK, _WORLD, _LOCAL = "RANK", "WORLD_SIZE", "LOCAL_RANK"
_PAIRWISE = ("::send", "::recv", "::recv_", "::coalesced")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRank:
    """One of several processes that train together."""

    number: int  # its own, from 0 on
    world: int  # how many there are
    local: int = 0  # its number among those of its machine

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ProcessRank | None":
        """Return this process's rank from ``torchrun``'s variables; ``None`` for a process alone.

        Raises:
            UsageError: The variables make no rank.
        """
        rank, size = environment.get(_RANK, "0"), environment.get(_WORLD, "1")
        if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
            raise UsageError(
                f"{_RANK}={rank} and {_WORLD}={size} name no rank",
                hint="start with torchrun, or unset both",
            )
        number, world = int(rank), int(size)
        if world == 1:
            return None
        local = environment.get(_LOCAL, "0")
        return cls(number=number, world=world, local=int(local) if local.isdecimal() else 0)

    @classmethod
    def needed(cls, step: Step, environment: Mapping[str, str]) -> "ProcessRank | None":
        """Return which rank of a step this process runs; ``None`` where it waits for no other.

        Raises:
            NotSupportedError: It has collectives, which would wait for ever for ranks that do not
                run.
            UsageError: The environment makes no sense.
        """
        launches = [kernel.launch for kernel in step.kernels if kernel.launch is not None]
        ranks = max((ranks_of(one.operator, one.shapes) for one in launches), default=1)
        if ranks == 1:
            return None
        rank = cls.of(environment)
        if rank is None or rank.world < ranks:
            here = "runs alone" if rank is None else f"is one of {rank.world}"
            raise NotSupportedError(
                f"{step.name} has collectives among {ranks} ranks, which wait for one another, and "
                f"this process {here}",
                hint="measure it as it is trained: torchrun --nproc-per-node GPUS -m underclock "
                "measure ...",
            )
        return rank

    @property
    def leads(self) -> bool:
        """Whether it is the one that measures."""
        return self.number == 0

    def gpu(self, index: int) -> int:
        """Return its GPU, where the first rank of its machine has the one of an index."""
        return index + self.local

    def own_gpu(self, *, there: int, current: int) -> int | None:
        """Return the GPU that it should make current; ``None`` where it need not.

        Args:
            current: The current GPU; one that is not the first was chosen by the script.
        """
        return self.local if current == 0 < self.local < there else None

    def file(self, path: Path) -> Path:
        """Return where a rank writes what all of them write: ``step.rank0.json``."""
        return path.with_name(f"{path.stem}.rank{self.number}{path.suffix}")

    def own(self, path: Path) -> Path:
        """Return what a rank reads where all are given one file: its own, if there is one."""
        return mine if (mine := self.file(path)).is_file() else path


def told_of_ranks(step: Step, path: Path, rank: ProcessRank) -> tuple[str, ...]:
    """Say of which other ranks, as far as they have written theirs, the step is another.

    Stages of a pipeline, which send to one another, run different steps: of them nothing is said.
    """
    notes: list[str] = []
    launches = (kernel.launch for kernel in step.kernels)
    if any(one is not None and one.operator.endswith(_PAIRWISE) for one in launches):
        return ()
    for number in range(rank.world):
        other = ProcessRank(number=number, world=rank.world).file(path)
        if number == rank.number or not other.is_file():
            continue
        try:
            words = difference(step, read_document(other, Step))
        except DataError:
            continue  # it is being written
        if words is not None:
            notes.append(
                f"rank {number} runs another step than rank {rank.number}, according to "
                f"{other.name}: {words}"
            )
    return tuple(notes)


SUFFIX: Final = ".trace.json.gz"
_NEAR = 0.05  # of the iteration: less between traced and laid out is not worth a sentence
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_RAW = re.compile(r'\\(["\\/bfnrt](?!$)|u[0-9a-fA-F]{4})|\\|"')
_NAME = re.compile(  # an event's, up to the key that follows it
    r'("name"\s*:\s*")((?:(?!"\s*:).)*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args)"\s*:)', re.DOTALL
)
_NUMBER = re.compile(r"(?<=[:,\[\s])[-+]?(?:nan|inf(?:inity)?)(?=\s*[,\]}])", re.IGNORECASE)
_COMMA = re.compile(r",(\s*[\]}])")
_RUN = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")


def leave_trace(path: Path, trace: Mapping[str, Any], *, source: Path | None) -> None:
    """Write a rank's profile of one step, with the identity of its job.

    Args:
        source: Of the step; ``None`` where that is no file.

    Raises:
        UsageError: It cannot be written.
    """
    events = [each for each in trace["traceEvents"] if each.get("ph") == "X"]
    begins_us = min((float(each["ts"]) for each in events), default=0.0)
    ends_us = max((float(each["ts"]) + float(each.get("dur", 0.0)) for each in events), default=1.0)
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 0, "tid": 0}
    step |= {"ts": begins_us, "dur": ends_us - begins_us + 1.0}
    own = {"run": " ".join(os.environ.get(name, "") for name in _RUN)}
    if source is not None:
        own["step's file"] = hashlib.sha256(source.read_bytes()).hexdigest()
    body = {**trace, OWN: own, "traceEvents": [*trace["traceEvents"], step]}
    try:
        path.write_bytes(gzip.compress(msgspec.json.encode(body), compresslevel=4, mtime=0))
    except OSError as exc:
        raise UsageError(f"cannot write {path}: {exc.strerror}") from exc


def job_of_traces(
    given: Sequence[Path],
    *,
    workload: str | None = None,
    waiting_w: float | None = None,
    gpu_name: str | None = None,
) -> Job:
    """Make a job of traces of all its ranks, in the Chrome format of Kineto.

    Args:
        workload: What is trained; by default what the first of them is called.
        waiting_w: What a rank draws while it waits; ``None`` where that is not known.
        gpu_name: What GPU the ranks ran on; ``None`` for what the traces say.

    Raises:
        DataError: A file cannot be read or is no trace, they are not all of one job, or times in
            them contradict each other.
    """
    # Loads SciPy, which a training process that leaves a trace can do without.
    from underclock.core.job.network import network_of  # noqa: PLC0415
    from underclock.core.job.tables import instruction_s  # noqa: PLC0415

    files: list[tuple[Path, RankHead]] = []
    for path in given:
        for file in sorted(path.glob("*.json*")) if path.is_dir() else [path]:
            trace = _trace(file)
            if "traceEvents" in trace or not path.is_dir():  # other files of ours may lie there
                files.append((file, rank_head(trace, file.name)))
    if not files:
        raise DataError(
            f"there is no trace in {', '.join(map(str, given))}",
            hint="a trace is what torch.profiler exports, named *.json or *.json.gz",
        )
    check_ranks([head for _, head in files])
    traces = list(map(_read, (file for file, _ in files)))
    if gpu_name is not None:
        traces = [replace(each, gpu=each.gpu and gpu_name) for each in traces]
    job, took_s = traced_job(
        traces, workload=workload or given[0].name.split(".")[0], waiting_w=waiting_w
    )
    taken_s = np.array(
        [instruction_s(job, each) for rank in job.ranks for each in rank.instructions]
    )
    laid_s = float(network_of(job).iteration_s(taken_s))
    period_s = max((each.period_s for each in traces if each.period_s is not None), default=laid_s)
    if laid_s > (1.0 + _NEAR) * period_s:
        raise DataError(
            f"laid out anew, the iteration takes {laid_s * 1e3:.4g} ms, and steps of the traces "
            f"begin every {period_s * 1e3:.4g} ms: their times contradict each other",
            hint="profile several steps anew, with one profiler",
        )
    if abs(laid_s / took_s - 1.0) <= _NEAR:
        return job
    change = format_percent(laid_s / took_s - 1.0)
    differs = (
        f"the traced iteration took {took_s * 1e3:.4g} ms; with the median of each instruction it "
        f"takes {laid_s * 1e3:.4g} ms ({change}): hosts that were late, or times that scatter"
    )
    return msgspec.structs.replace(job, warnings=(*job.warnings, differs))


def _read(file: Path) -> RankTrace:
    try:
        return rank_trace(_trace(file), file.name)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as exc:
        raise DataError(
            f"{file} is no trace as PyTorch's profiler writes it: {exc!r}",
            hint="give what export_chrome_trace wrote, unchanged",
        ) from exc


def _trace(path: Path) -> dict[str, Any]:
    """Read a trace, be it not quite JSON."""
    # PyTorch writes backslashes and quotes of names, control characters, ``nan`` and ``inf`` as
    # they are, and a comma too many.
    killed = "the rank may have been killed as it wrote: export its trace anew"
    try:
        body = path.read_bytes()
        body = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    except (EOFError, zlib.error) as exc:
        raise DataError(f"{path} is no whole trace: {exc}", hint=killed) from exc
    except OSError as exc:
        raise DataError(
            f"cannot read {path}: {exc.strerror or exc}", hint="name a rank's trace, or a folder"
        ) from exc
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(body, type=dict[str, Any])
    text = body.decode(errors="replace").rstrip("\0 \r\n\t")
    mended = _NAME.sub(lambda found: found[1] + _RAW.sub(_escaped, found[2]) + found[3], text)
    for pattern, instead in ((_ESCAPE, _escaped), (_NUMBER, "null"), (_COMMA, r"\1")):
        mended = pattern.sub(instead, mended)
    try:
        return msgspec.convert(json.loads(mended, strict=False), dict[str, Any])
    except (ValueError, msgspec.ValidationError, RecursionError) as exc:
        cut = not text.endswith(("}", "]")) or getattr(exc, "pos", 0) >= len(mended)
        unescaped = "this PyTorch writes names unescaped: profile with with_stack=False"
        raise DataError(
            f"{path} is {'no whole trace' if cut else 'no trace'}: {exc}",
            hint=killed if cut else unescaped,
        ) from exc


def _escaped(found: "re.Match[str]") -> str:
    return found[0] if found[1] else "\\" + found[0]

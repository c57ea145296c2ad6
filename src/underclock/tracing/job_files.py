"""Files of ranks' traces: what each rank of a job leaves, and one job of them all."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from underclock.core.tracing.job_traces import traced_job
from underclock.core.tracing.rank_trace import OWN, RankTrace, rank_trace
from underclock.errors import DataError, UsageError
from underclock.records.job import Job
from underclock.units import format_percent

SUFFIX: Final = ".trace.json.gz"
_NEAR = 0.05  # of the iteration: less between traced and laid out is not worth a sentence
_RUN = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")


def leave_trace(path: Path, trace: Mapping[str, Any], *, source: Path | None) -> None:
    """Write what a rank's profile saw of one step, with what tells its job from others.

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
    given: Sequence[Path], *, workload: str | None = None, waiting_w: float | None = None
) -> Job:
    """Make a job of traces of all its ranks, in the Chrome format of Kineto.

    Args:
        workload: What is trained; by default what the first of them is called.
        waiting_w: What a rank draws while it waits; ``None`` where that is not known.

    Raises:
        DataError: A file cannot be read or is no trace, or they are not all of one job.
    """
    # Loads SciPy, which a training process that leaves a trace can do without.
    from underclock.core.job.network import network_of  # noqa: PLC0415

    traces = list(_read(given))
    if not traces:
        raise DataError(
            f"there is no trace in {', '.join(map(str, given))}",
            hint="a trace is what torch.profiler exports, named *.json or *.json.gz",
        )
    job, took_s = traced_job(
        traces, workload=workload or given[0].name.split(".")[0], waiting_w=waiting_w
    )
    duration_s = np.array(
        [
            each.time_s if each.profile is None else job.profiles[each.profile].rows[0].time_s
            for rank in job.ranks
            for each in rank.instructions
        ],
        dtype=np.float64,
    )
    laid_s = float(network_of(job).iteration_s(duration_s))
    if abs(laid_s / took_s - 1.0) <= _NEAR:
        return job
    differs = (
        f"the traced iteration took {took_s * 1e3:.4g} ms; laid out anew, each instruction with "
        f"its median, it takes {laid_s * 1e3:.4g} ms ({format_percent(laid_s / took_s - 1.0)}): "
        "hosts that were late, or times that scatter"
    )
    return msgspec.structs.replace(job, warnings=(*job.warnings, differs))


def _read(given: Sequence[Path]) -> Iterator[RankTrace]:
    for path in given:
        inside = sorted(path.glob("*.json*")) if path.is_dir() else [path]
        for file in inside:
            trace = _trace(file)
            if path.is_dir() and "traceEvents" not in trace:
                continue  # another file of ours may lie there
            try:
                yield rank_trace(trace, file.name)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as exc:
                raise DataError(
                    f"{file} is no trace as PyTorch's profiler writes it: {exc!r}",
                    hint="give what export_chrome_trace wrote, unchanged",
                ) from exc


def _trace(path: Path) -> dict[str, Any]:
    try:
        body = path.read_bytes()
        if body.startswith(b"\x1f\x8b"):
            body = gzip.decompress(body)
        return msgspec.json.decode(body, type=dict[str, Any])
    except OSError as exc:
        raise DataError(
            f"cannot read {path}: {exc.strerror or exc}", hint="name a rank's trace, or a folder"
        ) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, EOFError, zlib.error) as exc:
        raise DataError(
            f"{path} is no whole trace: {exc}",
            hint="the rank may have been killed as it wrote: export its trace anew",
        ) from exc

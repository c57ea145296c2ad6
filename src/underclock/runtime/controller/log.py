"""The log of a run: written line by line, read again, counted live, and summed up."""

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from underclock.errors import NotSupportedError, UsageError
from underclock.ledger import hashed
from underclock.records.runs import (
    ArmLine,
    AskLine,
    EndLine,
    EventLine,
    Line,
    RunLine,
    RunSummary,
    StepLine,
)
from underclock.runtime.machine.timetable import State
from underclock.runtime.policy.guard import slowdown
from underclock.runtime.policy.policy import OBSERVED
from underclock.runtime.undo.ownership import say

if TYPE_CHECKING:
    from underclock.runtime.controller.booking import Booking

_LONGEST_LINE = 1 << 16
_P50, _P99 = 0.5, 0.99
_LEFT_OUT, _LEAST = 2, 5  # steps at a beginning, where clocks move; and of those that count


class Log:
    """The file of a run. What cannot be written is left out: training matters more.

    Lines are gathered until there is time to write them.

    Attributes:
        lost: Lines that could not be written.

    Args:
        listeners: Who hears of them too.

    Raises:
        UsageError: It cannot be opened.
    """

    def __init__(self, path: Path, listeners: Sequence["Booking | Metrics"] = ()) -> None:
        self.lost = 0
        self._path, self._torn = path, False
        self._listeners = listeners
        self._lines: list[Line] = []
        self._encoder = msgspec.json.Encoder()
        try:
            self._file: IO[bytes] | None = path.open("ab", buffering=0)
        except OSError as exc:
            raise UsageError(
                f"cannot write {path}: {exc.strerror}", hint="name another file with --log"
            ) from exc

    def write(self, line: Line) -> None:
        """Take a line."""
        for listener in self._listeners:
            listener.write(line)
        self._lines.append(line)

    def flush(self) -> None:
        """Write the lines, if the disk takes them."""
        lines, self._lines = self._lines, []
        if self._file is None or not lines:
            return
        text = self._encoder.encode_lines(lines)
        if self._torn:  # what a full disk cut short must not spoil the line after it
            text = b"\n" + text
        try:
            written = self._file.write(text) or 0
        except OSError as exc:
            self._lose(len(lines), str(exc.strerror))
            return
        if written < len(text):
            whole = text[:written].count(b"\n") - text.startswith(b"\n")
            self._lose(len(lines) - max(whole, 0), os.strerror(errno.ENOSPC))
        if written:
            self._torn = not text[:written].endswith(b"\n")

    def _lose(self, lines: int, why: str) -> None:
        if not self.lost:
            say(f"lines of {self._path} are lost, and training goes on: {why}")
        self.lost += lines

    def close(self) -> None:
        """Write what is left, and close the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        for listener in self._listeners:
            listener.close()


class LogReader:
    """Reads a log while it is written, each line once."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._decoder = msgspec.json.Decoder(Line)

    def new(self) -> tuple[Line, ...]:
        """Return the lines that were not returned yet; none where it is no file."""
        if not self._path.is_file():
            return ()
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        return _decoded(whole, self._decoder)


def is_log(path: Path) -> bool:
    """Whether a file is the log of a run."""
    try:
        with path.open("rb") as file:
            first = file.readline(_LONGEST_LINE)
        return isinstance(msgspec.json.decode(first, type=Line), RunLine)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def read_log(path: Path) -> tuple[Line, ...]:
    """Return the lines of a log; one that is cut short by a full disk is left out."""
    return _decoded(path.read_bytes(), msgspec.json.Decoder(Line))


def _decoded(text: bytes, decoder: "msgspec.json.Decoder[Line]") -> tuple[Line, ...]:
    lines = []
    for line in text.splitlines():
        try:
            lines.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return tuple(lines)


def last_run(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return the lines of the last run in a log; all of them where no line begins one."""
    begins = [at for at, line in enumerate(lines) if isinstance(line, RunLine)]
    return tuple(lines[begins[-1] :] if begins else lines)


def held_before(log: Path, gpus: tuple[str, ...], workload: str) -> tuple[int, ...]:
    """Return the clocks that the last run of a log learned, if it was of the same; else none."""
    lines = last_run(read_log(log)) if log.is_file() else ()
    runs = [line for line in lines if isinstance(line, RunLine)]
    if not runs or (runs[0].gpus, runs[0].workload) != (gpus, workload):
        return ()
    return next((line.held_mhz for line in lines if isinstance(line, ArmLine)), ())


def summary_of(lines: Sequence[Line]) -> RunSummary:
    """Return the summary of a run from the lines of its log."""
    run = next((line for line in lines if isinstance(line, RunLine)), None)
    steps = [line for line in lines if isinstance(line, StepLine)]
    ends = [line for line in lines if isinstance(line, EndLine)]
    followed = [line for line in steps if line.state == State.FOLLOWING]
    counted = followed or steps
    seen = list(_seen_changes(followed))
    errors_s = [(abs(each_s), count) for line, count in seen for each_s in line.error_s]
    late_s = [(each_s, count) for line, count in seen for each_s in line.late_s]
    wall_s = sum(line.wall_s for line in ends)
    return RunSummary(
        run=run,
        marks=0 if run is None else run.marks,
        steps=_count(steps),
        enqueued=ends[-1].enqueued if ends else None,
        restarts=sum(line.restarts for line in ends),
        followed=_count(followed),
        step_s=_quantile([(line.time_s, line.steps) for line in counted], _P50),
        step_j=_step_j(counted),
        asks=sum(isinstance(line, AskLine) for line in lines) / _count(steps) if steps else None,
        hits=_hits(seen),
        error_p50_s=_quantile(errors_s, _P50),
        error_p99_s=_quantile(errors_s, _P99),
        late_p50_s=_quantile(late_s, _P50),
        late_p99_s=_quantile(late_s, _P99),
        conductor=sum(line.cpu_s for line in ends) / wall_s if wall_s else None,
        looks_hz=sum(line.looks for line in ends) / wall_s if wall_s else None,
        events=tuple(line.text for line in lines if isinstance(line, EventLine)),
        arms=tuple(line for line in lines if isinstance(line, ArmLine)),
        energy_j=ends[-1].energy_j if ends else None,
        since_auto=_since_auto(steps) if run is not None and run.is_job else None,
    )


def _since_auto(steps: Sequence[StepLine]) -> ArmLine | None:
    """Compare a job's iterations under its plan with those that its guard learned from at auto.

    All ranks draw an iteration's energy together, and the slowest takes its time. The first half
    at auto is warm-up. ``None`` where iterations are too few, or what they drew is not known.
    """
    ranks = {line.gpu for line in steps}
    arms = []
    for name, warm in (("learning", 0.5), ("plan", 0.0)):
        iterations: defaultdict[int, list[StepLine]] = defaultdict(list)
        for line in steps:
            if line.arm == name and line.steps == 1 and line.energy_j is not None:
                iterations[line.step].append(line)
        whole = [some for _, some in sorted(iterations.items()) if len(some) == len(ranks)]
        arms.append(whole[max(_LEFT_OUT, int(warm * len(whole))) :])
        if len(arms[-1]) < _LEAST:
            return None
    energy, low = slowdown(
        *([sum(e.energy_j or 0.0 for e in some) for some in arm] for arm in arms)
    )
    time, time_low = slowdown(*([max(e.time_s for e in some) for some in arm] for arm in arms))
    return ArmLine(
        gpu=0,
        arm="plan",
        rounds=1,
        steps=len(arms[1]),
        time_change=time,
        time_interval=(time_low, 2.0 * time - time_low),
        energy_change=energy,
        energy_interval=(low, 2.0 * energy - low),
        verdict="",
    )


def live_line(lines: Sequence[Line]) -> str:
    """Say how the last steps went, by the last lines of a log; empty before there was one."""
    steps = [line for line in lines if isinstance(line, StepLine)]
    if not steps:
        return ""
    last = steps[-1]
    time_s = sum(step.steps * step.time_s for step in steps) / _count(steps)
    parts = [f"step {last.step + last.steps - 1}", f"{1e3 * time_s:.4g} ms"]
    energy_j, hits = _step_j(steps), _hits([(step, 1) for step in steps if step.hits is not None])
    if energy_j is not None:
        parts.append(f"{energy_j:.4g} J")
    if last.core_mhz is not None:
        parts.append(f"{last.core_mhz:.0f} MHz")
    if hits is not None:
        parts.append(f"{hits:.0%} within 1 ms")
    is_held = last.arm and last.arm != OBSERVED
    parts.append(f"{last.arm}: {last.state}" if is_held else last.arm or last.state)
    return ", ".join(parts)


def live_scalars(lines: Sequence[Line], gpu: int = 0) -> dict[str, float]:
    """Return how a GPU's last steps went, for a logger of scalars; what is unknown is left out."""
    steps = [line for line in lines if isinstance(line, StepLine) and line.gpu == gpu]
    if not steps:
        return {}
    last = steps[-1]
    found = {
        "step_seconds": sum(line.steps * line.time_s for line in steps) / _count(steps),
        "step_joules": _step_j(steps),
        "power_watts": last.power_w,
        "core_megahertz": last.core_mhz,
        "temperature_celsius": last.temperature_c,
        "follows_plan": _count([s for s in steps if s.state == State.FOLLOWING]) / _count(steps),
    }
    return {f"underclock/{name}": value for name, value in found.items() if value is not None}


def _count(lines: Sequence[StepLine]) -> int:
    return sum(line.steps for line in lines)


def _step_j(lines: Sequence[StepLine]) -> float | None:
    known = [(line.energy_j, line.steps) for line in lines if line.energy_j is not None]
    count = sum(steps for _, steps in known)
    return sum(each_j * steps for each_j, steps in known) / count if known else None


def _hits(seen: Sequence[tuple[StepLine, int]]) -> float | None:
    """Return the part of planned changes that came in time; each step stands for so many."""
    planned = sum(line.planned * count for line, count in seen)
    return sum((line.hits or 0) * count for line, count in seen) / planned if planned else None


def _seen_changes(steps: Sequence[StepLine]) -> Iterator[tuple[StepLine, int]]:
    """Yield the steps whose changes were seen, and for how many each stands: those before it too.

    All first steps are, while they are learned, and few of the later ones.
    """
    waiting: defaultdict[int, int] = defaultdict(int)
    for line in steps:
        waiting[line.gpu] += line.steps
        if line.hits is not None:
            yield line, waiting.pop(line.gpu)


def _quantile(values: Sequence[tuple[float, int]], share: float) -> float | None:
    """Return the least value that such a share of them does not exceed; each counts some times."""
    upto = share * sum(count for _, count in values)
    value = None
    for value, count in sorted(values):  # noqa: B007 - the last, if none is beyond
        upto -= count
        if upto < 0:
            break
    return value


_OF_STEPS: tuple[tuple[str, str, Callable[[StepLine], float | None]], ...] = (
    ("underclock_step_energy_joules_total", "Drawn", lambda s: s.energy_j and s.steps * s.energy_j),
    ("underclock_planned_changes_total", "Seen", lambda s: s.planned * (s.hits is not None)),
    ("underclock_hits_total", "Of those, within 1 ms of their launch", lambda s: s.hits),
    ("underclock_overruled_locks_total", "By the driver", lambda s: len(s.overruled)),
    ("underclock_step_seconds", "The last step took", lambda s: s.time_s),
    ("underclock_core_hertz", "Core clock", lambda s: s.core_mhz and 1e6 * s.core_mhz),
    ("underclock_memory_hertz", "Memory clock", lambda s: s.mem_mhz and 1e6 * s.mem_mhz),
    ("hw_power_watts", "Mean in the last step", lambda s: s.power_w),
    ("hw_temperature_celsius", "In the last step", lambda s: s.temperature_c),
)
"""What a counter (``_total``) adds of a step, and what a gauge shows of the last."""


class Metrics:
    """Counters and gauges of a run's GPUs for Prometheus, answered on loopback until it is closed.

    What OpenTelemetry's semantic conventions for hardware name is called as there (``hw.energy``,
    ``hw.power``, ``hw.temperature``, with ``hw.id`` and ``hw.type``); they know no GPU's clocks.

    Args:
        energy_j: Returns what a GPU drew so far; ``None`` where that is not known.

    Raises:
        NotSupportedError: The port is taken, or prometheus_client is not installed.
    """

    def __init__(
        self, uuids: Sequence[str], port: int, energy_j: Callable[[int], float | None]
    ) -> None:
        try:
            import prometheus_client as client  # noqa: PLC0415 - only where it is asked for
        except ImportError as exc:
            raise NotSupportedError(
                "--metrics-port needs prometheus_client", hint="pip install 'underclock[metrics]'"
            ) from exc
        registry = client.CollectorRegistry()

        def made(name: str, words: str, *more: str) -> client.Counter | client.Gauge:
            kind = client.Counter if name.endswith("_total") else client.Gauge
            return kind(name, words, ("gpu", "hw_id", "hw_type", *more), registry=registry)

        self._steps = made("underclock_steps_total", "Steps that ended", "state")
        self._asks = made("underclock_asks_total", "Clocks that were asked for", "domain")
        self._drawn = made("hw_energy_joules_total", "Drawn by the GPU")
        self._of_steps = [(made(name, words), of) for name, words, of in _OF_STEPS]
        self._named = [(str(at), hashed(uuid), "gpu") for at, uuid in enumerate(uuids)]
        self._energy_j, self._before_j = energy_j, [0.0] * len(uuids)
        try:
            self.server, _ = client.start_http_server(port, "127.0.0.1", registry)
        except (OSError, OverflowError) as exc:
            raise NotSupportedError(f"cannot serve metrics on port {port}: {exc}") from exc

    def write(self, line: Line) -> None:
        """Count a line of the log."""
        if isinstance(line, AskLine):
            self._asks.labels(*self._named[line.gpu], line.domain).inc()
        elif isinstance(line, StepLine):
            labels, before_j = self._named[line.gpu], self._before_j[line.gpu]
            drawn_j = self._before_j[line.gpu] = self._energy_j(line.gpu) or before_j
            self._drawn.labels(*labels).inc(drawn_j - before_j)
            self._steps.labels(*labels, line.state).inc(line.steps)
            for metric, of in self._of_steps:
                if (value := of(line)) is not None:
                    add = getattr(metric.labels(*labels), "set", metric.labels(*labels).inc)
                    add(value)

    def close(self) -> None:
        """Answer no more."""
        self.server.shutdown()
        self.server.server_close()

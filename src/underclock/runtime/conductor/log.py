"""The log of a run: written line by line, read again, summed up, and counted for Prometheus."""

import bisect
import errno
import os
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from underclock.errors import NotSupportedError, UsageError
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
from underclock.runtime.conductor.gauges import Gauge
from underclock.runtime.machine.steps import PassedStep, State
from underclock.runtime.undo.processes import say

_MOST = 4096  # readings kept, where the GPU's energy cannot be read
_LONGEST_LINE = 1 << 16

_HIT_S = 1e-3
_STANDS_S = 1.0  # without a climb, and the counter is not believed; they tick every 0.1 s at least


class Metrics:
    """Counters and gauges, in a registry of their own.

    Args:
        registry: Of prometheus-client's; by default a new one.

    Raises:
        NotSupportedError: prometheus-client is not installed.
    """

    def __init__(self, registry: Any = None) -> None:  # noqa: ANN401 - the library is optional
        self._library = _library()
        self.registry = self._library.CollectorRegistry() if registry is None else registry
        self._steps = self._counter("steps", "Steps that ended", "state")
        self._joules = self._counter("energy_joules", "Energy of those whose energy is known")
        self._asks = self._counter("asks", "Clocks that were asked for", "domain")
        self._planned = self._counter("planned_changes", "Changes in steps that were seen closely")
        self._hits = self._counter("hits", "Of those, changes within a millisecond of their launch")
        self._overruled = self._counter("overruled_locks", "Locks that the driver overruled")
        self._step_s = self._gauge("step_seconds", "What the last step took")
        self._power_w = self._gauge("power_watts", "Mean power in the last step")
        self._core_mhz = self._gauge("core_megahertz", "Mean core clock in the last step")
        self._temperature_c = self._gauge("temperature_celsius", "Temperature in the last step")

    def serve(self, port: int) -> None:
        """Answer scrapes on this machine alone, by a thread.

        Raises:
            NotSupportedError: The port is taken.
        """
        try:
            self._library.start_http_server(port, addr="127.0.0.1", registry=self.registry)
        except OSError as exc:
            raise NotSupportedError(
                f"cannot serve metrics on port {port}: {exc.strerror}", hint="name another port"
            ) from exc

    def write(self, line: Line) -> None:
        """Count a line of the log."""
        if isinstance(line, AskLine):
            self._asks.labels(gpu=line.gpu, domain=line.domain).inc()
        if not isinstance(line, StepLine):
            return
        self._steps.labels(gpu=line.gpu, state=line.state).inc(line.steps)
        for counter, value in (
            (self._joules, None if line.energy_j is None else line.steps * line.energy_j),
            (self._planned, None if line.hits is None else line.planned),
            (self._hits, line.hits),
            (self._overruled, len(line.overruled)),
        ):
            if value is not None:
                counter.labels(gpu=line.gpu).inc(value)
        for gauge, reading in (
            (self._step_s, line.time_s),
            (self._power_w, line.power_w),
            (self._core_mhz, line.core_mhz),
            (self._temperature_c, line.temperature_c),
        ):
            if reading is not None:
                gauge.labels(gpu=line.gpu).set(reading)

    def _counter(self, name: str, words: str, *labels: str) -> Any:  # noqa: ANN401
        return self._made("Counter", name, words, *labels)

    def _gauge(self, name: str, words: str) -> Any:  # noqa: ANN401
        return self._made("Gauge", name, words)

    def _made(self, kind: str, name: str, words: str, *labels: str) -> Any:  # noqa: ANN401
        make = getattr(self._library, kind)
        return make(f"underclock_{name}", words, ["gpu", *labels], registry=self.registry)


def _library() -> Any:  # noqa: ANN401
    try:
        import prometheus_client  # noqa: PLC0415 - an extra
    except ImportError as exc:
        raise NotSupportedError("metrics need prometheus-client", hint=_MISSING) from exc
    return prometheus_client


class Log:
    """The file of a run. What cannot be written is left out: training matters more.

    Lines are gathered until somebody has the time to write them.

    Args:
        path: Of the file; it is appended to.
        metrics: Told of every line; ``None`` for none.

    Raises:
        UsageError: It cannot be opened.
    """

    def __init__(self, path: Path, metrics: Metrics | None = None) -> None:
        self.lost = 0
        self._path, self._torn = path, False
        self._metrics = metrics
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
        if self._metrics is not None:
            self._metrics.write(line)
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
        """Count lines that are lost; tell of the first."""
        if not self.lost:
            say(f"lines of {self._path} are lost, and training goes on: {why}")
        self.lost += lines

    def close(self) -> None:
        """Write what is left, and close the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


def is_log(path: Path) -> bool:
    """Whether a file is the log of a run."""
    try:
        with path.open("rb") as file:
            first = file.readline(_LONGEST_LINE)
        return isinstance(msgspec.json.decode(first, type=Line), RunLine)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False


def read_log(path: Path) -> tuple[Line, ...]:
    """Return the lines of a log; one that is cut short by a full disk is left out."""
    lines = []
    decoder = msgspec.json.Decoder(Line)
    for text in path.read_bytes().splitlines():
        try:
            lines.append(decoder.decode(text))
        except msgspec.DecodeError:
            continue
    return tuple(lines)


class Shown:
    """What the driver showed lately, to be laid over steps."""

    def __init__(self) -> None:
        self._gauges: deque[Gauge] = deque(maxlen=_MOST)
        self._energy: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self._climbed_s = float("-inf")
        self._stands = False
        self.limit_w: float | None = None
        self.energy_j = 0.0  # by which the counter climbed
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_MOST)  # where it tells no energy

    def __len__(self) -> int:
        """Return how many readings it remembers."""
        return len(self._gauges)

    def forget(self, before_s: float) -> None:
        """Forget what no step tells of that began then or later."""
        while len(self._energy) > 1 and self._energy[1][0] <= before_s:
            self._energy.popleft()
        while self._energy and self._gauges and self._gauges[0].at_s < self._energy[0][0]:
            self._gauges.popleft()
        while self._gaps and self._gaps[0][1] <= before_s:
            self._gaps.popleft()

    def add(self, gauges: Sequence[Gauge]) -> tuple[str, ...]:
        """Take note of readings; return what a reader of the log should know of them."""
        self._gauges.extend(gauges)
        words = []
        for gauge in gauges:
            if gauge.energy_j is not None:
                at_s = gauge.at_s if gauge.energy_s is None else gauge.energy_s
                words.append(self._counted(at_s, gauge.energy_j))
            if gauge.limit_w is not None:
                words.append(self._limited(gauge.limit_w))
        return tuple(filter(None, words))

    def upto_s(self) -> float:
        """Return up to when the energy is known, or known not to be; at first minus infinity."""
        return self._energy[-1][0] if self._stands else self._climbed_s

    def _counted(self, at_s: float, energy_j: float) -> str:
        """Take note of the energy counter; return what is wrong with it, as soon as it is."""
        last_s, last_j = self._energy[-1] if self._energy else (at_s, float("-inf"))
        self._energy.append((at_s, energy_j))
        self.energy_j += max(0.0, energy_j - last_j) if last_j >= 0.0 else 0.0
        if energy_j == last_j:
            if at_s - self._climbed_s < _STANDS_S:
                return ""
            self._gaps.append((self._climbed_s, at_s))
            stood, self._stands = self._stands, True
            return "" if stood else "the energy counter stands still: what steps draw is not known"
        if self._stands:
            self._gaps.append((last_s, at_s))
        self._climbed_s, self._stands = at_s, False
        if energy_j > last_j:
            return ""
        self._gaps.append((last_s, at_s))
        return (
            f"the energy counter fell from {last_j:.0f} to {energy_j:.0f} J: what the step drew in "
            "which it did is not known"
        )

    def _limited(self, limit_w: float) -> str:
        """Take note of the power limit; return who must have changed it."""
        last_w, self.limit_w = self.limit_w, limit_w
        if last_w is None or last_w == limit_w:
            return ""
        return (
            f"somebody changed the power limit from {last_w:g} to {limit_w:g} W, and the plan is "
            "for the first: plan again for the other"
        )

    def line(self, gpu: int, step: PassedStep, arm: str) -> StepLine:
        """Return a step with what was shown meanwhile."""
        ended_s = step.ended_s
        inside = [gauge for gauge in self._gauges if step.began_s <= gauge.at_s <= ended_s]
        energy_j = self._energy_j(step.began_s, ended_s)
        late_s = tuple(outcome.late_s for outcome in step.outcomes)
        errors_s = tuple(each.error_s for each in step.outcomes if each.error_s is not None)
        return StepLine(
            gpu=gpu,
            step=step.number,
            steps=step.steps,
            began_s=step.began_s,
            time_s=step.time_s,
            state=str(step.state),
            arm=arm,
            planned=step.planned,
            asked=step.asked,
            hits=sum(abs(each_s) <= _HIT_S for each_s in late_s) if step.closely else None,
            late_s=late_s if step.closely else (),
            error_s=errors_s if step.closely else (),
            energy_j=None if energy_j is None else energy_j / step.steps,
            core_mhz=_mean([gauge.clocks.core_mhz for gauge in inside]),
            mem_mhz=_mean([gauge.clocks.mem_mhz for gauge in inside]),
            power_w=_mean([gauge.power_w for gauge in inside]),
            temperature_c=_mean([gauge.temperature_c for gauge in inside]),
            overruled=step.overruled,
        )

    def _energy_j(self, began_s: float, ended_s: float) -> float | None:
        """Return what the counter climbed, told between the readings around."""
        if any(from_s < ended_s and began_s < to_s for from_s, to_s in self._gaps):
            return None
        ends = [_between(self._energy, at_s) for at_s in (began_s, ended_s)]
        if ends[0] is None or ends[1] is None:
            return None
        return ends[1] - ends[0]


def _between(read: Sequence[tuple[float, float]], at_s: float) -> float | None:
    after = bisect.bisect_right(read, at_s, key=lambda each: each[0])
    if not 0 < after < len(read):
        return None
    (one_s, one_j), (other_s, other_j) = read[after - 1], read[after]
    return one_j + (other_j - one_j) * (at_s - one_s) / (other_s - one_s)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


_MISSING = "pip install 'underclock[metrics]'"


_P50, _P99 = 0.5, 0.99


def last_run(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return the lines of the last run in a log; all of them where no line begins one."""
    begins = [at for at, line in enumerate(lines) if isinstance(line, RunLine)]
    return tuple(lines[begins[-1] :] if begins else lines)


def summary_of(lines: Sequence[Line]) -> RunSummary:
    """Return a run's summary.

    Args:
        lines: Of its log.
    """
    run = next((line for line in lines if isinstance(line, RunLine)), None)
    steps = [line for line in lines if isinstance(line, StepLine)]
    followed = [line for line in steps if line.state == State.FOLLOWING]
    counted = followed or steps
    known = [(line.energy_j, line.steps) for line in counted if line.energy_j is not None]
    energy_j = sum(each_j * steps for each_j, steps in known)
    told = list(_told(followed))
    errors_s = [(abs(each_s), count) for line, count in told for each_s in line.error_s]
    late_s = [(each_s, count) for line, count in told for each_s in line.late_s]
    ends = [line for line in lines if isinstance(line, EndLine)]
    asks = [line for line in lines if isinstance(line, AskLine)]
    wall_s = sum(line.wall_s for line in ends)
    hits = [((line.hits or 0) * count, line.planned * count) for line, count in told]
    planned = sum(each for _, each in hits)
    return RunSummary(
        run=run,
        marks=0 if run is None else run.marks,
        steps=_count(steps),
        enqueued=ends[-1].enqueued if ends else None,
        followed=_count(followed),
        step_s=_quantile([(line.time_s, line.steps) for line in counted], _P50),
        step_j=energy_j / sum(steps for _, steps in known) if known else None,
        asks=len(asks) / _count(steps) if steps else None,
        hits=sum(each for each, _ in hits) / planned if planned else None,
        error_p50_s=_quantile(errors_s, _P50),
        error_p99_s=_quantile(errors_s, _P99),
        late_p50_s=_quantile(late_s, _P50),
        late_p99_s=_quantile(late_s, _P99),
        conductor=sum(line.cpu_s for line in ends) / wall_s if wall_s else None,
        looks_hz=sum(line.looks for line in ends) / wall_s if wall_s else None,
        events=tuple(line.text for line in lines if isinstance(line, EventLine)),
        arms=tuple(line for line in lines if isinstance(line, ArmLine)),
        energy_j=ends[-1].energy_j if ends else None,
    )


def _count(lines: Sequence[StepLine]) -> int:
    return sum(line.steps for line in lines)


def _told(steps: Sequence[StepLine]) -> Iterator[tuple[StepLine, int]]:
    """Yield the steps whose changes are told, and for how many each stands: those before it too.

    All first steps are told, while they are learned, and few of the later ones.
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


def live_line(lines: Sequence[Line]) -> str:
    """Say how the last steps went; empty before there was one.

    Args:
        lines: Of the log, the last ones.
    """
    steps = [line for line in lines if isinstance(line, StepLine)]
    if not steps:
        return ""
    last, count = steps[-1], sum(step.steps for step in steps)
    time_s = sum(step.steps * step.time_s for step in steps)
    parts = [f"step {last.step + last.steps - 1}", f"{1e3 * time_s / count:.4g} ms"]
    energies = [(s.steps, s.energy_j) for s in steps if s.energy_j is not None]
    if energies:
        energy_j = sum(some * each_j for some, each_j in energies)
        parts.append(f"{energy_j / sum(some for some, _ in energies):.4g} J")
    if last.core_mhz is not None:
        parts.append(f"{last.core_mhz:.0f} MHz")
    hits = [(step.hits, step.planned) for step in steps if step.hits is not None]
    planned = sum(each for _, each in hits)
    if planned:
        parts.append(f"{sum(each for each, _ in hits) / planned:.0%} within 1 ms")
    parts.append(f"{last.arm}: {last.state}" if last.arm else last.state)
    return ", ".join(parts)

"""The log of a run, and what the driver showed laid over its steps."""

import bisect
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from underclock.errors import UsageError
from underclock.records.runs import Line, RunLine, StepLine
from underclock.runtime.conductor.gauges import Gauge
from underclock.runtime.conductor.metrics import Metrics
from underclock.runtime.machine.steps import PassedStep

_MOST = 4096  # readings kept, where the GPU's energy cannot be read
_LONGEST_LINE = 1 << 16

_HIT_S = 1e-3


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
        self._metrics = metrics
        self._lines: list[bytes] = []
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
        self._lines.append(self._encoder.encode(line) + b"\n")

    def flush(self) -> None:
        """Write the lines, if the disk takes them."""
        lines, self._lines = self._lines, []
        if self._file is None or not lines:
            return
        try:
            self._file.write(b"".join(lines))
        except OSError:
            self.lost += len(lines)

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
        self._energy_s: deque[float] = deque(maxlen=_MOST)  # when the counter was read

    def add(self, gauges: Sequence[Gauge]) -> None:
        """Take note of readings."""
        self._gauges.extend(gauges)
        self._energy_s.extend(gauge.at_s for gauge in gauges if gauge.energy_j is not None)

    def __len__(self) -> int:
        """Return how many readings it remembers."""
        return len(self._gauges)

    def upto_s(self) -> float:
        """Return when the energy counter was read last; minus infinity before it was."""
        return self._energy_s[-1] if self._energy_s else float("-inf")

    def forget(self, before_s: float) -> None:
        """Forget what no step tells of that began then or later."""
        while len(self._energy_s) > 1 and self._energy_s[1] <= before_s:
            self._energy_s.popleft()
        while self._energy_s and self._gauges and self._gauges[0].at_s < self._energy_s[0]:
            self._gauges.popleft()

    def line(self, gpu: int, step: PassedStep, arm: str) -> StepLine:
        """Return a step with what was shown meanwhile."""
        ended_s = step.began_s + step.time_s
        inside = [gauge for gauge in self._gauges if step.began_s <= gauge.at_s <= ended_s]
        late_s = tuple(outcome.late_s for outcome in step.outcomes)
        errors_s = tuple(each.error_s for each in step.outcomes if each.error_s is not None)
        return StepLine(
            gpu=gpu,
            step=step.number,
            began_s=step.began_s,
            time_s=step.time_s,
            state=str(step.state),
            arm=arm,
            planned=step.planned,
            asked=step.asked,
            hits=sum(abs(each_s) <= _HIT_S for each_s in late_s) if step.closely else None,
            late_s=late_s if step.closely else (),
            error_s=errors_s if step.closely else (),
            energy_j=self._energy_j(step.began_s, ended_s),
            core_mhz=_mean([gauge.clocks.core_mhz for gauge in inside]),
            mem_mhz=_mean([gauge.clocks.mem_mhz for gauge in inside]),
            power_w=_mean([gauge.power_w for gauge in inside]),
            temperature_c=_mean([gauge.temperature_c for gauge in inside]),
            overruled=step.overruled,
        )

    def _energy_j(self, began_s: float, ended_s: float) -> float | None:
        """Return what the counter climbed, told between the readings around."""
        read = [
            (gauge.at_s, gauge.energy_j) for gauge in self._gauges if gauge.energy_j is not None
        ]
        ends = [_between(read, at_s) for at_s in (began_s, ended_s)]
        if ends[0] is None or ends[1] is None:
            return None
        return max(0.0, ends[1] - ends[0])


def _between(read: Sequence[tuple[float, float]], at_s: float) -> float | None:
    after = bisect.bisect_right([each_s for each_s, _ in read], at_s)
    if not 0 < after < len(read):
        return None
    (one_s, one_j), (other_s, other_j) = read[after - 1], read[after]
    return one_j + (other_j - one_j) * (at_s - one_s) / (other_s - one_s)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

"""One line of JSON for each step and event of a run."""

import bisect
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from underclock.records.common import Record
from underclock.runtime.gauges import Gauge
from underclock.runtime.steps import PassedStep

_KEPT = 4096


class StepLine(Record, frozen=True, kw_only=True, tag_field="line", tag="step"):
    """One step of one GPU.

    Attributes:
        gpu: Local rank.
        step: Counted from 0.
        began_s: On the machine's monotonic clock.
        time_s: How long it took.
        state: What the conductor did, in words.
        arm: What was held, where arms are compared; empty else.
        planned: Changes of clocks in the plan's step.
        asked: Of which were asked for.
        hits: Of which took effect within a millisecond of their launch.
        late_s: How long after its launch each took effect.
        error_s: How far off each boundary was expected.
        energy_j: From the energy counter; ``None`` where it was not read around the step.
        core_mhz: Mean of the readings in it; ``None`` without any.
        mem_mhz: Likewise.
        power_w: Likewise.
        temperature_c: Likewise.
        overruled: Locks that were overruled, and why.
    """

    gpu: int
    step: int
    began_s: float
    time_s: float
    state: str
    arm: str = ""
    planned: int
    asked: int
    hits: int
    late_s: tuple[float, ...] = ()
    error_s: tuple[float, ...] = ()
    energy_j: float | None = None
    core_mhz: float | None = None
    mem_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    overruled: tuple[str, ...] = ()


class EventLine(Record, frozen=True, kw_only=True, tag_field="line", tag="event"):
    """Something that a reader of the log should know.

    Attributes:
        gpu: Local rank.
        at_s: On the machine's monotonic clock.
        text: What.
    """

    gpu: int
    at_s: float
    text: str


class AskLine(Record, frozen=True, kw_only=True, tag_field="line", tag="ask"):
    """A clock that was asked for, or would have been.

    Attributes:
        gpu: Local rank.
        at_s: On the machine's monotonic clock.
        domain: Whose clock.
        to_mhz: ``None`` gives it back.
        call_s: How long the call took.
    """

    gpu: int
    at_s: float
    domain: str
    to_mhz: int | None
    call_s: float


class EndLine(Record, frozen=True, kw_only=True, tag_field="line", tag="end"):
    """What following took.

    Attributes:
        cpu_s: Of the conductor's processor time.
        wall_s: Meanwhile.
        looks: At pages.
    """

    cpu_s: float
    wall_s: float
    looks: int


Line = StepLine | EventLine | AskLine | EndLine

_HIT_S = 1e-3


class Log:
    """The file of a run. What cannot be written is left out: training matters more.

    Args:
        path: Of the file; it is appended to.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._encoder = msgspec.json.Encoder()
        self._file: IO[bytes] | None = path.open("ab", buffering=0)

    def write(self, line: Line) -> None:
        """Write a line, if the disk takes it."""
        if self._file is None:
            return
        try:
            self._file.write(self._encoder.encode(line) + b"\n")
        except OSError:
            self.lost += 1

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


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
        self._gauges: deque[Gauge] = deque(maxlen=_KEPT)

    def add(self, gauges: Sequence[Gauge]) -> None:
        """Take note of readings."""
        self._gauges.extend(gauges)

    def upto_s(self) -> float:
        """Return when the energy counter was read last; minus infinity before it was."""
        return max(
            (gauge.at_s for gauge in self._gauges if gauge.energy_j is not None),
            default=float("-inf"),
        )

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
            hits=sum(abs(each_s) <= _HIT_S for each_s in late_s),
            late_s=late_s,
            error_s=errors_s,
            energy_j=self._energy_j(step.began_s, ended_s),
            core_mhz=_mean([gauge.clocks.core_mhz for gauge in inside]),
            mem_mhz=_mean([gauge.clocks.mem_mhz for gauge in inside]),
            power_w=_mean([gauge.power_w for gauge in inside]),
            temperature_c=_mean([gauge.temperature_c for gauge in inside]),
            overruled=step.overruled,
        )

    def _energy_j(self, began_s: float, ended_s: float) -> float | None:
        """Return what the counter climbed, told between the readings around."""
        read = [(gauge.at_s, gauge.energy_j) for gauge in self._gauges if gauge.energy_j is not None]
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

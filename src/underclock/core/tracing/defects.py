"""What profilers get wrong of a GPU's work, found before a trace's times are believed.

Work whose launching call is not in the trace is of a step before it. Work that begins before its
call, or out of the order of its stream, has no time; what lasts beyond the next kernel of its
stream ends at the latest where that one begins. A call without a kernel lost it.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from typing import Any

from underclock.core.tracing.profile import CALLS, GPU, complete_events, correlation_of, launching
from underclock.errors import DataError
from underclock.records.work import NodeKind

NCCL = ("ncclDevKernel", "ncclKernel")
"""How names of NCCL's kernels begin."""
_Event = Mapping[str, Any]
_FARTHEST_US = 1e18  # of any time
_BEFORE_US = 1e4  # the host's first event: two clocks of one machine differ by less
_EARLY_US = 100.0  # before its call: as the clocks of host and GPU are compared
_SKEWED = 0.25  # of the work begins early where these clocks differ
_MOVED_US = 1e3  # out of a stream's order: two threads may ask in another order than is run
_OVERLAP_US = 50.0  # of two kernels of a stream, where the next may be launched early
_ALIKE = 10.0  # times as long as any other of its name: nothing comes after the last of a stream
_OTHER_GPU = 0.01  # of the kernels' time: less on another GPU is a stray call


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundTrace:
    """A trace less what cannot be."""

    events: list[_Event]  # complete events, of the GPU those that ran on one device and have a call
    notes: tuple[str, ...]  # what a reader must know
    lost: tuple[_Event, ...] = ()  # calls that asked for a kernel without a time
    # correlation ids of work that ends a pass at no known time, where it is its last
    endless: frozenset[int] = frozenset()
    # likewise of work that begins one, where it is its first
    beginless: frozenset[int] = frozenset()
    device: int | None = None  # the GPU's number; ``None`` without one
    backlog_ends_us: float = 0.0  # when the last work ended whose call is not in the trace


def sound_trace(trace: Mapping[str, Any], name: str) -> SoundTrace:
    """Exclude from a trace what cannot be.

    Raises:
        DataError: No event is whole, no work of the GPU has a call, or it is of several GPUs.
    """
    events = trace.get("traceEvents")
    if isinstance(events, list):
        events = [each for each in events if isinstance(each, Mapping)]
    complete = complete_events({"traceEvents": events})
    whole = [event for event in complete if _is_whole(event)]
    if not whole:
        raise DataError(
            f"{name} is no trace as PyTorch's profiler writes it: of {len(complete)} events none "
            "has a name, a time and a duration",
            hint="give what export_chrome_trace wrote, unchanged",
        )
    found = [
        (len(complete) - len(whole), "events have no name, time or duration, and are excluded")
    ]
    gpu = [event for event in whole if event.get("cat") in GPU]
    if not gpu:
        return SoundTrace(events=whole, notes=_notes(name, found))
    device, mine = _of_one_gpu(gpu, name)
    host = [event for event in whole if event.get("cat") not in GPU]
    host += _calls_by_operator(host, mine)
    called_us = {correlation_of(e): float(e["ts"]) for e in host if e.get("cat") in CALLS}
    asked = [event for event in mine if correlation_of(event) in called_us]
    backlog = [event for event in mine if correlation_of(event) not in called_us]
    if not asked:
        raise DataError(
            f"no work of the GPU in {name} has its launching call: which step it is of is not "
            "known",
            hint="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    begun_us = min(float(event["ts"]) for event in host) - _BEFORE_US
    later = [event for event in asked if float(event["ts"]) >= begun_us]
    in_order = _in_order(later, called_us)
    # Two clocks differ where so much begins before its call, in order, that no defect of a few
    # kernels explains it.
    early_us = [called_us[correlation_of(event)] - float(event["ts"]) for event in in_order]
    timed, skew_us = in_order, 0.0
    if sum(each > _EARLY_US for each in early_us) > _SKEWED * len(in_order):
        skew_us = max(early_us)
    else:
        timed = [e for e, us in zip(in_order, early_us, strict=True) if us <= _EARLY_US]
    kept, cut, after = _cut(timed)
    timeless = (e for e in kept if e["cat"] == "kernel" and not _lasts(e) and not _is_nccl(e))
    instant = set(map(correlation_of, timeless))
    placed = {id(event) for event in in_order}
    strays = [*backlog, *(event for event in later if id(event) not in placed)]
    endless, beginless = _next_to(kept, strays)
    ran, dropped = (set(map(correlation_of, some)) for some in (kept, asked))
    lost = [
        call
        for call, kind, is_captured in launching(host)
        if kind is NodeKind.KERNEL and not is_captured and correlation_of(call) not in ran
    ]
    early = len(asked) - len(later) + len(in_order) - len(timed)
    disordered = len(later) - len(in_order)
    unseen = sum(correlation_of(call) not in dropped for call in lost)
    differ = f"begin up to {skew_us:.3g} us before their calls: the clocks of host and GPU differ"
    found += [
        (len(gpu) - len(mine), "kernels and copies ran on another GPU, and are excluded"),
        (len(backlog), "kernels have no launching call in the trace: excluded from all steps"),
        (early, "kernels and copies begin before they are asked for, and are excluded"),
        (disordered, "kernels begin out of the order of their stream, and are excluded"),
        (len(cut), "kernels last beyond the next one of their stream: they end there at most"),
        (len(instant), "kernels have no duration"),
        (unseen, "kernels were launched and not seen by the profiler"),
        (len(timed) if skew_us else 0, f"kernels and copies {differ}"),
    ]
    return SoundTrace(
        events=host + kept,
        notes=_notes(name, found),
        lost=tuple(lost),
        endless=frozenset(endless | cut | after | instant),
        beginless=frozenset(beginless | after),
        device=device,
        backlog_ends_us=max(map(_end, backlog), default=0.0),
    )


def _notes(name: str, found: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    return tuple(f"{name}: {count} {words}" for count, words in found if count)


def _is_whole(event: _Event) -> bool:
    ts, dur, args = event.get("ts"), event.get("dur", 0.0), event.get("args", {})
    if not isinstance(ts, int | float) or not isinstance(dur, int | float):
        return False
    if not isinstance(event.get("name"), str) or not isinstance(event.get("cat", ""), str):
        return False
    if not isinstance(event.get("tid"), str | int | None) or not isinstance(args, Mapping):
        return False
    if not (-_FARTHEST_US < ts < _FARTHEST_US and 0.0 <= dur < _FARTHEST_US):
        return False
    if event.get("cat") not in GPU and event.get("cat") not in CALLS:
        return True
    numbered = (args.get(key, 0) for key in ("correlation", "stream", "device"))
    return all(isinstance(each, int) for each in numbered)


def _end(event: _Event) -> float:
    return float(event["ts"]) + _lasts(event)


def _lasts(event: _Event) -> float:
    return float(event.get("dur", 0.0))


def _is_nccl(event: _Event) -> bool:
    return str(event["name"]).startswith(NCCL)


def _of_one_gpu(gpu: Sequence[_Event], name: str) -> tuple[int, list[_Event]]:
    """Return the device that computes most, and what ran there."""
    busy_us: dict[int, float] = defaultdict(float)
    for event in gpu:
        kernel = event["cat"] == "kernel"
        busy_us[event.get("args", {}).get("device", 0)] += kernel * _lasts(event)
    device = max(busy_us, key=lambda each: busy_us[each])
    if sum(busy_us.values()) - busy_us[device] > _OTHER_GPU * sum(busy_us.values()):
        raise DataError(
            f"{name} has kernels of {len(busy_us)} GPUs in one process (devices "
            f"{', '.join(map(str, sorted(busy_us)))}): a rank of a job is one GPU",
            hint="profile a run with one process for each GPU, as torchrun starts them",
        )
    return device, [each for each in gpu if each.get("args", {}).get("device", 0) == device]


def _calls_by_operator(host: Sequence[_Event], gpu: Sequence[_Event]) -> list[_Event]:
    """Return calls for work whose own call was not traced, where its operator was."""
    # Triton's launches by the driver have none in older traces, only the operator's number.
    called = {correlation_of(event) for event in host if event.get("cat") in CALLS}
    operators = {
        event["args"]["External id"]: event
        for event in host
        if event.get("cat") == "cpu_op" and "External id" in event.get("args", {})
    }
    return [
        {**operator, "cat": "cuda_driver", "name": "cuLaunchKernel", "dur": 0.0}
        | {"args": {"correlation": correlation_of(event)}}
        for event in gpu
        if correlation_of(event) not in called
        and (operator := operators.get(event.get("args", {}).get("External id"))) is not None
    ]


def _by_stream(gpu: Sequence[_Event]) -> list[list[_Event]]:
    streams: dict[int, list[_Event]] = defaultdict(list)
    for event in gpu:
        if not _is_nccl(event):
            streams[int(event.get("args", {}).get("stream", 0))].append(event)
    return list(streams.values())


def _in_order(gpu: list[_Event], called_us: Mapping[int, float]) -> list[_Event]:
    """Return work less what begins elsewhere than the order of its stream has it."""
    kept = [event for event in gpu if _is_nccl(event)]
    for some in _by_stream(gpu):
        some.sort(key=lambda each: (called_us[correlation_of(each)], float(each["ts"])))
        begins_us = [float(each["ts"]) for each in some]
        marks = _longest_ascending(begins_us)
        before = 0
        for event, begin_us in zip(some, begins_us, strict=True):
            before += before < len(marks) and event is some[marks[before]]
            earlier_us = begins_us[marks[before - 1]] if before else begin_us
            later_us = begins_us[marks[before]] if before < len(marks) else begin_us
            if earlier_us - _MOVED_US <= begin_us <= later_us + _MOVED_US:
                kept.append(event)
    return kept


def _longest_ascending(values: Sequence[float]) -> list[int]:
    tails: list[float] = []
    places: list[int] = []
    before: list[int] = []
    for at, value in enumerate(values):
        length = bisect_right(tails, value)
        before.append(places[length - 1] if length else -1)
        tails[length : length + 1] = [value]
        places[length : length + 1] = [at]
    found = places[-1:]
    while found and before[found[-1]] >= 0:
        found.append(before[found[-1]])
    return found[::-1]


def _next_to(kept: Sequence[_Event], strays: Sequence[_Event]) -> tuple[set[int], set[int]]:
    """Return what precedes, and what follows, work of its stream that is of no known pass."""
    # Before all other work of the stream it is of a step before the trace.
    lost = {id(event) for event in strays}
    before, after = set[int](), set[int]()
    for some in _by_stream([*kept, *strays]):
        some.sort(key=lambda each: float(each["ts"]))
        ordered = dropwhile(lambda each: id(each) in lost, some)
        for one, following in pairwise(ordered):
            if id(following) in lost:
                before.add(correlation_of(one))
            elif id(one) in lost:
                after.add(correlation_of(following))
    return before, after


def _cut(gpu: list[_Event]) -> tuple[list[_Event], set[int], set[int]]:
    """End work where the next one of its stream begins; return which lasted beyond that one."""
    # Where it lasts into the next one, either may be wrong: the last set holds the next ones.
    # Kernels of one graph may run side by side in the stream that it was launched in.
    kept, cut, after = [event for event in gpu if _is_nccl(event)], set[int](), set[int]()
    for some in _by_stream(gpu):
        some.sort(key=lambda each: (float(each["ts"]), _end(each)))
        for event, following in pairwise(some):
            over_us = _end(event) - float(following["ts"])
            beyond = over_us > _OVERLAP_US or _end(event) > _end(following) + 1.0
            if over_us > 1.0 and beyond and correlation_of(event) != correlation_of(following):
                cut.add(correlation_of(event))
                if _end(event) <= _end(following):
                    after.add(correlation_of(following))
                event = {**event, "dur": float(following["ts"]) - float(event["ts"])}  # noqa: PLW2901
            kept.append(event)
        last, longest_us = some[-1], max((_lasts(each) for each in some[:-1]), default=0.0)
        alike = [_lasts(each) for each in some[:-1] if each["name"] == last["name"]]
        unlike = alike and _lasts(last) > max(longest_us, _ALIKE * max(alike))
        if unlike and last["cat"] == "kernel":
            cut.add(correlation_of(last))
            last = {**last, "dur": max(alike)}
        kept.append(last)
    return kept, cut, after

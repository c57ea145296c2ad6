"""What one rank of a job did in its steps, from a profiler's trace in the Chrome format.

Ranges on the host name the microbatch that work belongs to:

* ``forward mb=3 stage=1``: ours as we trace, and what people can put with ``record_function``
  (``load``, ``forward`` or ``fwd``, ``backward`` or ``bwd``, ``weights`` or ``wgrad``,
  ``recompute``; ``stage`` may be left out where a rank has one)
* ``PP:1F3``, ``Forward 3``, ``Backward 3``: those of PyTorch's own pipeline schedules
* none: forward, backward and optimizer by PyTorch's own marks (autograd's ranges and threads,
  ``Optimizer.step#``), each cut where the next one or a message between ranks is asked for

What another stream than the passes' ran during the previous step (the next input, prepared) is of
neither step. Of a step without a GPU the host's operators are the work.
"""

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, zip_longest
from typing import Any, TypeVar

import numpy as np

from underclock.core.tracing.defects import NCCL, SoundTrace, sound_trace
from underclock.core.tracing.profile import (
    CALLS,
    EVALUATES,
    GPU,
    HOST_RANGES,
    HostTimeline,
    activities,
    activity_of,
    complete_events,
    correlation_of,
    stream_waits,
)
from underclock.core.tracing.rank_passes import (
    ON_HOST,
    SAME_S,
    Activity,
    Gathering,
    Message,
    PassRun,
    homes_of,
    laid_passes,
    passes_by_marks,
)
from underclock.core.tracing.streams import is_copied_beside, main_stream, streams
from underclock.errors import DataError
from underclock.records import Pass
from underclock.records.job import InstructionKind
from underclock.records.samples import gpu_name
from underclock.records.work import MODULE_MARK, NodeKind, TracedActivity

OWN = "underclock"
"""Key under which a trace of ours says which job it is of."""
UNKNOWN_GPU = "unknown GPU"
"""Of traces that hold a GPU's work and not its name."""
WHOLE = -1
"""Number of the step that a trace without steps is."""
_Event = Mapping[str, Any]
_Span = tuple[float, float]
_US = 1e-6
_STEP = re.compile(r"ProfilerStep#(\d+)")
_SAID = re.compile(
    r"\b(load|forward|fwd|backward|bwd|weights|wgrad|recompute)\b.*?\b(?:mb|microbatch)[ =:]*(\d+)"
    r"(?:.*?\bstage[ =:]*(\d+))?",
    re.IGNORECASE,
)
_ACTION = re.compile(r"PP:(?P<stage>\d+)(?P<kind>[FBIW])(?P<mb>\d+)")
_PASS = re.compile(r"(Forward|Backward) (\d+)")
_KINDS = {
    **{kind.value: kind for kind in InstructionKind},
    **dict.fromkeys(("fwd", "f"), InstructionKind.FORWARD),
    **dict.fromkeys(("bwd", "b", "i"), InstructionKind.BACKWARD),
    **dict.fromkeys(("wgrad", "w"), InstructionKind.WEIGHTS),
}
_TRANSFERS = {"c10d::send": "gloo:send", "c10d::recv_": "gloo:recv"}
_TALK = ("c10d::", "gloo:", "nccl:", "record_param_comms")
_PAIRWISE = frozenset({"send", "recv", "coalesced", ""})
_FRAMES = (MODULE_MARK, "ProfilerStep", "PP:", "Forward ", "Backward ", "## ")
_OPTIMIZER = "Optimizer."
_PURPOSES = {
    **dict.fromkeys(("pp", "pipe", "pipeline", "pipeline_model"), "stage"),
    **dict.fromkeys(("dp", "data", "fsdp", "dp_shard", "dp_replicate"), "data"),
    **dict.fromkeys(("tp", "tensor", "tensor_model"), "tensor"),
    **dict.fromkeys(("cp", "context", "sp", "sequence"), "sequence"),
    "default_pg": "",
}


@dataclass(frozen=True, slots=True)
class RankIteration:
    """What a rank did in one step; pieces in the order in which they began."""

    number: int
    pieces: tuple[PassRun, ...]
    messages: tuple[Message, ...]
    gatherings: tuple[Gathering, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHead:
    """Whose a trace is."""

    name: str  # of the trace, for errors
    rank: int | None  # its number; ``None`` where it says none
    world: int | None  # how many ranks there are, as it says; ``None`` where it does not
    identity: Mapping[str, str]  # what all ranks of one job have in common, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace(RankHead):
    """What one rank left."""

    # ranks of its process groups, by the index that they share out: stage, data, tensor or
    # sequence; all ranks under the empty name
    groups: Mapping[str, tuple[int, ...]]
    gpu: str  # what it ran on; empty without a GPU
    steps: tuple[RankIteration, ...]  # in order; `WHOLE` is the number of a whole trace
    # the longest that the main stream takes from one step's begin to the next one's; ``None`` of a
    # single step
    period_s: float | None
    notes: tuple[str, ...]  # what a reader must know


def rank_head(trace: Mapping[str, Any], name: str) -> RankHead:
    """Return whose a trace is.

    Raises:
        DataError: It is no Chrome trace.
    """
    if "traceEvents" not in trace:
        complete_events(trace, name)
    about, own = _mapping(trace.get("distributedInfo")), _mapping(trace.get(OWN))
    rank, world = about.get("rank"), about.get("world_size")
    return RankHead(
        name=name,
        rank=rank if type(rank) is int and rank >= 0 else None,
        world=world if type(world) is int and world > 0 else None,
        identity={str(key): str(value) for key, value in own.items()},
    )


def rank_trace(trace: Mapping[str, Any], name: str) -> RankTrace:
    """Return what a rank did, from its trace.

    Args:
        trace: In the Chrome format, as ``export_chrome_trace`` writes it.

    Raises:
        DataError: It is no such trace, or no step has ranges that name microbatches.
    """
    head, sound = rank_head(trace, name), sound_trace(trace, name)
    events, on_gpu = sound.events, sound.device is not None
    gpu = _gpu(trace, sound.device)
    if gpu and not on_gpu:
        raise DataError(
            f"{name} ran on a {gpu} and has no GPU event: the host's times are not its kernels'",
            hint="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    steps, notes = _steps(events, name)
    groups = _groups(_mapping(trace.get("distributedInfo")))
    work, gatherings, main = _on_gpu(sound) if on_gpu else _on_host(events)
    messages = _messages(events, groups.get("stage", groups.get("", ())))
    pieces = _marked(events)
    homes = homes_of(work, main)
    on_main = [one for one in work if one.stream == main and not one.lost]
    spans = [span for _, span in steps]
    bounds, period_s = _bounds(on_main, spans, sound.backlog_ends_us * _US)
    found, refused = list[RankIteration](), list[DataError]()
    for (number, span), (free_s, next_s) in zip(steps, bounds, strict=True):
        mine = [
            one
            for one in _within(work, span)
            if one.lost or one.stream in homes.values() or free_s <= one.begins_s < next_s
        ]
        said = _within(messages, span)
        where = f"step {number} of {name}" if number >= 0 else name
        try:
            passes = _within(pieces, span) or passes_by_marks(mine, said, homes, where)
        except DataError as exc:
            refused.append(exc)
            continue
        laid = laid_passes(passes, mine, said, homes={main, *homes.values()}, main=main)
        gathered = tuple(
            each if each.meets else replace(each, ends_s=min(each.ends_s, next_s))
            for each in _within(gatherings, span)
            if each.meets or free_s <= each.begins_s < next_s
        )
        found.append(RankIteration(number, laid, tuple(said), gathered))
    if not found:
        raise refused[0]
    counts = Counter(map(_passes, found))
    usual = max(counts, key=lambda passes: (counts[passes], passes))
    odd = [step for step in found if _passes(step) != usual]
    unusual = "has not the passes that most steps have, and is excluded"
    notes += [f"{exc}, and is excluded" for exc in refused]
    notes += [f"step {step.number} of {name} {unusual}" for step in odd]
    return RankTrace(
        name=name,
        rank=head.rank,
        world=head.world,
        identity=head.identity,
        groups=groups,
        gpu=(gpu or UNKNOWN_GPU) if on_gpu else "",
        steps=tuple(step for step in found if step not in odd),
        period_s=period_s,
        notes=(*sound.notes, *notes),
    )


_T = TypeVar("_T", Activity, PassRun, Message, Gathering)


def _within(some: Sequence[_T], span: _Span) -> list[_T]:
    first, last = (bisect_left(some, moment, key=lambda each: each.asked_s) for moment in span)
    return list(some[first:last])


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _gpu(trace: Mapping[str, Any], device: int | None) -> str:
    given = trace.get("deviceProperties")
    listed = [_mapping(each) for each in given] if isinstance(given, list) else []
    mine = [each for each in listed if each.get("id") == device] or listed
    return gpu_name(str(mine[0].get("name", ""))) if mine else ""


def _passes(step: RankIteration) -> tuple[int, ...]:
    kinds = Counter(piece.kind for piece in step.pieces if piece.microbatch is not None)
    return tuple(kinds[kind] for kind in InstructionKind)


def _bounds(
    on_main: Sequence[Activity], spans: Sequence[_Span], backlog_ends_s: float
) -> tuple[list[_Span], float | None]:
    """Return when the main stream is free for each step and the next, and the longest period."""
    # After the last step the next one would begin a period later.
    ends_s = [backlog_ends_s, *accumulate((one.ends_s for one in on_main), max)]
    begins_s = [*accumulate((one.begins_s for one in reversed(on_main)), min)][::-1]
    asked = [one.asked_s for one in on_main]
    at = [(bisect_left(asked, begin), bisect_left(asked, end)) for begin, end in spans]
    begun_s = [begins_s[first] for first, after in at if first < after]
    period_s = max((later - earlier for earlier, later in pairwise(begun_s)), default=None)
    end_s = math.inf if period_s is None else begun_s[-1] + period_s
    free = [
        (max(ends_s[first], backlog_ends_s), begins_s[after] if after < len(asked) else end_s)
        for first, after in at
    ]
    return free, period_s


def _span(event: _Event) -> _Span:
    begins_s = float(event["ts"]) * _US
    return begins_s, begins_s + float(event.get("dur", 0.0)) * _US


def _ranges(events: Sequence[_Event], named: re.Pattern[str]) -> list[_Event]:
    """Return the host's ranges whose names say something, outer ones first."""
    some = (event for event in events if event.get("cat") in HOST_RANGES)
    said = [event for event in some if named.search(event["name"])]
    return sorted(said, key=lambda each: (float(each["ts"]), -each.get("dur", 0.0)))


def _steps(events: Sequence[_Event], name: str) -> tuple[list[tuple[int, _Span]], list[str]]:
    """Return a trace's steps, in order, and what a reader must know of them."""
    marked = {
        int(found[1]): event
        for event in reversed(_ranges(events, _STEP))
        if (found := _STEP.search(event["name"]))
    }
    if not marked:
        whole = -math.inf, math.inf
        return [(WHOLE, whole)], [f"{name} has no step() and counts as one step"]
    steps, notes = [], []
    in_order = sorted(marked.items(), key=lambda each: float(each[1]["ts"]))
    for (number, event), following in zip_longest(in_order, in_order[1:]):
        begins_s, ends_s = _span(event)
        if following is not None and ends_s > (next_s := _span(following[1])[0]) + SAME_S:
            overlap = f"steps {number} and {following[0]} of {name} overlap"
            if event.get("tid") != following[1].get("tid"):
                raise DataError(
                    f"{overlap}, in two threads: which work is of which is not known",
                    hint="profile with one profiler, of one training loop",
                )
            ends_s = next_s
            notes.append(f"{overlap}: the first counts until the second begins")
        steps.append((number, (begins_s, ends_s)))
    return steps, notes


def _groups(about: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for each in about.get("pg_config") or ():
        words = str(each.get("pg_desc", "")).lower()
        words = words.removeprefix("mesh_").removesuffix("_group").removesuffix("_parallel")
        if words in _PURPOSES:
            found[_PURPOSES[words]] = tuple(map(int, each.get("ranks") or ()))
    return found


def _marked(events: Sequence[_Event]) -> list[PassRun]:
    """Return pieces as ranges tell them."""
    # Of ranges of one kind inside one another the innermost counts; what is of another kind (a
    # forward run again inside of a backward) belongs to the one around it.
    every = re.compile(f"{_SAID.pattern}|{_ACTION.pattern}|{_PASS.pattern}", re.IGNORECASE)
    pieces: list[PassRun] = []
    for event in _ranges(events, every):
        named, (begins_s, ends_s) = _named_pass(event), _span(event)
        inside = bool(pieces) and ends_s <= pieces[-1].ends_s + SAME_S
        if named is None or (inside and named[0] is not pieces[-1].kind):
            continue
        if inside:
            pieces.pop()
        pieces.append(PassRun(begins_s, begins_s, ends_s, *named))
    return pieces


def _named_pass(event: _Event) -> tuple[InstructionKind, int, int | None] | None:
    name = str(event["name"])
    if found := _SAID.search(name):
        kind, microbatch, stage = found.groups()
    elif found := _ACTION.fullmatch(name):
        kind, microbatch, stage = found["kind"], found["mb"], found["stage"]
    elif found := _PASS.fullmatch(name):
        (kind, microbatch), stage = found.groups(), None
    else:
        return None
    return _KINDS[kind.lower()], int(microbatch), None if stage is None else int(stage)


def _on_gpu(sound: SoundTrace) -> tuple[list[Activity], list[Gathering], int]:
    """Return work and collectives, as they were asked for, and the stream that computes longest."""
    host = HostTimeline({"traceEvents": sound.events})
    seen = activities(host)
    main = main_stream(seen)
    copied = [is_copied_beside(one, main) for one in seen]
    works = [not one.function.startswith(NCCL) for one in seen]
    on_main = [one.stream == main and works[i] for i, one in enumerate(seen)]
    waited_by = streams(seen, stream_waits(host)).waited_by(np.array(on_main, dtype=bool))
    threads = {correlation_of(e): e.get("tid") for e in sound.events if e.get("cat") in CALLS}
    autograd = {e.get("tid") for e in sound.events if e["name"].startswith(EVALUATES)}
    autograd -= {
        e.get("tid") for e in sound.events if e["name"].startswith(("ProfilerStep", _OPTIMIZER))
    }

    def pass_of(one: TracedActivity, correlation: int) -> Pass:
        # What a hook asks for between two of autograd's ranges is of the backward too.
        hook = one.pass_ is not Pass.COMMUNICATION and threads.get(correlation) in autograd
        return Pass.BACKWARD if hook else one.pass_

    work, gatherings = [], []
    for i, event in enumerate(host.gpu):
        one, by, correlation = seen[i], waited_by[i], correlation_of(event)
        asked_s = host.called_us[correlation] * _US
        until_s = math.inf if by is None else seen[by].start_s
        group = str(event.get("args", {}).get("Process Group Name", ""))
        if copied[i]:
            stream = f"copies of stream {one.stream}"
            gatherings.append(Gathering(asked_s, *_span(event), stream, until_s, meets=False))
        elif works[i]:
            known = correlation not in sound.beginless, correlation not in sound.endless
            pass_ = pass_of(one, correlation)
            work.append(Activity(asked_s, *_span(event), pass_, one.stream, known=known))
        elif not _is_pairwise(event):
            gatherings.append(Gathering(asked_s, *_span(event), group, until_s))
    for call in sound.lost:
        asked_s, correlation = _span(call)[0], correlation_of(call)
        pass_ = pass_of(activity_of(call, NodeKind.KERNEL, host), correlation)
        if pass_ is not Pass.COMMUNICATION:
            work.append(Activity(asked_s, asked_s, asked_s, pass_, main, lost=True))
    return sorted(work, key=lambda one: one.asked_s), gatherings, main


def _is_pairwise(event: _Event) -> bool:
    said = str(event.get("args", {}).get("Collective name", ""))
    return "SendRecv" in str(event["name"]) and said in _PAIRWISE


def _on_host(events: Sequence[_Event]) -> tuple[list[Activity], list[Gathering], int]:
    """Return the outermost operators, which without a GPU are the work, and what gloo gathers."""
    found: list[Activity] = []
    ends_s: dict[object, float] = {}
    optimizers = [_span(event) for event in events if event["name"].startswith(_OPTIMIZER)]
    some = [event for event in events if event.get("cat") == "cpu_op"]
    for event in sorted(some, key=lambda each: (float(each["ts"]), -each.get("dur", 0.0))):
        name, (begins_s, end_s) = event["name"], _span(event)
        apart = name.startswith((*_FRAMES, *_TALK)) or _named_pass(event) is not None
        if apart or end_s <= ends_s.get(event.get("tid"), -math.inf) + SAME_S:
            continue
        ends_s[event.get("tid")] = end_s
        pass_ = Pass.BACKWARD if name.startswith(EVALUATES) else Pass.FORWARD
        if any(first_s <= begins_s < last_s for first_s, last_s in optimizers):
            pass_ = Pass.OPTIMIZER
        found.append(Activity(begins_s, begins_s, end_s, pass_, ON_HOST))
    gloo = [each for each in events if each["name"].startswith("gloo:")]
    spans = sorted(_span(each) for each in gloo if each["name"] not in _TRANSFERS.values())
    return found, [Gathering(begin_s, begin_s, end_s, "") for begin_s, end_s in spans], ON_HOST


def _messages(events: Sequence[_Event], group: Sequence[int]) -> list[Message]:
    """Return transfers, in the order in which they were asked for."""
    # A send or a receive is under way in the first kernel of its kind launched from then on: one by
    # itself, or one that does several at once.
    asked = sorted((e for e in events if e["name"] in _TRANSFERS), key=lambda e: float(e["ts"]))
    kernels = [e for e in events if e.get("cat") in GPU and _is_pairwise(e)]
    if not asked:
        return [
            _message(event, event, sends="Dst Rank" in event["args"], group=())
            for event in sorted(kernels, key=lambda e: float(e["ts"]))
            if {"Dst Rank", "Src Rank"} & event.get("args", {}).keys()
        ]
    called = HostTimeline({"traceEvents": events}).called_us
    found = []
    for sends, operator in ((True, "c10d::send"), (False, "c10d::recv_")):
        under_way = kernels or [e for e in events if e["name"] == _TRANSFERS[operator]]
        begun = sorted(
            (called.get(correlation_of(e), float(e["ts"])), at) for at, e in enumerate(under_way)
        )
        for event in (each for each in asked if each["name"] == operator):
            at = bisect_left(begun, (float(event["ts"]), -1))
            run = under_way[begun[at][1]] if at < len(begun) else event
            found.append(_message(event, run, sends=sends, group=group))
    return sorted(found, key=lambda each: each.asked_s)


def _message(event: _Event, run: _Event, *, sends: bool, group: Sequence[int]) -> Message:
    peer = run.get("args", {}).get("Dst Rank" if sends else "Src Rank")
    if peer is None:
        inputs = event.get("args", {}).get("Concrete Inputs", ())
        if len(inputs) <= 2 or not str(inputs[2]).isdecimal():  # noqa: PLR2004 - after the group
            raise DataError(
                f"a {event['name']} does not say with which rank",
                hint="profile with record_shapes=True",
            )
        number = int(inputs[2])
        peer = group[number] if number < len(group) else number
    asked_s, (begins_s, ends_s) = _span(event)[0], _span(run)
    if run.get("cat") not in GPU:  # gloo notes that it began once it did
        begins_s = asked_s
    return Message(asked_s, begins_s, ends_s, sends, int(peer))

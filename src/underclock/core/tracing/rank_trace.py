"""What one rank of a job did in its steps, from a profiler's trace in the Chrome format.

Which microbatch work belongs to is told by ranges on the host:

* ``forward mb=3 stage=1``: ours as we trace, and what people can put with ``record_function``
  (``load``, ``forward`` or ``fwd``, ``backward`` or ``bwd``, ``weights`` or ``wgrad``,
  ``recompute``; ``stage`` may be left out where a rank has one)
* ``PP:1F3``, ``Forward 3``, ``Backward 3``: those of PyTorch's own pipeline schedules
* none: forward and backward as the profile tells them, each cut into as many equal pieces as
  messages were sent, or as its kernels repeat

Work that is asked for between two ranges belongs to the earlier (a loss, to its forward), what
comes before the first to no microbatch, what comes after the last to the optimizer. Of a step
without a GPU the host's operators are the work.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from underclock.core.tracing.host import complete_events, correlation_of, host_timeline
from underclock.core.tracing.profile import GPU, activities, gpu_events, stream_waits
from underclock.core.tracing.streams import GAP_S, is_copied_beside, main_stream, streams
from underclock.errors import DataError
from underclock.records import Pass
from underclock.records.job import InstructionKind
from underclock.records.launches import MODULE_MARK
from underclock.records.measured import gpu_name

OWN = "underclock"
"""Key under which a trace of ours says which job it is of."""
HOW_TO_MARK = (
    'put a range around each pass: `with torch.profiler.record_function("forward mb=3 stage=1"):`'
)
_Event = Mapping[str, Any]
_Span = tuple[float, float]
SAME_S = 1e-8
"""Of times, which profiles round."""
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
_HOST = frozenset({"user_annotation", "cpu_op"})
_TRANSFERS = {"c10d::send": "gloo:send", "c10d::recv_": "gloo:recv"}
_NCCL = ("ncclDevKernel", "ncclKernel")
_TALK = ("c10d::", "gloo:", "nccl:", "record_param_comms")
_PAIRWISE = frozenset({"send", "recv", "coalesced", ""})
_FRAMES = (MODULE_MARK, "ProfilerStep", "PP:", "Forward ", "Backward ", "## ")
_OPTIMIZER = "Optimizer."
_EVALUATES = "autograd::engine::evaluate_function"
_PURPOSES = {
    **dict.fromkeys(("pp", "pipe", "pipeline", "pipeline_model"), "stage"),
    **dict.fromkeys(("dp", "data", "fsdp", "dp_shard", "dp_replicate"), "data"),
    **dict.fromkeys(("tp", "tensor", "tensor_model"), "tensor"),
    **dict.fromkeys(("cp", "context", "sp", "sequence"), "sequence"),
    "default_pg": "",
}


@dataclass(frozen=True, slots=True)
class Timed:
    """Something of a rank: when its host began to ask for it, when it began and ended, in s."""

    asked_s: float
    begins_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class Activity(Timed):
    """Something that a GPU did, or without one the host."""

    token: str
    pass_: Pass


@dataclass(frozen=True, slots=True)
class PassRun(Timed):
    """What a rank did of one instruction.

    Attributes:
        stage: As its range says; ``None`` where that says none.
        work: Merged spans in which the rank was busy with it, in s.
        late: Spans between these in which its GPU had nothing to do because the host, which a
            profiler slows, had not asked yet.
    """

    kind: InstructionKind
    microbatch: int | None = None
    stage: int | None = None
    work: tuple[_Span, ...] = ()
    late: tuple[_Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Message(Timed):
    """One end of a transfer between two ranks."""

    sends: bool
    peer: int


@dataclass(frozen=True, slots=True)
class Gathering(Timed):
    """A collective as one rank saw it, or a copy beside its passes.

    Attributes:
        group: Whose collective; empty where the trace does not name it. Of copies their stream.
        until_s: When the first work that waits for it began; infinite where none does, ``None``
            where nobody knows.
        meets: Whether it is a collective.
    """

    group: str
    until_s: float | None = None
    meets: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIteration:
    """What a rank did in one step; pieces in the order in which they began."""

    number: int
    pieces: tuple[PassRun, ...]
    messages: tuple[Message, ...]
    gatherings: tuple[Gathering, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one rank left.

    Attributes:
        rank: Its number.
        world: How many ranks there are, as it says; ``None`` where it does not.
        identity: What all ranks of one job have in common, by name.
        groups: Ranks of its process groups, by the index that they share out: stage, data, tensor
            or sequence; all ranks under the empty name.
        gpu: What it ran on; empty without a GPU.
        steps: In order.
    """

    rank: int
    world: int | None
    identity: Mapping[str, str]
    groups: Mapping[str, tuple[int, ...]]
    gpu: str
    steps: tuple[RankIteration, ...]


def rank_trace(trace: Mapping[str, Any], name: str) -> RankTrace:
    """Return what a rank did, from its trace.

    Args:
        trace: In the Chrome format, as ``export_chrome_trace`` writes it.
        name: Of the trace, for errors.

    Raises:
        DataError: It is no such trace, does not say whose it is, has no step, or nothing tells its
            microbatches.
    """
    events = complete_events(trace)
    about = trace.get("distributedInfo") or {}
    if not isinstance(about.get("rank"), int):
        raise DataError(
            f"{name} does not say which rank it is of",
            hint='trace with torch.distributed initialised, or write `"distributedInfo": {"rank": '
            "0}` into it",
        )
    devices: Sequence[Mapping[str, Any]] = trace.get("deviceProperties") or ({},)
    gpu = gpu_name(str(devices[0].get("name", "")))
    if gpu and not _on_gpu(events):
        raise DataError(
            f"{name} ran on a {gpu} and has no GPU event: the host's times are not its kernels'",
            hint="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    steps = _steps(events)
    if not steps:
        raise DataError(
            f"{name} has no step",
            hint="call step() of torch.profiler.profile, which marks them ProfilerStep#n",
        )
    groups = _groups(about)
    done, gatherings = _done(trace, events)
    messages = _messages(events, groups.get("stage", groups.get("", ())))
    pieces = _marked(events)
    found = []
    for number, span in sorted(steps.items()):
        mine, said = _within(done, span), _within(messages, span)
        told = _within(pieces, span) or _repeated(mine, said, f"step {number} of {name}")
        found.append(
            RankIteration(
                number=number,
                pieces=_laid(told, mine, said, on_gpu=_on_gpu(events)),
                messages=tuple(said),
                gatherings=tuple(_within(gatherings, span)),
            )
        )
    return RankTrace(
        rank=about["rank"],
        world=about.get("world_size"),
        identity={str(key): str(value) for key, value in trace.get(OWN, {}).items()},
        groups=groups,
        gpu=gpu,
        steps=tuple(found),
    )


_T = TypeVar("_T", Activity, PassRun, Message, Gathering)


def _within(some: Sequence[_T], span: _Span) -> list[_T]:
    return [each for each in some if span[0] <= each.asked_s < span[1]]


def _on_gpu(events: Sequence[_Event]) -> bool:
    return any(event.get("cat") in GPU for event in events)


def _span(event: _Event) -> _Span:
    begins_s = float(event["ts"]) * _US
    return begins_s, begins_s + float(event.get("dur", 0.0)) * _US


def _ranges(events: Sequence[_Event], told: re.Pattern[str]) -> list[_Event]:
    """Return the host's ranges whose names say something, outer ones first."""
    some = (event for event in events if event.get("cat") in _HOST)
    said = [event for event in some if told.search(str(event["name"]))]
    return sorted(said, key=lambda each: (float(each["ts"]), -each.get("dur", 0.0)))


def _steps(events: Sequence[_Event]) -> dict[int, _Span]:
    found = ((_STEP.search(str(each["name"])), each) for each in _ranges(events, _STEP))
    return {int(number[1]): _span(event) for number, event in found if number}


def _groups(about: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for each in about.get("pg_config") or ():
        words = str(each.get("pg_desc", "")).lower()
        words = words.removeprefix("mesh_").removesuffix("_group").removesuffix("_parallel")
        if words in _PURPOSES:
            found[_PURPOSES[words]] = tuple(map(int, each.get("ranks") or ()))
    return found


def _marked(events: Sequence[_Event]) -> list[PassRun]:
    """Return pieces as ranges tell them.

    Of ranges of one kind inside one another the innermost counts; what is of another kind (a
    forward run again inside of a backward) belongs to the one around it.
    """
    every = re.compile(f"{_SAID.pattern}|{_ACTION.pattern}|{_PASS.pattern}", re.IGNORECASE)
    pieces: list[PassRun] = []
    for event in _ranges(events, every):
        told, (begins_s, ends_s) = _told(event), _span(event)
        inside = bool(pieces) and ends_s <= pieces[-1].ends_s + SAME_S
        if told is None or (inside and told[0] is not pieces[-1].kind):
            continue
        if inside:
            pieces.pop()
        pieces.append(PassRun(begins_s, begins_s, ends_s, *told))
    return pieces


def _told(event: _Event) -> tuple[InstructionKind, int, int | None] | None:
    """Return the kind, microbatch and stage that a range's name says."""
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


def _done(
    trace: Mapping[str, Any], events: Sequence[_Event]
) -> tuple[list[Activity], list[Gathering]]:
    """Return work and collectives, in the order in which they were asked for."""
    if not _on_gpu(events):
        gloo = [each for each in events if str(each["name"]).startswith("gloo:")]
        spans = [_span(each) for each in gloo if each["name"] not in _TRANSFERS.values()]
        return _on_host(events), [Gathering(begins_s, begins_s, e, "") for begins_s, e in spans]
    host = host_timeline(events)
    seen = activities(trace)
    main, copied = main_stream(seen), [is_copied_beside(one, main_stream(seen)) for one in seen]
    works = [not one.function.startswith(_NCCL) for one in seen]
    on_main = [one.stream == main and works[i] for i, one in enumerate(seen)]
    waited_by = streams(seen, stream_waits(trace)).waited_by(np.array(on_main, dtype=bool))
    work, gatherings = [], []
    for i, event in enumerate(gpu_events(events, host)):
        one, by = seen[i], waited_by[i]
        asked_s = host.called_us.get(correlation_of(event), float(event["ts"])) * _US
        until_s = math.inf if by is None else seen[by].start_s
        group = str(event.get("args", {}).get("Process Group Name", ""))
        if copied[i]:
            stream = f"copies of stream {one.stream}"
            gatherings.append(Gathering(asked_s, *_span(event), stream, until_s, meets=False))
        elif works[i]:
            work.append(Activity(asked_s, *_span(event), one.function or one.kind, one.pass_))
        elif not _is_pairwise(event):
            gatherings.append(Gathering(asked_s, *_span(event), group, until_s))
    return work, gatherings


def _is_pairwise(event: _Event) -> bool:
    said = str(event.get("args", {}).get("Collective name", ""))
    return "SendRecv" in str(event["name"]) and said in _PAIRWISE


def _on_host(events: Sequence[_Event]) -> list[Activity]:
    """Return the outermost operators, which without a GPU are the work."""
    found: list[Activity] = []
    ends_s: dict[object, float] = {}
    optimizers = [_span(event) for event in events if str(event["name"]).startswith(_OPTIMIZER)]
    some = [event for event in events if event.get("cat") == "cpu_op"]
    for event in sorted(some, key=lambda each: (float(each["ts"]), -each.get("dur", 0.0))):
        name, (begins_s, end_s) = str(event["name"]), _span(event)
        apart = name.startswith((*_FRAMES, *_TALK)) or _told(event) is not None
        if apart or end_s <= ends_s.get(event.get("tid"), -math.inf) + SAME_S:
            continue
        ends_s[event.get("tid")] = end_s
        pass_ = Pass.BACKWARD if name.startswith(_EVALUATES) else Pass.FORWARD
        if any(first_s <= begins_s < last_s for first_s, last_s in optimizers):
            pass_ = Pass.OPTIMIZER
        token = f"{name} {event.get('args', {}).get('Input Dims', '')}"
        found.append(Activity(begins_s, begins_s, end_s, token, pass_))
    return found


def _messages(events: Sequence[_Event], group: Sequence[int]) -> list[Message]:
    """Return transfers, in the order in which they were asked for.

    A send or a receive is under way in the first kernel of such launched from then on: one by
    itself, or one that does several at once.

    Args:
        events: Of the trace.
        group: Ranks that number each other, where an operator says a number within its group.
    """
    asked = sorted((e for e in events if e["name"] in _TRANSFERS), key=lambda e: float(e["ts"]))
    kernels = [e for e in events if e.get("cat") in GPU and _is_pairwise(e)]
    if not asked:
        return [
            _message(event, event, sends="Dst Rank" in event["args"], group=())
            for event in sorted(kernels, key=lambda e: float(e["ts"]))
            if {"Dst Rank", "Src Rank"} & event.get("args", {}).keys()
        ]
    called = host_timeline(events).called_us
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
    told = run.get("args", {}).get("Dst Rank" if sends else "Src Rank")
    if told is None:
        inputs = event.get("args", {}).get("Concrete Inputs", ())
        if len(inputs) <= 2 or not str(inputs[2]).isdecimal():  # noqa: PLR2004 - after the group
            raise DataError(
                f"a {event['name']} does not say with which rank",
                hint="profile with record_shapes=True",
            )
        number = int(inputs[2])
        told = group[number] if number < len(group) else number
    asked_s, (begins_s, ends_s) = _span(event)[0], _span(run)
    if run.get("cat") not in GPU:  # gloo notes that it began once it did
        begins_s = asked_s
    return Message(asked_s, begins_s, ends_s, sends, int(told))


def _repeated(work: Sequence[Activity], messages: Sequence[Message], where: str) -> list[PassRun]:
    """Tell microbatches of a step without ranges by what repeats.

    What does not run as often for every microbatch (only the first of them has no gradient to add
    to) belongs to what ran before it.

    Raises:
        DataError: Nothing does.
    """
    passes = {
        InstructionKind.FORWARD: [each for each in work if each.pass_ is Pass.FORWARD],
        InstructionKind.BACKWARD: [each for each in work if each.pass_ is Pass.BACKWARD],
    }
    sent = Counter((each.sends, each.peer) for each in messages)
    tokens = Counter(one.token for some in passes.values() for one in some)
    first = Counter(one.token for one in next(filter(None, passes.values()), []))
    count = max(sent.values(), default=0) or math.gcd(*first.values())
    pieces = []
    for kind, some in passes.items():
        alike = [one for one in some if tokens[one.token] % count == 0]
        length = len(alike) // max(count, 1)
        starts = range(0, len(alike), max(length, 1))
        runs = [[one.token for one in alike[at : at + length]] for at in starts]
        if some and (not alike or any(run != runs[0] for run in runs)):
            raise DataError(
                f"no range tells microbatches in {where}, and its {kind} is not {count} times the "
                "same",
                hint=HOW_TO_MARK,
            )
        for number, at in enumerate(starts):
            first_s, last_s = alike[at].asked_s, alike[at + length - 1].asked_s
            pieces.append(PassRun(first_s, first_s, math.nextafter(last_s, math.inf), kind, number))
    if not pieces:
        raise DataError(f"{where} has neither a forward nor a backward", hint=HOW_TO_MARK)
    return sorted(pieces, key=lambda each: each.asked_s)


def _laid(
    told: Sequence[PassRun],
    work: Sequence[Activity],
    messages: Sequence[Message],
    *,
    on_gpu: bool,
) -> tuple[PassRun, ...]:
    """Give each piece its work, and what belongs to none pieces of their own."""
    asked = [each.asked_s for each in told]
    owned: dict[int, list[Activity]] = {}
    for one in work:
        owner = bisect_right(asked, one.asked_s) - 1
        after = owner == len(told) - 1 and one.asked_s >= told[-1].ends_s
        owned.setdefault(len(told) if after else owner, []).append(one)
    laid: list[PassRun] = []
    for at, piece in enumerate(told):
        mine = _spans(owned.get(at, []))
        late = _late(owned.get(at, [])) if on_gpu else ()
        begins_s, ends_s = piece.begins_s, piece.ends_s
        if not on_gpu:  # the host's own time, from when it has what it waited for
            begun_s = mine[0][0] if mine else ends_s
            had = [each.ends_s for each in messages if begins_s < each.ends_s <= begun_s]
            begins_s, ends_s = max([begins_s, *had]), max([ends_s, *(end for _, end in mine)])
        elif mine:
            begins_s, ends_s = mine[0][0], mine[-1][1]
        else:
            begins_s = ends_s = laid[-1].ends_s if laid else begins_s
        laid.append(replace(piece, begins_s=begins_s, ends_s=ends_s, work=mine, late=late))
    for at, kind in ((-1, InstructionKind.OTHER), (len(told), InstructionKind.OPTIMIZER)):
        if mine := _spans(owned.get(at, [])):
            laid.append(PassRun(mine[0][0], mine[0][0], mine[-1][1], kind, work=mine))
    laid.sort(key=lambda each: (each.begins_s, each.asked_s))
    for at in range(1, len(laid)):  # what runs beside the one before is hidden by it
        begins_s = max(laid[at].begins_s, laid[at - 1].ends_s)
        ends_s = max(begins_s, laid[at].ends_s)
        inside = tuple((max(begins_s, b), e) for b, e in laid[at].late if e > begins_s)
        laid[at] = replace(laid[at], begins_s=begins_s, ends_s=ends_s, late=inside)
    return tuple(laid)


def _spans(work: Sequence[Activity]) -> tuple[_Span, ...]:
    return merged([(one.begins_s, one.ends_s) for one in work])


def _late(work: Sequence[Activity]) -> tuple[_Span, ...]:
    """Return when a GPU was done with all that it had been asked for, but for a usual gap."""
    ordered = sorted(work, key=lambda each: each.begins_s)
    done = accumulate((one.ends_s for one in ordered), max)
    # What began as it was asked for is of a trace that does not tell when that was.
    return tuple(
        (done_s, one.begins_s - GAP_S)
        for done_s, one in zip(done, ordered[1:], strict=False)
        if done_s < one.asked_s < one.begins_s - GAP_S
    )


def merged(spans: Sequence[_Span]) -> tuple[_Span, ...]:
    """Return spans in order, those that touch as one."""
    found: list[_Span] = []
    for begins_s, ends_s in sorted(spans):
        if found and begins_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ends_s)
        else:
            found.append((begins_s, ends_s))
    return tuple(found)

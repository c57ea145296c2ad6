"""The host's side of a profiler's trace: what was open on a thread as it asked for GPU work.

Of collectives the profiler writes what `record_param_comms` was given, both to that operator on the
host and to the kernel on the GPU: which one, how many elements in and out, their type, the group.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from underclock.errors import DataError
from underclock.records.work import MODULE_MARK

_Event = Mapping[str, Any]
CALLS = frozenset({"cuda_runtime", "cuda_driver"})
"""Categories of the events that ask for GPU work."""
_BACKWARD = "autograd::engine::evaluate_function"
_RANGES = {"cpu_op", "user_annotation"}
_NAME, _RANKS = "Collective name", "Group size"
_IN, _OUT = "In msg nelems", "Out msg nelems"
_GROUP = "Process Group Name"
_OPERATOR = "nccl::"
# Our name of a type, bytes of an element, as c10 writes it, as operators have it.
_TYPES = (
    ("bf16", 2, "BFloat16", ("c10::BFloat16",)),
    ("fp16", 2, "Half", ("c10::Half",)),
    ("fp32", 4, "Float", ("float",)),
    ("fp64", 8, "Double", ("double",)),
    ("i64", 8, "Long", ("long int", "long")),
    ("i32", 4, "Int", ("int",)),
    ("i16", 2, "Short", ()),
    ("i8", 1, "Char", ("signed char",)),
    ("u8", 1, "Byte", ("unsigned char",)),
    ("bool", 1, "Bool", ("bool",)),
    ("fp8", 1, "Float8_e4m3fn", ("c10::Float8_e4m3fn",)),
    ("fp8", 1, "Float8_e5m2", ("c10::Float8_e5m2",)),
)
WIDTHS = {name: width for name, width, _, _ in _TYPES}
"""Bytes of an element, by our name of its type."""
_OF_C10 = {c10: name for name, _, c10, _ in _TYPES}
DTYPES = {each: name for name, _, _, operators in _TYPES for each in operators}
"""Our names of types, by those that operators' inputs have."""
_MESSAGE = re.compile(r"(\w+)\[(\d+)\]")
_SENT = (("allreduce", 2.0), ("all_to_all", 1.0))  # of what other ranks hold, by one
_AMONG = re.compile(r" among (\d+) ranks")


@dataclass(frozen=True, slots=True)
class HostRange:
    """A range of time on a host thread: an operator, a module, an autograd function."""

    name: str
    end_us: float
    arguments: Mapping[str, Any]

    @property
    def is_backward(self) -> bool:
        """Whether autograd evaluates one function of the backward pass in it."""
        return self.name.startswith(_BACKWARD)

    @property
    def is_optimizer(self) -> bool:
        """Whether an optimizer works in it."""
        return self.name.startswith(("Optimizer.step#", "Optimizer.zero_grad#"))


class HostTimeline:
    """What was open on the host at each launching call.

    Attributes:
        chains: Ranges around each call, outermost first, by correlation id.
        called_us: When each call began.
        backward_ends_us: Last moment of autograd's work; `optimizer_ends_us` of an optimizer's.
        modules: Modules around the forward operator of each autograd sequence number.
        differentiated: Modules around the operator that was differentiated last.
    """

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        self.chains, self.called_us = dict[int, tuple[HostRange, ...]](), dict[int, float]()
        self.backward_ends_us = self.optimizer_ends_us = -math.inf
        self.modules, self.differentiated = dict[int, tuple[str, ...]](), tuple[str, ...]()
        for event, range_, chain in walk_threads(events):
            if range_ is None:
                self.chains[correlation_of(event)] = tuple(chain)
                self.called_us[correlation_of(event)] = float(event["ts"])
                continue
            if range_.is_backward:
                self.backward_ends_us = max(self.backward_ends_us, range_.end_us)
            elif range_.is_optimizer:
                self.optimizer_ends_us = max(self.optimizer_ends_us, range_.end_us)
            number = range_.arguments.get("Sequence number")
            # In the backward pass forward operators are recomputed, with numbers of their own.
            recomputes = any(outer.is_backward for outer in chain)
            differentiates = recomputes and bool(range_.arguments.get("Fwd thread id"))
            if number is not None and not differentiates and (modules := modules_around(chain)):
                self.modules[int(number)] = modules


def complete_events(trace: Mapping[str, Any], name: str = "") -> list[Mapping[str, Any]]:
    """Return the events that have a duration.

    Args:
        name: Of the file, for what is wrong with it.

    Raises:
        DataError: It is no Chrome trace.
    """
    try:
        return [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    except (KeyError, TypeError, AttributeError) as exc:
        raise DataError(
            f"{name and f'{name}: '}the profiler wrote no list of trace events",
            hint="this PyTorch writes another format: trace with torch 2.8 or newer",
        ) from exc


def walk_threads(
    events: Iterable[_Event],
) -> Iterator[tuple[_Event, HostRange | None, Sequence[HostRange]]]:
    """Walk every host thread in time.

    Yields:
        Each range as it opens, and each GPU call, of which the range is ``None``; with the ranges
        open around it then, outermost first.
    """
    threads: dict[object, list[_Event]] = defaultdict(list)
    for event in events:
        # What gloo does lasts from its start until it is waited for.
        is_range = event.get("cat") in _RANGES and not str(event["name"]).startswith("gloo:")
        if is_range or event.get("cat") in CALLS:
            threads[event.get("tid")].append(event)
    for mine in threads.values():
        # Of ranges that begin together the longer is the outer.
        mine.sort(key=lambda event: (float(event["ts"]), -float(event.get("dur", 0.0))))
        stack: list[HostRange] = []
        for event in mine:
            start_us = float(event["ts"])
            while stack and stack[-1].end_us <= start_us:
                stack.pop()
            if event["cat"] in CALLS:
                yield event, None, stack
                continue
            end_us = start_us + float(event.get("dur", 0.0))
            range_ = HostRange(str(event["name"]), end_us, event.get("args", {}))
            yield event, range_, stack
            stack.append(range_)


def correlation_of(event: Mapping[str, Any]) -> int:
    """Return the number that a call and what it launched have in common; -1 for none."""
    return int(event.get("args", {}).get("correlation", -1))


def modules_around(chain: Sequence[HostRange]) -> tuple[str, ...]:
    """Return the paths of the modules that were called, outermost first.

    A wrapper and what it wraps have one path, and are one.
    """
    called = [each.name for each in chain if each.name.startswith(MODULE_MARK)]
    return tuple(dict.fromkeys(name.removeprefix(MODULE_MARK) for name in called))


def operator_and_shapes(
    event: Mapping[str, Any], chain: Sequence[HostRange]
) -> tuple[str, str] | None:
    """Return a collective and what it sends and receives, as an operator with its inputs.

    Args:
        chain: What was open on the host as it was asked for, outermost first.
    """
    arguments = [event.get("args", {}), *(range_.arguments for range_ in reversed(chain))]
    facts = next((each for each in arguments if each.get(_NAME)), None)
    if facts is None:
        return None
    dtype = str(facts.get("dtype", ""))
    name = _OF_C10.get(dtype, dtype)
    sent, received = (f"{name}[{int(facts.get(key, 0))}]" for key in (_IN, _OUT))
    group = str(facts.get(_GROUP, ""))
    of_group = f" in group {group!r}" if group else ""
    shapes = f"{sent} to {received} among {int(facts.get(_RANKS, 1))} ranks{of_group}"
    return f"{_OPERATOR}{facts[_NAME]}", shapes


def is_collective(operator: str) -> bool:
    """Whether an operator is one that `operator_and_shapes` returned."""
    return operator.startswith(_OPERATOR)


def bytes_of(operator: str, shapes: str) -> float | None:
    """Return what a rank of a ring sends in a collective; ``None`` where that is not known.

    Args:
        operator: Which, as `operator_and_shapes` returned it.
    """
    if not is_collective(operator):
        return None
    sizes = [WIDTHS.get(dtype, 0) * int(count) for dtype, count in _MESSAGE.findall(shapes)]
    least, most = min(sizes, default=0), max(sizes, default=0)
    if least != most:  # gathered or scattered: all but its own part
        return float(most - least)
    share = 1.0 - 1.0 / ranks_of(operator, shapes)
    times = next((times for name, times in _SENT if name in operator), None)
    return (most if times is None else times * share * most) or None


def ranks_of(operator: str, shapes: str) -> int:
    """Return how many ranks an operator needs; 1 where it is no collective."""
    found = _AMONG.search(shapes) if is_collective(operator) else None
    return int(found[1]) if found else 1

"""The host's side of a profiler's trace: what was open on a thread as it asked for GPU work."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from underclock.errors import DataError
from underclock.records.launches import MODULE_MARK

CALLS = frozenset({"cuda_runtime", "cuda_driver"})
"""Categories of the events that ask for GPU work."""
_BACKWARD = "autograd::engine::evaluate_function"
_RANGES = {"cpu_op", "user_annotation"}


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


@dataclass(slots=True)
class HostTimeline:
    """What was open on the host at each launching call.

    Attributes:
        chains: Ranges around each call, outermost first, by correlation id.
        called_us: When each call began.
        backward_ends_us: Last moment of autograd's work.
        optimizer_ends_us: Last moment of an optimizer's work.
        modules: Modules around the forward operator of each autograd sequence number.
        differentiated: Modules around the operator that was differentiated last.
    """

    chains: dict[int, tuple[HostRange, ...]] = field(default_factory=dict)
    called_us: dict[int, float] = field(default_factory=dict)
    backward_ends_us: float = -math.inf
    optimizer_ends_us: float = -math.inf
    modules: dict[int, tuple[str, ...]] = field(default_factory=dict)
    differentiated: tuple[str, ...] = ()


def complete_events(trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the events that have a duration.

    Raises:
        DataError: It is no Chrome trace.
    """
    try:
        return [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    except (KeyError, TypeError, AttributeError) as exc:
        raise DataError(
            "the profiler wrote no list of trace events",
            hint="this PyTorch writes another format: trace with torch 2.8 or newer",
        ) from exc


def host_timeline(events: Sequence[Mapping[str, Any]]) -> HostTimeline:
    """Return what was open at each call."""
    host = HostTimeline()

    def note(event: Mapping[str, Any], chain: Sequence[HostRange]) -> None:
        correlation = correlation_of(event)
        host.chains[correlation] = tuple(chain)
        host.called_us[correlation] = float(event["ts"])

    def opened(range_: HostRange, chain: Sequence[HostRange]) -> None:
        if range_.is_backward:
            host.backward_ends_us = max(host.backward_ends_us, range_.end_us)
        elif range_.is_optimizer:
            host.optimizer_ends_us = max(host.optimizer_ends_us, range_.end_us)
        number = range_.arguments.get("Sequence number")
        # Inside the backward pass forward operators are recomputed, with numbers of their own.
        differentiates = any(outer.is_backward for outer in chain) and bool(
            range_.arguments.get("Fwd thread id")
        )
        if number is None or differentiates:
            return
        modules = modules_around(chain)
        if modules:
            host.modules[int(number)] = modules

    walk_threads(events, note, opened)
    return host


def walk_threads(
    events: Sequence[Mapping[str, Any]],
    call: Callable[[Mapping[str, Any], Sequence[HostRange]], None],
    opened: Callable[[HostRange, Sequence[HostRange]], None] = lambda _range, _chain: None,
) -> None:
    """Walk every host thread in time.

    Args:
        events: Of the whole trace.
        call: Is told of each GPU call, and of the ranges open around it, outermost first.
        opened: Is told of each range as it opens, and of those open around it.
    """
    threads: dict[object, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in _RANGES or event.get("cat") in CALLS:
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
                call(event, stack)
                continue
            range_ = HostRange(
                str(event["name"]),
                start_us + float(event.get("dur", 0.0)),
                event.get("args", {}),
            )
            opened(range_, stack)
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

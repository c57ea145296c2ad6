"""What was planned as a Chrome trace, which Perfetto opens: clocks, power and joules over time.

A process is what runs at auto or under the plan, a thread a stream of it; each has counters.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from underclock.errors import DataError
from underclock.records import Clocks, Plan
from underclock.records.job import JobPlan, Span
from underclock.report.step_data import at_auto, freely_planned

_Event = dict[str, Any]


def step_trace(plan: Plan) -> str:
    """Return a planned step, launch by launch, at auto and as it is planned.

    What auto comes to in each kernel is shown where the plan expects it; a counter is there where
    all of its values are known. Stalls of changing clocks are in no launch.

    Raises:
        DataError: The order in which the step launches its kernels is unknown.
    """
    if not plan.step.order:
        raise DataError(
            f"the plan of {plan.workload} has no order of launches, so there is no timeline",
            hint="plan samples of a traced step or a workload; `Plan.to_pandas` has the clocks",
        )
    events = [*_timed(0, f"auto ({plan.stands_on})", plan, at_auto(plan))]
    title = (
        f"plan: {plan.chosen}{', a bound' if plan.bound is plan.chosen else ''} ({plan.stands_on})"
    )
    held = plan.schedule
    launches: Iterable[tuple[int, Clocks, float, float | None]] = freely_planned(plan)
    if held is not None:
        energies_j = held.launch_j or [None] * len(held.launch_s)
        launches = zip(plan.step.order, held.clocks, held.launch_s, energies_j, strict=True)
    return _text([*events, *_timed(1, title, plan, launches)])


def _timed(
    process: int,
    title: str,
    plan: Plan,
    launches: Iterable[tuple[int, Clocks, float, float | None]],
) -> Iterator[_Event]:
    """Yield launches one after another, and counters of what is known of all of them.

    Clocks are those that are held, or that auto is expected to come to.
    """
    yield _named(process, title)
    order, held, times_s, energies_j = zip(*launches, strict=True)
    names = [plan.step.kernels[at].name for at in order]
    clocks = [
        replace(each, core_mhz=plan.kernels[name].auto_core_mhz) if each.core_mhz is None else each
        for name, each in zip(names, held, strict=True)
    ]
    ends_s = list(itertools.accumulate(times_s, initial=0.0))
    spent_j = itertools.accumulate((each or 0.0 for each in energies_j), initial=0.0)
    counters: dict[str, list[float | None]] = {
        "core clock (MHz)": [each.core_mhz for each in clocks],
        "memory clock (MHz)": [each.mem_mhz for each in clocks],
        "power (W)": [j and j / s for j, s in zip(energies_j, times_s, strict=True)],
        "energy (J)": [None] if None in energies_j else list(spent_j),
    }
    for name, values in counters.items():
        if None in values:
            continue  # a counter has no gaps: half of it would be wrong
        before = None
        for at_s, value in zip(ends_s, values, strict=False):
            if value is not None and value != before:
                yield _counter(process, name, at_s, value)
            before = value
    spans = itertools.pairwise(ends_s)
    for name, each, energy_j, span in zip(names, clocks, energies_j, spans, strict=True):
        energy = {} if energy_j is None else {"energy_j": energy_j}
        yield _slice(process, 0, name, span, {"clocks": str(each), **energy})


def job_trace(plan: JobPlan, auto: Sequence[Span], planned: Sequence[Span]) -> str:
    """Return an iteration of a job, at auto and under the plan; every rank is a process."""
    events: list[_Event] = []
    ranks = len(plan.job.ranks)
    for place, (title, spans) in enumerate((("auto", auto), ("plan", planned))):
        for at, rank in enumerate(plan.job.ranks):
            number = place * ranks + at
            words = f"{title}: rank {at}, stage {rank.stage} ({plan.evidence})"
            events.append(_named(number, words))
        for span in spans:
            number = place * ranks + span.rank
            clock = "auto" if span.core_mhz is None else span.core_mhz
            arguments = {"core_mhz": clock} if span.has_profile else {}
            times_s = (span.begins_s, span.ends_s)
            events.append(_slice(number, span.stream, span.what, times_s, arguments))
            if span.core_mhz is not None:
                events.append(_counter(number, "core clock (MHz)", span.begins_s, span.core_mhz))
    return _text(events)


def _named(process: int, name: str) -> _Event:
    return {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}


def _slice(
    process: int, thread: int, name: str, times_s: tuple[float, float], args: _Event
) -> _Event:
    at_us, end_us = (1e6 * each for each in times_s)
    event = {"ph": "X", "name": name, "pid": process, "tid": thread, "ts": at_us}
    return event | {"dur": end_us - at_us, "args": args}


def _counter(process: int, name: str, at_s: float, value: float) -> _Event:
    args = {name.partition(" (")[0]: value}
    return {"ph": "C", "name": name, "pid": process, "ts": 1e6 * at_s, "args": args}


def _text(events: Sequence[_Event]) -> str:
    body = {"traceEvents": events, "displayTimeUnit": "ms"}
    return msgspec.json.encode(body).decode()

"""Where in a live step a plan's marks go, from the modules and passes of its launches.

A site is something that can be seen of a live step: the third forward of a module begins, its
backward begins, the optimiser is done. Where it stands among the launches follows from the order
of the launches and the module that each ran for.

The forward and the backward pass of a step are taken run by run, broken by the other and by the
optimiser (gradients may be gathered over several). A module begins in a run where a launch is of
it and the launch before is not. Which modules were called around a launch stands in its trace.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from underclock.errors import UsageError
from underclock.records import ClockSchedule, Pass, Plan, Segment
from underclock.records.common import Record
from underclock.records.latencies import LatencyTable, changed
from underclock.records.work import module_calls
from underclock.runtime.trainer.marks import BACK, BACKWARD_END, ENTER, LEAVE, STEP

SPACING_S = 0.02
"""Between marks that no change needs, at least. A mark costs training nothing, but looking for it
about 0.1 ms of the controller's processor; from the one before, the next is known within 0.05 ms,
and mostly within 0.8 ms, where they lie 4 ms apart (measured on an H200)."""

LEAST_APART_S = 1e-4
"""Between any two marks. The controller looks this often at most, and of two that come sooner after
one another it never sees the first; the one before shows as well when that is reached."""

_BREAKS = {Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER}


class MarkSite(Record, frozen=True, kw_only=True):
    """Something that can be seen of a live step, and where it stands."""

    launch: int
    event: str  # what is seen, as `marks` names it
    path: str = ""  # module that it happens to; empty where to none
    occurrence: int = 0  # which of these in a step, from 0
    total: int = 1  # how many of these there are in a step


def scheduled(plan: Plan) -> ClockSchedule:
    """Return a plan's schedule, or one made of the one pair that all launches have.

    Raises:
        UsageError: Clocks change within the step, and nothing says when.
    """
    if plan.schedule is not None and plan.step.order:
        return plan.schedule
    if (pair := plan.one_pair) is None:
        raise UsageError(
            "this plan has no schedule: nothing says when clocks change",
            hint="plan with the GPU's latency (--latency latency.json), or hold its best fixed "
            "clock: underclock apply plan.json",
        )
    one = Segment(launches=len(plan.step.order), clocks=pair)
    each = [plan.kernels[kernel.name].launch(kernel.count) for kernel in plan.step.kernels]
    return ClockSchedule(
        segments=(one,),
        switches=0,
        latency="none: one clock pair all through",
        latencies=LatencyTable.free(),
        launch_s=tuple(each[kernel][0] for kernel in plan.step.order),
        launch_j=tuple(each[kernel][1] for kernel in plan.step.order),
    )


def marked(plan: Plan) -> tuple[tuple[MarkSite, ...], tuple[int, ...]]:
    """Choose the marks of a plan, in launch order; the first is the step's begin.

    Returns the marks, and the launches at which clocks change and no mark is.

    Raises:
        UsageError: It has no schedule to hold.
    """
    schedule = scheduled(plan)
    clocks = schedule.clocks
    boundaries = [at for at in range(len(clocks)) if clocks[at] != clocks[at - 1]]
    passes = [plan.step.kernels[kernel].pass_ for kernel in plan.step.order]
    known = seen_apart(sites_of(plan.step.modules, passes), schedule.launch_s)
    needed = (*boundaries, *_asked_at(schedule, boundaries))
    sites = chosen(known, needed, schedule.launch_s, SPACING_S)
    marks = {site.launch for site in sites}
    return sites, tuple(at for at in boundaries if at not in marks)


def planned_mhz(plan: Plan, places: Sequence[Sequence[object]]) -> tuple[int | None, ...]:
    """Return the core clock in MHz that a plan holds from each place of a step to the next.

    ``None`` is auto. Where few of the places are the plan's, it is the best fixed clock everywhere.
    """
    clocks, found = scheduled(plan).clocks, [0]
    passes = [plan.step.kernels[kernel].pass_ for kernel in plan.step.order]
    sites = sites_of(plan.step.modules, passes)
    for event, path, occurrence, *_ in places[1:]:
        alike = {s.path: s.launch for s in sites if (s.event, s.occurrence) == (event, occurrence)}
        inside = [launch for inner, launch in alike.items() if inner.startswith(f"{path}.")]
        found.append(max(alike.get(str(path), min(inside, default=0)), found[-1]))
    if 2 * len({*found}) <= len(places) + 1:
        return (None if plan.fixed is None else plan.fixed.core_mhz,) * len(places)
    ends = itertools.pairwise((*found, len(clocks)))
    return tuple(clocks[(first + end) // 2].core_mhz for first, end in ends)


def _asked_at(schedule: ClockSchedule, boundaries: Sequence[int]) -> Iterator[int]:
    """Yield the launch during which each change is asked for: what is known there says when."""
    clocks, latencies = schedule.clocks, schedule.latencies
    starts_s = list(itertools.accumulate(schedule.launch_s, initial=0.0))
    for boundary in boundaries:
        before, after = clocks[boundary - 1], clocks[boundary]
        switches = [latencies.answer(*each) for each in changed(before, after)]
        lead_s = sum(switch.call_s + switch.delay_s for switch in switches)
        asked_s = (starts_s[boundary] - lead_s) % starts_s[-1]  # in the step before, if need be
        yield bisect_right(starts_s, asked_s) - 1


def sites_of(modules: Sequence[str], passes: Sequence[Pass]) -> tuple[MarkSite, ...]:
    """Return all that can be seen of a step, at most one thing at each launch, in launch order.

    Args:
        modules: Of each launch, as a step says; empty where they are unknown.
        passes: Of each launch.
    """
    found = {0: MarkSite(launch=0, event=STEP)}
    runs = list(_runs(passes))
    backward_ends = [run[-1] + 1 for pass_, run in runs if pass_ is Pass.BACKWARD]
    for number, launch in enumerate(backward_ends):
        if launch < len(passes):
            found[launch] = MarkSite(
                launch=launch, event=BACKWARD_END, occurrence=number, total=len(backward_ends)
            )
    if modules:
        around = _around(modules)
        forwards, backwards = (
            [run for pass_, run in runs if pass_ is wanted]
            for wanted in (Pass.FORWARD, Pass.BACKWARD)
        )
        forward, backward = _visits(around, forwards), _visits(around, backwards)
        if not any(map(module_calls, modules)):
            for path in [path for path in forward if _may_enclose(path, forward[path], forwards)]:
                del forward[path]
        for path, visits in forward.items():
            _note(found, ENTER, path, [first for first, _ in visits])
            _note(found, LEAVE, path, [last + 1 for _, last in visits], most=len(passes) - 1)
            # Where a module comes more often in the backward pass, its forward is done again there.
            if len(backward.get(path, ())) == len(visits):
                _note(found, BACK, path, [first for first, _ in backward[path]])
    return tuple(found[launch] for launch in sorted(found))


def seen_apart(known: Sequence[MarkSite], launch_s: Sequence[float]) -> tuple[MarkSite, ...]:
    """Return the sites that come long enough after the one before, and before the next step."""
    starts_s = list(itertools.accumulate(launch_s, initial=0.0))
    kept = [known[0]]
    for site in known[1:]:
        at_s = starts_s[site.launch]
        before_s = starts_s[kept[-1].launch]
        if at_s - before_s >= LEAST_APART_S and starts_s[-1] - at_s >= LEAST_APART_S:
            kept.append(site)
    return tuple(kept)


def chosen(
    known: Sequence[MarkSite], wanted: Sequence[int], launch_s: Sequence[float], spacing_s: float
) -> tuple[MarkSite, ...]:
    """Choose sites: at or right before every launch wanted, and more some time apart.

    Two at least, where there are: uncounted steps of a graph show by nothing else.

    Args:
        known: In launch order, the first at launch 0.
        wanted: Launches at which clocks change, or are asked for.
        launch_s: How long each launch takes.
        spacing_s: Between other sites, at least.
    """
    at = [site.launch for site in known]
    needed = {0, *(bisect_right(at, launch) - 1 for launch in wanted)}
    starts_s = list(itertools.accumulate(launch_s, initial=0.0))
    taken = sorted(needed)
    for index, site in enumerate(known):
        after = bisect_right([at[index] for index in taken], site.launch)
        near = [at[index] for index in taken[max(0, after - 1) : after + 1]] + [len(starts_s) - 1]
        apart_s = [abs(starts_s[site.launch] - starts_s[other]) for other in near]
        if index not in needed and min(apart_s) >= spacing_s:
            taken.insert(bisect_right(taken, index), index)
    if len(taken) == 1 < len(known):
        half_s = starts_s[-1] / 2
        taken.append(min(range(1, len(known)), key=lambda i: abs(starts_s[at[i]] - half_s)))
    return tuple(known[index] for index in taken)


def _runs(passes: Sequence[Pass]) -> Iterator[tuple[Pass, list[int]]]:
    """Yield the launches of a pass that no other pass breaks; what belongs to none breaks none."""
    run: list[int] = []
    current: Pass | None = None
    for launch, pass_ in enumerate(passes):
        if pass_ not in _BREAKS:
            continue
        if pass_ is not current and current is not None:
            yield current, run
            run = []
        current = pass_
        run.append(launch)
    if current is not None:
        yield current, run


def _visits(
    around: Sequence[Sequence[str]], runs: Sequence[Sequence[int]]
) -> dict[str, list[tuple[int, int]]]:
    """Return first and last launch of each time that a module runs, in turn, for every module."""
    visits: dict[str, list[tuple[int, int]]] = {}
    for run in runs:
        inside: dict[str, int] = {}
        before = -1
        for launch in run:
            now = around[launch]
            for path in [path for path in inside if path not in now]:
                visits[path].append((inside.pop(path), before))
            for path in now:
                if path not in inside:
                    inside[path] = launch
                    visits.setdefault(path, [])
            before = launch
        for path, first in inside.items():
            visits[path].append((first, before))
    return visits


def _around(modules: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the modules around each launch, outermost first.

    A step traced before calls were recorded has the innermost alone. Then it counts as inside of
    those that its path begins with; only those that launch something are known to be called at all.
    """
    recorded = [module_calls(text) for text in modules]
    if any(recorded):
        return tuple(
            calls or ((text,) if text else ())
            for calls, text in zip(recorded, modules, strict=True)
        )
    called = {*modules} - {""}
    ways = [list(itertools.accumulate(text.split("."), "{}.{}".format)) for text in modules]
    return tuple(tuple(path for path in way if path in called) for way in ways)


def _may_enclose(
    path: str, visits: Sequence[tuple[int, int]], runs: Sequence[Sequence[int]]
) -> bool:
    """Say whether a module may be called once where it seems to be called more often.

    A model's own launches lie between those of its children, and its name, its class's, is not in
    theirs: where calls are not recorded it looks like a child that is called again and again.
    """
    firsts = {first for first, _ in visits}
    return "." not in path and len(visits) > sum(not firsts.isdisjoint(run) for run in runs)


def _note(
    found: dict[int, MarkSite],
    event: str,
    path: str,
    launches: Sequence[int],
    most: int | None = None,
) -> None:
    """Note sites where none is known, or one of a module further inside."""
    for number, launch in enumerate(launches):
        if most is not None and launch > most:
            continue
        known = found.get(launch)
        if (
            known is None
            or (known.event == event and known.path.startswith(f"{path}."))
            or (known.event == LEAVE and event != LEAVE)
        ):
            found[launch] = MarkSite(
                launch=launch, event=event, path=path, occurrence=number, total=len(launches)
            )

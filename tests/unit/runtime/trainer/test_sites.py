"""Which sites of a step can be marked, and which of them a plan's marks take."""

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorded import read
from small_training import launches, plan
from underclock.errors import UsageError
from underclock.records import Clocks, Pass, Strategy
from underclock.records.work import MODULE_MARK, module_calls_text
from underclock.runtime.trainer.marks import BACK, BACKWARD_END, ENTER, LEAVE, STEP
from underclock.runtime.trainer.sites import (
    LEAST_APART_S,
    MarkSite,
    chosen,
    marked,
    planned_mhz,
    scheduled,
    seen_apart,
    sites_of,
)

TRACES = Path(__file__).parents[3] / "data" / "traces"
F, B, O, N = Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER, Pass.OTHER  # noqa: E741 - as few letters as launches


def _places(*some: tuple[str, Pass]) -> list[tuple[int, str, str, int, int]]:
    modules, passes = zip(*some, strict=True)
    return [(p.launch, p.event, p.path, p.occurrence, p.total) for p in sites_of(modules, passes)]


def test_every_change_has_a_mark_at_it_or_right_before() -> None:
    made = plan()
    sites, unmarked = marked(made)
    marks = [site.launch for site in sites]
    assert made.schedule is not None
    clocks = made.schedule.clocks
    changes = [at for at, pair in enumerate(itertools.pairwise(clocks), 1) if pair[0] != pair[1]]
    known = [site.launch for site in sites_of(made.step.modules, [p for _, p in launches()])]

    for at in changes:
        assert max(each for each in known if each <= at) in marks
    assert unmarked == tuple(at for at in changes if at not in marks)
    assert marks[0] == 0


def test_places_that_a_trainer_marks_have_the_clocks_that_a_plan_holds_there() -> None:
    made = msgspec.structs.replace(plan(), fixed=Clocks(core_mhz=1500))
    passes = [pass_ for _, pass_ in launches()]
    sites = [each for each in sites_of(made.step.modules, passes) if each.event != LEAVE]
    places = [(each.event, each.path, each.occurrence) for each in sites]
    held = [1110 if passes[each.launch] is Pass.BACKWARD else None for each in sites]
    assert planned_mhz(made, places) == tuple(held)
    assert planned_mhz(made, [(STEP, "", 0), (ENTER, "head", 0)]) == (1500, 1500)


def test_a_plan_without_a_schedule_holds_one_pair_or_says_that_it_cannot() -> None:
    one = msgspec.structs.replace(plan(), schedule=None, chosen=Strategy.AUTO)
    (held,) = {*scheduled(one).clocks}
    assert (held, marked(one)[1]) == (one.launch_clocks[0], ())
    assert len(scheduled(one).launch_s) == len(one.step.order)

    first, *_ = one.kernels
    other = msgspec.structs.replace(one.kernels[first], clocks=Clocks(core_mhz=1005))
    with pytest.raises(UsageError, match="nothing says when clocks change"):
        marked(msgspec.structs.replace(one, kernels=one.kernels | {first: other}))


@given(
    st.lists(st.integers(1, 60), unique=True, max_size=20),
    st.lists(st.integers(1, 59), max_size=5),
    st.sampled_from([0.0, 2e-3, 1.0]),
)
def test_marks_ascend_and_lie_apart_but_at_changes(
    at: list[int], boundaries: list[int], spacing_s: float
) -> None:
    known = [MarkSite(launch=each, event=ENTER) for each in sorted({0, *at})]

    sites = chosen(known, sorted(boundaries), [1e-3] * 61, spacing_s)

    marks = [site.launch for site in sites]
    needed = {max(p.launch for p in known if p.launch <= each) for each in (0, *boundaries)}
    assert marks == sorted(set(marks))
    assert needed <= set(marks) <= {site.launch for site in known}
    for one, other in itertools.pairwise(marks):
        apart = (other - one) * 1e-3 >= spacing_s - 1e-12
        assert apart or {one, other} <= needed or (len(marks) == 2 and needed == {0})
    assert len(marks) > 1 or len(known) == 1


@given(
    st.lists(st.floats(1e-7, 1e-3), min_size=1, max_size=40),
    st.sets(st.integers(0, 39)),
)
def test_no_mark_is_overtaken_before_anybody_can_have_seen_it(
    launch_s: list[float], at: set[int]
) -> None:
    starts_s = [0.0, *itertools.accumulate(launch_s)]
    launches = sorted({0, *(each for each in at if each < len(launch_s))})
    known = [MarkSite(launch=each, event=ENTER) for each in launches]

    kept = seen_apart(known, launch_s)

    assert kept[0].launch == 0
    times_s = [starts_s[site.launch] for site in kept]
    for before_s, after_s in itertools.pairwise([*times_s, starts_s[-1]]):
        assert after_s - before_s >= LEAST_APART_S or (after_s == starts_s[-1] and before_s == 0.0)
    for site in known:  # where one is left out, another is as near
        near = [*times_s, starts_s[-1]]
        assert min(abs(starts_s[site.launch] - each) for each in near) < LEAST_APART_S or (
            site in kept
        )


@pytest.mark.untraced
@pytest.mark.parametrize(
    "name",
    ["tiny", "tiny_recomputed", "tiny_llama", "ordinary/compiled", "ranks/ddp.rank0"],
)
def test_every_place_of_a_recorded_step_is_where_the_modules_were_called(name: str) -> None:
    recording = read(TRACES / f"{name}.json.gz")
    seen = recording.seen
    modules = [module_calls_text((*each.callers, each.module)) for each in seen]

    sites = sites_of(modules, [each.pass_ for each in seen])

    happened = _module_events(recording.trace)
    looked_at = [site for site in sites if site.event in {ENTER, LEAVE}]
    assert any("." not in site.path for site in looked_at)
    for site in looked_at:
        launches_before = happened[site.event, site.path]
        assert len(launches_before) == site.total, site
        assert launches_before[site.occurrence] == site.launch


def _module_events(trace: Mapping[str, Any]) -> dict[tuple[str, str], list[int]]:
    """Return how many launches came before each call of a module began and ended."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    done = {_correlation(e) for e in events if e["cat"] in {"kernel", "gpu_memset", "gpu_memcpy"}}
    asked_us = sorted(
        event["ts"]
        for event in events
        if event["cat"] in {"cuda_runtime", "cuda_driver"} and _correlation(event) in done
    )
    autograd = {event["tid"] for event in events if event["name"].startswith("autograd::engine")}
    happened = defaultdict(list)
    for event in sorted(events, key=lambda each: each["ts"]):
        if event["name"].startswith(MODULE_MARK) and event["tid"] not in autograd:
            path = event["name"].removeprefix(MODULE_MARK)
            happened[ENTER, path].append(bisect_left(asked_us, event["ts"]))
            happened[LEAVE, path].append(bisect_left(asked_us, event["ts"] + event["dur"]))
    return happened


def _correlation(event: Mapping[str, Any]) -> int:
    return int(event.get("args", {}).get("correlation", -1))


def test_a_model_encloses_its_children() -> None:
    found = _places(
        ("Gpt > tokens", F),
        ("Gpt", F),
        ("Gpt > norm", F),
        ("Gpt", F),
        ("Gpt > norm", F),
        ("", B),
        ("Gpt > norm", B),
        ("Gpt", B),
        ("Gpt > tokens", B),
        ("", O),
    )

    assert found == [
        (0, STEP, "", 0, 1),
        (1, LEAVE, "tokens", 0, 1),
        (2, ENTER, "norm", 0, 2),
        (3, LEAVE, "norm", 0, 2),
        (4, ENTER, "norm", 1, 2),
        (5, LEAVE, "Gpt", 0, 1),
        (6, BACK, "Gpt", 0, 1),
        (8, BACK, "tokens", 0, 1),
        (9, BACKWARD_END, "", 0, 1),
    ]

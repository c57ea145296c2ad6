"""The package's face: what it exports, and what importing it costs."""

import inspect
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import underclock
from underclock import Campaign, Goal, LatencyTable
from underclock.errors import UsageError
from underclock.hw.measurer import BRISK
from underclock.records import Kernel, Record

_FREE = LatencyTable.free()


def test_every_exported_name_is_there_and_documented() -> None:
    for name in underclock.__all__:
        assert getattr(underclock, name).__doc__, name
    assert sorted(underclock.__all__) == dir(underclock)


@pytest.mark.parametrize(
    ("module", "more"),
    [("underclock", {"click", "importlib.metadata"}), ("underclock.app", {"msgspec"})],
)
def test_importing_loads_nothing_heavy(module: str, more: set[str]) -> None:
    heavy = {"numpy", "rich", "jinja2", "pynvml", "torch"} | more
    script = f"import sys, {module}; print(' '.join(sys.modules))"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert not heavy & set(ended.stdout.split())


def test_whatever_is_taken_or_returned_is_exported_or_a_record() -> None:
    seen: dict[type, str] = {}
    for name in underclock.__all__:
        for cls, where in _reached(getattr(underclock, name), name):
            _collect(cls, where, seen)

    closed_in = {
        f"{cls.__name__}, in {where}"
        for cls, where in seen.items()
        if issubclass(cls, Record)
        and cls.__name__ not in underclock.__all__
        and not cls.__module__.startswith("underclock.records.")
    }
    assert not closed_in


def _collect(cls: type, where: str, seen: dict[type, str]) -> None:
    if cls not in seen:
        seen[cls] = where
        for inner, place in _reached(cls, cls.__name__):
            _collect(inner, place, seen)


def _reached(thing: object, name: str) -> Iterator[tuple[type, str]]:
    """Yield our classes in the annotations of a function, or in the fields of a class."""
    public = {each: getattr(underclock, each) for each in underclock.__all__}
    hints = [typing.get_type_hints(thing, localns=public)]
    if isinstance(thing, type):
        yield thing, name
        members = inspect.getmembers(thing, lambda member: isinstance(member, property))
        told = [member.fget for name, member in members if not name.startswith("_")]
        hints += [typing.get_type_hints(each, localns=public) for each in told]
    for each in hints:
        for field, annotation in each.items():
            for cls in _classes_in(annotation):
                yield cls, f"{name}.{field}"


def _classes_in(annotation: Any) -> Iterator[type]:
    for inner in typing.get_args(annotation):
        for each in inner if isinstance(inner, list) else [inner]:  # of a Callable's arguments
            yield from _classes_in(each)
    if isinstance(annotation, type) and annotation.__module__.startswith("underclock"):
        yield annotation


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Goal(max_slowdown=1), "max_slowdown must be a fraction"),
        (lambda: Goal(max_slowdown="one"), "cannot read 'one'"),  # type: ignore[arg-type]
        (lambda: Goal(max_slowdown=None), "max_slowdown must be"),  # type: ignore[arg-type]
        (lambda: Goal(objective="enrgy"), "did you mean 'energy'"),  # type: ignore[arg-type]
        (lambda: Campaign(repeats=0), "repeats must be at least 1"),
        (lambda: underclock.Switching(latencies=_FREE, max_switches=-1), "max_switches"),
        (lambda: underclock.measure("gpt3-x", gpu="sim:rtx3080ti", to="no.db"), "'gpt3-x'"),
        (lambda: underclock.plan([1, 2]), "a list holds no samples"),  # type: ignore[arg-type]
        (lambda: underclock.save(Kernel(name="k"), "k.json"), "no file of its own"),  # type: ignore[arg-type]
    ],
)
def test_what_means_nothing_is_a_usage_error_and_a_value_error(
    wrong: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        wrong()
    assert isinstance(caught.value, ValueError)


@pytest.mark.slow
def test_a_step_is_measured_planned_on_and_kept_in_a_few_lines(tmp_path: Path) -> None:
    step = underclock.trace("gpt3-125m", layers=1)
    underclock.save(step, tmp_path / "step.json")
    campaign = Campaign(core_mhz=(1050, None), mem_mhz=(None,))
    samples = underclock.measure(
        str(tmp_path / "step.json"),
        gpu="sim:rtx3080ti",
        to=tmp_path / "samples.db",
        campaign=campaign,
        measuring=BRISK,
    )
    plan = underclock.plan(samples, Goal(max_slowdown="1%"), latency="6ms", raw=True)  # type: ignore[arg-type]
    assert plan.schedule is not None
    assert plan.schedule.latency == "6ms, assumed"
    for record, name in ((plan, "plan.json"), (samples, "copy.db")):
        underclock.save(record, tmp_path / name)
        assert underclock.load(tmp_path / name) == record
    assert underclock.load(tmp_path / "step.json") == step
    with pytest.raises(UsageError, match="exists"):
        underclock.save(plan, tmp_path / "plan.json")
    with pytest.raises(UsageError, match="given twice"):
        underclock.plan(samples, latency="6ms", switching=underclock.Switching(latencies=_FREE))

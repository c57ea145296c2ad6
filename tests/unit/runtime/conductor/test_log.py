"""A run's log: in a few numbers, in one line, and for Prometheus."""

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest

from underclock.errors import NotSupportedError
from underclock.records.runs import AskLine, EventLine, StepLine
from underclock.runtime.conductor.log import Metrics, live_line, summary_of
from underclock.runtime.machine.steps import State


def _step(number: int, *errors_s: float, hits: int | None = None, gpu: int = 0) -> StepLine:
    return StepLine(
        gpu=gpu,
        step=number,
        began_s=0.1 * number,
        time_s=0.1,
        state=State.FOLLOWING,
        planned=2,
        asked=2,
        hits=hits,
        late_s=errors_s,
        error_s=errors_s,
    )


def test_a_step_that_is_told_stands_for_those_before_it() -> None:
    """Else the first steps, all told while they are learned, would count as much as all others."""
    first = [_step(number, 5e-3, -5e-3, hits=0) for number in range(2)]
    later = [
        _step(number, 1e-4, hits=2) if number % 10 == 0 else _step(number)
        for number in range(2, 201)
    ]

    summary = summary_of([*first, *later])

    assert summary.error_p50_s == 1e-4
    assert summary.error_p99_s == 5e-3  # of 203 boundaries that they stand for, 4 are so far off
    assert summary.hits == pytest.approx(199 / 201)
    assert summary_of([*first, *later, *later]).error_p99_s == 1e-4


def test_steps_of_several_gpus_stand_for_their_own() -> None:
    lines = [_step(0, gpu=1), _step(1, gpu=1), _step(0, hits=0), _step(2, gpu=1, hits=2)]

    assert summary_of(lines).hits == pytest.approx(0.75)


def test_where_no_step_is_told_nothing_is_known() -> None:
    summary = summary_of([_step(0), _step(1)])

    assert (summary.hits, summary.error_p50_s, summary.late_p99_s) == (None, None, None)


_VALUES = dict[tuple[str, tuple[tuple[str, Any], ...]], float]


class Registry:
    """What was counted."""

    def __init__(self) -> None:
        self.values: _VALUES = {}


class Metric:
    """A counter or a gauge."""

    def __init__(self, name: str, words: str, labels: Iterable[str], *, registry: Registry) -> None:
        assert words
        self._name, self._labels, self._values = name, tuple(labels), registry.values

    def labels(self, **labels: object) -> "Child":
        assert tuple(labels) == self._labels
        return Child(self._values, (self._name, tuple(labels.items())))


class Child:
    """One of a metric's series."""

    def __init__(self, values: _VALUES, key: tuple[str, tuple[tuple[str, Any], ...]]) -> None:
        self._values, self._key = values, key

    def inc(self, by: float = 1.0) -> None:
        self._values[self._key] = self._values.get(self._key, 0.0) + by

    def set(self, value: float) -> None:
        self._values[self._key] = value


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As prometheus-client, which the tests do without."""

    def serve(port: int, **_: object) -> None:
        if port == 80:
            raise OSError(13, "Permission denied")

    made = ModuleType("prometheus_client")
    vars(made).update(
        CollectorRegistry=Registry, Counter=Metric, Gauge=Metric, start_http_server=serve
    )
    monkeypatch.setitem(sys.modules, "prometheus_client", made)
    return made


def _shown_step(number: int, energy_j: float | None) -> StepLine:
    return StepLine(
        gpu=0,
        step=number,
        began_s=0.0,
        time_s=0.2,
        state="clocks follow the plan",
        arm="plan",
        planned=4,
        asked=4,
        hits=3,
        energy_j=energy_j,
        core_mhz=1500.0,
        overruled=("hot",),
    )


@pytest.mark.usefixtures("library")
def test_steps_and_asks_are_counted_and_what_is_missing_is_not() -> None:
    metrics = Metrics()
    metrics.write(_shown_step(0, 20.0))
    metrics.write(_shown_step(1, None))
    metrics.write(AskLine(gpu=0, at_s=0.0, domain="core", to_mhz=1110, call_s=0.005))
    metrics.write(EventLine(gpu=0, at_s=0.0, text="noted"))

    values = {name: value for (name, _), value in metrics.registry.values.items()}
    assert values == {
        "underclock_steps": 2,
        "underclock_energy_joules": 20.0,
        "underclock_planned_changes": 8,
        "underclock_hits": 6,
        "underclock_overruled_locks": 2,
        "underclock_asks": 1,
        "underclock_step_seconds": 0.2,
        "underclock_core_megahertz": 1500.0,
    }


@pytest.mark.usefixtures("library")
def test_a_port_that_is_taken_is_said() -> None:
    metrics = Metrics()
    metrics.serve(9400)

    with pytest.raises(NotSupportedError, match="port 80: Permission denied"):
        metrics.serve(80)


def test_without_the_library_the_pip_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(NotSupportedError, match="prometheus-client") as raised:
        Metrics()
    assert "underclock[metrics]" in raised.value.hint


def test_a_line_says_how_the_last_steps_went() -> None:
    assert live_line(()) == ""
    assert live_line([_shown_step(6, 20.0), _shown_step(7, None)]) == (
        "step 7, 200 ms, 20 J, 1500 MHz, 75% within 1 ms, plan: clocks follow the plan"
    )

"""A run's log: in a few numbers, and in one line."""

from pathlib import Path

import pytest

from underclock.records.runs import StepLine
from underclock.runtime.controller.log import (
    Log,
    LogReader,
    live_line,
    live_scalars,
    summary_of,
)
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


def test_a_line_says_how_the_last_steps_went() -> None:
    assert live_line(()) == ""
    assert live_line([_shown_step(6, 20.0), _shown_step(7, None)]) == (
        "step 7, 200 ms, 20 J, 1500 MHz, 75% within 1 ms, plan: clocks follow the plan"
    )


def test_a_log_is_read_line_by_line_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    reader = LogReader(path)
    assert reader.new() == ()

    log = Log(path)
    log.write(_shown_step(6, 20.0))
    log.flush()
    with path.open("ab") as file:
        file.write(b'no line\n{"line":"st')  # a full disk's, and one that is written now
    assert reader.new() == (_shown_step(6, 20.0),)
    assert reader.new() == ()
    with path.open("ab") as file:
        file.write(b'ep"}\n')
    log.write(_shown_step(7, None))
    log.close()
    assert reader.new() == (_shown_step(7, None),)


def test_scalars_are_of_one_gpu_and_only_what_is_known() -> None:
    lines = [_shown_step(6, 20.0), _shown_step(7, None), _step(0, gpu=1)]

    assert live_scalars([]) == {}
    assert live_scalars(lines) == {
        "underclock/step_seconds": 0.2,
        "underclock/step_joules": 20.0,
        "underclock/core_megahertz": 1500.0,
        "underclock/follows_plan": 1.0,
    }
    assert live_scalars(lines, gpu=1) == {
        "underclock/step_seconds": 0.1,
        "underclock/follows_plan": 1.0,
    }

"""What the guard does with steps that are slower than promised."""

import subprocess
import sys

import numpy as np
import pytest

from underclock.core.statistics.verdict import mean_change
from underclock.runtime.policy.guard import Finding, Guard, Stage, slowdown

WINDOW = 8


def told(guard: Guard, mean_s: float, *, windows: int = 1, seed: int = 0) -> list[str]:
    """Tell some windows of steps, and two in front that do not count; return what was decided."""
    random = np.random.default_rng(seed)
    for _ in range(windows * WINDOW + 2):
        words = guard.stepped(mean_s * (1.0 + 1e-3 * float(random.standard_normal())))
        if words:
            return [words]
    return []


def begun(*, has_fixed: bool = True) -> Guard:
    guard = Guard(max_slowdown=0.01, has_fixed=has_fixed, window=WINDOW)
    assert guard.stage.at_auto
    assert len(told(guard, 1.0)) == 1
    assert guard.stage is Stage.PLAN
    return guard


def test_a_slow_plan_is_taken_back_in_steps() -> None:
    guard = begun(has_fixed=False)
    stages = []
    for mean_s in (1.05, 1.0, 1.04):
        assert told(guard, mean_s)
        stages.append(guard.stage)

    assert stages == [Stage.CHECKING, Stage.REDUCED, Stage.OFF]
    assert guard.finding is Finding.SLOWER
    assert told(guard, 2.0, windows=3) == []


def test_a_job_that_becomes_slower_by_itself_is_not_the_plans_fault() -> None:
    guard = begun()
    told(guard, 1.2)
    assert told(guard, 1.195)  # auto as well

    assert (guard.stage, guard.finding) == (Stage.PLAN, Finding.JOB)
    assert told(guard, 1.2, windows=2) == []


def test_switching_that_slows_the_job_is_told_from_clocks_that_do() -> None:
    guard = begun()
    for mean_s in (1.05, 1.0, 1.05):
        told(guard, mean_s)
    assert guard.stage is Stage.FIXED
    (words,) = told(guard, 1.005)

    assert (guard.stage, guard.finding) == (Stage.FIXED, Finding.SWITCHING)
    assert "switching itself slows the job" in words
    assert told(guard, 1.005, windows=2) == []

    other = begun()
    for mean_s in (1.05, 1.0, 1.05):
        told(other, mean_s)
    assert told(other, 1.05)
    assert (other.stage, other.finding) == (Stage.OFF, Finding.CLOCKS)


@pytest.mark.untraced
@pytest.mark.parametrize("noises", [(1e-3, 1e-3), (1e-3, 1e-2), (2e-2, 1e-3)])
def test_steps_are_judged_nearly_as_validation_judges_runs(noises: tuple[float, float]) -> None:
    random, shares = np.random.default_rng(0), []
    for _ in range(50):
        auto, steps = (1.0 + each * random.standard_normal(20) for each in noises)
        wanted = mean_change(auto, 1.03 * steps, random)
        change, low = slowdown(auto.tolist(), (1.03 * steps).tolist())

        assert wanted.interval is not None
        assert change == pytest.approx(wanted.mean)
        shares.append((change - low) / (change - wanted.interval[0]))
    assert np.mean(shares) == pytest.approx(1.0, abs=0.02)  # one resamples, the other does not


@pytest.mark.untraced
def test_of_steps_that_are_not_slower_one_in_forty_is_thought_so() -> None:
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(2000):
        auto, steps = (1.0 + 1e-2 * random.standard_normal(5) for _ in range(2))
        wrong += slowdown(auto.tolist(), steps.tolist())[1] > 0.0

    assert 0.01 <= wrong / 2000 <= 0.035


def test_nothing_heavy_is_loaded_to_judge() -> None:
    """It happens while clocks are held."""
    code = """
import sys
from underclock.runtime.policy.guard import Guard, Stage
guard = Guard(max_slowdown=0.01, has_fixed=False, window=3)
before = set(sys.modules)
for time_s in (1.0, 1.0, 1.0, 1.01, 1.0, 1.2, 1.2, 1.2, 1.21, 1.2, 1.0, 1.0, 1.0, 1.01, 1.0):
    guard.stepped(time_s)
print(guard.stage.name, set(sys.modules) - before, {"numpy", "scipy"} & set(sys.modules))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout == "REDUCED set() set()\n"

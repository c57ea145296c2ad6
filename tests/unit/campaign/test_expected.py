"""What a campaign will take: said before it begins, and as time left while it runs."""

from pathlib import Path

import msgspec
import pytest

from underclock.app.measuring import measure
from underclock.campaign.grid import Campaign
from underclock.campaign.progress import Expected, Tally, TimeLeft
from underclock.records import MeasurementSettings, Step
from underclock.workloads import workload

_BRIEF = MeasurementSettings(
    warm_s=2.0, steady_s=1.0, steady_c=99.0, settle_s=0.1, kernel_warm_s=0.1, window_s=0.2
)


@pytest.fixture(scope="module")
def step() -> Step:
    return workload("gpt3-125m", {"layers": 1, "batch": 4})


def campaign(
    step: Step, path: Path, wanted: Campaign, measuring: MeasurementSettings = _BRIEF
) -> tuple[list[Expected], list[Tally]]:
    told: list[Expected] = []
    seen: list[Tally] = []
    measure(
        step,
        gpu="sim:rtx3080ti",
        to=path,
        campaign=wanted,
        measuring=measuring,
        progress=seen.append,
        expect=told.append,
    )
    return told, seen


@pytest.mark.untraced
def test_a_grid_takes_about_as_long_as_was_said(step: Step, tmp_path: Path) -> None:
    grid = Campaign(core_mhz=(1050, None), mem_mhz=(None,))
    (told,), seen = campaign(step, tmp_path / "s.db", grid)
    assert (told.kernels, told.first) == (len(step.kernels), 2 * len(step.kernels) + 1)
    assert told.first_s == pytest.approx(seen[-1].gpu_s, rel=0.3)
    assert str(told).startswith(f"{len(step.kernels)} kernels, {told.first} measurements: about ")

    (again,), _ = campaign(step, tmp_path / "s.db", grid)
    assert (again.first, again.first_s) == (0, 0.0)


@pytest.mark.slow
def test_an_adaptive_campaign_says_what_comes_first_and_what_a_limit_leaves(
    step: Step, tmp_path: Path
) -> None:
    (told,), seen = campaign(step, tmp_path / "s.db", Campaign(time_limit_s=20.0))
    assert told.first == 6 * len(step.kernels) + 4
    assert told.limit_s == 20.0
    assert "the time limit leaves 20 s, less than the first take" in str(told)
    assert {tally.phase for tally in seen} == {"first look"}
    assert all(tally.left_s is not None for tally in seen)

    (again,), _ = campaign(step, tmp_path / "s.db", Campaign(time_limit_s=22.0))
    assert again.first == told.first - seen[-1].done
    assert again.limit_s == pytest.approx(2.0, abs=1.0)


@pytest.mark.slow  # it warms for minutes of simulated time
@pytest.mark.parametrize("warm_s", [0.0, 60.0])
def test_warming_up_is_expected_to_last_until_the_temperature_is_steady(
    step: Step, tmp_path: Path, warm_s: float
) -> None:
    steady = msgspec.structs.replace(_BRIEF, warm_s=warm_s, steady_s=20.0, steady_c=1.0)
    allowed = Campaign(max_samples=len(step.kernels))
    (told,), seen = campaign(step, tmp_path / "s.db", allowed, steady)
    assert told.first_s == pytest.approx(seen[-1].gpu_s, rel=0.3)
    assert seen[-1].gpu_s > 80.0


def test_time_left_follows_the_pace_of_what_was_measured() -> None:
    now = [100.0]
    expected = Expected(kernels=3, first=4, first_s=50.0, goal="sure", limit_s=None)
    left = TimeLeft(expected, lambda: now[0])
    assert left.phase(0, None).left_s == 50.0
    now[0] = 130.0  # warming took 30 s
    assert left.phase(0, None).left_s == 20.0
    now[0] = 140.0
    phase = left.phase(1, None)
    assert (phase.name, phase.spent_s, phase.left_s) == ("first look", 40.0, 30.0)
    now[0] = 200.0
    assert left.phase(0, None).left_s == 0.0  # longer than was said

    left = TimeLeft(expected, lambda: now[0])
    left.phase(3, None)
    now[0] = 300.0
    assert left.phase(4, None).left_s is None
    phase = left.phase(5, 2.0)  # twice as unsure as asked: four times as many
    assert (phase.name, phase.spent_s, phase.left_s) == ("samples of highest value", 100.0, 300.0)
    assert left.phase(6, 0.9).left_s == 0.0

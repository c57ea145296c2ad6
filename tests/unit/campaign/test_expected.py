"""What a campaign will take: said before it begins, and as time left while it runs."""

from pathlib import Path

import msgspec
import pytest

from underclock.app.measuring import measure
from underclock.campaign.grid import Campaign
from underclock.campaign.progress import Expected, Tally
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

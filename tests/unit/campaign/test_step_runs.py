"""The whole step at auto, timed inside where that can be done, in every campaign."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from underclock.app.measuring import measure
from underclock.campaign.grid import Campaign, Grid
from underclock.campaign.recording import Recorder
from underclock.core.design import Wanted
from underclock.core.step.cost_table import in_step_s
from underclock.errors import MeasurementError, NotSupportedError
from underclock.hw.base import Capability, Durations, Reading
from underclock.records import (
    AUTO,
    Evidence,
    GpuInfo,
    Kernel,
    Kind,
    MeasurementSettings,
    Mix,
    SampleSet,
    Step,
)
from underclock.store import SampleFile

_STEP = Step(
    name="small",
    kernels=(
        Kernel(name="gemm", count=2, kind=Kind.GEMM, flops=6e11, bytes_moved=2e8),
        Kernel(name="copy", kind=Kind.MEMORY, flops=1e6, bytes_moved=8e8),
    ),
    order=(0, 1, 0),
)
_READING = Reading(
    time_s=4.0,
    energy_j=800.0,
    window_s=8.0,
    core_mhz=1700.0,
    core_spread_mhz=5.0,
    durations=Durations(kernel_s=(1.0, 1.5, 1.5)),
)
_HASTY = MeasurementSettings(
    warm_s=1.0, steady_s=1.0, settle_s=0.1, kernel_warm_s=3.0, window_s=0.5, launches=2
)


class _Measurer:
    """Answers the whole step with a reading, and its timing with an error where there is one."""

    def __init__(
        self,
        reading: Reading = _READING,
        error: Exception | None = None,
        capabilities: Sequence[Capability] = (Capability.RUN, Capability.MIX),
    ) -> None:
        self.capabilities = frozenset(capabilities)
        self.asked: list[bool] = []
        self._reading, self._error = reading, error

    def now_s(self) -> float:
        return 0.0

    def notes(self) -> tuple[str, ...]:
        return ()

    def measure(
        self,
        kernels: Sequence[Kernel],
        repeat: int = 0,
        *,
        mix: Mix | None = None,
        timed: bool = False,
        least: int | None = None,
    ) -> Reading:
        assert [kernel.name for kernel in kernels] == ["gemm", "copy", "gemm"]
        del repeat, least
        assert mix == (Mix() if timed else None)
        self.asked.append(timed)
        if timed and self._error is not None:
            raise self._error
        if timed:
            return self._reading
        return Reading(time_s=self._reading.time_s, energy_j=self._reading.energy_j)


def _runs(path: Path, measurer: _Measurer, times: int) -> SampleSet:
    header = SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G"),
        step=Step(name="small", kernels=_STEP.kernels, order=_STEP.order),
    )
    opened = (
        SampleFile.open(path, writable=True) if path.exists() else SampleFile.create(path, header)
    )
    with opened as file:
        recorder = Recorder(measurer, file)  # type: ignore[arg-type]
        for _ in range(times):
            recorder.take(Wanted(timed=False))
        return file.sample_set()


def test_a_run_is_the_step_and_what_each_kernel_takes_inside(tmp_path: Path) -> None:
    samples = _runs(tmp_path / "s.db", _Measurer(), 2)

    assert [(s.asked, s.repeat, s.time_s) for s in samples.in_situ] == [
        (AUTO, 0, 4.0),
        (AUTO, 1, 4.0),
    ]
    assert [(s.repeat, s.kernel_s, s.core_mhz) for s in samples.mixed] == [
        (0, (1.25, 1.5), 1700.0),
        (1, (1.25, 1.5), 1700.0),
    ]
    assert all(s.is_step and not s.in_company for s in samples.mixed)


@pytest.mark.parametrize(
    "error",
    [NotSupportedError("another profiler looks on"), MeasurementError("no graph was seen whole")],
)
def test_where_launches_cannot_be_timed_the_step_is_run_all_the_same(
    tmp_path: Path, error: Exception
) -> None:
    measurer = _Measurer(error=error)
    samples = _runs(tmp_path / "s.db", measurer, 2)

    assert measurer.asked == [True, False, False]
    assert (len(samples.in_situ), samples.mixed) == (2, ())
    (warning,) = samples.warnings
    assert warning.startswith(f"{error}: what launches take inside the step is not known")


@pytest.mark.untraced
@pytest.mark.parametrize(
    "campaign",
    [
        Campaign(grid=Grid.ADAPTIVE, max_samples=7),
        Campaign(core_mhz=(1050, None), mem_mhz=(None,)),
    ],
)
def test_campaigns_at_held_clocks_time_the_step(tmp_path: Path, campaign: Campaign) -> None:
    samples = measure(
        _STEP, gpu="sim:rtx3080ti", to=tmp_path / "s.db", campaign=campaign, measuring=_HASTY
    )
    inside_s = in_step_s(samples)

    assert len(samples.mixed) == len(samples.in_situ) >= 1
    assert inside_s is not None
    step_s = sum(s.time_s for s in samples.in_situ) / len(samples.in_situ)
    assert 2 * inside_s[0] + inside_s[1] == pytest.approx(step_s, rel=2e-3)

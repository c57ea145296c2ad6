"""Measurers of simulated GPUs, for tests."""

from underclock.hw.measurer import GpuMeasurer
from underclock.hw.simulated.driver import Rig
from underclock.records import Evidence, MeasurementSettings


def bench(
    rig: Rig,
    measuring: MeasurementSettings | None = None,
    kind: type[GpuMeasurer] = GpuMeasurer,
    *,
    evidence: Evidence = Evidence.SIMULATED,
    may_lock: bool = True,
) -> GpuMeasurer:
    """Return what measures on a rig, by default as carefully as a user's campaign does."""
    return kind(
        rig.gpu,
        rig.launcher,
        rig.clock,
        evidence=evidence,
        measuring=measuring or MeasurementSettings(),
        may_lock=may_lock,
    )

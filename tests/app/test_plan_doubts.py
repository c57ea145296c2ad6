"""Plans of noisy samples: what may save nothing is said beside the promise."""

import numpy as np
import pytest

from underclock import Goal
from underclock.app.planning import plan
from underclock.records import (
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    SampleSet,
    ThrottleReason,
    Window,
)

CORE_SHARES = {"product": 0.9, "mixed": 0.4, "copy": 0.05}


def noisy_samples(noise: float) -> SampleSet:
    """Return three kernels at five clocks, energies off by so much."""
    chance = np.random.default_rng(1)
    samples = []
    for name, share in CORE_SHARES.items():
        for mhz in (None, 1200, 1400, 1600, 1800):
            part = (mhz or 1900) / 1900
            time_s = 1e-3 * (share / part + 1.0 - share)
            power_w = 200.0 + 120.0 * part**2
            samples.append(
                Window(
                    kernel=name,
                    asked=Clocks(core_mhz=mhz),
                    time_s=time_s,
                    energy_j=time_s * power_w * (1.0 + chance.normal(0.0, noise)),
                    observed=Clocks(core_mhz=mhz or 1900, mem_mhz=5001),
                    throttle_reasons=ThrottleReason.NONE,
                )
            )
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G", power_limit_w=500.0),
        workload="w",
        kernels=tuple(Kernel(name=name) for name in CORE_SHARES),
        windows=tuple(samples),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "doubtful"), [(0.0, False), (0.2, True)])
def test_a_promise_whose_interval_holds_zero_comes_with_a_warning(
    noise: float, *, doubtful: bool
) -> None:
    made = plan(noisy_samples(noise), Goal(max_slowdown=0.003))

    assert made.headline.energy_interval is not None
    assert (made.headline.energy_interval[1] >= 0.0) == doubtful
    assert any("the plan may save nothing" in warning for warning in made.warnings) == doubtful

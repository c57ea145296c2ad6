"""At which clocks kernels run inside a long step, told from a fit and the step's mean power."""

import math

import msgspec
import numpy as np
import pytest

from underclock.core.model.fitting import fit_rows
from underclock.core.model.sample_rows import rows_of
from underclock.core.model.step_paces import step_paces
from underclock.core.step.cap import LaunchCosts, PowerCap, SettledStep, settled_at
from underclock.gpus.models import gpu_model
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Mix,
    MixSample,
    Sample,
    SampleSet,
    ThrottleReason,
)

_GPU = gpu_model("rtx3080ti").constants
_MEM_MHZ, _STEADY_C = 9251, 62.0
_CORES = (900, 1200, 1500, 1600, 1700, 1800, 1900)
_KERNELS = {
    "hot": KernelConstants(core_mcycles=2.0, dram_mcycles=1.0, fixed_s=1e-5, work_j_per_v2=0.42),
    "warm": KernelConstants(core_mcycles=1.0, dram_mcycles=9.0, fixed_s=1e-5, work_j_per_v2=0.1),
    "cool": KernelConstants(core_mcycles=1.5, dram_mcycles=1.0, fixed_s=1e-5, work_j_per_v2=0.1),
}
_ORDER = (0, 1) * 80 + (2, 1) * 80  # hot for a window and more, then cool


def _true(name: str, core_mhz: float) -> tuple[float, float]:
    """Return time in s and energy in J of a launch."""
    at = _GPU, _KERNELS[name], core_mhz, _MEM_MHZ
    time_s = float(duration_s(*at))
    return time_s, time_s * float(busy_w(*at, _STEADY_C))


def _settled() -> SettledStep:
    """Return the step at auto as it truly settles."""
    each = np.array([[_true(name, core) for core in _CORES] for name in _KERNELS])
    costs = LaunchCosts(
        settings=tuple(Clocks(core_mhz=core) for core in _CORES),
        time_s=each[..., 0],
        energy_j=each[..., 1],
    )
    order = np.array(_ORDER)
    boost_w = each[order, -1, 1].sum() / each[order, -1, 0].sum()
    cap = PowerCap(limit_w=0.9 * boost_w, order=order, boost=len(_CORES) - 1)
    return settled_at(cap, costs, 0.9 * boost_w)[1]


def _samples() -> SampleSet:
    """Return kernels alone at locks, and the step at auto with its launches timed."""
    settled, order = _settled(), np.array(_ORDER)
    asked = [Clocks(core_mhz=core) for core in _CORES]
    samples = [
        Sample(
            kernel=name,
            asked=clocks,
            time_s=_true(name, float(clocks.core_mhz or 0))[0],
            energy_j=_true(name, float(clocks.core_mhz or 0))[1],
            observed=Clocks(core_mhz=clocks.core_mhz, mem_mhz=_MEM_MHZ),
            throttle_reasons=ThrottleReason.NONE,
            temperature_c=_STEADY_C,
        )
        for clocks in asked
        for name in _KERNELS
    ]
    time_s, energy_j = float(settled.time_s.sum()), float(settled.energy_j.sum())
    step = Sample(kernel="w", time_s=time_s, energy_j=energy_j, temperature_c=_STEADY_C)
    inside = MixSample(
        kernel="",
        mix=Mix(),
        core_mhz=settled.mean_mhz,
        core_spread_mhz=20.0,
        round_s=time_s,
        round_j=energy_j,
        kernel_s=tuple(float(settled.time_s[order == k].mean()) for k in range(3)),
        window_s=1.0,
        temperature_c=_STEADY_C,
    )
    return SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G", power_limit_w=energy_j / time_s),
        workload="w",
        kernels=tuple(Kernel(name=name, count=_ORDER.count(k)) for k, name in enumerate(_KERNELS)),
        order=_ORDER,
        settings=(AUTO, *asked),
        samples=tuple(samples),
        in_situ=(step,),
        mixed=(inside,),
    )


@pytest.fixture(scope="module")
def samples() -> SampleSet:
    return _samples()


@pytest.mark.slow
def test_kernels_among_hot_neighbours_run_slower_than_the_mean(samples: SampleSet) -> None:
    settled, order = _settled(), np.array(_ORDER)
    rows, model = fit_rows(samples, samples.settings)
    paces = step_paces(samples, model, samples.settings, _STEADY_C)
    true, apart = settled.paces(order)

    assert apart > 0.003
    assert paces is not None
    assert paces.ratio == pytest.approx(true, abs=0.003)
    assert paces.ratio[0] < paces.ratio[1] < paces.ratio[2]
    assert (paces.windows < 1.0).all()
    # What memory bounds takes as long at any clock.
    assert paces.windows[1] > paces.windows[0]
    inside = rows.windows[1] == 0.0
    assert inside.sum() == 3
    assert rows.core_mhz[inside] == pytest.approx(true * settled.mean_mhz, rel=0.003)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"mixed": ()},
        {"in_situ": ()},
        {"order": ()},
    ],
)
def test_without_the_step_timed_whole_nothing_is_known_of_its_paces(
    samples: SampleSet, changed: dict[str, tuple[()]]
) -> None:
    lacking = msgspec.structs.replace(samples, **changed)
    _, model = fit_rows(lacking, samples.settings)

    assert step_paces(lacking, model, samples.settings, _STEADY_C) is None


@pytest.mark.parametrize("settings", [(), (AUTO,), (Clocks(core_mhz=1500),)])
def test_between_fewer_than_two_clocks_nothing_settles(
    samples: SampleSet, settings: tuple[Clocks, ...]
) -> None:
    _, model = fit_rows(samples, samples.settings)

    assert step_paces(samples, model, settings, _STEADY_C) is None


@pytest.mark.untraced
def test_a_step_whose_clock_stood_still_is_fitted_once(samples: SampleSet) -> None:
    (inside,) = samples.mixed
    still = msgspec.structs.replace(
        samples, mixed=(msgspec.structs.replace(inside, core_spread_mhz=0.0),)
    )
    rows = rows_of(still)
    at = rows.windows[1] == 0.0

    assert rows.core_mhz[at].tolist() == [inside.core_mhz] * 3
    assert np.exp(rows.log_s[at]) == pytest.approx(inside.kernel_s)
    assert rows.windows[0, at].tolist() == [1.0] * 3
    assert math.isfinite(rows.log_w[at].sum())
    assert rows.mem_mhz[at].tolist() == [_MEM_MHZ] * 3
    fitted, model = fit_rows(still, samples.settings)
    assert step_paces(still, model, samples.settings, _STEADY_C) is None
    assert fitted.core_mhz.tolist() == rows.core_mhz.tolist()

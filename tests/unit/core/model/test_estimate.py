"""From a sample_set to costs of every setting, and to a description of the GPU."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from underclock.core.model.estimate import Estimate, estimate
from underclock.core.model.fitting import fit_rows
from underclock.core.model.sample_sets import joined_sets
from underclock.core.step.cost_table import cost_table
from underclock.errors import DataError
from underclock.gpus.models import gpu_model
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Launch,
    SampleSet,
    ThrottleReason,
    Window,
)
from windows import having

_GPU = gpu_model("rtx3080ti").constants
_CORES = (600, 900, 1200, 1500, 1800)
_MEMS = (5001, 9251)
_SETTINGS = tuple(Clocks(core_mhz=core, mem_mhz=mem) for mem in _MEMS for core in _CORES)
_TOP = Clocks(core_mhz=1900, mem_mhz=9251)  # what auto runs at
_KERNELS = {
    f"k{i}": KernelConstants(
        core_mcycles=(0.2 + 0.2 * i) * 2.0,
        dram_mcycles=(1.8 - 0.2 * i) * 9.0,
        fixed_s=2e-5,
        work_j_per_v2=0.05 + 0.02 * i,
        dram_j=0.05,
    )
    for i in range(8)
}
_ORDER = tuple(range(8)) * 2  # every kernel twice, so that a step of them can be run whole


def _profile(
    settings: Sequence[Clocks] = _SETTINGS, *, gone: dict[str, object] | None = None, **more: object
) -> SampleSet:
    """Return a noisy campaign; ``gone`` is what the driver says of the first kernel's samples."""
    samples = []
    for k, (name, kernel) in enumerate(_KERNELS.items()):
        for i, asked in enumerate([*settings, AUTO]):
            random, at = np.random.default_rng([i, k]), _TOP if asked.is_auto else asked
            clocks = float(at.core_mhz or 0), float(at.mem_mhz or 0)
            time_s = duration_s(_GPU, kernel, *clocks) * random.normal(1.0, 0.003)
            power_w = busy_w(_GPU, kernel, *clocks, 55.0) * random.normal(1.0, 0.008)
            sample = Window(
                kernel=name,
                asked=asked,
                time_s=time_s,
                energy_j=time_s * power_w,
                observed=at,
                throttle_reasons=ThrottleReason.NONE,
                temperature_c=55.0,
            )
            about = (gone or {}) if name == "k0" and not asked.is_auto else {}
            samples.append(msgspec.structs.replace(sample, **about))
    fields: dict[str, object] = {
        "evidence": Evidence.MEASURED,
        "windows": tuple(samples),
        "gpu": GpuInfo(name="G", driver="1", power_limit_w=350.0),
        **more,
    }
    return SampleSet(
        workload="w",
        kernels=tuple(Kernel(name=name, count=2) for name in _KERNELS),
        settings=_SETTINGS,
        **fields,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def half() -> Estimate:
    return estimate(_profile(_SETTINGS[::2]))


def test_settings_nobody_measured_are_expected_to_cost_what_they_do(half: Estimate) -> None:
    table, off = half.costs.table, []
    for k, name in enumerate(_KERNELS):
        for c, asked in enumerate(table.settings[:-1]):
            if asked in _SETTINGS[::2]:
                continue
            core, mem = float(asked.core_mhz or 0), float(asked.mem_mhz or 0)
            time_s = 2 * duration_s(_GPU, _KERNELS[name], core, mem)
            energy_j = time_s * busy_w(_GPU, _KERNELS[name], core, mem, 55.0)
            off.append((table.time_s[k, c] / time_s, table.energy_j[k, c] / energy_j))
            spread = [half.costs.variance(*of)[k, c] ** 0.5 for of in ((1.0, 0.0), (0.0, 1.0))]
            assert (np.abs(np.log(off[-1])) < 4 * np.array(spread)).all()
    assert (np.median(np.abs(np.log(off)), axis=0) < (0.005, 0.01)).all()
    assert half.can.all()
    assert table.settings == half.posterior.settings == (*_SETTINGS, AUTO)


def _in_step(sample_set: SampleSet) -> SampleSet:
    """Return the same of a step that was run whole, and took what its kernels take."""
    table = cost_table(sample_set)
    step = Window(
        kernel="w", time_s=table.auto_time_s, energy_j=table.auto_energy_j, temperature_c=70.0
    )
    return having(sample_set, in_situ=(step,), order=_ORDER)


def test_a_kernel_whose_samples_all_ran_at_the_cap_is_planned_where_it_was_measured() -> None:
    # The cap makes the same of all locks that it does not let the kernel hold.
    gone: dict[str, object] = {
        "throttle_reasons": ThrottleReason.SW_POWER_CAP,
        "observed": None,
        "time_s": 0.004,
        "energy_j": 0.004 * 350.0,
    }
    sample_set = _in_step(_profile(_SETTINGS[5:], gone=gone))
    fit = estimate(sample_set)
    measured = [clocks in _SETTINGS[5:] for clocks in fit.posterior.settings]
    time_s = fit.costs.table.launches.time_s[:, :-1]

    assert fit.measurable[:, :-1].sum() == len(_KERNELS) * len(_SETTINGS)
    assert fit.can[0].tolist() == measured
    assert fit.can[1:].all()
    assert np.isfinite(time_s[0]).tolist() == measured
    assert time_s[0, measured] * fit.costs.table.missed.time == pytest.approx(0.004)
    assert fit.costs.predicted_change(np.full(len(_KERNELS), 9)).energy_spread > 0.0


def test_equal_kernels_of_two_files_are_one_and_others_are_kept_apart() -> None:
    one = _profile(warnings=("hot",))
    launch = Launch(function="f", identity="other")
    kernels = (msgspec.structs.replace(one.kernels[0], launch=launch), *one.kernels[1:])
    two = msgspec.structs.replace(one, workload="v", kernels=kernels)
    both = joined_sets([one, two])

    assert both.workload == "w and v"
    assert [k.name for k in both.kernels] == [*_KERNELS, "k0 of file 2"]
    assert len(both.samples) == 2 * len(one.samples)
    assert sum(s.kernel == "k0 of file 2" for s in both.samples) == 11
    assert (both.settings, both.warnings) == (_SETTINGS, ("hot",))
    rows, _ = fit_rows(both, both.settings)
    assert len(rows.kernel) == 160  # all but those at auto


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (GpuInfo(name="H", driver="1", power_limit_w=350.0), "H (driver 1, 350 W)"),
        (GpuInfo(name="G", driver="2", power_limit_w=350.0), "G (driver 2, 350 W)"),
        (GpuInfo(name="G", driver="1", power_limit_w=300.0), "G (driver 1, 300 W)"),
        (GpuInfo(name="G"), "G (driver unknown, unknown limit)"),
    ],
)
def test_two_gpus_drivers_or_limits_are_not_one_fit(other: GpuInfo, words: str) -> None:
    with pytest.raises(DataError, match="samples from two GPUs or drivers") as raised:
        joined_sets([_profile(), _profile(gpu=other)])
    assert words in str(raised.value)
    assert "by themselves" in raised.value.hint

"""Who is held by the power cap: as the driver said, else as power shows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.costs.cap import (
    CapMargin,
    capped_kernels,
    draws_limit,
    driver_says,
    is_power_capped,
    near_cap,
)
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Sample,
    SampleSet,
    ThrottleReason,
)

_LIMIT_W = 200.0


def _sample(power_w: float, reasons: ThrottleReason | None = None) -> Sample:
    return Sample(
        kernel="k", asked=AUTO, time_s=2.0, energy_j=2.0 * power_w, throttle_reasons=reasons
    )


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (None, None),
        (ThrottleReason(0), False),
        (ThrottleReason.GPU_IDLE, False),
        (ThrottleReason.SW_POWER_CAP | ThrottleReason.GPU_IDLE, True),
    ],
)
def test_the_driver_is_quoted(reasons: ThrottleReason | None, *, said: bool | None) -> None:
    assert driver_says(reasons) is said


@given(st.sampled_from(list(CapMargin)), st.lists(st.floats(1.0, 300.0), min_size=1, max_size=5))
def test_where_the_driver_was_not_asked_power_decides(
    margin: CapMargin, powers_w: list[float]
) -> None:
    capped = is_power_capped([_sample(power_w) for power_w in powers_w], _LIMIT_W, margin)

    drawn_w = np.array([2.0 * power_w / 2.0 for power_w in powers_w])
    assert capped.tolist() == draws_limit(drawn_w, _LIMIT_W, margin).tolist()


def test_where_the_driver_was_asked_power_decides_nothing() -> None:
    samples = [
        _sample(210.0, ThrottleReason(0)),
        _sample(120.0, ThrottleReason.SW_POWER_CAP),
        _sample(210.0),
    ]

    assert is_power_capped(samples, _LIMIT_W, CapMargin.FIT).tolist() == [False, True, False]


def test_what_draws_about_as_much_as_the_held_is_near_the_cap() -> None:
    power_w = np.array([200.0, 191.0, 189.0])

    assert near_cap(power_w, np.array([True, False, False])).tolist() == [True, True, False]
    assert not near_cap(power_w, np.zeros(3, dtype=bool)).any()


def test_a_kernel_is_at_the_cap_if_any_sample_of_it_at_auto_was_or_draws_as_much() -> None:
    capped = ThrottleReason.SW_POWER_CAP
    samples = [
        ("told", AUTO, 200.0, None),
        ("told", AUTO, 200.0, capped),
        ("near", AUTO, 150.0, ThrottleReason.NONE),
        ("near", AUTO, 191.0, ThrottleReason.NONE),
        ("cool", AUTO, 150.0, None),
        ("cool", Clocks(core_mhz=900), 200.0, capped),  # held there, not at auto
    ]
    sample_set = SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G"),
        workload="w",
        kernels=tuple(Kernel(name=name) for name in ("told", "near", "cool")),
        samples=tuple(
            Sample(kernel=name, asked=asked, time_s=2.0, energy_j=2.0 * w, throttle_reasons=said)
            for name, asked, w, said in samples
        ),
    )

    assert capped_kernels(sample_set).tolist() == [True, True, False]

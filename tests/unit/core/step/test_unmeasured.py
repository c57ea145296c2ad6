"""What a whole step tells of kernels that a campaign did not reach."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.step.cost_table import cost_table, unmeasured
from underclock.errors import DataError
from underclock.records import (
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Kind,
    Mix,
    SampleSet,
    Window,
)
from windows import gathered, having

_MEASURED_W = (300.0, 320.0, 340.0, 600.0)
_KINDS = (Kind.MEMORY,) * 3 + (Kind.GEMM,)


def test_what_is_not_waited_for_leaves_the_others_all_of_the_step() -> None:
    campaign = _campaign(1e-3, 500.0)
    kernels = list(campaign.kernels)
    kernels[0] = msgspec.structs.replace(kernels[0], waited_for=0.0)
    # The first ran beside the others, so the step took no time and no idling for it.
    (step,) = campaign.in_situ
    short = msgspec.structs.replace(step, time_s=step.time_s - 1e-3, energy_j=step.energy_j - 0.3)
    shorter = having(campaign, mixed=(short,), in_situ=())
    told = unmeasured(msgspec.structs.replace(shorter, kernels=tuple(kernels)))

    assert told.power_w == pytest.approx(unmeasured(campaign).power_w, rel=0.05)
    assert told.power_w > 1.2 * unmeasured(shorter).power_w


def _campaign(last_s: float, last_w: float, kind: Kind | None = Kind.MEMORY) -> SampleSet:
    """Return a campaign that did not reach the last kernel of five, nor any with co-load."""
    times_s, powers_w = (1e-3,) * 4 + (last_s,), (*_MEASURED_W, last_w)
    kernels = tuple(Kernel(name=f"k{i}", kind=kind) for i, kind in enumerate((*_KINDS, kind)))
    step_s = math.fsum(times_s)
    step_j = math.fsum(s * w for s, w in zip(times_s, powers_w, strict=True))
    step = Window(
        kernel="",
        mix=Mix(),
        core_mhz=1800.0,
        core_spread_mhz=0.0,
        time_s=step_s,
        energy_j=step_j,
        kernel_s=times_s,
        window_s=1.0,
    )
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G"),
        workload="w",
        kernels=kernels,
        order=(0, 1, 2, 3, 4),
        windows=gathered(
            tuple(
                Window(kernel=f"k{i}", time_s=1e-3, energy_j=1e-3 * w)
                for i, w in enumerate(_MEASURED_W)
            ),
            in_situ=(Window(kernel="w", time_s=step_s, energy_j=step_j),),
            mixed=(step,),
        ),
    )


@given(st.floats(310.0, 590.0))
def test_of_a_kernel_that_takes_much_of_the_step_its_energy_tells(power_w: float) -> None:
    found = unmeasured(_campaign(0.1, power_w))

    assert found.power_w == pytest.approx([power_w], rel=0.06)
    assert found.spread[0] < 0.06
    assert found.places.tolist() == [4]


def test_of_a_kernel_that_takes_nearly_nothing_only_its_kind_tells() -> None:
    found = unmeasured(_campaign(1e-6, 900.0))

    assert found.power_w == pytest.approx([320.0], rel=1e-3)
    assert found.spread == pytest.approx([0.3], rel=1e-3)


def test_of_a_kind_that_nothing_was_measured_of_all_kernels_tell() -> None:
    found = unmeasured(_campaign(1e-6, 900.0, kind=None))

    assert found.power_w == pytest.approx([np.mean(_MEASURED_W)], rel=1e-3)


@given(st.floats(1e-6, 1.0), st.floats(1.0, 5000.0))
def test_none_is_taken_to_draw_more_or_less_than_any_that_was_measured(
    last_s: float, power_w: float
) -> None:
    found = unmeasured(_campaign(last_s, power_w))

    assert 300.0 <= found.power_w[0] <= 600.0
    assert 0.0 <= found.spread[0] < 1.0


def test_it_is_planned_at_auto_with_a_sentence_of_how_much_it_is() -> None:
    table = cost_table(_campaign(1e-3, 400.0))

    assert table.time_s[4, table.baseline] == pytest.approx(1e-3)
    assert table.auto_energy_j == pytest.approx(1.96, rel=0.1)
    said = [words for words in table.warnings if "'k4'" in words]
    assert len(said) == 1
    assert said[0].startswith("'k4' was never run alone and takes 20 % of the step's time: ")
    assert said[0].endswith("`underclock measure` goes on from here")


def test_where_the_step_was_not_timed_nothing_is_told_and_nothing_planned() -> None:
    campaign = having(_campaign(1e-3, 400.0), mixed=())

    assert not len(unmeasured(campaign).places)
    with pytest.raises(DataError, match="no sample of 'k4'"):
        cost_table(campaign)


def test_where_no_kernel_was_measured_nothing_is_told() -> None:
    campaign = having(_campaign(1e-3, 400.0), samples=())
    assert not len(unmeasured(campaign).places)


def test_kernels_of_which_more_is_known_are_left_out() -> None:
    found = unmeasured(_campaign(1e-3, 400.0))
    assert not len(found.without(np.array([4])).power_w)
    assert len(found.without(np.array([3])).power_w) == 1


def test_powers_are_those_at_auto() -> None:
    campaign = _campaign(1e-6, 400.0)
    slow = Window(kernel="k0", asked=Clocks(core_mhz=900), time_s=1e-3, energy_j=0.01)
    more = having(campaign, samples=(*campaign.samples, slow))

    assert unmeasured(more).power_w == pytest.approx(unmeasured(campaign).power_w)

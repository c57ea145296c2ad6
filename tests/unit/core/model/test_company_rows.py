"""Rows of launches inside the step: times at its clock, and no power."""

import numpy as np
import pytest

from made_up_samples import made_grid, made_sample, made_set
from underclock.core.model.sample_rows import rows_of
from underclock.records import Clocks, Mix, Window


def _in_step(**changed: object) -> Window:
    """Return a run of a step of two kernels at auto, its launches timed."""
    fields: dict[str, object] = {
        "kernel": "",
        "mix": Mix(),
        "core_mhz": 1740.0,
        "core_spread_mhz": 0.0,
        "time_s": 3.0,
        "energy_j": 300.0,
        "kernel_s": (0.9, 1.9),
        "window_s": 10.0,
        **changed,
    }
    return Window(**fields)  # type: ignore[arg-type]


def test_launches_inside_the_step_tell_times_at_its_clock() -> None:
    step = made_sample("w", None, None, observed=Clocks(core_mhz=1740, mem_mhz=5001))
    rows = rows_of(
        made_set(
            [*made_grid("a"), *made_grid("b", energy_j=200.0)], mixed=(_in_step(),), in_situ=(step,)
        )
    )
    inside = rows.windows[1] == 0.0

    assert rows.kernel[inside].tolist() == [0, 1]
    assert rows.core_mhz[inside].tolist() == [1740.0, 1740.0]
    assert rows.mem_mhz[inside].tolist() == [5001.0, 5001.0]  # as read in the step
    assert np.exp(rows.log_s[inside]) == pytest.approx([0.9, 1.9])
    assert np.exp(rows.log_w[inside]) == pytest.approx([100.0, 200.0])
    assert rows.windows[0, inside].tolist() == [1.0, 1.0]
    # By itself it says nothing of what kernels draw more in the step.
    assert rows.step == ()


def test_a_kernel_whose_power_nobody_knows_gets_no_row_of_the_step() -> None:
    rows = rows_of(made_set([*made_grid("a"), made_sample("b", None, None)], mixed=(_in_step(),)))

    assert np.diff(rows.bounds).tolist() == [11, 0]


def test_times_inside_the_step_do_not_stand_in_for_power_at_auto() -> None:
    auto = made_sample("b", None, None, observed=Clocks(core_mhz=1740, mem_mhz=9251))
    rows = rows_of(made_set([*made_grid("a"), made_sample("b", 900), auto], mixed=(_in_step(),)))

    assert sorted(rows.windows[1, rows.kernel == 1].tolist()) == [0.0, 0.04, 1.0]

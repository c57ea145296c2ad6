"""A change compares like with like: what a model misses of auto is an error, never a saving."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from underclock.core.model.estimate import Estimate, estimate
from underclock.core.step.power_capped_step import auto_core_mhz, step_cost
from underclock.records import (
    ALONE,
    SampleSet,
)

_FOLDER = Path(__file__).parents[4] / "docs" / "evidence" / "h200"


@pytest.fixture(
    scope="module", params=["small-9", "medium-9", "layer-9"], ids=lambda name: f"steered-{name}"
)
def found(request: pytest.FixtureRequest) -> Estimate:
    """Return what samples of a real board say, steered, of steps with and without a limit."""
    body = (_FOLDER / f"steered-{request.param}.json").read_bytes()
    return estimate(msgspec.json.decode(body, type=SampleSet))


@pytest.mark.slow
def test_the_model_misses_auto_which_changes_nothing(found: Estimate) -> None:
    table = found.costs.table
    assert table.closure is not None
    assert abs(table.closure.time - 1.0) + abs(table.closure.energy - 1.0) > 1e-3
    assert table.power_cap is not None
    boost = np.full(len(table.power_cap.order), table.power_cap.boost)

    cost = step_cost(table, boost)  # what auto asks for, asked for by a lock

    assert cost.time_change == pytest.approx(0.0, abs=1e-4)
    heat = abs(cost.energy_change)  # of a lock that settles as auto does there is none
    assert heat == pytest.approx(0.0, abs=1e-4)


@pytest.mark.slow
def test_a_kernel_at_the_clock_that_auto_has_changes_by_nothing(found: Estimate) -> None:
    table, checked = found.costs.table, 0
    clocks = {c.core_mhz: place for place, c in enumerate(table.settings[:-1])}
    for kernel, mhz in auto_core_mhz(table).items():
        place = clocks.get(mhz)
        if place is None or not np.isfinite(table.time_s[kernel, place]):
            continue
        auto_s, auto_j = table.time_s[kernel, -1], table.energy_j[kernel, -1]
        # To half a clock bin of 15 MHz, which the mean of a clock that moves is off.
        assert table.time_s[kernel, place] / auto_s == pytest.approx(1.0, abs=0.004)
        assert table.energy_j[kernel, place] / auto_j == pytest.approx(1.0, abs=0.008)
        checked += 1
    held = found.fit.rows.limit_w < np.inf
    assert checked or held


_LONG_S = 1e-4


@pytest.mark.untraced
def test_products_at_the_peak_take_what_the_step_showed_them_to_take() -> None:
    samples = msgspec.json.decode((_FOLDER / "steered-medium-9.json").read_bytes(), type=SampleSet)
    known = estimate(samples)
    boost = max(
        range(len(known.posterior.settings)), key=lambda c: known.posterior.settings[c].rank
    )
    looks = [w for w in samples.mixed if w.is_step and w.kernel_s and w.mix == ALONE]
    seen_s = np.mean([w.kernel_s for w in looks], axis=0)
    long = seen_s > _LONG_S

    assert np.isfinite(known.fit.rows.peak_w)
    off = np.exp(known.posterior.log_s[:, boost]) / seen_s - 1.0
    assert np.abs(off[long]).max() < 0.02

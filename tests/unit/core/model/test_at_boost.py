"""Kernels of a real step at boost, where a peak of power holds them."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from underclock.core.model.estimate import estimate
from underclock.records import ALONE, SampleSet

_FILE = Path(__file__).parents[4] / "docs" / "evidence" / "h200" / "steered-medium-9.json"
_LONG_S = 1e-4


@pytest.mark.untraced
def test_products_at_the_peak_take_what_the_step_showed_them_to_take() -> None:
    samples = msgspec.json.decode(_FILE.read_bytes(), type=SampleSet)
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

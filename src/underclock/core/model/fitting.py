"""From a sample_set to rows and the fit of them: the one way in for whoever asks of a model."""

from collections.abc import Sequence

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.own_heat import STEADY_C
from underclock.core.model.parameters import Shared
from underclock.core.model.rows import Rows
from underclock.core.model.sample_rows import rows_of
from underclock.core.model.start import unknown_gpu
from underclock.core.model.subsample import fitted
from underclock.physics.constants import GpuConstants
from underclock.records import Clocks, SampleSet


def fit_rows(
    sample_set: SampleSet, settings: Sequence[Clocks], weights: Floats | None = None
) -> tuple[Rows, FittedModel]:
    """Fit samples.

    Company is taken off twice: how idle power follows the clock is first assumed, then fitted.

    Args:
        sample_set: The samples.
        settings: Clocks of the GPU, to begin with.
        weights: How much each sample counts in time and energy, where that is known already.
            Shape (2, N).

    Returns:
        The rows, all of them, and the fit.

    Raises:
        DataError: The samples cannot be fitted.
    """
    rows = rows_of(sample_set, weights=weights)
    model = fitted(rows, Shared(start_of(rows, settings)))
    steered = any(sample.asked.is_auto and sample.in_company for sample in sample_set.mixed)
    if steered:
        parameters = model.parameters
        rows = rows_of(sample_set, parameters.family.gpu(parameters.shared), weights)
        model = fitted(rows, Shared(start_of(rows, settings)))
    # The companion told how power goes with the clock; it is no kernel of the step.
    kernels = len(sample_set.kernels)
    return rows.of_first(kernels), model.of_first(kernels)


def start_of(rows: Rows, settings: Sequence[Clocks]) -> GpuConstants:
    """Return constants to begin the fit of some rows with."""
    asked = [float(s.core_mhz) for s in settings if s.core_mhz is not None]
    return unknown_gpu(
        rows.mem_points_mhz.tolist(),
        fastest_mhz=max([float(rows.core_mhz.max()), *asked]),
        most_w=float(np.exp(rows.log_w.max())),
    )


def temperature_of(sample_set: SampleSet) -> float:
    """Return the temperature the step runs at: in situ, else that of the samples."""
    for samples in (sample_set.in_situ, sample_set.samples):
        seen = [s.temperature_c for s in samples if s.temperature_c is not None]
        if seen:
            return float(np.median(seen))
    return STEADY_C

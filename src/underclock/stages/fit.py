"""fit: samples in, what they say of the GPU out."""

from collections.abc import Sequence
from pathlib import Path

from underclock.core.fit.describe import fit_of
from underclock.core.fit.joining import joined
from underclock.fits import GpuFit
from underclock.records import Clocks, Profile
from underclock.stages.sources import as_profile


def fit(
    samples: Profile | str | Path | Sequence[Profile | str | Path],
    *,
    baseline: Clocks | None = None,
) -> GpuFit:
    """Fit one model of all kernels to samples of one GPU.

    Args:
        samples: Profiles, samples files or CSV tables; one or several.
        baseline: Where to state each kernel's shares and energy; by default at its fastest sample.

    Raises:
        DataError: The samples cannot be read or fitted, or are of two GPUs or drivers.
    """
    several = [samples] if isinstance(samples, Profile | str | Path) else samples
    return fit_of(joined([as_profile(each) for each in several]), at=baseline)

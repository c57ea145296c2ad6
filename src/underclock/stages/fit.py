"""fit: samples in, what they say of the GPU out."""

from collections.abc import Sequence
from pathlib import Path

from underclock.core.model.diagnostics import fit_of
from underclock.core.model.pooling import joined
from underclock.core.step.whole import as_one, check_kernels_alone, is_only_whole
from underclock.records import Clocks, SampleSet
from underclock.records.fitted import GpuFit
from underclock.store import read_samples


def fit(
    samples: SampleSet | str | Path | Sequence[SampleSet | str | Path],
    *,
    baseline: Clocks | None = None,
) -> GpuFit:
    """Fit one model of all kernels to samples of one GPU.

    A step that ran whole only is fitted by itself, as one kernel, as `plan` does.

    Args:
        samples: SampleSets, samples files or CSV tables; one or several.
        baseline: Where to state each kernel's shares and energy; by default at its fastest sample.

    Raises:
        DataError: The samples cannot be read or fitted, or are of two GPUs or drivers.
    """
    several = [samples] if isinstance(samples, SampleSet | str | Path) else samples
    read = [read_samples(each) for each in several]
    if len(read) == 1 and is_only_whole(read[0]):
        return fit_of(as_one(read[0]), at=baseline)
    for each in read:
        check_kernels_alone(each)
    return fit_of(joined(read), at=baseline)

"""``underclock fit``: samples in, what they say of the GPU out."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import CLOCKS, delivered
from underclock.app.output import Delivery, share_bar
from underclock.records import Clocks, SampleSet

if TYPE_CHECKING:
    from underclock.records.fitted import GpuFit


def fit(
    samples: SampleSet | str | Path | Sequence[SampleSet | str | Path],
    *,
    baseline: Clocks | None = None,
) -> "GpuFit":
    """Fit one model of all kernels to samples of one GPU.

    A step that ran whole only is fitted by itself, as one kernel, as `plan` does.

    Args:
        samples: SampleSets, samples files or CSV tables; one or several.
        baseline: Where to state each kernel's shares and energy; by default at its fastest sample.

    Raises:
        DataError: The samples cannot be read or fitted, or are of two GPUs or drivers.
    """
    from underclock.core.model.diagnostics import fit_of
    from underclock.core.model.sample_sets import joined_sets
    from underclock.core.step.whole import as_one, check_kernels_alone, is_only_whole
    from underclock.store import read_samples

    several = [samples] if isinstance(samples, SampleSet | str | Path) else samples
    read = [read_samples(each) for each in several]
    if len(read) == 1 and is_only_whole(read[0]):
        return fit_of(as_one(read[0]), at=baseline)
    for each in read:
        check_kernels_alone(each)
    return fit_of(joined_sets(read), at=baseline)


@click.command(name="fit")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--baseline", type=CLOCKS, help="State kernels here, not at their fastest sample.")
@delivered("fit")
def command(*, samples: tuple[Path, ...], baseline: Clocks | None, to: Delivery) -> None:
    """Fit one model of a GPU to SAMPLES: one or more files of one GPU.

    Shows its constants, how sure they are, and which kernels the model describes.

    Example: underclock fit samples.db -o fit.json
    """
    from underclock.report import fit_tables

    to.check(*samples)
    with share_bar("fitting"):
        model = fit(samples, baseline=baseline)
    to.give(model, lambda: fit_tables(model))

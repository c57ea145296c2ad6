"""Samples that cannot be what they say: refused before they reach a fit."""

from underclock.errors import DataError
from underclock.records import Clocks, SampleSet

# What no GPU, of any age, is near to; beyond it a value is damaged or in another unit.
_PLAUSIBLE_MHZ = (10.0, 20_000.0)
_PLAUSIBLE_W = (0.1, 100_000.0)


def check_values(sample_set: SampleSet) -> None:
    """Refuse samples that no GPU can have given.

    Raises:
        DataError: A sample is of no kernel of the step, or its clocks or power are out of bounds.
    """
    names = {kernel.name for kernel in sample_set.kernels}
    for sample in sample_set.samples:
        if sample.kernel not in names:
            raise DataError(
                f"a sample names {sample.kernel!r}, which is no kernel of the step",
                hint="the file is damaged, or of another step: measure again",
            )
        power_w = sample.energy_j / sample.time_s
        if not _PLAUSIBLE_W[0] <= power_w <= _PLAUSIBLE_W[1]:
            raise DataError(
                f"{sample.kernel!r} at {sample.asked} drew {power_w:.3g} W: "
                f"{sample.energy_j:.3g} J in {sample.time_s:.3g} s",
                hint="are times in s and energies in J?",
            )
    _check_mixed(sample_set, names)
    seen = [sample.observed for sample in sample_set.samples if sample.observed]
    for clocks in (*clocks_asked(sample_set), *seen):
        for name, mhz in (("core", clocks.core_mhz), ("memory", clocks.mem_mhz)):
            if mhz is not None and not _PLAUSIBLE_MHZ[0] <= mhz <= _PLAUSIBLE_MHZ[1]:
                raise DataError(
                    f"a {name} clock of {mhz} MHz is none that a GPU has",
                    hint="are clocks in MHz?",
                )


def _check_mixed(sample_set: SampleSet, names: set[str]) -> None:
    """Refuse measurements in company that no GPU can have given.

    Raises:
        DataError: One is of no kernel of the step, lacks durations, or is out of bounds.
    """
    damaged = "the file is damaged: measure again"
    for sample in sample_set.mixed:
        whole = not sample.kernel
        what = "the step" if whole else repr(sample.kernel)
        if not whole and sample.kernel not in names:
            raise DataError(f"{what}, measured in company, is no kernel of the step", hint=damaged)
        wanted = (len(names) if whole else 1) if sample.mix.launches else 0
        if len(sample.kernel_s) != wanted:
            raise DataError(
                f"{what} in company has {len(sample.kernel_s)} durations instead of {wanted}",
                hint=damaged,
            )
        for value, (least, most), unit in (
            (sample.energy_j / sample.time_s, _PLAUSIBLE_W, "W"),
            (sample.at_mhz, _PLAUSIBLE_MHZ, "MHz"),
        ):
            if not least <= value <= most:
                raise DataError(f"{what} in company ran at {value:.3g} {unit}", hint=damaged)


def clocks_asked(sample_set: SampleSet) -> list[Clocks]:
    """Return all clocks that were to be visited, and those that were."""
    asked = [sample.asked for sample in sample_set.samples]
    return [*sample_set.settings, *asked, *[sample.asked for sample in sample_set.mixed]]

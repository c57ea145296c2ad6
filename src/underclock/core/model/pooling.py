"""Samples of several steps on one GPU, as if they were of one."""

from collections.abc import Sequence

import msgspec

from underclock.errors import DataError
from underclock.records import ALONE, GpuInfo, Kernel, SampleSet, Window


def joined(sample_sets: Sequence[SampleSet]) -> SampleSet:
    """Return all samples as one sample_set; a kernel in several of them keeps one name.

    Raises:
        DataError: There are none, or they are of two GPUs, drivers, power limits or evidences.
    """
    if not sample_sets:
        raise DataError("there are no samples to fit", hint="measure first")
    first = sample_sets[0]
    for other in sample_sets[1:]:
        if other.gpu != first.gpu:
            raise DataError(
                "samples from two GPUs or drivers in one fit: "
                f"{_words(first.gpu)} and {_words(other.gpu)}",
                hint="fit the files of each by themselves; after a new driver or power limit, "
                "measure again",
            )
        if other.evidence is not first.evidence:
            raise DataError(
                f"{first.evidence} and {other.evidence} samples in one fit",
                hint="fit the files of each kind by themselves",
            )
    if len(sample_sets) == 1:
        return first
    kernels: dict[str, Kernel] = {}
    windows: list[Window] = []
    for number, sample_set in enumerate(sample_sets, 1):
        names = {}
        for kernel in sample_set.kernels:
            known = kernels.get(kernel.name)
            same = known is None or _work(known) == _work(kernel)
            names[kernel.name] = kernel.name if same else f"{kernel.name} of file {number}"
            new = msgspec.structs.replace(kernel, name=names[kernel.name])
            kernels.setdefault(new.name, new)
        # Durations inside a whole step are by its own kernels' places, of which there are many now.
        windows += [
            msgspec.structs.replace(w, kernel=names.get(w.kernel, ""))
            if w.kernel or not w.mix.launches
            else w.untimed()
            for w in sample_set.windows
            if not w.is_step or (w.mix == ALONE and w.asked.is_auto)
        ]
    return SampleSet(
        evidence=first.evidence,
        gpu=first.gpu,
        workload=" and ".join(dict.fromkeys(sample_set.workload for sample_set in sample_sets)),
        kernels=tuple(kernels.values()),
        windows=tuple(windows),
        settings=tuple(dict.fromkeys(s for sample_set in sample_sets for s in sample_set.settings)),
        sampled=any(sample_set.sampled for sample_set in sample_sets),
        warnings=tuple(dict.fromkeys(w for sample_set in sample_sets for w in sample_set.warnings)),
    )


def _work(kernel: Kernel) -> tuple[object, ...]:
    """Return what two kernels of one name must share to be the same."""
    identity = kernel.launch.identity if kernel.launch else None
    return kernel.kind, kernel.shape, kernel.flops, kernel.bytes_moved, identity


def _words(gpu: GpuInfo) -> str:
    limit = "unknown limit" if gpu.power_limit_w is None else f"{gpu.power_limit_w:g} W"
    return f"{gpu.name} (driver {gpu.driver or 'unknown'}, {limit})"

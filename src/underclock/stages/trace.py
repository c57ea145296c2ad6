"""trace: a workload in, its kernels in launch order out."""

from underclock.records import Step
from underclock.workloads import workload


def trace(name: str, **sizes: int) -> Step:
    """List the kernels of one training step.

    Args:
        name: ``gpt3-125m`` … ``gpt3-175b``, ``gpt3-xl``.
        sizes: Sizes to change, e.g. ``batch=8``; see `underclock.workloads.Shape`.

    Raises:
        UsageError: No such workload, or sizes that make no model.
    """
    return workload(name, sizes)

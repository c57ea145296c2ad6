"""What a stage may be given: a record, or the file that holds it."""

from pathlib import Path

from underclock.errors import DataError
from underclock.records import GpuInfo, Plan, SampleSet
from underclock.store import read_document, read_samples


def as_samples(source: SampleSet | str | Path) -> SampleSet:
    """Return samples, reading them if a file is named.

    Raises:
        DataError: The file cannot be read.
    """
    return source if isinstance(source, SampleSet) else read_samples(Path(source))


def as_plan(source: Plan | str | Path) -> Plan:
    """Return a plan, reading it if a file is named.

    Raises:
        DataError: The file cannot be read.
    """
    return source if isinstance(source, Plan) else read_document(Path(source), Plan)


def check_gpu(plan: Plan, gpu: GpuInfo) -> None:
    """Refuse to use a plan on a GPU it was not made for.

    Raises:
        DataError: The GPU's model or power limit differs.
    """
    if plan.gpu.name != gpu.name:
        raise DataError(
            f"the plan is for {plan.gpu.name}, this is {gpu.name}",
            hint="clocks mean nothing on another GPU model: plan on its own samples",
        )
    if plan.gpu.power_limit_w != gpu.power_limit_w and None not in (
        plan.gpu.power_limit_w,
        gpu.power_limit_w,
    ):
        raise DataError(
            f"the plan is for a limit of {plan.gpu.power_limit_w} W, "
            f"this GPU is limited to {gpu.power_limit_w} W",
            hint="the power cap decides what clocks are worth: measure at this limit",
        )

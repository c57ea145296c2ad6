"""What a stage may be given: a record, or the file that holds it."""

from pathlib import Path

from underclock.errors import DataError
from underclock.records import GpuInfo, Plan, SampleSet, Step
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


def step_of(plan: Plan) -> Step | None:
    """Return the step a plan is for; of a table's plan there is none.

    Raises:
        DataError: What the plan runs is no step.
    """
    if not plan.order:
        return None
    try:
        return Step(name=plan.workload, kernels=plan.runs, order=plan.order, source=plan.source)
    except ValueError as exc:
        raise DataError(
            f"the plan is not of a step: {exc}", hint="make it anew with `underclock plan`"
        ) from exc


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

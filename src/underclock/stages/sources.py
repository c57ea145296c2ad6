"""What a stage may be given: a record, or the file that holds it."""

import io
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from underclock.core.step.whole import check_kernels_alone
from underclock.errors import DataError, UsageError
from underclock.records import (
    Clocks,
    GpuInfo,
    Plan,
    SampleSet,
    Score,
    Step,
    Validation,
)
from underclock.records.fitted import GpuFit
from underclock.records.latencies import LatencyTable
from underclock.store import (
    SampleFile,
    is_samples,
    kind_of,
    read_document,
    read_samples,
    read_table,
    write_document,
)

Saved = Step | SampleSet | Plan | Score | Validation | LatencyTable | GpuFit
"""What has a file of its own."""

_KINDS: Final[dict[str, type[Saved]]] = {
    "step": Step,
    "plan": Plan,
    "score": Score,
    "validation": Validation,
    "latencies": LatencyTable,
    "fit": GpuFit,
}


class _Frame(Protocol):
    """A table of samples in memory, such as a pandas DataFrame, with the columns of a CSV table."""

    def to_csv(self, *, index: bool) -> str:
        """Return its rows as CSV under their names; empty for what is missing."""
        ...


SampleSource = SampleSet | str | Path | _Frame
"""Samples, a file of them, a CSV table, or a DataFrame with the columns of one."""


def load(path: str | Path) -> Saved:
    """Read a file that this package wrote, or a CSV table of samples, whatever it is of.

    Args:
        path: A step, samples, a plan, a score, a validation, latencies or a fit.

    Raises:
        DataError: It cannot be read.
    """
    path = Path(path)
    kind = None if is_samples(path) else _KINDS.get(kind_of(path))
    return read_samples(path) if kind is None else read_document(path, kind)


def save(record: Saved, path: str | Path, *, force: bool = False) -> None:
    """Write a record as the command that makes it does: `load` reads it.

    Args:
        record: A step, samples, a plan, a score, a validation, latencies or a fit.
        path: Where to; samples as a database.
        force: Whether an existing file may be replaced; samples never are.

    Raises:
        UsageError: It exists or cannot be written, or the record is no file of its own.
    """
    path = Path(path)
    if isinstance(record, SampleSet):
        header = msgspec.structs.replace(record, samples=(), in_situ=(), mixed=())
        with SampleFile.create(path, header) as file:
            for samples, in_situ in ((record.samples, False), (record.in_situ, True)):
                for sample in samples:
                    file.append(sample, in_situ=in_situ)
            for mixed in record.mixed:
                file.append_mixed(mixed)
        return
    if type(record) not in _KINDS.values():
        raise UsageError(
            f"a {type(record).__name__} is no file of its own",
            hint=f"save {', '.join(kind.__name__ for kind in _KINDS.values())} or SampleSet",
        )
    write_document(path, record, force=force)


def as_samples(source: SampleSource) -> SampleSet:
    """Return samples, reading them if a file or a DataFrame is given.

    Raises:
        DataError: It cannot be read.
        UsageError: It is nothing that holds samples.
    """
    if isinstance(source, SampleSet):
        return source
    if isinstance(source, str | Path):
        return read_samples(Path(source))
    if hasattr(source, "to_csv"):
        return read_table(Path("DataFrame"), io.StringIO(source.to_csv(index=False)))
    raise UsageError(
        f"a {type(source).__name__} holds no samples",
        hint="give a SampleSet, a samples file, a CSV table or a DataFrame",
    )


def as_kernel_samples(source: SampleSource) -> SampleSet:
    """Return samples of kernels, reading them if a file is named.

    Raises:
        DataError: The file cannot be read, or is of a step that ran whole only.
    """
    sample_set = as_samples(source)
    check_kernels_alone(sample_set)
    return sample_set


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
        return Step(
            name=plan.workload,
            kernels=plan.runs,
            order=plan.order,
            modules=plan.modules,
            source=plan.source,
        )
    except ValueError as exc:
        raise DataError(
            f"the plan is not of a step: {exc}", hint="make it anew with `underclock plan`"
        ) from exc


_SAME_W = 1.0  # drivers round what they enforce


def check_gpu(plan: Plan, gpu: GpuInfo, limit_w: float | None) -> tuple[str, ...]:
    """Refuse to use a plan on a GPU it was not made for; return what the reader must be told.

    Args:
        plan: The plan.
        gpu: The GPU.
        limit_w: Which power limit it must have: the one planned for, to run the plan, or the one
            measured at, to measure for it again. ``None`` when unknown.

    Raises:
        DataError: The GPU's model or power limit differs.
    """
    if plan.gpu.name != gpu.name:
        raise DataError(
            f"the plan is for {plan.gpu.name}, this is {gpu.name}",
            hint="clocks mean nothing on another GPU model: plan on its own samples",
        )
    found_w = gpu.power_limit_w
    if limit_w is not None and found_w is None and plan.power_limit_w is not None:
        raise DataError(
            f"the plan is for a power limit of {limit_w:g} W, and this GPU's limit is not known",
            hint="run it on a GPU that says its limit; a table was measured at its own",
        )
    if limit_w is not None and found_w is not None and abs(found_w - limit_w) > _SAME_W:
        raise DataError(
            f"the plan is for a power limit of {limit_w:g} W, this GPU is limited to {found_w:g} W",
            hint="the power cap decides what clocks are worth: set the limit yourself "
            f"(`sudo nvidia-smi -pl {limit_w:g}`), or measure and plan at this one",
        )
    if plan.gpu.is_another_board(gpu):
        words = (
            f"the plan was made on board {plan.gpu.uuid}, and this is board {gpu.uuid}: boards of "
            "one model differ by a few per cent; `underclock refine` measures the plan again here"
        )
        return (words,)
    return ()


def check_to_hold(
    plan: Plan, gpu: GpuInfo, limit_w: float | None, *, anyway: bool, hint: str
) -> tuple[str, ...]:
    """Refuse to hold a plan's clocks where it was not made; return what the reader must be told.

    Args:
        plan: The plan.
        gpu: The GPU.
        limit_w: As of `check_gpu`.
        anyway: Whether another board or driver will do.
        hint: What to do where it does not.

    Raises:
        DataError: Model or power limit differ; or board or driver, and that will not do.
    """
    words = check_gpu(plan, gpu, limit_w)
    if None not in {plan.gpu.driver, gpu.driver} and plan.gpu.driver != gpu.driver:
        driver = f"the plan was made under driver {plan.gpu.driver}, and this is {gpu.driver}"
        words = (*words, driver)
    if words and not anyway:
        raise DataError(words[0], hint=hint)
    return words


def check_clocks(held: Iterable[tuple[str, Clocks]], offered: Collection[Clocks]) -> None:
    """Refuse clocks of a plan that a GPU does not list, before any driver is asked to hold them.

    Args:
        held: For what, and which.
        offered: Every clock pair that can be held; auto alone where nothing may be locked, of which
            the GPU itself says more.

    Raises:
        DataError: A clock pair is not among them.
    """
    if not any(not clocks.is_auto for clocks in offered):
        return
    for name, clocks in held:
        if clocks not in offered:
            near = sorted(
                (each for each in offered if each.mem_mhz == clocks.mem_mhz and each.core_mhz),
                key=lambda each: abs((each.core_mhz or 0) - (clocks.core_mhz or 0)),
            )
            hint = "; ".join(map(str, near[:2])) or "no core clocks with that memory clock"
            raise DataError(
                f"the plan holds {clocks} for {name}, which this GPU does not list",
                hint=f"plan on this GPU's own samples; nearest: {hint}",
            )

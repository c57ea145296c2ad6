"""From what a user writes after ``--gpu`` to a measurer that measures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from underclock.errors import UsageError
from underclock.gpus.models import GpuModel
from underclock.hw.base import Measurer
from underclock.hw.measurer import BRISK, QUICK, GpuMeasurer
from underclock.hw.replay import ReplayMeasurer
from underclock.hw.simulated.rig import simulated_rig
from underclock.records import Evidence, Kernel, MeasurementSettings, Step
from underclock.stages.real import StepFunction, real_measurer
from underclock.store import read_table
from underclock.units import nearest

_KINDS = {"sim": "sim:rtx3080ti", "replay": "replay:TABLE.csv", "nvml": "nvml:0"}


@contextmanager
def open_measurer(
    spec: str,
    *,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    step: Step | None = None,
    run: StepFunction | None = None,
) -> Iterator[Measurer]:
    """Open what a ``--gpu`` option names.

    Args:
        spec: ``sim:NAME``, ``sim:NAME#UNIT``, ``replay:TABLE.csv`` or ``nvml:INDEX``.
        measuring: How long to wait and measure; by default `default_measuring`.
        seed: Of a simulated GPU's noise.
        step: What will be measured; a real GPU runs it from the start.
        run: The step's function, where it has no file to be found in.

    Raises:
        UsageError: No such kind of GPU, model or unit, or no traced step for a real one.
        DataError: The table cannot be read.
        DeviceError: A real GPU, or PyTorch, cannot do what is asked.
        MeasurementError: The step is not the one that was traced.
    """
    kind, rest = split_spec(spec)
    measuring = measuring or default_measuring(spec)
    if kind == "replay":
        yield ReplayMeasurer(read_table(Path(rest)))
        return
    if kind == "nvml":
        with real_measurer(rest, measuring=measuring, step=step, run=run) as measurer:
            yield measurer
        return
    name, unit = simulated_unit(rest)
    with simulated_rig(name, seed=seed, unit=unit) as rig:
        yield GpuMeasurer(
            rig.gpu,
            rig.launcher,
            rig.clock,
            evidence=Evidence.SIMULATED,
            measuring=measuring,
            own=_own(rig.device.model),
        )


def default_measuring(spec: str, *, adaptive: bool = False) -> MeasurementSettings:
    """Return how long to wait and measure where nobody says: as in the paper, or briefly.

    Args:
        spec: What a ``--gpu`` option names.
        adaptive: Whether a model will join the samples.
    """
    if split_spec(spec)[0] == "nvml":
        return QUICK
    return BRISK if adaptive else MeasurementSettings()


def _own(model: GpuModel) -> tuple[str, tuple[Kernel, ...]]:
    """Return the kernels of a GPU that can run no others."""
    if model.throughput is not None:
        return "", ()
    return model.calibration.source, tuple(item.kernel for item in model.own)


def split_spec(spec: str) -> tuple[str, str]:
    """Split ``kind:rest``.

    Raises:
        UsageError: The kind is unknown, or nothing follows it.
    """
    kind, _, rest = spec.partition(":")
    if kind not in _KINDS:
        forms = ", ".join(_KINDS.values())
        raise UsageError(f"unknown GPU {spec!r}", hint=f"{nearest(kind, _KINDS)}; write {forms}")
    if not rest and kind != "nvml":
        raise UsageError(f"{spec!r} names no GPU", hint=f"write for example {_KINDS[kind]}")
    return kind, rest


def simulated_unit(text: str) -> tuple[str, int]:
    """Split ``NAME#UNIT``: GPUs of one model differ, and unit 0 is the model itself.

    Args:
        text: What follows ``sim:``. Without a unit it is unit 0.

    Raises:
        UsageError: The unit is no number.
    """
    name, mark, unit = text.rpartition("#")
    if not mark or text.endswith(".json"):  # a file's name may have the mark in it
        return text, 0
    if not (unit.isascii() and unit.isdecimal()):
        raise UsageError(
            f"cannot read {unit!r} as a simulated GPU's unit",
            hint=f"write for example sim:{name or 'rtx3080ti'}#3",
        )
    return name, int(unit)

"""From what a user writes after ``--gpu`` to a bench that measures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from underclock.errors import NotSupportedError, UsageError
from underclock.hw.base import Bench
from underclock.hw.bench import GpuBench, Protocol
from underclock.hw.replay import ReplayBench
from underclock.hw.simulated.models import GpuModel
from underclock.hw.simulated.rig import simulated_rig
from underclock.records import Evidence, Kernel
from underclock.store import read_table
from underclock.units import nearest

_KINDS = {"sim": "sim:rtx3080ti", "replay": "replay:TABLE.csv", "nvml": "nvml:0"}


@contextmanager
def open_bench(spec: str, *, protocol: Protocol | None = None, seed: int = 0) -> Iterator[Bench]:
    """Open what a ``--gpu`` option names.

    Args:
        spec: ``sim:NAME``, ``replay:TABLE.csv`` or ``nvml:INDEX``.
        protocol: How long to wait and measure; by default as in the paper.
        seed: Of a simulated GPU's noise.

    Raises:
        UsageError: No such kind of GPU, or no such model.
        DataError: The table cannot be read.
        NotSupportedError: Real GPUs cannot be measured by this version.
    """
    kind, rest = split_spec(spec)
    if kind == "replay":
        yield ReplayBench(read_table(Path(rest)))
        return
    if kind == "nvml":
        raise NotSupportedError(
            "this version cannot launch kernels on a real GPU",
            hint="measure on sim:rtx3080ti, or plan a table measured elsewhere",
        )
    with simulated_rig(rest, seed=seed) as rig:
        yield GpuBench(
            rig.gpu,
            rig.launcher,
            rig.clock,
            evidence=Evidence.SIMULATED,
            protocol=protocol or Protocol(),
            own=_own(rig.device.model),
        )


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

"""doctor: what this machine and the simulator can do, found out by reading only."""

import os
import platform
from typing import TYPE_CHECKING

import underclock
from underclock.errors import DeviceError, UsageError
from underclock.gpus.catalogue import gpu_model, model_names
from underclock.hw.nvml import READ_ONLY, NvmlGpu, gpu_count, is_read_only, nvml_session
from underclock.hw.simulated.rig import simulated_rig
from underclock.records import Evidence, GpuInfo, Record
from underclock.stages.backends import split_spec

if TYPE_CHECKING:
    from underclock.hw.base import Gpu


class GpuFinding(Record, frozen=True, kw_only=True):
    """One GPU.

    Attributes:
        spec: What to write after ``--gpu``.
        gpu: Name, driver, limit.
        evidence: What numbers of it would be.
        core_mhz: Core clocks the driver lists, ascending.
        mem_mhz: Memory clocks, likewise.
        calibration: How far to trust it.
    """

    spec: str
    gpu: GpuInfo
    evidence: Evidence
    core_mhz: tuple[int, ...]
    mem_mhz: tuple[int, ...]
    calibration: str


class Findings(Record, frozen=True, kw_only=True):
    """Everything found.

    Attributes:
        version: Of Underclock.
        python: Version.
        permission: Whether clocks may be locked, as far as reading can tell.
        gpus: Real ones first.
        notes: Sentences about what was not found.
    """

    version: str
    python: str
    permission: str
    gpus: tuple[GpuFinding, ...]
    notes: tuple[str, ...] = ()


def examine(spec: str | None = None) -> Findings:
    """Look at one GPU, or at all there are.

    Raises:
        UsageError: No such GPU.
        DeviceError: The one asked for does not answer.
    """
    notes: tuple[str, ...] = ()
    if spec is None:
        gpus, notes = _real()
        gpus += tuple(_simulated(name) for name in model_names())
    else:
        kind, rest = split_spec(spec)
        if kind == "replay":
            raise UsageError("a table is no GPU to examine", hint="plan it: `underclock plan`")
        if kind == "sim":
            gpus = (_simulated(rest),)
        else:
            if rest and not rest.isdecimal():
                raise UsageError(f"{rest!r} is no GPU index", hint="write nvml:0")
            with nvml_session():
                gpus = (_finding(f"nvml:{rest or 0}", NvmlGpu(int(rest or 0))),)
    return Findings(
        version=underclock.__version__,
        python=platform.python_version(),
        permission=_permission(),
        gpus=gpus,
        notes=notes,
    )


def _real() -> tuple[tuple[GpuFinding, ...], tuple[str, ...]]:
    try:
        with nvml_session():
            found = tuple(_finding(f"nvml:{i}", NvmlGpu(i)) for i in range(gpu_count()))
    except DeviceError as exc:
        return (), (f"no real GPU: {exc}",)
    return found, () if found else ("no real GPU: the driver lists none",)


def _simulated(name: str) -> GpuFinding:
    calibration = str(gpu_model(name).calibration)
    with simulated_rig(name) as rig:
        return _finding(f"sim:{name}", rig.gpu, Evidence.SIMULATED, calibration)


def _finding(
    spec: str,
    gpu: "Gpu",
    evidence: Evidence = Evidence.MEASURED,
    calibration: str = "none needed: it is real",
) -> GpuFinding:
    return GpuFinding(
        spec=spec,
        gpu=gpu.info(),
        evidence=evidence,
        core_mhz=gpu.supported_core_mhz(),
        mem_mhz=gpu.supported_mem_mhz(),
        calibration=calibration,
    )


def _permission() -> str:
    if is_read_only():
        return f"refused: {READ_ONLY} is set"
    if os.geteuid() == 0:
        return "allowed to try: this process is root (never tried on real hardware yet)"
    return "needs root; reading and auto clocks do not"

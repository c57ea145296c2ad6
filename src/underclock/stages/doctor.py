"""doctor: what this machine and the simulator can do, found out by reading only."""

import os
import platform

import underclock
from underclock.errors import DeviceError
from underclock.gpus.catalogue import model_names
from underclock.hw.nvml_calls import READ_ONLY, gpu_count, is_read_only, nvml_session
from underclock.records import Evidence, GpuInfo, Record
from underclock.stages.backends import open_gpu
from underclock.stages.gpu_names import GpuName, parse_gpu


class GpuFinding(Record, frozen=True, kw_only=True):
    """One GPU.

    Attributes:
        spec: What to write after ``--gpu``.
        gpu: Name, driver, limit.
        evidence: What numbers of it would be.
        core_mhz: Core clocks the driver lists, ascending.
        mem_mhz: Memory clocks the driver lists, ascending.
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
        gpus += tuple(_examined(parse_gpu(f"sim:{name}")) for name in model_names())
    else:
        gpus = (_examined(parse_gpu(spec)),)
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
            count = gpu_count()
        gpus = tuple(_examined(parse_gpu(f"nvml:{index}")) for index in range(count))
    except DeviceError as exc:
        return (), (f"no real GPU: {exc}",)
    return gpus, () if gpus else ("no real GPU: the driver lists none",)


def _examined(name: GpuName) -> GpuFinding:
    with open_gpu(name) as opened:
        model = opened.model
        return GpuFinding(
            spec=f"nvml:{name.index}" if model is None else name.text,
            gpu=opened.gpu.info(),
            evidence=opened.evidence,
            core_mhz=opened.gpu.supported_core_mhz(),
            mem_mhz=opened.gpu.supported_mem_mhz(),
            calibration="none needed: it is real" if model is None else str(model.calibration),
        )


def _permission() -> str:
    if is_read_only():
        return f"refused: {READ_ONLY} is set"
    if os.geteuid() == 0:
        return "allowed to try: this process is root (never tried on real hardware yet)"
    return "needs root; reading and auto clocks do not"

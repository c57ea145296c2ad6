"""``underclock doctor``: what this machine and the simulator can do, found by reading only."""

import os
import platform
from collections.abc import Iterator
from contextlib import suppress

import click

import underclock
from underclock.app.options import delivered
from underclock.app.output import Delivery
from underclock.errors import DeviceError, NotSupportedError, UnderclockError
from underclock.hw.base import GpuName, parse_gpu
from underclock.hw.nvml import PARTITIONED, NvmlGpu
from underclock.hw.nvml_calls import (
    READ_ONLY,
    SIMULATOR,
    WayName,
    gpu_count,
    is_read_only,
    is_simulated,
    nvml_session,
    ways,
)
from underclock.records import Evidence, GpuInfo, Record
from underclock.units import Domain

_LOCKS_UNKNOWN = (
    "NVIDIA's driver does not say which clocks are locked: locked_core_mhz and locked_mem_mhz are "
    "null whether they are or not"
)


class GpuFinding(Record, frozen=True, kw_only=True):
    """One GPU."""

    spec: str  # what to write after --gpu
    gpu: GpuInfo
    evidence: Evidence
    core_mhz: tuple[int, ...]  # core clocks the driver lists, ascending
    mem_mhz: tuple[int, ...]  # memory clocks the driver lists, ascending
    calibration: str
    # highest clock that a lock of the core allows; None where nothing is locked, or the driver does
    # not tell (see the notes)
    locked_core_mhz: int | None
    locked_mem_mhz: int | None
    # the limit that was set, or the default; None where it cannot be read
    power_limit_w: float | None
    partitioned: bool  # whether it is split into MIG instances, so that nothing is held on it


class WayFound(Record, frozen=True, kw_only=True):
    """One way to set clocks from here."""

    name: WayName  # which
    works: bool  # whether it is open, as far as reading can tell
    why: str  # why it is, or is not, and what would open it


class Findings(Record, frozen=True, kw_only=True):
    """Everything found."""

    version: str  # of Underclock
    python: str
    permission: str  # whether clocks may be locked, as far as reading can tell
    # every way to lock them, those first that are taken first; none without a driver
    ways: tuple[WayFound, ...]
    gpus: tuple[GpuFinding, ...]
    notes: tuple[str, ...] = ()  # sentences about what was not found


@click.command(name="doctor")
@click.option("--gpu", metavar="GPU", help="Only this one: sim:rtx3080ti or nvml:0.")
@delivered()
def command(*, gpu: str | None, to: Delivery) -> None:
    """Show which GPUs there are, what they can do, and whether clocks may be locked.

    Reads only; nothing is set to find out.

    Example: underclock doctor --gpu sim:rtx3080ti
    """
    findings = examine(gpu)
    to.give(findings, lambda: _said(findings))


def _said(findings: Findings) -> Iterator[str]:
    yield f"underclock {findings.version}, Python {findings.python}"
    yield f"locking clocks: {findings.permission}"
    for way in findings.ways:
        yield f"  {way.name}: {'yes' if way.works else 'no'}: {way.why}"
    yield from findings.notes
    for finding in findings.gpus:
        yield f"\n{finding.spec}: {finding.gpu.name} ({finding.evidence})"
        if finding.partitioned:
            yield f"  {PARTITIONED}: nothing is measured or held on it"
        yield f"  driver        {finding.gpu.driver or 'unknown'}"
        limit = finding.power_limit_w
        yield f"  power limit   {'unknown' if limit is None else f'{limit:g} W'}"
        for domain, mhz in (("core", finding.locked_core_mhz), ("memory", finding.locked_mem_mhz)):
            if mhz is not None:
                yield f"  {domain} locked at {mhz} MHz"
        core, memory = finding.core_mhz, ", ".join(map(str, finding.mem_mhz))
        span = f"{core[0]}-{core[-1]} MHz ({len(core)} of them)" if core else "none listed"
        yield f"  core clocks   {span}"
        yield f"  memory clocks {f'{memory} MHz' if memory else 'none listed'}"
        yield f"  calibration   {finding.calibration}"


def examine(spec: str | None = None) -> Findings:
    """Look at one GPU, or at all there are."""
    from underclock.gpus.models import model_names

    notes: tuple[str, ...] = ()
    if spec is None:
        gpus, notes = _listed()
        gpus += tuple(_examined(parse_gpu(f"sim:{name}")) for name in model_names())
    else:
        gpus = (_examined(parse_gpu(spec)),)
    found: tuple[WayFound, ...] = ()
    with suppress(DeviceError), nvml_session():
        found = tuple(WayFound(**way._asdict()) for way in ways())
    return Findings(
        version=underclock.__version__,
        python=platform.python_version(),
        permission=_permission(found),
        ways=found,
        gpus=gpus,
        notes=notes,
    )


def _listed() -> tuple[tuple[GpuFinding, ...], tuple[str, ...]]:
    """Look at all that NVML lists: real ones, or those that the environment has in their place."""
    try:
        with nvml_session():
            count = gpu_count()
            served = is_simulated()
    except DeviceError as exc:
        return (), (f"no real GPU: {exc}",)
    gpus: list[GpuFinding] = []
    silent: list[str] = []
    for index in range(count):  # each by itself: one that is lost hides no other
        try:
            gpus.append(_examined(parse_gpu(f"nvml:{index}")))
        except UnderclockError as exc:
            silent.append(f"nvml:{index} does not answer: {exc}; {exc.hint}".removesuffix("; "))
    notes = (_LOCKS_UNKNOWN,) if gpus else ()
    if served:
        at = os.environ.get(SIMULATOR)
        notes = (f"{SIMULATOR} is set: nvml:0 and on are simulated, served at {at}",)
    return tuple(gpus), (*notes, *silent) if count else ("no real GPU: the driver lists none",)


def _examined(name: GpuName) -> GpuFinding:
    from underclock.app.backends import open_gpu

    with open_gpu(name) as opened:
        model, gpu = opened.model, opened.gpu
        real = opened.evidence is Evidence.MEASURED
        unmodelled = "none needed: it is real" if real else "as the model that is served says"
        return GpuFinding(
            spec=f"nvml:{name.index}" if model is None else name.text,
            gpu=gpu.info(),
            evidence=opened.evidence,
            core_mhz=gpu.supported_core_mhz(),
            mem_mhz=gpu.supported_mem_mhz(),
            calibration=unmodelled if model is None else str(model.calibration),
            locked_core_mhz=_locked_mhz(gpu, Domain.CORE),
            locked_mem_mhz=_locked_mhz(gpu, Domain.MEMORY),
            power_limit_w=gpu.power_limit_w(),
            partitioned=gpu.is_partitioned(),
        )


def _locked_mhz(gpu: NvmlGpu, domain: Domain) -> int | None:
    """Return the highest clock that a lock allows; ``None`` where the driver does not say."""
    try:
        locked_mhz = gpu.locked_mhz(domain)
    except NotSupportedError:
        return None
    return locked_mhz[1] if locked_mhz else None


def _permission(found: tuple[WayFound, ...]) -> str:
    if is_read_only():
        return f"refused: {READ_ONLY} is set"
    if not found:
        return "nothing to lock: no driver answers here"
    way = next((way for way in found if way.works), None)
    if way is None:
        return "needs root or zeusd; reading and auto clocks do not"
    how = "through zeusd" if way.name is WayName.ZEUSD else "directly"
    return f"allowed to try, {how} (never tried on real hardware yet)"

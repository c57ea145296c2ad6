"""watch: a log of a GPU's clocks, and with a step the kernel that ran at each moment."""

import contextlib
import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from underclock.core.tracing.timeline import fit_period, launch_at
from underclock.errors import UsageError
from underclock.hw.base import Clock, Gpu, Launcher
from underclock.hw.clock import SystemClock
from underclock.hw.nvml import NvmlGpu, nvml_session
from underclock.hw.sampler import Entry, Sampler
from underclock.hw.simulated.rig import simulated_rig
from underclock.records import Evidence, GpuInfo, Step
from underclock.records.observed import ClockLog, KernelClock
from underclock.stages.backends import split_spec
from underclock.stages.real import gpu_index, held_launcher
from underclock.store import check_output, write_text

_WARM_S = 2.0
_TRIAL_S = 0.1
COLUMNS = (
    "at_s",
    "core_mhz",
    "mem_mhz",
    "power_w",
    "event_reasons",
    "steps",
    "kernel",
)


def watch(
    gpu: str,
    *,
    duration_s: float = 10.0,
    rate_hz: float = 1000.0,
    step: Step | None = None,
    to: str | Path | None = None,
    force: bool = False,
) -> ClockLog:
    """Log a GPU's clocks, power and event reasons; set nothing.

    Args:
        gpu: ``nvml:INDEX`` or ``sim:NAME``.
        duration_s: How long.
        rate_hz: Readings a second.
        step: Run this over and over meanwhile, and say which kernel ran at each reading.
        to: CSV file for the readings.
        force: Replace an existing file.

    Raises:
        UsageError: No such GPU, or one that exists on paper only.
        DeviceError: The GPU does not answer, or cannot run the step.
        DataError: Too few steps fit into the time.
    """
    if not (0 < duration_s < math.inf and 0 < rate_hz < math.inf):
        raise UsageError(f"cannot log for {duration_s:g} s at {rate_hz:g} Hz")
    if to is not None:
        check_output(Path(to), force=force)
    with _opened(gpu, step) as (device, launcher, clock, evidence):
        entries, shares = _taken(device, launcher, clock, (duration_s, rate_hz), step)
        found = _summary(evidence, device.info(), entries, duration_s)
    names: Sequence[str] = [""] * len(entries)
    if step is not None:
        found, names = _with_kernels(found, entries, step, shares)
    if to is not None:
        write_text(Path(to), _csv(entries, names), force=force)
    return found


@contextlib.contextmanager
def _opened(spec: str, step: Step | None) -> Iterator[tuple[Gpu, Launcher | None, Clock, Evidence]]:
    kind, rest = split_spec(spec)
    if kind == "replay":
        raise UsageError("a table has no clocks to watch", hint="name nvml:0 or sim:rtx3080ti")
    if kind == "sim":
        with simulated_rig(rest) as rig:
            yield rig.gpu, rig.launcher if step else None, rig.clock, Evidence.SIMULATED
        return
    index = gpu_index(rest)
    with nvml_session():
        gpu = NvmlGpu(index)
        if step is None:
            yield gpu, None, SystemClock(), Evidence.MEASURED
            return
        with held_launcher(gpu, step) as launcher:
            yield gpu, launcher, SystemClock(), Evidence.MEASURED


def _taken(
    gpu: Gpu,
    launcher: Launcher | None,
    clock: Clock,
    pace: tuple[float, float],
    step: Step | None,
) -> tuple[tuple[Entry, ...], list[float]]:
    """Return the readings, and how long each launch of the step takes."""
    duration_s, rate_hz = pace
    if launcher is None or step is None:
        return Sampler(gpu, clock, rate_hz).run(duration_s), []
    shares = _durations_s(launcher, clock, step)
    with launcher.loop([step.kernels[index] for index in step.order]) as loop:
        clock.sleep_s(_WARM_S)
        sampler = Sampler(gpu, clock, rate_hz, steps=lambda: loop.progress().launches)
        return sampler.run(duration_s), shares


def _durations_s(launcher: Launcher, clock: Clock, step: Step) -> list[float]:
    """Return how long each launch takes when its kernel runs alone."""
    each = []
    for kernel in step.kernels:
        with launcher.loop([kernel]) as loop:
            while loop.progress().launches == 0:
                clock.sleep_s(_TRIAL_S)
            seen = loop.progress()
        each.append(seen.elapsed_s / seen.launches)
    return [each[index] for index in step.order]


def _summary(
    evidence: Evidence, info: GpuInfo, entries: Sequence[Entry], duration_s: float
) -> ClockLog:
    core = [float(entry.core_mhz) for entry in entries if entry.core_mhz is not None]
    power = [entry.power_w for entry in entries]
    reasons = 0
    for entry in entries:
        reasons |= entry.event_reasons
    return ClockLog(
        evidence=evidence,
        gpu=info,
        entries=len(entries),
        rate_hz=len(entries) / duration_s,
        core_mhz=(min(core), sum(core) / len(core), max(core)),
        power_w=(min(power), sum(power) / len(power), max(power)),
        event_reasons=reasons,
    )


def _with_kernels(
    found: ClockLog, entries: Sequence[Entry], step: Step, shares: Sequence[float]
) -> tuple[ClockLog, list[str]]:
    """Lay the log over the step."""
    import msgspec  # noqa: PLC0415 - only here

    at_s = np.array([entry.at_s for entry in entries])
    period = fit_period(at_s, np.array([entry.steps or 0 for entry in entries]))
    launches = launch_at(at_s, period, np.array(shares))
    names = [step.kernels[step.order[launch]].name for launch in launches.tolist()]
    members: dict[str, list[Entry]] = defaultdict(list)
    for name, entry in zip(names, entries, strict=True):
        members[name].append(entry)
    kernels = tuple(
        KernelClock(
            kernel=kernel.name,
            entries=len(some),
            core_mhz=sum(entry.core_mhz or 0 for entry in some) / len(some),
            power_w=sum(entry.power_w for entry in some) / len(some),
        )
        for kernel in step.kernels
        if (some := members.get(kernel.name))
    )
    return msgspec.structs.replace(found, step_s=period.step_s, kernels=kernels), names


def _csv(entries: Sequence[Entry], names: Sequence[str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry, name in zip(entries, names, strict=True):
        writer.writerow(
            (
                f"{entry.at_s:.6f}",
                entry.core_mhz,
                entry.mem_mhz,
                f"{entry.power_w:.3f}",
                entry.event_reasons,
                entry.steps,
                name,
            )
        )
    return out.getvalue()

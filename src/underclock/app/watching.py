"""watch: a log of a GPU's clocks, and with a step the kernel that ran at each moment."""

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from underclock.app.backends import OpenGpu, open_gpu
from underclock.campaign.progress import Tally
from underclock.core.step.following import fit_period, launch_at
from underclock.errors import UsageError
from underclock.hw.base import Clock, Launcher
from underclock.hw.gpu_names import parse_gpu
from underclock.hw.watching import Entry, Sampler, WatchedLoop
from underclock.records import Evidence, GpuInfo, Step, ThrottleReason
from underclock.records.observed import ClockLog, KernelClock
from underclock.store import check_output, write_text
from underclock.tracing.source import StepFile, StepFunction

_WARM_S = 2.0
_TRIAL_S = 0.1
COLUMNS = ("at_s", "core_mhz", "mem_mhz", "power_w", "throttle_reasons", "steps", "kernel")


def watch(
    gpu: str,
    *,
    duration_s: float = 10.0,
    rate_hz: float = 1000.0,
    step: Step | None = None,
    to: str | Path | None = None,
    force: bool = False,
    run: StepFunction | StepFile | None = None,
    progress: Callable[[Tally], None] = lambda _tally: None,
) -> ClockLog:
    """Log a GPU's clocks, power and throttle reasons; set nothing.

    Args:
        gpu: ``nvml:INDEX``, ``sim:NAME`` or ``sim:NAME#UNIT``.
        rate_hz: Readings a second.
        step: Run this over and over meanwhile, and say which kernel ran at each reading.
        run: The step's function, or where it may be found.
        progress: Told of every kernel that is timed, and twice a second of the log.

    Raises:
        UsageError: No such GPU, or one that exists on paper only.
        DeviceError: The GPU does not answer, or cannot run the step.
        DataError: Too few steps fit into the time.
    """
    if not (0 < duration_s < math.inf and 0 < rate_hz < math.inf):
        raise UsageError(f"cannot log for {duration_s:g} s at {rate_hz:g} Hz")
    if to is not None:
        check_output(Path(to), force=force, begins=COLUMNS[0])
    with open_gpu(parse_gpu(gpu), runs=step is not None, step=step, run=run) as opened:
        entries, shares = _taken(opened, (duration_s, rate_hz), step, progress)
        log = _summary(opened.evidence, opened.gpu.info(), entries, duration_s)
    names: Sequence[str] = [""] * len(entries)
    if step is not None:
        log, names = _with_kernels(log, entries, step, shares)
    if to is not None:
        write_text(Path(to), _csv(entries, names), force=force)
    return log


def _taken(
    opened: OpenGpu, pace: tuple[float, float], step: Step | None, progress: Callable[[Tally], None]
) -> tuple[tuple[Entry, ...], list[float]]:
    """Return the readings, and how long each launch of the step takes."""
    duration_s, rate_hz = pace
    gpu, clock = opened.gpu, opened.clock

    def tell(entries: int, at_s: float) -> None:
        progress(
            Tally(
                done=entries,
                total=None,
                gpu_s=at_s,
                doing="reading clocks and power",
                phase="log",
                phase_s=at_s,
                left_s=max(0.0, duration_s - at_s),
            )
        )

    if opened.launcher is None or step is None:
        return Sampler(gpu, clock, rate_hz, tell=tell).run(duration_s), []
    shares = _durations_s(opened.launcher, clock, step, progress)
    with opened.launcher.loop([step.kernels[index] for index in step.order]) as loop:
        clock.sleep_s(_WARM_S)
        sampler = Sampler(gpu, clock, rate_hz, steps=lambda: loop.progress().launches, tell=tell)
        return sampler.run(duration_s), shares


def _durations_s(
    launcher: Launcher, clock: Clock, step: Step, progress: Callable[[Tally], None]
) -> list[float]:
    """Return how long each launch takes when its kernel runs alone."""
    each: list[float] = []
    begun_s = clock.now_s()
    for kernel in step.kernels:
        spent_s = clock.now_s() - begun_s
        progress(
            Tally(
                done=len(each),
                total=len(step.kernels),
                gpu_s=spent_s,
                doing=f"{kernel.name} alone",
                phase="timing kernels",
            )
        )
        with launcher.loop([kernel]) as loop:
            watched = WatchedLoop(loop, clock, f"timing {kernel.name!r} alone")
            while (ran := watched.progress()).launches == 0:
                clock.sleep_s(_TRIAL_S)
        each.append(ran.elapsed_s / ran.launches)
    return [each[index] for index in step.order]


def _summary(
    evidence: Evidence, info: GpuInfo, entries: Sequence[Entry], duration_s: float
) -> ClockLog:
    core = [float(entry.core_mhz) for entry in entries if entry.core_mhz is not None]
    power = [entry.power_w for entry in entries]
    reasons = ThrottleReason.NONE
    for entry in entries:
        reasons |= entry.throttle_reasons
    return ClockLog(
        evidence=evidence,
        gpu=info,
        entries=len(entries),
        rate_hz=len(entries) / duration_s,
        core_mhz=(min(core), sum(core) / len(core), max(core)),
        power_w=(min(power), sum(power) / len(power), max(power)),
        throttle_reasons=reasons,
    )


def _with_kernels(
    log: ClockLog, entries: Sequence[Entry], step: Step, shares: Sequence[float]
) -> tuple[ClockLog, list[str]]:
    """Lay the log over the step."""
    import msgspec

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
    return msgspec.structs.replace(log, step_s=period.step_s, kernels=kernels), names


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
                int(entry.throttle_reasons),
                entry.steps,
                name,
            )
        )
    return out.getvalue()

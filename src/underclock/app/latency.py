"""``underclock latency``: how long a GPU takes to change its clocks."""

from collections.abc import Iterator, Sequence

import click

import underclock
from underclock.app.backends import in_virtual_time, open_gpu
from underclock.app.options import MHZ_LIST, delivered
from underclock.app.output import Delivery, counted_bar
from underclock.campaign.switches import Bench, Progress, measure_moves, measure_switches
from underclock.errors import NotPermittedError, NotSupportedError, UsageError
from underclock.hw.base import parse_gpu
from underclock.hw.cuda.feed import CudaSmallKernels
from underclock.hw.nvml_calls import READ_ONLY, is_read_only, ways
from underclock.hw.simulated.launcher import VirtualLauncher, VirtualSmallKernels
from underclock.records import Provenance
from underclock.records.latencies import ClockReading, DriverMoves, LatencyTable, Quantiles
from underclock.tracing.captured import check_device
from underclock.tracing.held import may_lock
from underclock.units import format_mhz

_LINE = "{:<19} {:<7} {:>14} {:>14} {:>14} {:>5}"


def measure_latency(
    gpu: str,
    *,
    targets: Sequence[int] = (),
    repeats: int = 20,
    watch_s: float = 60.0,
    seed: int = 0,
    progress: Progress = lambda _done, _of, _next: None,
) -> LatencyTable | DriverMoves:
    """Measure how long a GPU takes to change its clocks; all are given back at the end.

    Args:
        gpu: ``sim:NAME`` or ``nvml:INDEX``.
        targets: Core clocks in MHz; by default two. Auto and two of the memory are added.
        repeats: Of each change of a clock, there and back.
        watch_s: Where clocks may not be set: for how long the driver's own moves are watched.
        seed: Of a simulated GPU's noise.
        progress: Takes how many pieces are done, of how many, and what is next.

    Returns:
        What `plan` takes; where clocks may not be set, the driver's own moves, which it does not.

    Raises:
        UsageError: A table, a clock that the GPU does not list, or no repeats.
        NotSupportedError: MIG, no PyTorch, or a clock that cannot be read.
        NotPermittedError: Targets are named, and clocks may not be set.
        NotAppliedError: The driver follows no clock that was asked for.
    """
    name, forbidden = parse_gpu(in_virtual_time(gpu)), is_read_only()
    if repeats < 1:
        raise UsageError(f"cannot repeat {repeats} times", hint="once at least")
    with open_gpu(name, seed=seed, runs=name.is_simulated) as opened:
        on = opened.gpu
        if isinstance(opened.launcher, VirtualLauncher):
            kernels: VirtualSmallKernels | CudaSmallKernels = VirtualSmallKernels(
                opened.launcher.gpu, seed=seed
            )
        else:
            on.check_whole()
            kernels = CudaSmallKernels(on.supported_core_mhz()[-1])
            check_device(on.uuid())
        try:
            on.observed()
        except NotSupportedError as exc:
            raise NotSupportedError(f"nothing shows when this GPU changes clocks: {exc}") from exc
        if unlisted := set(targets) - set(on.supported_core_mhz()):
            raise UsageError(
                f"this GPU does not list a core clock of {min(unlisted)} MHz",
                hint="see `underclock doctor` for its clocks",
            )
        bench = Bench(gpu=on, kernels=kernels, clock=opened.clock)
        came = Provenance(seed=seed if name.is_simulated else None, version=underclock.__version__)
        if may_lock() and not forbidden:
            switches, warnings = measure_switches(bench, targets, repeats, progress)
            return LatencyTable(
                evidence=opened.evidence,
                gpu=on.info(),
                provenance=came,
                switches=switches,
                warnings=warnings,
            )
        why = f"{READ_ONLY} is set" if forbidden else ways()[0].why
        why = f"clocks may not be set here ({why})"
        if targets:
            hint = "without --targets the driver's own moves are watched"
            raise NotPermittedError(f"{why}, so none can be asked for", hint=hint)
        up, down = measure_moves(bench, watch_s, progress)
        warnings = (f"{why}: the driver's own moves, transition only; switching cannot be seen",)
        if not up + down:
            warnings += (f"in {watch_s:g} s the driver moved no clock by itself",)
        return DriverMoves(
            evidence=opened.evidence,
            gpu=on.info(),
            provenance=came,
            up=up,
            down=down,
            warnings=warnings,
        )


@click.command(name="latency")
@click.option("--gpu", required=True, metavar="GPU", help="sim:rtx3080ti or nvml:0.")
@click.option("--targets", type=MHZ_LIST, metavar="MHZ,MHZ", help="Core clocks. [default: two]")
@delivered("latencies")
def command(*, gpu: str, targets: tuple[int | None, ...] | None, to: Delivery) -> None:
    """Measure how long a GPU takes to change its clocks.

    Locks clocks while a small kernel runs over and over, and gives them back at the end. Where
    clocks may not be set, it watches the driver's own moves under the power limit.

    Example: underclock latency --gpu sim:rtx3080ti -o latency.json
    """
    to.check()
    with counted_bar("changing clocks") as show:
        found = measure_latency(gpu, targets=[mhz for mhz in targets or () if mhz], progress=show)
    to.give(found, lambda: latency_lines(found))


def latency_lines(found: LatencyTable | DriverMoves) -> Iterator[str]:
    """Yield a line for each change and reader, under what its columns are."""
    yield f"{found.gpu and found.gpu.name}, {found.evidence}: median/p95/p99 in ms"
    yield _LINE.format("", "", "call", "switching", "transition", "n")
    every: list[tuple[str, Quantiles | None, tuple[ClockReading, ...]]]
    if isinstance(found, DriverMoves):
        every = [("core up", None, found.up), ("core down", None, found.down)]
    else:
        every = [
            (f"{s.domain} {format_mhz(s.from_mhz)} to {format_mhz(s.to_mhz)}", s.call, s.readings)
            for s in found.switches
        ]
    for what, call, readings in every:
        for seen in readings:
            took = (_text(each) for each in (call, seen.switching, seen.transition))
            yield _LINE.format(what, seen.by, *took, seen.transition.n)


def _text(took: Quantiles | None) -> str:
    if took is None:
        return "-"
    times_ms = (1e3 * each for each in (took.median_s, took.p95_s, took.p99_s))
    return "/".join(f"{each:.2f}" if each < 1 else f"{each:.3g}" for each in times_ms)

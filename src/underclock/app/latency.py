"""``underclock latency``: how long a GPU takes to change its clocks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from underclock.app.options import delivered, seed_option
from underclock.app.output import Delivery, progress_bar
from underclock.errors import UsageError

if TYPE_CHECKING:
    from underclock.campaign.progress import Tally
    from underclock.records.latencies import LatencyTable

TARGETS, REPEATS = 6, 20


def measure_latency(
    gpu: str,
    *,
    targets: int = TARGETS,
    repeats: int = REPEATS,
    seed: int = 0,
    progress: Callable[["Tally"], None] | None = None,
) -> "LatencyTable":
    """Measure how long a GPU takes to change its clocks.

    Clocks are given back at the end, whatever happens.

    Args:
        gpu: ``sim:NAME`` or ``sim:NAME#UNIT``.
        targets: How many core clocks to sample, evenly over those the driver lists; auto and every
            memory clock are sampled beside them.
        repeats: Of every switch.
        seed: Of a simulated GPU's noise, and of the moments at which changes are asked for.
        progress: Told of every switch.

    Raises:
        UsageError: No GPU whose clocks could change, too few targets, or no repeats.
        NotSupportedError: A real GPU; this version has nothing to run on it.
        NotPermittedError: This process may not lock clocks.
        NotAppliedError: The GPU does not follow its locks.
        DeviceError, MeasurementError: From the GPU.
    """
    import msgspec
    import numpy as np

    import underclock
    from underclock.app.backends import open_rig
    from underclock.campaign.switches import ORIGINS, Stand, sample_switches
    from underclock.hw.base import Capability
    from underclock.hw.gpu_names import parse_gpu
    from underclock.hw.lease import ClockLeases
    from underclock.hw.simulated.ticker import VirtualTicker
    from underclock.records import Evidence, Provenance

    if targets < ORIGINS or repeats < 1:
        raise UsageError(
            f"cannot measure {targets} targets {repeats} times",
            hint=f"at least {ORIGINS} targets and one repeat",
        )
    name = parse_gpu(gpu)
    name.need(Capability.SWITCH)
    with open_rig(name, seed=seed) as rig:
        stand = Stand(
            gpu=rig.gpu,
            leases=ClockLeases(rig.gpu),
            ticker=VirtualTicker(rig.device, rig.clock, seed=seed),
            clock=rig.clock,
            random=np.random.default_rng([seed, 5]),
        )
        table = sample_switches(
            stand, targets=targets, repeats=repeats, evidence=Evidence.SIMULATED, progress=progress
        )
    return msgspec.structs.replace(
        table, provenance=Provenance(seed=seed, version=underclock.__version__)
    )


@click.command(name="latency")
@click.option("--gpu", required=True, metavar="GPU", help="sim:rtx3080ti.")
@click.option("--targets", default=TARGETS, show_default=True, help="Core clocks to sample.")
@click.option("--repeats", default=REPEATS, show_default=True, help="Of every change of a clock.")
@seed_option
@delivered("latencies", required=True)
def command(*, to: Delivery, **asked: Any) -> None:  # noqa: ANN401 - of `measure_latency`, by its names
    """Measure how long a GPU takes to change its clocks.

    Locks clocks, and gives them back at the end. Auto and every memory clock are sampled too.

    Example: underclock latency --gpu sim:rtx3080ti -o latency.json
    """
    from underclock.report import latency_table

    to.check()
    with progress_bar("changing clocks") as show:
        table = measure_latency(**asked, progress=show)
    to.give(table, lambda: (latency_table(table),))

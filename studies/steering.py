"""Steered against locked samples of the same kernels on a simulated GPU. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/steering.py [CAMPAIGNS]

A campaign with ``--clocks steer`` sets no clock. What its fit says of every kernel at every clock
in reach is compared with samples of that kernel at held clocks, taken by another campaign, and
with the simulator's constants, which only the judge sees.
"""

import dataclasses
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pages import fill, markdown
from underclock.app.measuring import measure
from underclock.arrays import Bools, Floats
from underclock.campaign.survey import Campaign, ClockControl, Grid
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.estimate import estimate
from underclock.core.model.fitting import temperature_of
from underclock.core.model.posterior import Posterior
from underclock.core.model.predicted_change import TWO_SIDED
from underclock.core.model.predictive import posterior_of
from underclock.core.steering.reach import reach_mhz
from underclock.core.step.cap import driver_says
from underclock.gpus.models import encode, gpu_model
from underclock.physics.costs import busy_w, duration_s
from underclock.records import SampleSet, Step
from underclock.workloads import workload

GPU = "h200"
WORKLOAD, SIZES = "gpt3-xl", {"layers": 1, "batch": 40}
RUNS = ((None, 1), (None, 2), (None, 3), (600.0, 1), (600.0, 2))  # power limit in W, seed
HELD_MHZ = 30  # between clocks at which kernels are measured for comparison


@dataclass(frozen=True)
class Outcome:
    """One campaign, compared.

    Attributes:
        limit_w: Power limit; ``None`` for the GPU's own.
        seed: Of the simulator's noise.
        measurements: That it took, in and out of company.
        gpu_s: The GPU's time it took.
        reach: Lowest and highest core clock in MHz.
        locked: Errors of time and energy against samples at held clocks. Shape (2, N).
        truth: Against the simulator's constants, at every clock in reach. Shape (2, M).
        spread: Standard deviation that the fit states for each of ``truth``. Shape (2, M).
        step: Of the step's energy and time at each clock that all kernels reach. Shape (2, C).
    """

    limit_w: float | None
    seed: int
    measurements: int
    gpu_s: float
    reach: tuple[float, float]
    locked: Floats
    truth: Floats
    spread: Floats
    step: Floats

    @property
    def name(self) -> str:
        """What it is called in a table."""
        return f"{self.limit_w or gpu_model(GPU).limit_w[0]:.0f} W, {self.seed}"


def limited(limit_w: float | None, folder: Path) -> str:
    """Return how to open the simulated GPU under a power limit."""
    if limit_w is None:
        return f"sim:{GPU}"
    model = gpu_model(GPU)
    path = folder / f"{GPU}-{limit_w:.0f}.json"
    path.write_text(encode(dataclasses.replace(model, limit_w=(limit_w, *model.limit_w[1:]))))
    return f"sim:{path}"


def run(limit_w: float | None, seed: int, step: Step, folder: Path) -> Outcome:
    """Steer, hold clocks, and compare."""
    spent = [0.0]
    gpu = limited(limit_w, folder)
    steered = measure(
        step,
        gpu=gpu,
        to=folder / f"steered{limit_w}-{seed}.db",
        campaign=Campaign(clocks=ClockControl.STEER),
        seed=seed,
        progress=lambda tally: spent.__setitem__(0, tally.gpu_s),
    )
    fit = estimate(steered)
    reach = reach_mhz(steered)
    if reach is None:
        raise AssertionError("nothing ran in company")
    posterior = at_explicit_clocks(fit, steered)
    lowest = math.ceil(reach[0] / 15) * 15
    held = tuple(range(1980, lowest - 1, -HELD_MHZ))
    locked = measure(
        step,
        gpu=gpu,
        to=folder / f"locked{limit_w}-{seed}.db",
        campaign=Campaign(grid=Grid.FULL, core_mhz=held, mem_mhz=(None,), in_situ=False),
        measuring=steered.provenance.measuring if steered.provenance else None,
        seed=seed + 1000,
    )
    truth, spread, whole = against_truth(posterior, fit.can, steered)
    return Outcome(
        limit_w=limit_w,
        seed=seed,
        measurements=len(steered.mixed),
        gpu_s=spent[0],
        reach=reach,
        locked=against_locked(posterior, fit.can, locked),
        truth=truth,
        spread=spread,
        step=whole,
    )


def at_explicit_clocks(fit: CostEstimate, steered: SampleSet) -> Posterior:
    """Return what the fit says at clocks as asked, also where a kernel alone hits the cap."""
    return posterior_of(
        fit.model,
        fit.posterior.settings,
        temperature_c=temperature_of(steered),
        limit_w=math.inf,
    )


def against_locked(posterior: Posterior, can: Bools, locked: SampleSet) -> Floats:
    """Return errors of time and energy against samples whose clocks held. Shape (2, N)."""
    column = {clocks: c for c, clocks in enumerate(posterior.settings)}
    row = {kernel.name: k for k, kernel in enumerate(locked.kernels)}
    errors = []
    for sample in locked.samples:
        k, c = row[sample.kernel], column.get(sample.asked)
        if c is None or not can[k, c] or driver_says(sample.throttle_reasons):
            continue
        log_s = posterior.log_s[k, c]
        log_j = log_s + posterior.log_w[k, c]
        errors.append((log_s - math.log(sample.time_s), log_j - math.log(sample.energy_j)))
    return np.array(errors).T


def against_truth(
    posterior: Posterior, can: Bools, steered: SampleSet
) -> tuple[Floats, Floats, Floats]:
    """Return errors against the simulator's constants, stated spreads, and errors of the step."""
    model = gpu_model(GPU)
    core = np.array([float(clocks.core_mhz or 0) for clocks in posterior.settings])
    mem = np.full_like(core, model.mem_mhz[-1])
    kernels = [model.kernel(kernel) for kernel in steered.kernels]
    counts = np.array([kernel.count for kernel in steered.kernels], dtype=float)[:, None]
    time_s = np.stack([duration_s(model.constants, one, core, mem) for one in kernels])
    warm_c = temperature_of(steered)
    power_w = np.stack([busy_w(model.constants, one, core, mem, warm_c) for one in kernels])
    found_s, found_j = posterior.costs(counts[:, 0])
    true = np.stack([counts * time_s, counts * time_s * power_w])
    found = np.stack([found_s, found_j])
    spread = np.sqrt(np.stack([posterior.variance(1.0, 0.0), posterior.variance(1.0, 1.0)]))
    everywhere = can.all(axis=0)
    whole = found[:, :, everywhere].sum(axis=1) / true[:, :, everywhere].sum(axis=1) - 1.0
    return np.log(found / true)[:, can], spread[:, can], whole


def compared(outcomes: Sequence[Outcome]) -> str:
    """Return the table of errors."""
    heads = ("limit, seed", "mixes", "GPU s", "reach", "against", "N", "time: rms, max")
    rows: list[Sequence[object]] = [(*heads, "energy: rms, mean, max")]
    for one in outcomes:
        reach = f"{one.reach[0]:.0f} to {one.reach[1]:.0f} MHz"
        begin: Sequence[object] = (one.name, one.measurements, f"{one.gpu_s:.0f}", reach)
        for what, errors in (("held clocks", one.locked), ("constants", one.truth)):
            time, energy = errors * 100
            times = f"{rms(time):.2f} %, {largest(time):.2f} %"
            energies = f"{rms(energy):.2f} %, {energy.mean():+.2f} %, {largest(energy):.2f} %"
            rows.append((*begin, what, errors.shape[1], times, energies))
            begin = ("", "", "", "")
    return markdown(rows)


def intervals(outcomes: Sequence[Outcome]) -> str:
    """Say how often the fit's own intervals hold."""
    held = [np.abs(one.truth) <= TWO_SIDED * one.spread for one in outcomes]
    time, energy = np.concatenate(held, axis=1).mean(axis=1) * 100
    least_time, least_energy = np.min([each.mean(axis=1) for each in held], axis=0) * 100
    return (
        f"Of all kernels and clocks, the fit's own 95 % intervals hold {time:.0f} % of the times "
        f"and {energy:.0f} % of the energies (least of a campaign: {least_time:.0f} % and "
        f"{least_energy:.0f} %)."
    )


def sums(outcomes: Sequence[Outcome]) -> str:
    """Return how far the step as a sum of kernels is off."""
    rows = [
        (one.name, *(f"{largest(errors) * 100:.2f} %" for errors in one.step)) for one in outcomes
    ]
    return markdown([("limit, seed", "time", "energy"), *rows])


def rms(errors: Floats) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(errors**2)))


def largest(errors: Floats) -> float:
    """Return the largest, whatever its sign."""
    return float(np.abs(errors).max())


def main() -> None:
    """Run all campaigns, or the first so many, and fill the page."""
    step = workload(WORKLOAD, SIZES)
    some = RUNS[: int(sys.argv[1])] if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [run(limit_w, seed, step, Path(folder)) for limit_w, seed in some]
    parts = {"errors": compared(outcomes), "held": intervals(outcomes), "sums": sums(outcomes)}
    fill("steering", parts, repeats=f"{len(some)} campaigns, a seed each.", whole=some == RUNS)


if __name__ == "__main__":
    main()

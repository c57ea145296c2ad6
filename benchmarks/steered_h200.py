"""What steering told of real H200s, from the samples beside the page. Writes docs/evidence.

    OMP_NUM_THREADS=1 python benchmarks/steered_h200.py

Nothing here is simulated, but for the last section: it compares ``sim:h200`` with what it was
fitted to.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from calibrate_h200 import (
    EVIDENCE,
    PEAK_W,
    SHARED,
    by_exponent,
    measured,
    ratio_in_step,
    read,
    settled,
    shared_constants,
)
from underclock.arrays import Floats
from underclock.core.costs.power_window import has_company
from underclock.core.costs.step import settled_step
from underclock.core.model.estimate import estimate
from underclock.core.model.rows import rows_of
from underclock.core.steering.agenda import ALONE
from underclock.core.steering.taking_off import reach_mhz
from underclock.gpus.catalogue import gpu_model
from underclock.gpus.specs import SPECS
from underclock.records import Kind, SampleSet
from underclock.stages.backends import open_measurer

FILES = ("layer-1", "layer-2", "layer-3", "xl-3", "small-3")
PAGE = EVIDENCE / "steering.md"
_BIG_S = 100e-6
_WANTED_KERNEL, _WANTED_SUM, _WANTED_ENERGY, _WANTED_MHZ = 0.02, 0.01, 0.015, 25.0
_SPREAD = 1.1  # of clocks at least, to tell an exponent
_HEAD = """# Kernels steered on real H200s

`OMP_NUM_THREADS=1 python benchmarks/steered_h200.py` writes this page from the samples beside it
(`steered-*.json`). They were **measured** on {boards} H200s on 2026-11-22 with
`underclock measure --clocks steer`: driver 580.159.04, PyTorch 2.11.0+cu130, power limit 700 W.
Nothing was set: no clock, limit or mode; company (a hot product, or idling) made the power cap
choose other clocks. The machines are shared and virtual. Boards are named by a hash of their UUID.

{files}

`small-3` is incomplete: not every kernel was reached, so it is kept and not evaluated. Files of
boards 1 and 2 are older; clocks while launches were timed are recomputed in them from their
counts of cycles. Steering the 80 kernels of the 24-layer step took 500 s (wanted:
10 minutes at most).
"""
_PREDICTED = """
## The step, predicted from its kernels

Wanted: the clock within 25 MHz, the sum of launches within 1 %, energy within 1.5 %, every kernel
of more than 100 µs within 2 % of its duration in the step. Durations of launches in the step come
from CUPTI, scaled to the step's own time. What misses is marked **missed**.

(a) From kernels in company and the step in company; the step at auto took no part.

{without}

(b) With the step at auto, which is what a plan rests on. This shows how well the model can be made
to fit; it is no prediction.

{with_}
"""
_REST = """
## How times follow the core clock

Exponent of time against clock, from launches in the step and alone, kernels of more than 100 µs.
The 24-layer step beside its companion is left out: it is longer than the cap averages over, so its
clock is not the round's, nor the one that its spin tells.

{exponents}

The range (1440 to 1980 MHz) is too narrow to tell how sharply core and DRAM parts join. Mean error
of the layer's times by the exponent p of the model: {by_exponent}. `sim:h200` keeps 3.4.

## A peak of power

There is a power that no kernel exceeds, whatever the mean and whatever clock is read: products
thinned out by idling read 1980 MHz and take as long as at about 1800. `sim:h200` has {peak:.0f} W.

{peaks}

## In the step and alone

Power in the step over power of the same kernels by themselves, from the step in company:

{ratios}

## The simulated H200

`benchmarks/calibrate_h200.py` fits `sim:h200` to `steered-layer-3` (what kernels share, and the
layer's kernels) and `steered-xl-3` (its kernels): {calibration}. *Held-out* is the 24-layer step:
shared constants from the layer, four rows of each kernel fit its own, its other times are
predicted, and its power alone and away from the cap, where no fit had seen it. Errors are means
over all kernels, those of a microsecond included.

Run on the simulator by the measuring code, against the step as it was measured; the step at auto
took part in kernels' times and in the ratio above, so this is a fit, not a prediction:

{simulated}

GPT-3 steps that are known by their FLOPs and bytes run on rates derived from the same kernels: they
are llm.c's, which nobody measured here, so those are **uncalibrated** beyond these rates.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A step as predicted against the step as it ran.

    Attributes:
        predicted_mhz: Clock at which it settles.
        read_mhz: Clock that was read.
        time: Sum of launches against the step's time, as a fraction.
        energy: The same of energy.
        kernels: Error of each kernel's duration, of those above 100 µs.
    """

    predicted_mhz: float
    read_mhz: float
    time: float
    energy: float
    kernels: Floats


def compare(sample_set: SampleSet, *, with_auto: bool) -> Compared:
    """Predict the step at auto.

    Args:
        sample_set: As measured.
        with_auto: Whether the step at auto takes part.
    """
    whole = [s for s in sample_set.mixed if not s.kernel and s.mix.launches]
    own = [s for s in whole if not has_company(s.mix)]
    known = sample_set
    if not with_auto:
        rest = tuple(s for s in sample_set.mixed if s not in own)
        known = msgspec.structs.replace(sample_set, mixed=rest)
    table = estimate(known).table
    plain = [s for s in own if s.mix == ALONE]
    counts = np.array([kernel.count for kernel in sample_set.kernels])
    step_s = float(np.mean([s.time_s for s in sample_set.in_situ]))
    step_j = float(np.mean([s.energy_j for s in sample_set.in_situ]))
    real_s = np.mean([s.kernel_s for s in plain], axis=0)
    at_auto = settled_step(table, np.full(len(sample_set.order), table.baseline))
    each_s = np.bincount(np.array(sample_set.order), at_auto.time_s) / counts
    off = each_s / (real_s * step_s / (real_s * counts).sum()) - 1.0
    return Compared(
        predicted_mhz=at_auto.mean_mhz,
        read_mhz=float(np.mean([s.core_mhz for s in plain])),
        time=float((each_s * counts).sum()) / step_s - 1.0,
        energy=float(at_auto.energy_j.sum()) / step_j - 1.0,
        kernels=off[real_s >= _BIG_S],
    )


def markdown(head: str, rows: list[str]) -> str:
    """Return a table in Markdown."""
    columns = head.count("|") - 1
    return "\n".join([head, "|" + "---|" * columns, *rows])


def _marked(text: str, *, missed: bool) -> str:
    return f"{text} **missed**" if missed else text


def _predictions(sets: dict[str, SampleSet], *, with_auto: bool) -> str:
    rows = []
    for name, one in sets.items():
        if len({s.kernel for s in one.mixed if s.kernel}) < len(one.kernels):
            rows.append(f"| {name} | not every kernel was reached | | | | |")
            continue
        found = compare(one, with_auto=with_auto)
        off_mhz = found.predicted_mhz - found.read_mhz
        beyond = int((np.abs(found.kernels) > _WANTED_KERNEL).sum())
        rms = math.sqrt(float((found.kernels**2).mean()))
        cells = (
            name,
            _marked(
                f"{found.predicted_mhz:.0f} for {found.read_mhz:.0f} MHz",
                missed=abs(off_mhz) > _WANTED_MHZ,
            ),
            _marked(f"{found.time:+.2%}", missed=abs(found.time) > _WANTED_SUM),
            _marked(f"{found.energy:+.2%}", missed=abs(found.energy) > _WANTED_ENERGY),
            _marked(f"{beyond} of {len(found.kernels)}", missed=beyond > 0),
            f"{rms:.2%}, {np.abs(found.kernels).max():.2%}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return markdown(
        "| file | clock | sum of launches | energy | kernels beyond 2 % | rms, greatest |", rows
    )


def _files(sets: dict[str, SampleSet]) -> str:
    rows = []
    for name, one in sets.items():
        reach = reach_mhz(one) or (math.nan, math.nan)
        warm = [s.temperature_c for s in one.in_situ if s.temperature_c is not None]
        rows.append(
            f"| `steered-{name}` | {one.workload} | {one.gpu.uuid} | {len(one.kernels)} "
            f"| {len(one.mixed)} | {reach[0]:.0f} to {reach[1]:.0f} MHz "
            f"| {min(warm):.0f} to {max(warm):.0f} °C |"
        )
    return markdown("| file | step | board | kernels | mixes | clocks read | step's heat |", rows)


def _exponents(sets: dict[str, SampleSet], names: Iterable[str]) -> str:
    lines = []
    for name in names:
        rows, found = rows_of(settled(sets[name])), []
        for k, kernel in enumerate(sets[name].kernels):
            mine = np.arange(rows.bounds[k], rows.bounds[k + 1])
            mine = mine[rows.windows[0, mine] > 0]
            core_mhz, log_s = rows.core_mhz[mine], rows.log_s[mine]
            if math.exp(np.median(log_s)) < _BIG_S or core_mhz.max() < _SPREAD * core_mhz.min():
                continue
            weight = np.sqrt(rows.windows[0, mine])
            slope = -float(np.polyfit(np.log(core_mhz), log_s, 1, w=weight)[0])
            found.append((kernel.kind is Kind.GEMM, slope, kernel.name))
        for product, what in ((True, "products"), (False, "others")):
            slopes = sorted(slope for is_product, slope, _ in found if is_product is product)
            above = sum(slope >= 0.5 for slope in slopes)  # noqa: PLR2004 - half of it
            lines.append(
                f"| {name} | {what} | {len(slopes)} | {slopes[0]:.2f} | {np.median(slopes):.2f} "
                f"| {slopes[-1]:.2f} | {above} |"
            )
    return markdown(
        "| file | kernels | of them | least | median | greatest | at 0.5 or more |", lines
    )


def _simulated(sets: dict[str, SampleSet]) -> str:
    own = {item.kernel.name: item.kernel for item in gpu_model("h200").own}
    lines = []
    for name in ("layer-3", "xl-3"):
        one = sets[name]
        kernels = [own[f"{name.split('-')[0]}: {one.kernels[k].name}"] for k in one.order]
        with open_measurer("sim:h200") as measurer:
            measurer.warm(kernels)
            run = measurer.measure(kernels)
        time_s = float(np.mean([s.time_s for s in one.in_situ]))
        energy_j = float(np.mean([s.energy_j for s in one.in_situ]))
        lines.append(
            f"| {name} | {time_s * 1e3:.2f} ms | {run.time_s / time_s - 1.0:+.2%} "
            f"| {energy_j:.2f} J | {run.energy_j / energy_j - 1.0:+.2%} |"
        )
    return markdown("| step | time | simulated | energy | simulated |", lines)


def main() -> None:
    """Write the page."""
    sets = {name: read(name) for name in FILES}
    whole = {
        name: estimate(one)
        for name, one in sets.items()
        if {s.kernel for s in one.mixed} >= {k.name for k in one.kernels}
    }
    peaks = [
        f"| {name} | {one.rows.peak_w:.0f} W |"
        if math.isfinite(one.rows.peak_w)
        else f"| {name} | none seen |"
        for name, one in whole.items()
    ]
    ratios = {name: ratio_in_step(sets[name]) for name in whole}
    spec = SPECS["h200"]
    if spec.throughput is None:
        raise AssertionError("the data sheet gives rates")
    gpu = shared_constants(sets[SHARED], spec)
    errors = by_exponent(gpu, measured(sets[SHARED], gpu), spec.throughput.dram_byte_j)
    calibration = dataclasses.replace(gpu_model("h200").calibration, source="these files")
    text = _HEAD.format(boards=len({one.gpu.uuid for one in sets.values()}), files=_files(sets))
    text += _PREDICTED.format(
        without=_predictions(sets, with_auto=False), with_=_predictions(sets, with_auto=True)
    )
    text += _REST.format(
        exponents=_exponents(sets, whole),
        by_exponent=", ".join(f"{error:.2%} at p = {p:g}" for p, error in errors.items()),
        peak=PEAK_W,
        peaks=markdown("| file | peak as the fit sees it |", peaks),
        ratios=markdown(
            "| file | ratio |",
            [f"| {name} | {r.ratio:.3f} ± {r.spread:.3f} |" for name, r in ratios.items()],
        ),
        calibration=calibration,
        simulated=_simulated(sets),
    )
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(EVIDENCE.parents[2])}")


if __name__ == "__main__":
    main()

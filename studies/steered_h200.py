"""What steering told of real H200s, from the samples beside the page. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/steered_h200.py

Nothing here is simulated, but for the last section: it compares ``sim:h200`` with what it was
fitted to.
"""

import dataclasses
import math
from collections.abc import Iterable

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
from gpu_specs import SPECS
from steered_loops import LOOPS, under
from steered_step import BIG_S, Reached, at_auto, compare, looks_at_auto, reached
from underclock.arrays import Floats
from underclock.core.model.estimate import estimate
from underclock.core.model.sample_rows import rows_of
from underclock.core.steering.reach import reach_mhz
from underclock.core.step.under_cap import settled_step
from underclock.gpus.models import gpu_model
from underclock.records import Kind, Pass, SampleSet
from underclock.stages.backends import open_measurer

FILES = (
    *("layer-1", "layer-2", "layer-3", "xl-3", "small-3"),
    *("layer-4", "small-4", "xl-5", "llama-6", "xl-7"),
)
PAGE = EVIDENCE / "steering.md"
_WANTED_KERNEL, _WANTED_SUM, _WANTED_ENERGY, _WANTED_MHZ = 0.02, 0.01, 0.015, 25.0
_MOST_MISSING = 0.05  # of a step's time, in kernels that nobody ran by themselves
_NEGLIGIBLE = 1e-4  # so little of it is left out everywhere
_SPREAD = 1.1  # of clocks at least, to tell an exponent
_HEAD = """# Kernels steered on real H200s

`OMP_NUM_THREADS=1 python studies/steered_h200.py` writes this page from the samples beside it
(`steered-*.json`). They were **measured** on {boards} H200s on 2026-11-22 and 23 with
`underclock measure --clocks steer`: driver 580.159.04, PyTorch 2.11.0+cu130, power limit 700 W.
Nothing was set: no clock, limit or mode; company (a hot product, or idling) made the power cap
choose other clocks. The machines are shared and virtual. Boards are named by a hash of their UUID.

{files}

Files of boards 1 and 2 are older; clocks while launches were timed are recomputed in them from
their counts of cycles. From board 4 on company is spread between the launches of long steps, so
that idling tells the clock of each kernel. Steering the 80 kernels of the 24-layer step took 500 s
(`xl-3`) and 480 s (`xl-5`; wanted: 10 minutes at most); `xl-7` was ended after 550 s, when all but
two kernels of a microsecond had run and the step with them.
"""
_PREDICTED = """
## The step, predicted from its kernels

Wanted: the clock within 25 MHz, the sum of launches within 1 %, energy within 1.5 %, every kernel
of more than 100 µs within 2 % of its duration in the step. Durations of launches in the step come
from CUPTI, scaled to the step's own time. What misses is marked **missed**.

Three files are incomplete: not every kernel ran by itself, nor the step in company. `small-4` had
290 s of the GPU's time and `llama-6` 490 s, and neither could be continued, as the next machine was
another board. Where missing kernels take less than 5 % of the step, they are taken out of it,
launches and time, and rows below are **of the kernels reached**. A missing kernel's power is not
known. It is taken to be the step's; as a kernel draws between nothing and twice that, energy is
unsure by the missing share of time.

{incomplete}

(a) From kernels in company and the step in company; the step at auto took no part.

{without}

(b) With the step at auto, which is what a plan rests on. This shows how well the model can be made
to fit; it is no prediction.

{with_}
"""
_INSIDE = """
### Kernels beyond 2 %

- `layer-4`, (a): a step in company that told each kernel's clock put the short looks, which know
  one clock for all kernels, aside. Products were then known at 1440 to 1510 MHz only, and one was
  predicted 13.8 % too slow. Short looks are kept now (14 to 9 of 45 beyond, rms 3.07 % to 1.62 %).
  Of what is left most are products. Idled out, several of them meet the peak of power (below), so
  they are known near 1490 MHz and from one look beside companions, whose clock hunted by 115 MHz:
  it read 1631 MHz, and its one piece of idling tells 1700.
- `xl-3`, (a): its company came at the end of rounds of 0.25 to 0.8 s, in which the step has no one
  clock. Those looks are not used, so nothing tells its kernels' times inside the step.
- `small-4` and `llama-6`, (a): nothing of the step in company was measured. How much more kernels
  draw in the step than alone is therefore not known, and energy is 6 % too low. That nothing then
  holds the step puts its clock too high.
- `xl-5`: its clock is not one.
- `xl-7`, (a): the clock is too high in both passes, and with it every kernel too fast.

### The clock inside a long step

In the 24-layer step at auto pieces of idling between launches, too short to move the clock much,
tell a higher clock in the forward pass than in the backward pass, in every look. The model has less
of a difference, so its forward kernels are too slow and its backward kernels too fast. Idling lifts
all of them: with it NVML reads 1670 to 1701 MHz on average, without it 1646 to 1660.

{passes}

The model's loop holds the mean of the power whose past fades in 100 ms. This is an **analysis** of
other loops over the same fits as (a): kernels beyond 2 %, and rms. *Late* is how long after a mean
its ceiling applies. *Twice* is the mean of a mean. *Even* counts the last so many milliseconds
alike.

{loops}

A shorter fading mean explains the long step of `xl-5` and spoils the layer, and a delay mends the
layer only: no pair of a fading mean (10 to 100 ms) and a delay (0 to 50 ms) does well on both. Two
fading means of 20 ms in series did on the first six files. `xl-7` was measured on another board
after these loops were chosen, and no loop explains it: its kernels by themselves say that the step
draws less than it does, in both passes alike, so its clock comes out 90 MHz too high whatever the
mean. The step at auto mends that (b). The model keeps 100 ms.
"""
_REST = """
## How times follow the core clock

Exponent of time against clock, from launches in the step and alone, kernels of more than 100 µs.
The 24-layer step of `xl-3` beside its companion is left out: it is longer than the cap averages
over, so its clock is not the round's, nor the one that its spin tells.

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

`studies/calibrate_h200.py` fits `sim:h200` to `steered-layer-3` (what kernels share, and the
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


def markdown(head: str, rows: list[str]) -> str:
    """Return a table in Markdown."""
    columns = head.count("|") - 1
    return "\n".join([head, "|" + "---|" * columns, *rows])


def _marked(text: str, *, missed: bool) -> str:
    return f"{text} **missed**" if missed else text


def _predictions(sets: dict[str, Reached], *, with_auto: bool) -> str:
    rows = []
    for name, one in sets.items():
        if one.share > _MOST_MISSING:
            rows.append(f"| {name} | {one.left_out} kernels were not reached | | | | |")
            continue
        found = compare(one.sample_set, with_auto=with_auto)
        off_mhz = found.predicted_mhz - found.read_mhz
        beyond = int((np.abs(found.kernels) > _WANTED_KERNEL).sum())
        unsure = f" ± {one.share:.1%}" if one.left_out else ""
        cells = (
            f"{name}, {len(one.sample_set.kernels)} kernels reached" if one.left_out else name,
            _marked(
                f"{found.predicted_mhz:.0f} for {found.read_mhz:.0f} MHz",
                missed=abs(off_mhz) > _WANTED_MHZ,
            ),
            _marked(f"{found.time:+.2%}", missed=abs(found.time) > _WANTED_SUM),
            _marked(
                f"{found.energy:+.2%}{unsure}",
                missed=abs(found.energy) > _WANTED_ENERGY,
            ),
            _marked(f"{beyond} of {len(found.kernels)}", missed=beyond > 0),
            _rms_and_greatest(found.kernels),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return markdown(
        "| file | clock | sum of launches | energy | kernels beyond 2 % | rms, greatest |", rows
    )


def _rms_and_greatest(off: Floats) -> str:
    return f"{math.sqrt(float((off**2).mean())):.2%}, {np.abs(off).max():.2%}"


def _passes(sets: dict[str, SampleSet], names: Iterable[str]) -> str:
    """Compare clocks of the passes of a step at auto, as read and as predicted."""
    rows = []
    for name in names:
        one = sets[name]
        real, order = at_auto(one, with_auto=False), np.array(one.order)
        read = [s.kernel_mhz for s in real.own if s.kernel_mhz]
        settled = settled_step(real.table, np.full(len(order), real.table.baseline))
        taken_s = np.bincount(order, settled.time_s)
        mean_mhz = np.bincount(order, settled.time_s * settled.core_mhz) / taken_s
        for which in (Pass.FORWARD, Pass.BACKWARD):
            mine = np.array([kernel.pass_ is which for kernel in one.kernels])
            weight = real.counts[mine] * real.kernel_s[mine]
            seen = [np.average(np.array(mhz)[mine], weights=weight) for mhz in read]
            off = float(taken_s[mine].sum() / weight.sum()) - 1.0
            rows.append(
                f"| {name} | {which} | {' and '.join(f'{mhz:.0f}' for mhz in seen)} MHz "
                f"| {np.average(mean_mhz[mine], weights=weight):.0f} MHz | {off:+.2%} |"
            )
    return markdown("| file | pass | clock read | predicted | its time |", rows)


def _loops(sets: dict[str, SampleSet], names: Iterable[str]) -> str:
    """Say how many kernels are beyond 2 % under several loops."""
    found = {name: at_auto(sets[name], with_auto=False) for name in names}
    rows = []
    for loop in LOOPS:
        cells = [loop.words]
        for name, real in found.items():
            order = np.array(sets[name].order)
            mean_w = real.step_j / real.step_s
            off = real.off(order, under(loop, real.table.launches, order, mean_w)[0])
            beyond = int((np.abs(off) > _WANTED_KERNEL).sum())
            cells.append(f"{beyond}, {math.sqrt(float((off**2).mean())):.2%}")
        rows.append(f"| {' | '.join(cells)} |")
    return markdown(f"| mean of the power | {' | '.join(found)} |", rows)


def _incomplete(parts: dict[str, Reached]) -> str:
    """Name the files that lack kernels."""
    rows = [
        f"| {name} | {one.left_out} of {one.left_out + len(one.sample_set.kernels)} "
        f"| {one.share:.2%} |"
        for name, one in parts.items()
        if one.left_out
    ]
    return markdown("| file | kernels left out | of the step's time |", rows)


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
            if math.exp(np.median(log_s)) < BIG_S or core_mhz.max() < _SPREAD * core_mhz.min():
                continue
            weight = np.sqrt(rows.windows[0, mine])
            slope = -float(np.polyfit(np.log(core_mhz), log_s, 1, w=weight)[0])
            found.append((kernel.kind is Kind.GEMM, slope, kernel.name))
        for product, what in ((True, "products"), (False, "others")):
            slopes = sorted(slope for is_product, slope, _ in found if is_product is product)
            if not slopes:
                lines.append(f"| {name} | {what} | none at clocks 10 % apart | | | | |")
                continue
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
    parts = {name: reached(one) for name, one in sets.items()}
    sets |= {name: one.sample_set for name, one in parts.items() if one.share < _NEGLIGIBLE}
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
        without=_predictions(parts, with_auto=False),
        with_=_predictions(parts, with_auto=True),
        incomplete=_incomplete(parts),
    )
    told = [name for name in whole if any(s.kernel_mhz for s in looks_at_auto(sets[name]))]
    text += _INSIDE.format(passes=_passes(sets, told), loops=_loops(sets, whole))
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

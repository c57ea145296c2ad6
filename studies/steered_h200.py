"""What steering told of real H200s, from the samples beside the page. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/steered_h200.py

Only the last section is simulated: it compares ``sim:h200`` with what it was fitted to.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from calibrate_h200 import read
from pages import fill, markdown
from underclock.app.backends import open_measurer
from underclock.arrays import Floats, Ints
from underclock.core.model.estimate import Estimate, estimate
from underclock.core.steering import clock_range
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_cap import coload_moves_clock
from underclock.core.step.power_capped_step import settled_step
from underclock.gpus.models import gpu_model
from underclock.records import ALONE, SampleSet, Step, Window

FILES = (
    *("layer-1", "layer-2", "layer-3", "xl-3", "small-3"),
    *("layer-4", "small-4", "xl-5", "llama-6", "xl-7"),
    *("layer-9", "small-9", "medium-9", "h100-10"),
)
_WANTED_KERNEL, _WANTED_SUM, _WANTED_ENERGY, _WANTED_MHZ = 0.02, 0.01, 0.015, 25.0
_MOST_MISSING = 0.05  # of a step's time, in kernels that nobody ran by themselves
_NEGLIGIBLE = 1e-4  # so little of it is left out everywhere
BIG_S = 100e-6
"""What kernels take at least whose durations are judged."""


def looks_at_auto(sample_set: SampleSet) -> tuple[Window, ...]:
    """Return the looks at the step at auto, without company that moves its clock."""
    return tuple(s for s in sample_set.mixed if s.is_step and not coload_moves_clock(s.mix))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AtAuto:
    """A step at auto as it ran, and what its kernels are expected to cost.

    Attributes:
        table: Expected costs.
        own: Looks at it.
        counts: Launches of each kernel.
        kernel_s: What a launch of each kernel took.
        step_s: Of the step.
        step_j: Of the step.
    """

    table: CostTable
    own: tuple[Window, ...]
    counts: Ints
    kernel_s: Floats
    step_s: float
    step_j: float

    def off(self, order: Ints, time_s: Floats) -> Floats:
        """Return the error of each kernel's duration, of those above 100 µs.

        Args:
            order: Kernel of each launch.
            time_s: Of each launch, as predicted.
        """
        errors = np.bincount(order, time_s) / self.counts / self.kernel_s - 1.0
        return errors[self.kernel_s >= BIG_S]


def at_auto(sample_set: SampleSet, *, with_auto: bool) -> AtAuto:
    """Fit kernels, and return what the step at auto took.

    Args:
        sample_set: As measured.
        with_auto: Whether the step at auto takes part.
    """
    own = looks_at_auto(sample_set)
    known = sample_set
    if not with_auto:
        rest = [s.untimed() if s.mix == ALONE and s in own else s for s in sample_set.windows]
        windows = tuple(s for s in rest if s not in own)
        known = msgspec.structs.replace(sample_set, windows=windows)
    counts = np.array([kernel.count for kernel in sample_set.kernels])
    step_s = float(np.mean([s.time_s for s in sample_set.in_situ]))
    real_s = np.mean([s.kernel_s for s in own if s.mix == ALONE], axis=0)
    return AtAuto(
        table=estimate(known).costs.table,
        own=own,
        counts=counts,
        kernel_s=real_s * step_s / (real_s * counts).sum(),
        step_s=step_s,
        step_j=float(np.mean([s.energy_j for s in sample_set.in_situ])),
    )


def compare(sample_set: SampleSet, *, with_auto: bool) -> Compared:
    """Predict the step at auto.

    Args:
        sample_set: As measured.
        with_auto: Whether the step at auto takes part.
    """
    real = at_auto(sample_set, with_auto=with_auto)
    order = np.array(sample_set.order)
    settled = settled_step(real.table, np.full(len(order), real.table.baseline))
    time_s = real.table.missed.time * settled.time_s  # before it was brought to the scale of auto
    return Compared(
        predicted_mhz=float(np.average(settled.core_mhz, weights=settled.time_s)),
        read_mhz=float(np.mean([s.core_mhz for s in real.own if s.mix == ALONE])),
        time=float(time_s.sum()) / real.step_s - 1.0,
        energy=real.table.missed.energy * float(settled.energy_j.sum()) / real.step_j - 1.0,
        kernels=real.off(order, time_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A step less its kernels that nobody ran by themselves.

    Attributes:
        sample_set: Of the other kernels.
        left_out: How many kernels are missing.
        share: Part of the step's time that they took.
    """

    sample_set: SampleSet
    left_out: int = 0
    share: float = 0.0


def reached(sample_set: SampleSet) -> Reached:
    """Take the kernels that nobody ran by themselves out of a step.

    Their time is known from their launches inside the step, their power is not: they are taken to
    draw what the step does, so the step's power stays and its energy says nothing.
    """
    ran = {sample.kernel for sample in sample_set.mixed if sample.kernel}
    kept = [k for k, kernel in enumerate(sample_set.kernels) if kernel.name in ran]
    if len(kept) == len(sample_set.kernels):
        return Reached(sample_set=sample_set)
    place = {k: i for i, k in enumerate(kept)}
    counts = np.array([kernel.count for kernel in sample_set.kernels])

    def share(kernel_s: Iterable[float]) -> float:
        """Return the part that missing kernels take of all launches."""
        each_s = counts * np.array(tuple(kernel_s))
        return 1.0 - float(each_s[kept].sum() / each_s.sum())

    def without(sample: Window) -> Window:
        """Return a look at the step without the missing kernels."""
        if not sample.is_step:
            return sample
        step_s = sample.mix.launches * float(counts @ np.array(sample.kernel_s))
        left = 1.0 - share(sample.kernel_s) * step_s / sample.time_s
        return msgspec.structs.replace(
            sample,
            time_s=left * sample.time_s,
            energy_j=left * sample.energy_j,
            kernel_s=tuple(sample.kernel_s[k] for k in kept),
            kernel_mhz=tuple(sample.kernel_mhz[k] for k in kept) if sample.kernel_mhz else (),
        )

    plain = [s.kernel_s for s in sample_set.mixed if s.is_step and s.mix == ALONE]
    missing = share(np.mean(plain, axis=0))
    rest = msgspec.structs.replace(
        sample_set,
        step=Step(
            name=sample_set.workload,
            kernels=tuple(sample_set.kernels[k] for k in kept),
            order=tuple(place[k] for k in sample_set.order if k in place),
        ),
        windows=tuple(without(window) for window in sample_set.windows),
    )
    left_out = len(sample_set.kernels) - len(kept)
    return Reached(sample_set=rest, left_out=left_out, share=missing)


def _marked(text: str, *, missed: bool) -> str:
    return f"{text} **missed**" if missed else text


def _predictions(sets: dict[str, Reached]) -> str:
    each = ("sum of launches", "energy", "kernels beyond 2 %", "rms, greatest")
    rows: list[tuple[str, ...]] = [("file", "clock (a)", *each, "clock (b)", *each)]
    for name, one in sets.items():
        if one.share > _MOST_MISSING:
            cells = (f"{one.left_out} kernels were not reached", *[""] * len(each))
            rows.append((name, *cells, *cells))
            continue
        reached_ = f"{name}, {len(one.sample_set.kernels)} kernels reached"
        found = (_predicted(one, with_auto=with_auto) for with_auto in (False, True))
        rows.append((reached_ if one.left_out else name, *itertools.chain(*found)))
    return markdown(rows)


def _predicted(one: Reached, *, with_auto: bool) -> tuple[str, ...]:
    found = compare(one.sample_set, with_auto=with_auto)
    off_mhz = found.predicted_mhz - found.read_mhz
    beyond = int((np.abs(found.kernels) > _WANTED_KERNEL).sum())
    unsure = f" ± {one.share:.1%}" if one.left_out else ""
    return (
        _marked(
            f"{found.predicted_mhz:.0f} for {found.read_mhz:.0f} MHz",
            missed=abs(off_mhz) > _WANTED_MHZ,
        ),
        _marked(f"{found.time:+.2%}", missed=abs(found.time) > _WANTED_SUM),
        _marked(f"{found.energy:+.2%}{unsure}", missed=abs(found.energy) > _WANTED_ENERGY),
        _marked(f"{beyond} of {len(found.kernels)}", missed=beyond > 0),
        f"{np.sqrt((found.kernels**2).mean()):.2%}, {np.abs(found.kernels).max():.2%}",
    )


def _files(
    sets: dict[str, SampleSet], parts: dict[str, Reached], whole: dict[str, Estimate]
) -> str:
    header = "file, step, board, kernels, left out, mixes, clocks read, step's heat, peak, ratio"
    rows: list[tuple[object, ...]] = [tuple(header.split(", "))]
    for name, one in sets.items():
        reach = clock_range(one) or (math.nan, math.nan)
        warm = [s.temperature_c for s in one.in_situ if s.temperature_c is not None]
        part = parts[name]
        left = f"{part.left_out}, {part.share:.2%} of the time" if part.left_out else ""
        clocks = f"{reach[0]:.0f} to {reach[1]:.0f} MHz"
        heat = f"{min(warm):.0f} to {max(warm):.0f} °C"
        board, counts = one.gpu.uuid, (len(one.kernels), left, len(one.mixed))
        power = ("", "")
        if name in whole and (ratio := whole[name].ratio):
            peak = f"{whole[name].fit.rows.peak_w:.0f} W"
            power = peak, f"{ratio.ratio:.3f} ± {ratio.spread:.3f}"
        rows.append((f"`steered-{name}`", one.workload, board, *counts, clocks, heat, *power))
    return markdown(rows)


def _simulated(sets: dict[str, SampleSet]) -> str:
    own = {item.kernel.name: item.kernel for item in gpu_model("h200").own}
    rows: list[tuple[str, ...]] = [("step", "time", "simulated", "energy", "simulated")]
    for name in ("layer-3", "xl-3"):
        one = sets[name]
        kernels = [own[f"{name.split('-')[0]}: {one.kernels[k].name}"] for k in one.order]
        with open_measurer("sim:h200#smooth") as measurer:
            measurer.warm(kernels)
            run = measurer.measure(kernels)
        time_s = float(np.mean([s.time_s for s in one.in_situ]))
        energy_j = float(np.mean([s.energy_j for s in one.in_situ]))
        off = f"{run.time_s / time_s - 1.0:+.2%}", f"{run.energy_j / energy_j - 1.0:+.2%}"
        rows.append((name, f"{time_s * 1e3:.2f} ms", off[0], f"{energy_j:.2f} J", off[1]))
    return markdown(rows)


def main() -> None:
    """Fill the page."""
    sets = {name: read(name) for name in FILES}
    parts = {name: reached(one) for name, one in sets.items()}
    sets |= {name: one.sample_set for name, one in parts.items() if one.share < _NEGLIGIBLE}
    whole = {
        name: estimate(one)
        for name, one in sets.items()
        if {s.kernel for s in one.mixed} >= {k.name for k in one.kernels}
    }
    fill(
        "h200/steering",
        {
            "files": _files(sets, parts, whole),
            "predicted": _predictions(parts),
            "simulated": _simulated(sets),
        },
        repeats="Nothing is drawn: the samples stand beside this page.",
    )


if __name__ == "__main__":
    main()

"""What steering told of real H200s, from the samples beside the page. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/steered_h200.py

Only the last section is simulated: it compares ``sim:h200`` with what it was fitted to.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np

from calibrate_h200 import SHARED, by_exponent, measured, read, shared_constants
from gpu_specs import SPECS
from pages import fill, markdown
from underclock.app.backends import open_measurer
from underclock.arrays import Floats, Ints
from underclock.core.model import hierarchical_prior as priors
from underclock.core.model.costs import TWO_SIDED
from underclock.core.model.estimate import Estimate, at_locked_clocks, estimate
from underclock.core.model.most_likely import (
    FittedModel,
    clocks_of,
    fitted,
    start_of,
    temperature_of,
)
from underclock.core.model.parameters import CORE, DRAM, WORK, Shared
from underclock.core.model.posterior import Posterior
from underclock.core.model.sample_rows import rows_of
from underclock.core.steering import clock_range
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_cap import coload_moves_clock
from underclock.core.step.power_capped_step import settled_step
from underclock.gpus.models import gpu_model
from underclock.records import ALONE, Clocks, Pass, SampleSet, Step, Window

FILES = (
    *("layer-1", "layer-2", "layer-3", "xl-3", "small-3"),
    *("layer-4", "small-4", "xl-5", "llama-6", "xl-7"),
    *("layer-9", "small-9", "medium-9", "h100-10"),
)
_SERVED = tuple(f"b{b}-c1024{again}" for b in (8, 32) for again in ("", "-again"))
_MORE = ("layer-8", "layer8-8", *_SERVED)
_CLOCKS = tuple(Clocks(core_mhz=mhz) for mhz in range(1380, 1981, 15))
_JUDGED = (Clocks(core_mhz=1500), Clocks(core_mhz=1800))  # where steered steps run
_BY_KIND: dict[str, tuple[int, ...]] = {
    "nothing": (),
    "power": (WORK,),
    "power, core": (CORE, WORK),
    "power, core, DRAM": (CORE, DRAM, WORK),
}
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


def _predictions(sets: dict[str, Reached], *, with_auto: bool) -> str:
    rows: list[tuple[str, ...]] = [
        ("file", "clock", "sum of launches", "energy", "kernels beyond 2 %", "rms, greatest")
    ]
    for name, one in sets.items():
        if one.share > _MOST_MISSING:
            rows.append((name, f"{one.left_out} kernels were not reached", *[""] * 4))
            continue
        found = compare(one.sample_set, with_auto=with_auto)
        off_mhz = found.predicted_mhz - found.read_mhz
        beyond = int((np.abs(found.kernels) > _WANTED_KERNEL).sum())
        unsure = f" ± {one.share:.1%}" if one.left_out else ""
        row = (
            f"{name}, {len(one.sample_set.kernels)} kernels reached" if one.left_out else name,
            _marked(
                f"{found.predicted_mhz:.0f} for {found.read_mhz:.0f} MHz",
                missed=abs(off_mhz) > _WANTED_MHZ,
            ),
            _marked(f"{found.time:+.2%}", missed=abs(found.time) > _WANTED_SUM),
            _marked(f"{found.energy:+.2%}{unsure}", missed=abs(found.energy) > _WANTED_ENERGY),
            _marked(f"{beyond} of {len(found.kernels)}", missed=beyond > 0),
            f"{np.sqrt((found.kernels**2).mean()):.2%}, {np.abs(found.kernels).max():.2%}",
        )
        rows.append(row)
    return markdown(rows)


def _passes(sets: dict[str, SampleSet], names: Iterable[str]) -> str:
    """Compare clocks of the passes of a step at auto, as read and as predicted."""
    rows: list[tuple[str, ...]] = [("file", "pass", "clock read", "predicted", "its time")]
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
            time = real.table.missed.time * float(taken_s[mine].sum() / weight.sum())
            seen = [np.average(np.array(mhz)[mine], weights=weight) for mhz in read]
            rows.append(
                (
                    name,
                    str(which),
                    f"{' and '.join(f'{mhz:.0f}' for mhz in seen)} MHz",
                    f"{np.average(mean_mhz[mine], weights=weight):.0f} MHz",
                    f"{time - 1.0:+.2%}",
                )
            )
    return markdown(rows)


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
        with open_measurer("sim:h200") as measurer:
            measurer.warm(kernels)
            run = measurer.measure(kernels)
        time_s = float(np.mean([s.time_s for s in one.in_situ]))
        energy_j = float(np.mean([s.energy_j for s in one.in_situ]))
        off = f"{run.time_s / time_s - 1.0:+.2%}", f"{run.energy_j / energy_j - 1.0:+.2%}"
        rows.append((name, f"{time_s * 1e3:.2f} ms", off[0], f"{energy_j:.2f} J", off[1]))
    return markdown(rows)


class Campaign:
    """A campaign as rows, the heater's last, and their fit with one prior for all kernels."""

    def __init__(self, name: str) -> None:
        """Fit a file twice, as `fit_rows` does: co-load is first taken off as usual."""
        self.samples, gpu = read(name), None
        for _ in range(2):
            self.rows = dataclasses.replace(rows_of(self.samples, gpu), shares=None)
            start = start_of(self.rows, _CLOCKS)
            self.model = fitted(self.rows, Shared(start))
            gpu = self.model.parameters.family.gpu(self.model.parameters.shared)
        self.share = self.model.parameters.kernels - priors.typical(self.rows, start).unit  # (K, P)
        self.asked = [Clocks(core_mhz=round(mhz)) for mhz in self.rows.core_mhz.tolist()]
        self.truth = self.posterior(self.model)
        own = self.truth.parameter_moves[..., self.truth.shared :]
        self.variance = np.einsum("kpe,kpe->kp", own, own)
        self.trains = self.samples.workload.replace("_", "-").split("-")[0]  # on any board

    def posterior(self, model: FittedModel) -> Posterior:
        """Return what a fit says of kernels at clocks to judge by, and where rows were measured."""
        settings = tuple(dict.fromkeys((*_JUDGED, *self.asked)))
        clocks = clocks_of(self.rows, settings)
        return at_locked_clocks(model, clocks, settings, temperature_of(self.samples))[0]


Shares: TypeAlias = dict[priors.KernelKind | None, Floats]
"""Means and spreads of the four logarithms, by kind. Shape (2, P)."""


def shares_of(campaigns: Iterable[Campaign]) -> tuple[Shares, Counter[priors.KernelKind | None]]:
    """Learn the prior of each kind as `hierarchical_prior.learned` does, and count its kernels.

    A kernel counts once, as the median of what campaigns say of it.
    """
    said: dict[tuple[priors.KernelKind | None, str], list[Floats]] = {}
    for one in campaigns:
        drawn = np.bincount(one.rows.kernel, one.rows.windows[1] > 0.0) > 0.0
        for k, kernel in enumerate(one.samples.kernels):
            if drawn[k] and kernel.launch:
                each = said.setdefault((priors.kernel_kind(kernel), kernel.launch.identity), [])
                each.append(np.array([one.share[k], one.variance[k]]))
    counts, shares = Counter(kind for kind, _ in said), {}
    for kind in (kind for kind, count in counts.items() if count >= priors.FEWEST):
        alike = [np.median(each, axis=0) for (of, _), each in said.items() if of is kind]
        share, variance = np.array(alike).swapaxes(0, 1)
        middle = np.median(share, axis=0)
        apart = 1.5 * np.median(np.abs(share - middle), axis=0)
        wide = np.sqrt(apart**2 + np.median(variance, axis=0))
        shares[kind] = np.array([middle, np.maximum(wide, priors.LEAST_SPREAD)])
    return shares, counts


def _predicted(one: Campaign, shares: Shares, parts: Sequence[int], many: int) -> list[Floats]:
    """Predict all but so many rows of each kernel from these, with priors by kind of some parts.

    Of each kernel the first of the rows tells a power; which, is drawn. The heater's are all known.

    Returns:
        Errors and their deviations, (2, n): of logarithms of time, of power, and of the step's
        energy at each clock to judge by.
    """
    rows, kernels = one.rows, one.samples.kernels
    drawn = np.random.default_rng(many).random(len(rows.kernel))
    order = np.lexsort((drawn, rows.windows[1] == 0.0, rows.kernel))
    known = np.arange(len(order)) - rows.bounds[rows.kernel] < many  # as sorted by kernel
    known[order] = known | (rows.kernel >= len(kernels))
    usual = priors.usual_shares([None] * len(rows.names))
    for k, kernel in enumerate(kernels):
        if (kind := priors.kernel_kind(kernel)) in shares:
            usual[:, k, parts] = shares[kind][:, parts]
    few = dataclasses.replace(rows, shares=usual).some(np.flatnonzero(known))
    told = one.posterior(fitted(few, Shared(start_of(few, _CLOCKS))))
    found, column = [], np.array([told.settings.index(clocks) for clocks in one.asked])
    for q, (real, log) in enumerate([(rows.log_s, told.log_s), (rows.log_w, told.log_w)]):
        out = ~known & (rows.windows[q] > 0.0)
        at = rows.kernel[out], column[out]
        noise2 = told.noise[q, at[0]] ** 2 / rows.windows[q, out]
        deviation = np.sqrt(told.variance(1.0 - q, float(q))[at] + noise2)
        found.append(np.stack([real[out] - log[at], deviation]))
    counts = np.array([kernel.waited_count for kernel in kernels])
    step, truth = (each.of_first(len(kernels)) for each in (told, one.truth))
    energy_j, true_j = step.costs(counts)[1], truth.costs(counts)[1].sum(axis=0)
    for c, sum_j in enumerate(energy_j.sum(axis=0)[: len(_JUDGED)].tolist()):
        moved = energy_j[:, c, None] * step.moves[:, :, c].sum(axis=0)
        sums_j = moved[:, : step.shared].sum(axis=0), moved[:, step.shared :]
        spread_j = math.hypot(*(float(np.linalg.norm(each)) for each in sums_j))
        found.append(np.array([[sum_j / true_j[c] - 1.0], [spread_j / sum_j]]))
    return found


def _left_out(campaigns: Sequence[Campaign]) -> str:
    """Predict each campaign, with what campaigns of other steps tell of kinds."""
    whats = ("time", "power", *(f"energy at {clocks.core_mhz} MHz" for clocks in _JUDGED))
    table = [["rows", "by kind", *(f"{what} {of}" for what in whats for of in ("rms", "in", "±"))]]
    of_others = [shares_of(o for o in campaigns if o.trains != one.trains)[0] for one in campaigns]
    for many, (words, parts) in itertools.product((1, 2), _BY_KIND.items()):
        pairs = zip(campaigns, of_others, strict=True)
        told = [_predicted(one, shares, parts, many) for one, shares in pairs]
        table.append([str(many), words])
        for off, deviation in (np.concatenate(of, axis=1) for of in zip(*told, strict=True)):
            rms, inside = math.sqrt((off**2).mean()), (np.abs(off) <= TWO_SIDED * deviation).mean()
            table[-1] += f"{rms:.1%}", f"{inside:.0%}", f"{TWO_SIDED * np.median(deviation):.1%}"
    return markdown(table)


def _kinds(shares: Shares, counts: Counter[priors.KernelKind | None]) -> str:
    """Return the prior of each kind; what the package has of it is power."""
    rows: list[tuple[object, ...]] = [("kind", "kernels", "core", "DRAM", "power")]
    for kind, (mean, spread) in sorted(shares.items(), key=lambda each: -each[1][0, WORK]):
        each = [f"{math.exp(mean[p]):.2f} (e^±{spread[p]:.2f})" for p in (CORE, DRAM, WORK)]
        rows.append((kind, counts[kind], *each))
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
    told = [name for name in whole if any(s.kernel_mhz for s in looks_at_auto(sets[name]))]
    spec = SPECS["h200"]
    if spec.throughput is None:
        raise AssertionError("the data sheet gives rates")
    gpu = shared_constants(sets[SHARED], spec)
    errors = by_exponent(gpu, measured(sets[SHARED], gpu), spec.throughput.dram_byte_j)
    campaigns = [Campaign(name) for name in (*FILES, *_MORE)]
    fill(
        "h200/steering",
        {
            "kinds": _kinds(*shares_of(campaigns)),
            "left_out": _left_out(campaigns),
            "files": _files(sets, parts, whole),
            "without": _predictions(parts, with_auto=False),
            "with": _predictions(parts, with_auto=True),
            "passes": _passes(sets, told),
            "joining": ", ".join(f"{error:.2%} at p = {p:g}" for p, error in errors.items()),
            "calibration": str(gpu_model("h200").calibration),
            "simulated": _simulated(sets),
        },
        repeats="Nothing is drawn: the samples stand beside this page.",
    )


if __name__ == "__main__":
    main()

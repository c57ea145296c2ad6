"""What decode and prefill cost on real H200s at other clocks. Writes docs/evidence/decode.md.

    OMP_NUM_THREADS=1 python studies/decode_page.py

Made of the samples that `studies/decode.py` took, in ``h200`` beside the page.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from pages import EVIDENCE, fill, markdown, percent
from steered_h200 import reached
from underclock.arrays import Floats, Ints
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.estimate import estimate
from underclock.core.model.fitting import temperature_of
from underclock.core.model.predicted_change import TWO_SIDED
from underclock.core.model.predictive import posterior_of
from underclock.core.step.cap import HALF_BIN_MHZ, driver_says, has_company
from underclock.core.step.whole import as_one
from underclock.records import ALONE, Clocks, SampleSet, Window

NAMES = (
    "decode-b1-c1024",
    "decode-b8-c1024",
    "decode-b8-c1024-again",
    "decode-b8-c1024-whole",
    "decode-b32-c1024",
    "decode-b32-c1024-again",
    "decode-b32-c1024-whole",
    "decode-b128-c1024",
    "decode-b1-c8192",
    "decode-b8-c8192",
    "decode-b32-c8192",
    "decode-b128-c8192",
    "prefill-b1-c1024",
    "prefill-b1-c8192",
)
KERNELS = tuple(f"decode-b{batch}-c1024{board}" for batch in (8, 32) for board in ("", "-again"))
WANTED_TIME, WANTED_ENERGY = 0.02, 0.03
BUDGETS = (0.01, 0.05)
FIXED_MHZ = (1400, 1500, 1600, 1700, 1800, 1900)
LEAST_MHZ, BIN_MHZ = 1400, 15
_DRAWN, _OF_ENERGY = ("power", "clock", "mJ a token"), ("energy", "from kernels", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What clocks change of a step at auto, as fractions; errors are standard deviations."""

    core_mhz: float
    time: float
    time_error: float
    energy: float
    energy_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What is known of a step, or of its kernels, at any clock.

    Attributes:
        auto_mhz: Mean clock of the step at auto.
        weights: Of each kernel: of its time at auto, and of its energy. Shape (2, K).
    """

    estimated: CostEstimate
    temperature_c: float
    auto_mhz: float
    weights: Floats

    def at(self, core_mhz: float) -> Change:
        """Return what a clock changes against the clock that auto gives."""
        clocks = [Clocks(core_mhz=round(mhz)) for mhz in (core_mhz, self.auto_mhz)]
        there = posterior_of(
            self.estimated.model, clocks, temperature_c=self.temperature_c, limit_w=np.inf
        )
        logs = there.log_s, there.log_s + there.log_w
        ratios = [np.exp(log[:, 0] - log[:, 1]) for log in logs]
        means = [float(w @ r) for w, r in zip(self.weights, ratios, strict=True)]
        errors = []
        for weight, ratio, mean, power in zip(self.weights, ratios, means, (0.0, 1.0), strict=True):
            kernels: Ints = np.tile(np.arange(len(weight)), 2)
            columns: Ints = np.repeat([0, 1], len(weight))
            moved = np.concatenate([weight * ratio / mean, -weight * ratio / mean])
            of = there.sum_variance(kernels, columns, np.stack([moved, power * moved]))
            errors.append(mean * of.variance**0.5)
        return Change(
            core_mhz=core_mhz,
            time=means[0] - 1.0,
            time_error=errors[0],
            energy=means[1] - 1.0,
            energy_error=errors[1],
        )


def read(name: str) -> SampleSet:
    """Read what was measured of a step."""
    path = EVIDENCE / "h200" / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=SampleSet)


def whole(samples: SampleSet) -> Curve:
    """Return what whole steps tell, by themselves and beside the co-load."""
    of_step = tuple(w for w in samples.windows if not w.kernel)
    one = as_one(msgspec.structs.replace(samples, windows=of_step))
    return _curve(estimate(one), samples, np.ones((2, 1)))


def from_kernels(samples: SampleSet, *, timed: bool) -> Curve:
    """Return what kernels tell, by themselves and beside the co-load; no step beside it.

    Args:
        timed: Whether their times inside the step at auto are known as well, as in a plan.
    """
    alone = tuple(w for w in samples.windows if not (w.is_step and has_company(w.mix)))
    kept = reached(msgspec.structs.replace(samples, windows=alone)).sample_set
    if not timed:
        windows = tuple(w.untimed() if w.is_step else w for w in kept.windows)
        kept = msgspec.structs.replace(kept, windows=windows)
    estimated = estimate(kept)
    clocks = [Clocks(core_mhz=round(auto_mhz(samples)))]
    at_auto = posterior_of(
        estimated.model, clocks, temperature_c=temperature_of(kept), limit_w=np.inf
    )
    time_s = estimated.counts * np.exp(at_auto.log_s[:, 0])
    energy_j = time_s * np.exp(at_auto.log_w[:, 0])
    weights = np.stack([time_s / time_s.sum(), energy_j / energy_j.sum()])
    return _curve(estimated, samples, weights)


def _curve(estimated: CostEstimate, samples: SampleSet, weights: Floats) -> Curve:
    return Curve(
        estimated=estimated,
        temperature_c=temperature_of(samples),
        auto_mhz=auto_mhz(samples),
        weights=weights,
    )


def auto_mhz(samples: SampleSet) -> float:
    """Return the clock that the step has at auto."""
    return float(np.mean([w.at_mhz for w in samples.in_situ]))


def launched_s(window: Window, samples: SampleSet, names: Sequence[str] = ()) -> float:
    """Return what the launches of one step took together; of some kernels, where they are named."""
    pairs = zip(samples.kernels, window.kernel_s, strict=True)
    return sum(k.count * s for k, s in pairs if not names or k.name in names)


def steered(samples: SampleSet, names: Sequence[str] = ()) -> list[tuple[float, float]]:
    """Return clocks to which the step was steered, lowest first, and what they change of its time.

    Only where the co-load slowed the clock, or idling made it faster than at auto.
    """
    steps = [w for w in samples.mixed if w.is_step and w.kernel_s]
    own = np.mean([launched_s(w, samples, names) for w in steps if w.mix == ALONE])
    return sorted(
        (w.at_mhz, launched_s(w, samples, names) / float(own) - 1.0)
        for w in steps
        if w.mix != ALONE and abs(w.at_mhz - auto_mhz(samples)) > HALF_BIN_MHZ
    )


def exponent(samples: SampleSet) -> tuple[float, float]:
    """Return the exponent of time against the core clock below auto's, and its standard error.

    The least squares of the logarithms, through the step at auto.
    """
    seen = [(mhz, change) for mhz, change in steered(samples) if mhz < auto_mhz(samples)]
    x = np.log([auto_mhz(samples) / mhz for mhz, _ in seen])
    y = np.log1p([change for _, change in seen])
    slope = float(x @ y / (x @ x))
    rest = y - slope * x
    error = float(np.sqrt(rest @ rest / max(1, len(x) - 1) / (x @ x)))
    return slope, error if len(x) > 1 else np.nan


def basis(core_mhz: float, samples: SampleSet) -> str:
    """Say whether steering reached a clock."""
    return "" if core_mhz >= steered(samples)[0][0] - HALF_BIN_MHZ else " (modelled)"


def best(curve: Curve, budget: float) -> Change | None:
    """Return the clock of least energy among those that take at most so much longer."""
    clocks = np.arange(LEAST_MHZ, int(curve.auto_mhz) + 1, BIN_MHZ)
    kept = [c for c in map(curve.at, clocks.tolist()) if c.time <= budget]
    return min(kept, key=lambda change: change.energy, default=None)


def _told(change: Change) -> str:
    return f"{percent(change.energy, 1)} ± {100 * TWO_SIDED * change.energy_error:.1f}"


def marked(error: float, wanted: float) -> str:
    """Write an error, and whether it is more than was wanted."""
    return f"{percent(error, 1)}{'' if abs(error) <= wanted else ' **missed**'}"


def auto_table(sets: dict[str, SampleSet]) -> str:
    """Say what steps take and draw at auto."""
    single = json.loads((EVIDENCE / "h200" / "decode-steps.json").read_text(encoding="utf-8"))
    rows: list[tuple[object, ...]] = [
        ("step", "board", "time", "single: p50, p99", "between launches", *_DRAWN)
    ]
    for name, one in sets.items():
        time_s = float(np.mean([w.time_s for w in one.in_situ]))
        energy_j = float(np.mean([w.energy_j for w in one.in_situ]))
        timed = [launched_s(w, one) for w in one.in_situ if w.kernel_s]
        held = any(driver_says(w.throttle_reasons) for w in one.in_situ)
        of = single[name]
        rows.append(
            (
                f"`{name}`",
                one.gpu.uuid,
                f"{1e6 * time_s:.0f} µs",
                f"{1e6 * of['p50_s']:.0f}, {1e6 * of['p99_s']:.0f} µs",
                f"{1.0 - float(np.mean(timed)) / time_s:.1%}",
                f"{energy_j / time_s:.0f} W",
                f"{auto_mhz(one):.0f} MHz{', held by the cap' if held else ''}",
                f"{1e3 * energy_j / of['tokens']:.2f}",
            )
        )
    return markdown(rows)


def exponents_table(sets: dict[str, SampleSet]) -> str:
    """Say how time follows the core clock."""
    rows: list[tuple[object, ...]] = [("step", "exponent", "steered to (change of time)")]
    for name, one in sets.items():
        slope, error = exponent(one)
        seen = ", ".join(f"{mhz:.0f} MHz ({percent(change, 1)})" for mhz, change in steered(one))
        spread = f" ± {error:.2f}" if np.isfinite(error) else ""
        rows.append((f"`{name}`", f"{slope:.2f}{spread}", seen))
    return markdown(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A step beside the co-load, as predicted from its kernels.

    Attributes:
        core_mhz: Clock that it had.
        time: What the clock changed of it.
        by_kernels: The same, predicted.
        as_planned: The same by a fit that knows times inside the step at auto as well.
        energy: As whole steps tell.
        energy_error: Its standard deviation.
        energy_by_kernels: As kernels tell.
    """

    core_mhz: float
    time: float
    by_kernels: float
    as_planned: float
    energy: float
    energy_error: float
    energy_by_kernels: float

    @property
    def time_off(self) -> float:
        """Error of time, as a fraction."""
        return (1.0 + self.by_kernels) / (1.0 + self.time) - 1.0

    @property
    def energy_off(self) -> float:
        """Error of energy, as a fraction."""
        return (1.0 + self.energy_by_kernels) / (1.0 + self.energy) - 1.0


def predictions(samples: SampleSet) -> Iterator[Predicted]:
    """Predict a step at the clocks to which it was steered from its kernels."""
    ran = [name for name in (k.name for k in samples.kernels) if _ran(name, samples)]
    step, kernels = whole(samples), from_kernels(samples, timed=False)
    planned = from_kernels(samples, timed=True)
    for core_mhz, time in steered(samples, ran):
        energy = step.at(core_mhz)
        by_kernels = kernels.at(core_mhz)
        yield Predicted(
            core_mhz=core_mhz,
            time=time,
            by_kernels=by_kernels.time,
            as_planned=planned.at(core_mhz).time,
            energy=energy.energy,
            energy_error=energy.energy_error,
            energy_by_kernels=by_kernels.energy,
        )


def _ran(name: str, samples: SampleSet) -> bool:
    return any(w.kernel == name for w in samples.mixed)


def _predictions(sets: dict[str, SampleSet]) -> str:
    rows: list[tuple[object, ...]] = [
        ("step", "clock", "time", "from kernels", "off", "as `plan` fits", *_OF_ENERGY)
    ]
    for name in KERNELS:
        for one in predictions(sets[name]):
            error = 100 * TWO_SIDED * one.energy_error
            rows.append(
                (
                    f"`{name}`",
                    f"{one.core_mhz:.0f} MHz",
                    percent(one.time, 1),
                    percent(one.by_kernels, 1),
                    marked(one.time_off, WANTED_TIME),
                    percent(one.as_planned, 1),
                    f"{percent(one.energy, 1)} ± {error:.1f}",
                    percent(one.energy_by_kernels, 1),
                    marked(one.energy_off, WANTED_ENERGY),
                )
            )
    return markdown(rows)


def _levels(sets: dict[str, SampleSet]) -> str:
    told = []
    for name in KERNELS:
        closure = from_kernels(sets[name], timed=False).estimated.table.closure
        if closure is not None:
            level = f"{percent(closure.time - 1.0, 0)} of time, {percent(closure.energy - 1.0, 0)}"
            told.append(f"`{name}`: {level} of energy")
    return "; ".join(told) + "."


def _savings(sets: dict[str, SampleSet], curves: dict[str, Curve]) -> str:
    rows: list[tuple[object, ...]] = [
        ("step", *(f"at most {budget:.0%} slower: energy a token" for budget in BUDGETS))
    ]
    for name, one in sets.items():
        cells = []
        for budget in BUDGETS:
            found = best(curves[name], budget)
            cells.append(
                "nothing"
                if found is None
                else f"{_told(found)} % at {found.core_mhz:.0f} MHz{basis(found.core_mhz, one)}"
            )
        rows.append((f"`{name}`", *cells))
    return markdown(rows)


def _fixed(sets: dict[str, SampleSet], curves: dict[str, Curve]) -> str:
    rows: list[tuple[object, ...]] = [("step", *(f"{mhz} MHz" for mhz in FIXED_MHZ))]
    for name, one in sets.items():
        cells = []
        for mhz in FIXED_MHZ:
            if mhz > curves[name].auto_mhz:
                cells.append("as auto")
                continue
            change = curves[name].at(mhz)
            cells.append(f"{percent(change.time, 1)}, {_told(change)}{basis(mhz, one)}")
        rows.append((f"`{name}`", *cells))
    return markdown(rows)


def main() -> None:
    """Fill the page."""
    sets = {name: read(name) for name in NAMES}
    curves = {name: whole(one) for name, one in sets.items()}
    fill(
        "decode",
        {
            "auto": auto_table(sets),
            "exponents": exponents_table(sets),
            "predictions": _predictions(sets),
            "levels": _levels(sets),
            "savings": _savings(sets, curves),
            "fixed": _fixed(sets, curves),
        },
        repeats="Nothing is drawn: the samples stand beside this page.",
    )


if __name__ == "__main__":
    main()

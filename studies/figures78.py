"""The discovered clocks at other batches and degrees: docs/evidence/figures78.md.

    OMP_NUM_THREADS=1 python studies/figures78.py [--jobs N] [--quick]

Figures 7 and 8 of arXiv 2601.08539 with error bars: the clocks found at batch 40 on one GPU, held
for the same kernels at other batches and degrees of tensor parallelism, against clocks found anew
there; on the RTX 3080 Ti whose sweep was published and on the paper's own board, simulated; as the
paper does it, costs are sums of isolated kernels. With collectives, their times are assumed.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from pages import fill, markdown, percent
from underclock.app.backends import open_measurer
from underclock.app.planning import plan
from underclock.campaign.turns import measured
from underclock.core.statistics.verdict import pair_changes
from underclock.paper import published
from underclock.paper.study import WORKLOAD, Conditions, before_optimizer, search
from underclock.records import AUTO, Plan, Step
from underclock.tracing.trace import trace

_GPUS = ("sim:rtx3080ti", "sim:rtx3080ti#paper")
_BATCHES = (1, 2, 4, 8, 16, 24, 32, 40)
_DEGREES = (2, 4, 8, 16)
_REPEATS = 5
_NOISE_SEED = 100  # neither that of the searches
_TIME_NOISE = 0.004  # of a run; on the paper's board, as its ten repeats scatter


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A step on a GPU."""

    gpu: str
    batch: int
    degree: int
    collectives: int

    @property
    def step(self) -> Step:
        """Its step."""
        return before_optimizer(
            trace(WORKLOAD, batch=self.batch, tp=self.degree, collectives=self.collectives)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Changes of time and energy at a place: mean, and standard deviation of a pair of runs."""

    place: Place
    carried: tuple[tuple[float, float], tuple[float, float]]
    anew: tuple[tuple[float, float], tuple[float, float]]
    unplanned: int


def found(place: Place) -> Plan:
    """Search a step's clocks as the paper did: all of its grid, strict, each kernel its own."""
    return plan(search(place.step, Conditions(gpu=place.gpu))[0], raw=True)


def seen(place: Place, discovered: Plan) -> Seen:
    """Run auto, the discovered clocks and those found anew, each as often as repeats are."""
    anew, kernels = found(place), place.step.kernels
    counts = np.array([kernel.count for kernel in kernels], dtype=np.float64)
    ways = [
        [AUTO] * len(kernels),
        *([p.kernels[k.name].clocks if k.name in p.kernels else AUTO for k in kernels]
          for p in (discovered, anew)),
    ]  # fmt: skip
    costs = np.zeros((3, 2, _REPEATS))
    random = np.random.default_rng(place.batch * 100 + place.degree)
    for repeat in range(_REPEATS):
        with open_measurer(place.gpu, seed=_NOISE_SEED + repeat) as measurer:
            measurer.warm(list(kernels))
            for way, clocks in enumerate(ways):
                rows = measured(measurer, kernels, clocks, 0)
                slower = 1.0 + _TIME_NOISE * random.standard_normal()
                costs[way, 0, repeat] = slower * (counts @ [row.time_s for row in rows])
                costs[way, 1, repeat] = counts @ [row.energy_j for row in rows]

    def change(way: int) -> tuple[tuple[float, float], tuple[float, float]]:
        pairs = [pair_changes(costs[0, of], costs[way, of]) for of in (0, 1)]
        (time, energy) = ((float(each.mean()), float(each.std())) for each in pairs)
        return time, energy

    unplanned = sum(kernel.name not in discovered.kernels for kernel in kernels)
    return Seen(place=place, carried=change(1), anew=change(2), unplanned=unplanned)


def _told(value: tuple[float, float]) -> str:
    return f"{percent(value[0])} ± {100 * value[1]:.2f}"


def _paper(place: Place) -> tuple[str, str]:
    one = published.TENSOR_PARALLEL.get(place.degree)
    if place.degree == 1:
        one = published.BATCH.get(place.batch)
    elif place.batch != published.BATCH_SIZE:
        one = None
    return ("", "") if one is None else (f"{one.time_pct:+.1f}", f"{one.energy_pct:+.1f}")


def _table(results: list[Seen]) -> str:
    head = ("batch", "degree", "time: paper", "carried over", "found anew")
    lines: list[tuple[object, ...]] = [
        (*head, "energy: paper", "carried over", "found anew", "kernels at auto")
    ]
    for one in results:
        time, energy = _paper(one.place)
        lines.append(
            (
                *(one.place.batch, one.place.degree, time),
                *(_told(each[0]) for each in (one.carried, one.anew)),
                energy,
                *(_told(each[1]) for each in (one.carried, one.anew)),
                one.unplanned,
            )
        )
    return markdown(lines)


def _regret(results: list[Seen]) -> str:
    off = np.array([np.subtract(r.carried, r.anew)[:, 0] for r in results])
    worst = off[:, 1].argmax()
    return (
        f"Against clocks found anew, those carried over take {percent(float(off[:, 0].mean()))} "
        f"time and {percent(float(off[:, 1].mean()))} energy on average; at most "
        f"{percent(float(off[worst, 1]))} energy, at batch {results[worst].place.batch}, degree "
        f"{results[worst].place.degree}."
    )


def main() -> None:
    """Fill the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two steps only, and no page")
    options = parser.parse_args()
    shapes = [
        *((batch, 1, 0) for batch in _BATCHES),
        *((published.BATCH_SIZE, degree, with_) for with_ in (0, 1) for degree in _DEGREES),
    ]
    places = [
        Place(gpu=gpu, batch=batch, degree=degree, collectives=with_)
        for gpu in _GPUS
        for batch, degree, with_ in (shapes[:1] + shapes[-1:] if options.quick else shapes)
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        origins = [Place(gpu=g, batch=published.BATCH_SIZE, degree=1, collectives=0) for g in _GPUS]
        plans = dict(zip(_GPUS, pool.map(found, origins), strict=True))
        results = list(pool.map(seen, places, [plans[place.gpu] for place in places]))
    text = []
    for gpu, mine in groupby(results, key=lambda one: one.place.gpu):
        listed = list(mine)
        text.append(f"## `{gpu}`")
        for title, some in (
            ("Figure 7: other batches", [r for r in listed if r.place.degree == 1]),
            ("Figure 8: tensor parallel, without collectives, as the paper",
             [r for r in listed if r.place.degree > 1 and not r.place.collectives]),
            ("Figure 8, with collectives, whose times are assumed",
             [r for r in listed if r.place.collectives]),
        ):  # fmt: skip
            if some:
                text += [f"### {title}", _table(some), _regret(some)]
    if options.quick:
        print("\n\n".join(text))
        return
    repeats = (
        f"Each step was searched once and run {_REPEATS} times; a spread is the standard deviation "
        f"of a pair of runs, with {_TIME_NOISE:.1%} noise of time that a run has as a whole."
    )
    fill("figures78", {"results": "\n\n".join(text)}, repeats=repeats)


if __name__ == "__main__":
    main()

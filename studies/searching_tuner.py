"""Kernel Tuner's strategies, in its simulation mode: one search per kernel, over its clocks.

It reads every configuration's result from a cache file and runs nothing; only the configurations
that a strategy asked for count as taken.
"""

import contextlib
import importlib
import io
import itertools
import json
import random
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from searching import Problem, Row, Take, shares
from underclock.records import Clocks

LEFT_OUT = {
    "brute_force": "it takes everything, and no limit on evaluations",
    "random_sample": "it is `random` per kernel",
    "skopt": "it needs scikit-optimize, which Kernel Tuner does not install",
    "pyatf_strategies": "it needs pyatf, likewise",
}
POPULATION = {  # first samples of a strategy, by default; then it begins to search
    "bayes_opt": 20,
    "diff_evo": 16,
    "firefly_algorithm": 20,
    "genetic_algorithm": 26,
    "nsga2": 20,
    "nsga3": 20,
    "pso": 50,
}
_LEAST_POPULATION = 4
_LOOKS = 20  # at configurations, new or not, for each that it may evaluate


@cache
def tuner() -> Any:  # noqa: ANN401 - Kernel Tuner is untyped
    """Return Kernel Tuner.

    Raises:
        SystemExit: It is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("kernel_tuner.interface")
    except ImportError as exc:
        raise SystemExit("Kernel Tuner is missing: pip install '.[bench]'") from exc


def names() -> list[str]:
    """Return the strategies that run here."""
    return [name for name in tuner().strategy_map if name not in LEFT_OUT]


def kernel_tuner(strategy: str, *, limited: bool) -> Take:
    """Return a search by a strategy: for energy, or for energy in time."""
    return partial(_take, strategy=strategy, limited=limited)


@dataclass(frozen=True, kw_only=True)
class Space:
    """The clocks of one kernel as Kernel Tuner sees them.

    Attributes:
        parameters: Values of each parameter that has more than one.
        clocks: By values, in the order of the parameters.
        restriction: Of the values to pairs that were measured; empty where all were.
    """

    parameters: dict[str, list[int]]
    clocks: dict[tuple[int, ...], Clocks]
    restriction: list[str]


def space_of(offered: tuple[Clocks, ...]) -> Space:
    """Return the search space of some settings; auto counts as just above the fastest clock."""
    columns = {
        "core_mhz": [clocks.core_mhz for clocks in offered],
        "mem_mhz": [clocks.mem_mhz for clocks in offered],
    }
    coded: dict[str, list[int]] = {}
    for name, values in columns.items():
        auto = max((mhz for mhz in values if mhz is not None), default=0) + 1
        codes = [auto if mhz is None else mhz for mhz in values]
        if len(set(codes)) > 1 or name == "core_mhz":
            coded[name] = codes
    points = list(zip(*coded.values(), strict=True))
    parameters = {name: sorted(set(codes)) for name, codes in coded.items()}
    size = int(np.prod([len(values) for values in parameters.values()]))
    text = f"({', '.join(parameters)},) in {set(points)!r}"
    return Space(
        parameters=parameters,
        clocks=dict(zip(points, offered, strict=True)),
        restriction=[] if size == len(points) else [text],
    )


def options_of(strategy: str, most: int) -> dict[str, int]:
    """Return a strategy's options: half of the evaluations at most for its first population."""
    options = {"max_fevals": most}
    if strategy in POPULATION:
        options["popsize"] = min(POPULATION[strategy], max(_LEAST_POPULATION, most // 2))
    return options


def objective_of(
    energy_j: float, time_s: float, auto: tuple[float, float], limit: float | None
) -> float:
    """Return what a strategy is to lower.

    Args:
        energy_j: Of a configuration.
        time_s: Of the same configuration.
        auto: Energy and time of the same kernel at the baseline.
        limit: Most slowdown of the kernel; ``None`` for energy whatever the time.

    Returns:
        Energy; where the limit is broken, no less than at the baseline, and growing with time.
    """
    auto_j, auto_s = auto
    over = 0.0 if limit is None else time_s / (auto_s * (1.0 + limit))
    return energy_j if limit is None or over <= 1.0 else max(energy_j, auto_j) * over


def _take(
    problem: Problem,
    samples: int,
    seed: int,
    max_slowdown: float,
    *,
    strategy: str,
    limited: bool,
) -> list[Row]:
    """Search every kernel by itself."""
    rows = list(problem.baseline_rows)
    limit = max_slowdown if limited else None
    with tempfile.TemporaryDirectory() as folder:
        for k, most in enumerate(shares(problem, samples)):
            if most:
                file = Path(folder) / f"{k}.json"
                searched = search(problem, k, most, file, strategy, seed * 1000 + k, limit)
                rows += [(k, clocks) for clocks in searched]
    return rows


def search(
    problem: Problem,
    k: int,
    most: int,
    file: Path,
    strategy: str,
    seed: int,
    limit: float | None,
) -> list[Clocks]:
    """Return the settings of one kernel that a strategy looked at, in its order."""
    space = space_of(problem.offered[k])
    _write_cache(problem, k, space, file, limit)
    names = list(space.parameters)
    looked: dict[tuple[int, ...], None] = {}
    looks = itertools.count(1)
    # A strategy that only goes back to what it has seen could go on for minutes.
    enough = tuner().util.StopCriterionReached

    def note(result: dict[str, Any]) -> float:
        looked[tuple(int(result[name]) for name in names)] = None
        if next(looks) >= _LOOKS * most:
            raise enough("it looks at nothing new")
        return 0.0

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what its strategies draw from
    # Some strategies let the end of the budget through where it comes before their first step.
    with _quiet(), contextlib.suppress(enough):
        tuner().tune_kernel(
            "kernel",
            "",
            1,
            [],
            space.parameters,
            restrictions=space.restriction or None,
            strategy=strategy,
            strategy_options=options_of(strategy, most),
            cache=str(file),
            simulation_mode=True,
            quiet=True,
            metrics={"looked": note},
            objective="score",
            objective_higher_is_better=False,
            seed=seed,
            lang="CUDA",
        )
    return [space.clocks[point] for point in looked][:most]


def _write_cache(problem: Problem, k: int, space: Space, file: Path, limit: float | None) -> None:
    auto = problem.samples[k, problem.baseline]
    cache_: dict[str, dict[str, float]] = {}
    for point, clocks in space.clocks.items():
        sample = problem.samples[k, clocks]
        score = objective_of(sample.energy_j, sample.time_s, (auto.energy_j, auto.time_s), limit)
        cache_[",".join(map(str, point))] = {
            **dict(zip(space.parameters, point, strict=True)),
            "time": sample.time_s * 1e3,
            "score": score,
        }
    content = {
        "device_name": problem.rows.gpu.name,
        "kernel_name": "kernel",
        "problem_size": 1,
        "tune_params_keys": list(space.parameters),
        "tune_params": space.parameters,
        "objective": "score",
        "cache": cache_,
    }
    file.write_text(json.dumps(content), encoding="utf-8")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let nothing be printed or warned of."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield

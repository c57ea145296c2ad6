"""`lowtime`, Perseus' own solver (SOSP'24): Phillips and Dessouky's cuts, one unit of time each.

It plans one clock an instruction: durations are whole units on an exponential fitted to the
profile, and an instruction runs at the slowest clock that takes no longer. ``lowtime`` is on PyPI,
and in no extra: it brings matplotlib and networkx.
"""

import importlib
import importlib.util
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from underclock.arrays import Ints
from underclock.core.job.tables import JobTable

VERSION = "0.3.0"


def is_installed() -> bool:
    """Say whether lowtime can be run here."""
    return importlib.util.find_spec("lowtime") is not None


@dataclass(frozen=True, kw_only=True)
class Walk:
    """What it planned from the slowest iteration on.

    Attributes:
        rows: Of the profile, of each instruction, one plan after another. Shape (plans, n).
        time_s: CPU time of walking, fits and graph left out.
        ended: Whether it reached the fastest plan.
    """

    rows: Ints
    time_s: float
    ended: bool


def walk(table: JobTable, blocked_w: float, *, unit_s: float, limit_s: float) -> Walk:
    """Let it walk along the frontier.

    Args:
        table: Of a job all of whose instructions have profiles.
        blocked_w: What a rank draws while it waits.
        unit_s: By which it shortens the iteration at each step.
        limit_s: Stop walking after so much of it.
    """
    networkx, operation, solver, graphs = (
        importlib.import_module(name)
        for name in ("networkx", "lowtime.operation", "lowtime.solver", "lowtime.graph_utils")
    )
    specs = [_spec(operation, table, pair, blocked_w, unit_s) for pair in range(len(table.pairs))]
    graph = networkx.DiGraph()
    operations = [operation.Operation(spec=specs[pair]) for pair in table.pair]
    for at, each in enumerate(operations):
        graph.add_node(at + 2, op=each)
    for of, waits in enumerate(table.network.waits):
        graph.add_edges_from((on + 2, of + 2) for on, _ in waits)
    graphs.add_source_node(graph, 0)
    graphs.add_sink_node(graph, 1)
    graph.graph.update(source_node=0, sink_node=1)
    start_s = time.process_time()
    rows = [
        [each.assigned_knob for each in operations]
        for _ in _steps(solver.PhillipsDessouky(graph), start_s + limit_s)
    ]
    took_s = time.process_time() - start_s
    return Walk(rows=np.array(rows), time_s=took_s, ended=took_s < limit_s)


def _steps(solver: Any, until_s: float) -> Iterator[Any]:  # noqa: ANN401 - lowtime is typed inside
    for step in solver.run():
        yield step
        if time.process_time() >= until_s:
            return


def _spec(operation: Any, table: JobTable, pair: int, blocked_w: float, unit_s: float) -> Any:  # noqa: ANN401
    """Describe a profile as its own example does: energy less what waiting as long would draw."""
    models = importlib.import_module("lowtime.cost_model")
    options = operation.CandidateExecutionOptions(
        options=[
            operation.ExecutionOption(
                real_time=float(time_s), unit_time=unit_s, cost=float(energy_j), knob=row
            )
            for row, (time_s, energy_j) in enumerate(
                zip(table.time_s[pair], table.energy_j[pair], strict=True)
            )
            if np.isfinite(time_s)
        ]
    )
    for option in options.options:
        option.cost -= blocked_w * option.quant_time * option.unit_time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its fits, whose covariance nobody reads
        model = models.ExponentialModel(options)
    return operation.OperationSpec(options=options, cost_model=model)

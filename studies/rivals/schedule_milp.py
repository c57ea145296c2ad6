"""The same problem given to HiGHS, a general solver, as comparison and second opinion.

A unit of flow goes round the ring through one setting of every invocation. A whole number says
which; what flows between two settings then follows, and is a switch where they differ.

Shape letters: n invocations, S settings, V variables.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from rivals import highs
from underclock.arrays import Floats, Ints
from underclock.core.solvers import SequenceProblem, Solution, infeasible
from underclock.core.solvers.cyclic import Incumbent
from underclock.errors import NotSupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flow:
    """The problem as a linear program with whole numbers.

    Attributes:
        time: Of each variable; the settings of all invocations first, then the flows. Shape (V,).
        energy: Of each variable, in the same order. Shape (V,).
        switch: One where a flow is a switch, else zero. Shape (V,).
        invocation: Of the setting. Shape (settings of all invocations,).
        setting: Of the invocation. Shape (settings of all invocations,).
        rows: Equalities between variables: flow in, flow out. Shape (2 x settings, V).
    """

    time: Floats
    energy: Floats
    switch: Floats
    invocation: Ints
    setting: Ints
    rows: sparse.csr_matrix

    @classmethod
    def of(cls, problem: SequenceProblem) -> "_Flow":
        time = problem.time_s[problem.order]
        invocation, setting = np.nonzero(np.isfinite(time))
        nodes, n = len(invocation), len(problem.order)
        number = np.full(time.shape, -1)
        number[invocation, setting] = np.arange(nodes)
        # Every flow into every setting: from each setting of the invocation before.
        before = number[invocation - 1]
        target, source_setting = np.nonzero(before >= 0)
        same = setting[target] == source_setting
        kept = same | ~problem.blocked[invocation[target]]
        if n == 1:
            kept &= same
        target, source_setting, same = target[kept], source_setting[kept], same[kept]
        source = before[target, source_setting]
        flows = nodes + np.arange(len(target))
        ones = np.ones(len(target))
        at = np.arange(nodes)
        rows = sparse.csr_matrix(
            (
                np.concatenate([ones, -np.ones(nodes), ones, -np.ones(nodes)]),
                (
                    np.concatenate([target, at, nodes + source, nodes + at]),
                    np.concatenate([flows, at, flows, at]),
                ),
            ),
            shape=(2 * nodes, nodes + len(target)),
        )
        return cls(
            time=np.append(
                time[invocation, setting], problem.switch_time_s[source_setting, setting[target]]
            ),
            energy=np.append(
                problem.energy_j[problem.order][invocation, setting],
                problem.switch_energy_j[source_setting, setting[target]],
            ),
            switch=np.append(np.zeros(nodes), ~same),
            invocation=invocation,
            setting=setting,
            rows=rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleMilp:
    """Branch and bound by HiGHS; it knows no dwell."""

    gap: float = 0.0
    """Relative gap at which to stop."""
    time_limit_s: float = math.inf
    """Wall-clock time at which to stop with the best schedule so far."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Solution:
        """Return HiGHS's schedule, with its bound.

        Raises:
            NotSupportedError: highspy is not installed, or the problem has dwell.
        """
        if problem.dwell_s.any():
            raise NotSupportedError(
                "the milp solver has no dwell", hint="use Cyclic, or leave dwell_s out"
            )
        flow = _Flow.of(problem)
        # HiGHS's tolerances are absolute: give it numbers around one, and the least tolerance.
        time_unit, energy_unit = float(flow.time.max()) or 1.0, float(flow.energy.max()) or 1.0
        nodes, variables = len(flow.invocation), len(flow.time)
        once = sparse.csr_matrix(
            (np.ones(nodes), (flow.invocation, np.arange(nodes))),
            shape=(len(problem.order), variables),
        )
        limits = sparse.csr_matrix(np.array([flow.time / time_unit, flow.switch]))
        matrix = sparse.vstack([flow.rows, once, limits]).tocsc()
        most = variables if problem.max_switches is None else problem.max_switches
        budget = min(problem.budget_s, float(flow.time.sum())) / time_unit
        equal = np.append(np.zeros(2 * nodes), np.ones(len(problem.order)))
        program = highs.Program(
            cost=flow.energy / energy_unit,
            whole=nodes,
            lower=np.append(equal, [-math.inf] * 2),
            upper=np.append(equal, [budget, float(most)]),
            start=matrix.indptr,
            row=matrix.indices,
            value=matrix.data,
        )
        answer = highs.solve(program, gap=self.gap, time_limit_s=self.time_limit_s)
        if answer.infeasible:
            return infeasible()
        best = Incumbent.among(problem, start)
        best.offer_constants()
        if answer.values is not None:
            value = np.full((len(problem.order), problem.time_s.shape[1]), -1.0)
            value[flow.invocation, flow.setting] = answer.values[:nodes]
            best.offer(value.argmax(axis=1))
        # Its own tolerance on the bound, so that it stays one.
        bound_j = answer.bound * energy_unit
        return best.answer(bound_j - highs.TOLERANCE * abs(bound_j))

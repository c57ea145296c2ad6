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
from underclock.core.switching.incumbent import Incumbent
from underclock.core.switching.problem import Schedule, SequenceProblem, infeasible
from underclock.errors import NotSupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flow:
    """The problem as a linear program with whole numbers.

    Attributes:
        time: Of each variable; the settings of all invocations first, then the flows. Shape (V,).
        energy: Likewise. Shape (V,).
        switch: One where a flow is a switch, else zero. Shape (V,).
        invocation: Of the setting. Shape (settings of all invocations,).
        setting: Likewise.
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
        # Every way into every setting: from each setting of the invocation before.
        before = number[invocation - 1]
        to, come = np.nonzero(before >= 0)
        same = setting[to] == come
        kept = same | ~problem.blocked[invocation[to]]
        if n == 1:
            kept &= same
        to, come, same = to[kept], come[kept], same[kept]
        source = before[to, come]
        flows = nodes + np.arange(len(to))
        ones = np.ones(len(to))
        at = np.arange(nodes)
        rows = sparse.csr_matrix(
            (
                np.concatenate([ones, -np.ones(nodes), ones, -np.ones(nodes)]),
                (
                    np.concatenate([to, at, nodes + source, nodes + at]),
                    np.concatenate([flows, at, flows, at]),
                ),
            ),
            shape=(2 * nodes, nodes + len(to)),
        )
        return cls(
            time=np.append(time[invocation, setting], problem.switch_time_s[come, setting[to]]),
            energy=np.append(
                problem.energy_j[problem.order][invocation, setting],
                problem.switch_energy_j[come, setting[to]],
            ),
            switch=np.append(np.zeros(nodes), ~same),
            invocation=invocation,
            setting=setting,
            rows=rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Milp:
    """Branch and bound by HiGHS; it knows no dwell."""

    gap: float = 0.0
    """Relative gap at which to stop."""
    time_limit_s: float = math.inf
    """Wall-clock time at which to stop with the best schedule so far."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Schedule:
        """Return HiGHS's schedule, with its bound.

        Raises:
            NotSupportedError: highspy is not installed, or the problem has dwell.
        """
        if problem.dwell_s.any():
            raise NotSupportedError(
                "the milp solver has no dwell", hint="use CyclicExact, or leave dwell_s out"
            )
        highspy = highs.loaded()
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

        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = variables, len(equal) + 2
        model.col_cost_ = flow.energy / energy_unit
        model.col_lower_, model.col_upper_ = np.zeros(variables), np.ones(variables)
        whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        model.integrality_ = [whole] * nodes + [real] * (variables - nodes)
        model.row_lower_ = np.append(equal, [-highspy.kHighsInf] * 2)
        model.row_upper_ = np.append(equal, [budget, float(most)])
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = matrix.indptr
        model.a_matrix_.index_ = matrix.indices
        model.a_matrix_.value_ = matrix.data

        solver = highs.run(model, gap=self.gap, time_limit_s=self.time_limit_s)
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return infeasible()
        best = Incumbent.among(problem, start)
        best.offer_constants()
        info = solver.getInfo()
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            value = np.full((len(problem.order), problem.time_s.shape[1]), -1.0)
            value[flow.invocation, flow.setting] = solver.getSolution().col_value[:nodes]
            best.offer(value.argmax(axis=1))
        # Its own tolerance on the bound, so that it stays one.
        bound_j = float(info.mip_dual_bound) * energy_unit
        return best.answer(bound_j - highs.TOLERANCE * abs(bound_j))

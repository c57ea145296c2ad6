"""HiGHS, a general solver, given both kinds of problem: comparison and second opinion.

Of a schedule, a unit of flow goes round the ring through one setting of every invocation. A whole
number says which; what flows between two settings then follows, and is a switch where they differ.
HiGHS is in the extra ``bench``.

Shape letters: V variables, R rows, Z entries that are not zero; G groups, n invocations, S
settings.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from underclock.arrays import Floats, Ints
from underclock.core.solvers import Problem, SequenceProblem, Solution, infeasible, solution_of
from underclock.core.solvers.cyclic import Incumbent
from underclock.core.solvers.hull import Quanta
from underclock.errors import NotSupportedError
from underclock.records import Status

TOLERANCE = 1e-10
"""The least that HiGHS takes. It is absolute: give it numbers around one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A linear program whose variables lie between zero and one.

    Attributes:
        cost: Of each variable, to be minimised. Shape (V,).
        whole: How many variables, the first ones, must be whole numbers.
        lower: Least value of each row. Shape (R,).
        upper: Greatest value of each row. Shape (R,).
        start: Where each variable's entries begin, and where the last one's end. Shape (V + 1,).
        row: Of each entry. Shape (Z,).
        value: Of each entry. Shape (Z,).
    """

    cost: Floats
    whole: int
    lower: Floats
    upper: Floats
    start: Ints
    row: Ints
    value: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What HiGHS said.

    Attributes:
        infeasible: Whether it proved that there is no answer.
        optimal: Whether it proved its answer, to the gap asked for.
        values: Of each variable; ``None`` if it stopped before it had any. Shape (V,).
        bound: No answer costs less.
    """

    infeasible: bool
    optimal: bool
    values: Floats | None
    bound: float


def solve(program: Program, *, gap: float, time_limit_s: float) -> Answer:
    """Run HiGHS on a program.

    Args:
        program: What to minimise.
        gap: Relative gap at which to stop.
        time_limit_s: Wall-clock time at which to stop; ``inf`` for no limit.

    Raises:
        NotSupportedError: highspy is not installed.
    """
    highspy = _loaded()
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("mip_abs_gap", 0.0)
    for tolerance in ("primal_feasibility_tolerance", "mip_feasibility_tolerance"):
        solver.setOptionValue(tolerance, TOLERANCE)
    if math.isfinite(time_limit_s):
        solver.setOptionValue("time_limit", time_limit_s)
    solver.passModel(_model(highspy, program))
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    return Answer(
        infeasible=status == highspy.HighsModelStatus.kInfeasible,
        optimal=status == highspy.HighsModelStatus.kOptimal,
        values=np.array(solver.getSolution().col_value) if feasible else None,
        bound=float(info.mip_dual_bound),
    )


def _model(highspy: Any, program: Program) -> Any:  # noqa: ANN401 - highspy is untyped
    variables = len(program.cost)
    whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = variables, len(program.lower)
    model.col_cost_ = program.cost
    model.col_lower_, model.col_upper_ = np.zeros(variables), np.ones(variables)
    model.integrality_ = [whole] * program.whole + [real] * (variables - program.whole)
    model.row_lower_ = np.where(np.isinf(program.lower), -highspy.kHighsInf, program.lower)
    model.row_upper_ = program.upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = program.start
    model.a_matrix_.index_ = program.row
    model.a_matrix_.value_ = program.value
    return model


def _loaded() -> Any:  # noqa: ANN401 - highspy is untyped
    try:
        import highspy  # noqa: PLC0415 - an extra: its absence is said where it is used
    except ImportError as exc:
        raise NotSupportedError(
            "the milp solver needs highspy", hint="in a clone of underclock: pip install '.[bench]'"
        ) from exc
    return highspy


@dataclass(frozen=True, slots=True, kw_only=True)
class KnapsackMilp:
    """Branch and bound by HiGHS."""

    gap: float = 0.0
    """Relative gap at which to stop."""
    time_limit_s: float = math.inf
    """Wall-clock time at which to stop with the best choice so far."""

    def solve(self, problem: Problem, start: Items[Ints] = ()) -> Solution:  # noqa: ARG002
        """Return HiGHS's choice, with its bound.

        Raises:
            NotSupportedError: highspy is not installed.
        """
        group, setting = np.nonzero(np.isfinite(problem.time_s))
        time = problem.time_s[group, setting]
        energy = problem.energy_j[group, setting]
        # HiGHS's tolerances are absolute: give it numbers around one, and the least tolerance it
        # takes. With its own, a choice may break the budget by a millionth of the longest time.
        time_unit = float(time.max()) or 1.0
        energy_unit = float(energy.max()) or 1.0
        groups, variables = len(problem.time_s), len(group)
        budget = min(problem.budget_s, float(time.sum())) / time_unit
        # Each variable stands in its group's row and in the time row, the last.
        program = Program(
            cost=energy / energy_unit,
            whole=variables,
            lower=np.append(np.ones(groups), -math.inf),
            upper=np.append(np.ones(groups), budget),
            start=np.arange(0, 2 * variables + 1, 2),
            row=np.column_stack([group, np.full(variables, groups)]).ravel(),
            value=np.column_stack([np.ones(variables), time / time_unit]).ravel(),
        )
        answer = solve(program, gap=self.gap, time_limit_s=self.time_limit_s)
        if answer.infeasible:
            return infeasible()
        if answer.values is not None:
            value = np.full(problem.time_s.shape, -1.0)
            value[group, setting] = answer.values
            choice = value.argmax(axis=1)
        else:  # stopped before it had any
            choice = problem.time_s.argmin(axis=1)
            if not _fits(problem, choice):
                return infeasible()
        return solution_of(
            problem,
            choice,
            status=Status.OPTIMAL if answer.optimal else Status.BOUNDED,
            bound_j=max(0.0, answer.bound) * energy_unit,
        )


def _fits(problem: Problem, choice: Ints) -> bool:
    quanta = Quanta.of(problem)
    return int(quanta.time[np.arange(len(choice)), choice].sum()) <= quanta.budget


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
        program = Program(
            cost=flow.energy / energy_unit,
            whole=nodes,
            lower=np.append(equal, [-math.inf] * 2),
            upper=np.append(equal, [budget, float(most)]),
            start=matrix.indptr,
            row=matrix.indices,
            value=matrix.data,
        )
        answer = solve(program, gap=self.gap, time_limit_s=self.time_limit_s)
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
        return best.answer(bound_j - TOLERANCE * abs(bound_j))

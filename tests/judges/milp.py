"""HiGHS, a general solver, given the knapsack: comparison and second opinion.

HiGHS is in the extra ``bench``.

Shape letters: V variables, R rows, Z entries that are not zero; G groups, S settings.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.solvers import Problem, Solution, costed, infeasible
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


def _model(highspy: Any, program: Program) -> Any:
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


def _loaded() -> Any:
    try:
        import highspy
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
        return costed(
            problem,
            choice,
            Status.OPTIMAL if answer.optimal else Status.BOUNDED,
            max(0.0, answer.bound) * energy_unit,
        )


def _fits(problem: Problem, choice: Ints) -> bool:
    quanta = Quanta(problem)
    return int(quanta.time[np.arange(len(choice)), choice].sum()) <= quanta.budget

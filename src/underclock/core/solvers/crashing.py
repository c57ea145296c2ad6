"""The trade-off of time and cost as a linear program, and who solves it.

HiGHS comes with scipy and begins anew at every time. Where `highspy` is installed (the extra
``job``) one time's basis is the next one's start, which takes a tenth of that along a frontier.

Shape letters: A activities, E waits, Q pieces of the curves of all activities, V = 2 A + Q
variables.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csc_array

from underclock.arrays import Floats, Ints

_TOLERANCE = 1e-9
_MANY = 4_000  # activities beyond which a point inside is there before the simplex method is


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What a solver says; nothing of it need be true.

    Attributes:
        flow_w: Multiplier of each wait. Shape (E,).
        source_w: Of each activity's not beginning before 0. Shape (A,).
        sink_w: Of each activity's ending in time. Shape (A,).
    """

    duration_s: Floats
    flow_w: Floats
    source_w: Floats
    sink_w: Floats


class Engine(Protocol):
    """Anything that suggests durations and multipliers."""

    def at(self, time_s: float) -> Suggestion | None:
        """Return what costs least where all ends within a time that is long enough, if known."""
        ...


@dataclass(frozen=True, kw_only=True)
class Program:
    """When each activity begins and ends, and how far it goes along each piece of its curve.

    Attributes:
        of: Activity of each piece. Shape (Q,).
        length_s: Of each piece. Shape (Q,).
        slope_w: Cost by time along it, weights included. Shape (Q,).
        waits_of: Shape (E,).
        waits_on: Shape (E,).
        lag_s: Shape (E,).
    """

    shortest_s: Floats
    of: Ints
    length_s: Floats
    slope_w: Floats
    waits_of: Ints
    waits_on: Ints
    lag_s: Floats

    @cached_property
    def units(self) -> tuple[float, float]:
        """A second and a watt in which numbers are around one, as tolerances are absolute."""
        return float(self.length_s.mean()), float(-self.slope_w.min()) or 1.0

    @property
    def cost(self) -> Floats:
        """Of the variables: begins, ends, pieces. Shape (V,)."""
        slopes: Floats = self.slope_w / self.units[1]
        return np.concatenate([np.zeros(2 * len(self.shortest_s)), slopes])

    def most(self, time_s: float) -> Floats:
        """Return what variables are at most; none is below 0. Shape (V,)."""
        ends_s = np.full(2 * len(self.shortest_s), time_s)
        most: Floats = np.concatenate([ends_s, self.length_s]) / self.units[0]
        return most

    @property
    def rows(self) -> tuple[csc_array, Floats]:
        """What ends take longer than begins, by pieces; what begins after ends, by lags.

        The first A rows equal their right side, the others are no less. Shapes (A + E, V), (A + E,)
        """
        count, waits, pieces = len(self.shortest_s), len(self.lag_s), len(self.of)
        each, after = np.arange(count), count + np.arange(waits)
        entries = (
            (-1.0, each, each),
            (1.0, each, count + each),
            (-1.0, self.of, 2 * count + np.arange(pieces)),
            (1.0, after, self.waits_of),
            (-1.0, after, count + self.waits_on),
        )
        values = np.concatenate([np.full(len(row), value) for value, row, _ in entries])
        row, column = (np.concatenate([entry[at] for entry in entries]) for at in (1, 2))
        shape = (count + waits, 2 * count + pieces)
        sides: Floats = np.concatenate([self.shortest_s, self.lag_s]) / self.units[0]
        return coo_array((values, (row, column)), shape=shape).tocsc(), sides

    def suggestion(self, values: Floats, of_rows: Floats, of_bounds: Floats) -> Suggestion:
        """Read an answer: variables, and multipliers of rows and of bounds."""
        count = len(self.shortest_s)
        unit_s, unit_w = self.units
        along = np.clip(values[2 * count :] * unit_s, 0.0, self.length_s)
        return Suggestion(
            duration_s=self.shortest_s + np.bincount(self.of, along, minlength=count),
            flow_w=np.maximum(of_rows[count:], 0.0) * unit_w,
            source_w=np.maximum(of_bounds[:count], 0.0) * unit_w,
            sink_w=np.maximum(-of_bounds[count : 2 * count], 0.0) * unit_w,
        )


class Anew:
    """scipy's HiGHS."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.rows, self.sides = program.rows

    def at(self, time_s: float) -> Suggestion | None:
        """Begin anew at this time."""
        program, count = self.program, len(self.program.shortest_s)
        most = program.most(time_s)
        rows = self.rows.tocsr()
        answer = linprog(
            program.cost,
            A_ub=-rows[count:],
            b_ub=-self.sides[count:],
            A_eq=rows[:count],
            b_eq=self.sides[:count],
            bounds=np.column_stack([np.zeros_like(most), most]),
            method="highs-ipm" if count > _MANY else "highs-ds",
            options={
                "primal_feasibility_tolerance": _TOLERANCE,
                "dual_feasibility_tolerance": _TOLERANCE,
            },
        )
        if answer.x is None:
            return None
        equal_w, other_w, lower_w, upper_w = (
            np.asarray(each.marginals, dtype=np.float64)
            for each in (answer.eqlin, answer.ineqlin, answer.lower, answer.upper)
        )
        return program.suggestion(answer.x, np.append(equal_w, -other_w), lower_w + upper_w)


class Onwards:
    """HiGHS by `highspy`: from each time to the next."""

    def __init__(self, program: Program, highspy: Any) -> None:  # noqa: ANN401 - untyped
        self.program = program
        rows, sides = program.rows
        count = len(program.shortest_s)
        model = highspy.HighsLp()
        model.num_row_, model.num_col_ = rows.shape
        model.col_cost_ = program.cost
        model.col_lower_, model.col_upper_ = np.zeros(rows.shape[1]), program.most(0.0)
        model.row_lower_ = sides
        model.row_upper_ = np.where(np.arange(len(sides)) < count, sides, highspy.kHighsInf)
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_, model.a_matrix_.index_ = rows.indptr, rows.indices
        model.a_matrix_.value_ = rows.data
        self.highs = highspy.Highs()
        for name, value in (
            ("output_flag", False),
            ("primal_feasibility_tolerance", _TOLERANCE),
            ("dual_feasibility_tolerance", _TOLERANCE),
            ("solver", "simplex"),
        ):
            self.highs.setOptionValue(name, value)
        self.highs.passModel(model)

    def at(self, time_s: float) -> Suggestion | None:
        """Go on from where the last time ended."""
        ends = np.arange(2 * len(self.program.shortest_s), dtype=np.int32)
        most = self.program.most(time_s)[ends]
        self.highs.changeColsBounds(len(ends), ends, np.zeros_like(most), most)
        self.highs.run()
        answer = self.highs.getSolution()
        if not (answer.value_valid and answer.dual_valid):
            return None
        told = (answer.col_value, answer.row_dual, answer.col_dual)
        return self.program.suggestion(*map(np.asarray, told))


def engine_of(program: Program, *, times: int) -> Engine:
    """Return who answers soonest: for few times of a large network, beginning anew does."""
    few = 1 if len(program.shortest_s) <= _MANY else 8
    if times > few:
        try:
            import highspy  # noqa: PLC0415 - an extra
        except ImportError:
            return Anew(program)
        return Onwards(program, highspy)
    return Anew(program)

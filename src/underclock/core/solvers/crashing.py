"""The trade-off of time and cost as a linear program, solved and proven.

For few times an interior point method that uses the network. Where `highspy` is installed (the
extra ``job``) HiGHS answers for many: one time's basis is the next one's start, so that each but
the first takes a hundredth of that. Nothing that they say is believed: durations are cut to what
the network allows, and multipliers are made a flow whose cost is a bound by itself (`tradeoff`).

Shape letters: A activities, E waits, Q pieces of the curves of all activities, V = 2 A + Q
variables, P = E + 2 A + 2 Q amounts that are not negative.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy

from underclock.arrays import Floats
from underclock.core.solvers.problems import SLACK
from underclock.core.solvers.tradeoff import TradeoffProblem
from underclock.records import Status

PROVEN = 1e-9
"""Fraction of the costs at stake up to which a plan counts as the least."""
_TOLERANCE = 1e-9
_FEW = 2  # times: for more, HiGHS is there sooner
_STEPS, _WORSE = 60, 3  # most; most that bring nothing, where rounding lets them fall no further
_NEAR, _FAR = 3e-10, 1e-4  # of the cost and the time: off by so much steps end; is no answer
_INSIDE = 0.995  # of the way to where an amount is 0
_ROUNDING = 1e-12  # of a diagonal, by which a singular matrix is made regular
_STIFF = 1e-10  # what an activity without a curve gives, as a fraction of what curves give


Suggestion = tuple[Floats, Floats, Floats, Floats]
"""What a solver says, and nothing of it need be true: duration of each activity in s, (A,), and
multipliers in W of each wait, (E,), of activities' not beginning before 0 and of their ending in
time, (A,)."""


class Engine(Protocol):
    """Anything that suggests durations and multipliers."""

    def at(self, time_s: float) -> Suggestion | None:
        """Return what costs least where all ends within a time that is long enough, if found."""
        ...


class _Program:
    """When each activity begins and ends, and how far it goes along each piece of its curve."""

    def __init__(self, problem: TradeoffProblem) -> None:
        self.waits_of, self.waits_on = problem.waits_of, problem.waits_on
        self.shortest_s, self.lag_s = problem.shortest_s, problem.lag_s
        pieces = [
            (
                np.repeat(members, len(curve.slope_w)),
                *np.tile((np.diff(curve.time_s), curve.slope_w), len(members)),
            )
            for curve, members in zip(problem.curves, problem.members, strict=True)
        ]
        # Of each piece, (Q,): its activity and its length.
        self.of, self.length_s, slope_w = map(np.concatenate, zip(*pieces, strict=True))
        slope_w = slope_w * problem.weight[self.of]
        # A second and a watt in which numbers are around one, as tolerances are absolute; and the
        # cost of the variables: begins, ends, pieces. Shape (V,).
        self.units = float(self.length_s.mean()), float(-slope_w.min()) or 1.0
        self.cost = np.append(np.zeros(2 * len(self.shortest_s)), slope_w / self.units[1])


class Interior:
    """A primal-dual interior point method (Mehrotra 1992) on the network.

    The amounts: how much earlier than it must each activity ends, for each wait and at the end, and
    begins; what each piece is gone along, and what is left of it. Each has a multiplier, and their
    products are driven to 0. Of a step's equations all is eliminated but when activities begin:
    what is left is a Laplacian of the network, which is sparse.
    """

    def __init__(self, problem: TradeoffProblem) -> None:
        self.program = program = _Program(problem)
        unit_s, _ = program.units
        self.shortest, self.length = program.shortest_s / unit_s, program.length_s / unit_s
        self.rooms = len(program.lag_s) + 2 * len(program.shortest_s)
        self.stake = float(-program.cost[2 * len(self.shortest) :] @ self.length)

    @np.errstate(all="ignore")
    def at(self, time_s: float) -> Suggestion | None:
        """Begin anew at this time."""
        if not self.stake:
            return None
        program, rooms, count = self.program, self.rooms, len(self.shortest)
        unit_s, unit_w = program.units
        end = time_s / unit_s
        least = np.concatenate([program.lag_s / unit_s, np.zeros(count), np.full(count, -end)])
        begins = np.full(count, 0.3 * end)
        ends = begins + self.shortest + self._taken(0.5 * self.length)
        room = np.maximum(self._rooms(begins, ends) - least, 1.0)
        amounts = np.concatenate([room, 0.5 * self.length, 0.5 * self.length])
        multipliers, best, worse, answer = np.ones(len(amounts)), np.inf, 0, None
        for _ in range(_STEPS):
            along = amounts[rooms : rooms + len(self.length)]
            ends = begins + self.shortest + self._taken(along)
            missing = self._rooms(begins, ends) - least - amounts[:rooms]
            mean = float(amounts @ multipliers) / len(amounts)
            off = max(mean * len(amounts) / self.stake, float(np.abs(missing).max()) / end)
            if off < min(best, _FAR):
                answer = along, multipliers[:rooms]
            worse = 0 if off < 0.5 * best else worse + 1
            best = min(best, off)
            ended = off < _NEAR or (worse > _WORSE and answer)
            step = None if ended else self._newton(amounts, multipliers, missing)
            if step is None:
                break
            _, more, dearer = step(-amounts * multipliers)
            ahead = amounts + _reach(amounts, more) * more
            ahead_mean = ahead @ (multipliers + _reach(multipliers, dearer) * dearer) / len(ahead)
            aim = (ahead_mean / mean) ** 3 * mean - amounts * multipliers - more * dearer
            later, more, dearer = step(aim)
            part = _INSIDE * _reach(amounts, more)
            begins, amounts = begins + part * later, amounts + part * more
            multipliers = multipliers + _INSIDE * _reach(multipliers, dearer) * dearer
        if answer is None:
            return None
        taken_s = self._taken(np.minimum(answer[0] * unit_s, program.length_s))
        waits, source, sink = np.split(answer[1] * unit_w, [rooms - 2 * count, rooms - count])
        return program.shortest_s + taken_s, waits, source, sink

    def _taken(self, along: Floats) -> Floats:
        """Add up an amount of each piece by activity. Shape (A,)."""
        taken = np.bincount(self.program.of, along, minlength=len(self.shortest))
        return taken.astype(np.float64, copy=False)

    def _rooms(self, begins: Floats, ends: Floats) -> Floats:
        """From ends to begins of those who wait, from 0 to begins, from ends to 0."""
        program = self.program
        return np.concatenate([begins[program.waits_of] - ends[program.waits_on], begins, -ends])

    def _pulls(self, multipliers: Floats) -> tuple[Floats, Floats]:
        """Add up multipliers of rooms by begins and by ends: the transpose. Shapes (A,)."""
        program, count = self.program, len(self.shortest)
        waits, source, sink = np.split(multipliers, [len(program.lag_s), self.rooms - count])
        return (
            np.bincount(program.waits_of, waits, minlength=count) + source,
            -np.bincount(program.waits_on, waits, minlength=count) - sink,
        )

    def _newton(
        self, amounts: Floats, multipliers: Floats, missing: Floats
    ) -> Callable[[Floats], tuple[Floats, Floats, Floats]] | None:
        """Return what makes of changes of products those of begins, amounts and multipliers."""
        program, rooms, count = self.program, self.rooms, len(self.shortest)
        of, on, each = program.waits_of, program.waits_on, np.arange(count)
        parts = [rooms, rooms + len(self.length)]
        weight, low, high = np.split(multipliers / amounts, parts)
        by_begin, by_end = self._pulls(multipliers[:rooms])
        _, down, up = np.split(multipliers, parts)
        uneven = program.cost[2 * count :] - by_end[program.of] - down + up
        give = 1.0 / (low + high)
        stiff = 1.0 / (self._taken(give) + _STIFF)
        waits, source, sink = np.split(weight, [len(on), rooms - count])
        links = scipy.sparse.coo_array(
            (np.concatenate([stiff, waits]), (np.append(each, of), np.append(each, on))),
            shape=(count, count),
        ).tocsr()
        at_end = stiff + np.bincount(on, waits, minlength=count) + sink
        across = (links @ scipy.sparse.diags_array(1.0 / at_end) @ links.T).tocsc()
        # The diagonal without cancellation: what rows sum to is known.
        across.setdiag(0.0)
        diagonal = source + links @ (sink / at_end) + across.sum(axis=1)
        matrix, factor = scipy.sparse.diags_array(diagonal) - across, None
        for more in (0.0, _ROUNDING):
            if factor is None:
                with suppress(RuntimeError):  # singular to rounding
                    factor = scipy.sparse.linalg.splu(
                        (matrix + scipy.sparse.diags_array(more * diagonal)).tocsc(),
                        permc_spec="MMD_AT_PLUS_A",
                        diag_pivot_thresh=0.0,
                        options={"SymmetricMode": True},
                    )
        if factor is None:  # pragma: no cover - singular to rounding, twice
            return None

        def step(wanted: Floats) -> tuple[Floats, Floats, Floats]:
            by_room, by_low, by_high = np.split(wanted / amounts, parts)
            pull = by_low - by_high - uneven
            yields = stiff * self._taken(give * pull)
            more_begin, more_end = self._pulls(by_room - weight * missing)
            right, right_end = by_begin + by_end - yields + more_begin, yields + more_end
            later = factor.solve(right + links @ (right_end / at_end))
            later_end = (right_end + links.T @ later) / at_end
            room = self._rooms(later, later_end) + missing
            flow = yields - stiff * (later_end - later)
            along = give * (pull - flow[program.of])
            more = np.concatenate([room, along, -along])
            return later, more, (wanted - multipliers * more) / amounts

        return step


def _reach(amounts: Floats, more: Floats) -> float:
    """Return the part of a change, at most all, at which the first amount is 0."""
    return float(min(1.0, 1.0 / max((-more / amounts).max(), 1e-300)))


class Onwards:
    """HiGHS by `highspy`: from each time to the next."""

    def __init__(self, problem: TradeoffProblem, highspy: Any) -> None:  # noqa: ANN401 - untyped
        self.program = program = _Program(problem)
        # What ends take longer than begins, by pieces, equals its side; what begins after ends, by
        # lags, is no less. Shapes (A + E, V), (A + E,).
        count, waits, pieces = len(program.shortest_s), len(program.lag_s), len(program.of)
        each, after = np.arange(count), count + np.arange(waits)
        entries = (
            (-1.0, each, each),
            (1.0, each, count + each),
            (-1.0, program.of, 2 * count + np.arange(pieces)),
            (1.0, after, program.waits_of),
            (-1.0, after, count + program.waits_on),
        )
        values = np.concatenate([np.full(len(row), value) for value, row, _ in entries])
        places = tuple(np.concatenate([entry[at] for entry in entries]) for at in (1, 2))
        shape = (count + waits, 2 * count + pieces)
        rows = scipy.sparse.coo_array((values, places), shape=shape).tocsc()
        sides = np.concatenate([program.shortest_s, program.lag_s]) / program.units[0]
        model = highspy.HighsLp()
        model.num_row_, model.num_col_ = rows.shape
        model.col_cost_ = program.cost
        model.col_lower_ = np.zeros(rows.shape[1])
        model.col_upper_ = np.append(np.zeros(2 * count), program.length_s / program.units[0])
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
        program, (unit_s, unit_w) = self.program, self.program.units
        count = len(program.shortest_s)
        ends = np.arange(2 * count, dtype=np.int32)
        self.highs.changeColsBounds(
            len(ends), ends, np.zeros(len(ends)), np.full(len(ends), time_s / unit_s)
        )
        self.highs.run()
        answer = self.highs.getSolution()
        if not (answer.value_valid and answer.dual_valid):
            return None
        values, of_bounds = np.asarray(answer.col_value), np.asarray(answer.col_dual) * unit_w
        along = np.clip(values[2 * count :] * unit_s, 0.0, program.length_s)
        return (
            program.shortest_s + np.bincount(program.of, along, minlength=count),
            np.maximum(np.asarray(answer.row_dual)[count:], 0.0) * unit_w,
            np.maximum(of_bounds[:count], 0.0),
            np.maximum(-of_bounds[count : 2 * count], 0.0),
        )


def engine_of(problem: TradeoffProblem, *, times: int) -> Engine:
    """Return the solver that answers soonest for a number of times."""
    if times <= _FEW:
        return Interior(problem)
    try:
        import highspy  # noqa: PLC0415 - an extra
    except ImportError:
        return Interior(problem)
    return Onwards(problem, highspy)


class TradeoffSolution(NamedTuple):
    """The least cost within a time, and why it cannot be less."""

    status: Status  # optimal to `PROVEN`, feasible within the gap to ``bound_j``, or infeasible
    duration_s: Floats  # of each activity; empty when infeasible, (A,)
    time_s: float  # when the last ends; ``inf`` when infeasible
    cost_j: float  # likewise
    bound_j: float  # no plan that ends within the time asked for costs less


def solve_tradeoff(
    problem: TradeoffProblem, times_s: Sequence[float], engine: Engine | None = None
) -> tuple[TradeoffSolution, ...]:
    """Return the least cost of ending within each of the times, in their order, with a proof.

    Plans and multipliers are the engine's, `engine_of` unless given.
    """
    least_s, most_s = problem.range_s
    if engine is None and least_s < most_s:
        engine = engine_of(problem, times=len(times_s))
    solved = {}
    for at in sorted(range(len(times_s)), key=lambda at: -times_s[at]):  # the longest first
        if not times_s[at] >= least_s * (1.0 - SLACK):
            nothing, inf = np.zeros(0), math.inf
            solved[at] = TradeoffSolution(Status.INFEASIBLE, nothing, inf, inf, inf)
            continue
        time_s = max(times_s[at], least_s)
        said = engine.at(time_s) if engine is not None and time_s < most_s else None
        if said is None:
            none_w = np.zeros_like(problem.weight)
            said = problem.longest_s, np.zeros_like(problem.lag_s), none_w, none_w
        duration_s = problem.within(said[0], time_s)
        cost_j = problem.cost_j(duration_s)
        bound_j = min(cost_j, problem.bound_j(*said[1:], time_s))
        proven = cost_j - bound_j <= PROVEN * problem.at_stake_j
        status = Status.OPTIMAL if proven else Status.BOUNDED
        time_s = problem.makespan_s(duration_s)
        solved[at] = TradeoffSolution(status, duration_s, time_s, cost_j, bound_j)
    return tuple(solved[at] for at in range(len(times_s)))

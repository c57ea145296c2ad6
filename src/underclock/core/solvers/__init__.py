"""Solvers of what plans come down to, behind one entry: `solve`."""

from underclock.core.solvers.cyclic import Judge, Judged
from underclock.core.solvers.cyclic_paths import once_through
from underclock.core.solvers.entry import Effort, solve
from underclock.core.solvers.hull import least_product, subsampled, supported
from underclock.core.solvers.power_windows import BelowLimit, WindowedGroups
from underclock.core.solvers.problems import (
    Problem,
    SequenceProblem,
    Solution,
    cost_of,
    infeasible,
    solution_of,
    violations,
)
from underclock.core.solvers.tradeoff import (
    Sweep,
    TradeCurve,
    TradeoffProblem,
    TradeoffSolution,
    solve_tradeoff,
)

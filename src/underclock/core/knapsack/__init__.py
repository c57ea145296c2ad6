"""One setting per group, least energy within a time budget.

* `problem`: the problem, the answer, the interface
* `exact`: the proven optimum, on `hull`, `core`, `stages` and `labels`
* `frontier`: the time-energy frontier, and the objectives whose optimum lies on it
"""

from underclock.core.knapsack.exact import Exact
from underclock.core.knapsack.problem import Problem, Solution, Solver

__all__ = ["Exact", "Problem", "Solution", "Solver"]

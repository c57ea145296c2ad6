"""One setting per group, least energy within a time budget.

* `base`: the problem, the answer, the interface
* `exact`: the proven optimum, on `hull`
* `brute`: every combination, to judge the others by
* `milp`: the same problem given to HiGHS (extra ``milp``), to compare with; `highs` runs it
"""

from underclock.core.knapsack.exact import Exact
from underclock.core.knapsack.problem import Problem, Solution, Solver

__all__ = ["Exact", "Problem", "Solution", "Solver"]

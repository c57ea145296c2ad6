"""One setting per group, least energy within a time budget.

* `base`: the problem, the answer, the interface
* `exact`: the proven optimum, on `hull`
* `brute`: every combination, to judge the others by
* `milp`: the same problem given to HiGHS (extra ``milp``), to compare with; `highs` runs it
"""

from underclock.core.solvers.base import Problem, Solution, Solver
from underclock.core.solvers.exact import Exact

__all__ = ["Exact", "Problem", "Solution", "Solver"]

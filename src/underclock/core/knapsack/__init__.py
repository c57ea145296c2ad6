"""One setting per group, least energy within a time budget.

* `problem`: the problem, the answer, the interface
* `exact`: the proven optimum, on `hull`, `core`, `stages` and `labels`
* `power`: the best choice below a power limit, on `windows`
* `frontier`: the time-energy frontier, and the objectives whose optimum lies on it
"""

from underclock.core.knapsack.exact import Exact
from underclock.core.knapsack.power import BelowLimit, WindowedGroups
from underclock.core.knapsack.problem import Problem, Solution, Solver
from underclock.core.knapsack.windows import PowerWindows

__all__ = [
    "BelowLimit",
    "Exact",
    "PowerWindows",
    "Problem",
    "Solution",
    "Solver",
    "WindowedGroups",
]

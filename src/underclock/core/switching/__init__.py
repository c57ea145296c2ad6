"""One setting per invocation of a step that repeats, with what changing clocks costs.

* `problem`: the problem, the answer, the rules, the interface
* `sequence`: the proven optimum, on `lap`, `viterbi`, `dual`, `guess`, `pieces` and `join`
* `brute`: every schedule, to judge the others by
* `highs`: the same problem given to HiGHS (extra ``milp``), to compare with
* `rivals`: simpler rules, to compare with
"""

from underclock.core.switching.exact import CyclicExact
from underclock.core.switching.problem import (
    Schedule,
    Scheduler,
    SequenceProblem,
    cost_of,
    violations,
)

__all__ = ["CyclicExact", "Schedule", "Scheduler", "SequenceProblem", "cost_of", "violations"]

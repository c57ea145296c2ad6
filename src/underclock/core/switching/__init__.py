"""One setting per invocation of a step that repeats, with what changing clocks costs.

* `problem`: the problem, the answer, the rules, the interface
* `exact`: the proven optimum, on `cycle`, `viterbi`, `dual`, `warm_start`, `incumbent`,
  `decomposition` and `merge`
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

"""One setting per invocation of a step that repeats, with what changing clocks costs.

* `power`: the best schedule below a power limit, window by window
* `problem`, `schedule`: the problem; the answer, the rules, the interface
* `exact`: the proven optimum, by the steps of
  * `ring`, `lagrangian`, `viterbi`, `dual`, `warm_start`: shortest paths, and the best multipliers
  * `incumbent`, `crossover`: the best schedule so far
  * `shortest_cycle`, `labels`, `label_rules`, `decomposition`, `merge`: what may still be better
"""

from underclock.core.switching.exact import CyclicExact
from underclock.core.switching.power import WindowedSequence
from underclock.core.switching.problem import SequenceProblem
from underclock.core.switching.schedule import (
    Schedule,
    Scheduler,
    cost_of,
    infeasible,
    violations,
)

__all__ = [
    "CyclicExact",
    "Schedule",
    "Scheduler",
    "SequenceProblem",
    "WindowedSequence",
    "cost_of",
    "infeasible",
    "violations",
]

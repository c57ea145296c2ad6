"""Which clocks to hold: strategies side by side, under a time budget kept with confidence.

* `goal`: what to minimise, within which budget
* `strategies`: auto, one fixed clock, per pass, per kernel, side by side
* `best_choice`: the best choice of clocks for one of them
* `choices`: what a choice of clocks costs, and how arms and plans tell of it
* `chance_constraint`: a time budget that holds with 95 % confidence
* `under_cap`: choices that the power cap holds, what is proven of them, the fastest step
* `sequence`, `misses`: a step whose changes of clocks take time, stated as a problem
* `achievable`, `latency_curve`, `proposals`: what a GPU can follow, what others could, and what
  longer segments would bring

What is found for a stricter question is a candidate for a laxer one: a coarser arm, less time, a
longer latency, a lower power limit.
"""

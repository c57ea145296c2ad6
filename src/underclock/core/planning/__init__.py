"""Which clocks to hold: strategies side by side, under a time budget kept with confidence.

* `goal`: what to minimise, within which budget
* `strategies`: auto, one fixed clock, per pass, per kernel, side by side
* `best_choice`: the best choice of clocks for one of them
* `choices`: what a choice of clocks costs, and how arms and plans tell of it
* `chance_constraint`: a time budget that holds with 95 % confidence
* `under_cap`: choices that the power cap holds, and what is proven of them
* `fastest`, `power_curve`: the fastest step within a power limit, and within others
* `sequence`: a step whose changes of clocks take time, stated as a problem
* `achievable`, `latency_curve`, `proposals`: what a GPU can follow, what others could, and what
  longer segments would bring
"""

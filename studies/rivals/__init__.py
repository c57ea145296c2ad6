"""Other ways to solve the planning problems: they judge the planner in tests and benchmarks.

* `knapsack_brute`, `schedule_brute`: every choice, every schedule
* `knapsack_milp`, `schedule_milp`: the same problems given to HiGHS, which `highs` runs
* `rules`: simpler rules for schedules
"""

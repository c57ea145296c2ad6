"""Other ways to solve the planning problems: they judge the planner in tests and benchmarks.

* `brute`: every choice, every schedule
* `milp`: the knapsack given to HiGHS
"""

"""Other ways to solve the planning problems: judges of the planner in tests, rivals in benchmarks.

* `brute`, `cyclic_brute`: every combination, every schedule
* `milp`, `cyclic_milp`: the same problems given to HiGHS; `highs` runs it
* `baselines`: simpler rules for schedules
"""

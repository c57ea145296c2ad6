"""Other ways to solve the planning problems: they judge the planner in tests and benchmarks.

* `brute`: every choice, every schedule
* `milp`: the same problems given to HiGHS
* `phillips`: Perseus' solver, for jobs
* `rules`: simpler rules for schedules
"""

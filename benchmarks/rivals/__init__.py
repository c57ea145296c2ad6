"""Other ways to solve the planning problems: judges of the planner in tests, rivals in benchmarks."""

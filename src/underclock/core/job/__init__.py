"""Ranks that wait for each other: when things happen, what that costs, and what may be slower.

* `schedules`: pipelines laid out by name
* `network`: who waits for whom, when everything begins and ends, and which ranks are equal
* `tables`: a job as numbers, and what given clocks come to
* `stage_profiles`: what the instructions of a stage cost, from what its kernels do
* `relaxation`: the least energy within any time, rows mixed, and clocks that groups share
* `clock_choices`: clocks for all, a rank, a direction or an instruction
* `monte_carlo`: what clocks come to over boards that differ and times with errors
* `planning`: ways of choosing side by side, and the frontier over time
"""

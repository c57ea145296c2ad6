"""Ranks that wait for each other: when things happen, what that costs, and what may be slower.

* `network`: who waits for whom; when everything begins and ends
* `schedules`: pipelines laid out by name
* `tables`: a job as numbers, and what given clocks come to; `timeline`: when, for pages and traces
* `sharing`: equal ranks, planned once
* `relaxation`: the least energy within any time, rows mixed
* `groups`, `ways`: clocks that are shared, all by name
* `scatter`: what clocks come to over boards that differ and times that are not known exactly
* `planning`: ways of choosing side by side, and the frontier over time
"""

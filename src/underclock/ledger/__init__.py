"""What runs saved: a line for each GPU of a run, in the user's own SQLite file, and their sums.

* `entry`: what a run's GPU drew, and what its steps would have drawn at auto
* `store`: the file, written by many jobs at once
* `totals`: sums by job, GPU or month, each GPU's time counted once
* `rates`: what energy costs and emits, as the user said
* `openmetrics`: numbers as Prometheus reads them

Conductors write, ``underclock saved`` reads.
"""

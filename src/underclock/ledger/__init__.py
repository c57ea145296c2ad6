"""What runs saved: a line for each GPU of a run, in the user's own SQLite file, and their sums.

* `entries`: what a run's GPU drew, what its steps would have drawn at auto, and sums of that by
  job, GPU or month, each GPU's time counted once
* `store`: the file, written by many jobs at once
* `rates`: what energy costs and emits, as the user said
* `openmetrics`: numbers as Prometheus reads them

Conductors write, ``underclock saved`` reads.
"""

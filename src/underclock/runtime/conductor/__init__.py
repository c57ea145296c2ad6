"""The process that sets clocks while another one trains, and what it tells.

* `process`: arms, works, undoes; `starting`: starts one; `serving`: one for users who may not set,
  with the `leases` of each GPU and the `owners` that may have them
* `hold`: work that sets once; `follow`: work that holds a plan, by a `follower` of each GPU's page,
  which goes by `looking` at the page and by `gauges`
* `run_files`: the files of a run; `telemetry`, `summary`, `metrics`, `live`: what it tells
"""

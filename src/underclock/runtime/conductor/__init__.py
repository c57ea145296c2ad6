"""The process that sets clocks while another one trains, and what it tells.

* `process`: arms, works, undoes; `starting`: starts one; `serving`: one for users who may not set
* `hold`: work that sets once; `follow`: work that holds a plan, by `looking` at pages and `gauges`
* `run_files`: the files of a run; `telemetry`, `summary`, `metrics`, `live`: what it tells
"""

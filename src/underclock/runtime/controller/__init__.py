"""The process that sets clocks while another one trains, and what it tells.

* `entry`: where it begins; `process`: arms, works, undoes; `starting`: starts one
* `follow`: work that holds a plan, by `polling` mark pages and by `gauges`
* `run_files`: the files of a run; `log`: what it tells
"""

"""The process that sets clocks while another one trains, and what it writes.

* `starting`: starts one; `process`: arms, works, undoes
* `follow`: work that holds a plan, by `polling` mark pages and by `gauges`; `nodes` over machines
* `governor`: work that holds a server's clocks
* `run_files`: the files of a run; `log`, `booking`: what it writes
"""

"""A job learned from pipelines that were executed under several plans of clocks.

`executed` joins `pass_times`, `stage_power` and `transfers`, all learned from the same `runs`.
"""

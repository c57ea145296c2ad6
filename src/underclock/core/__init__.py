"""Pure maths: samples in, costs and choices out. No clock, disk, device or hidden randomness.

* `costs`: samples to one cost per kernel and setting
* `groups`: which kernels share a setting, and what the shared setting then costs
* `solvers`: one setting per group, least energy within a time budget
* `frontier`: the time-energy frontier, and the objectives it solves exactly
* `planning`: the arms of a plan, side by side
* `pairs`: repeats of two arms, all pairs
"""

"""What is known of GPU models, as data with its sources; simulator, fit and prediction read it.

* `catalogue`: a model by its name, or from a file
* `models`: one GPU model: clock tables, constants, its own kernels, how far to trust it
* `specs`: what is published of each; `data/`: the same with constants fitted to a measured sweep
* `sensors`, `switching`: what boards measure with, and what a change of clocks takes
"""

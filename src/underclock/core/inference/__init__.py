"""Noisy runs of kernels to what every setting costs, and how surely: one Gaussian model.

`curves` are drawn from the physics, `field` conditions them on rows, `sizes` says how large its
parts are, `runs` how much each run counts, `chosen` what choosing makes of it, `joint` what all of
that means for a choice of clocks; `table` joins them.
"""

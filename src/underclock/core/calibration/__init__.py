"""The constants of a GPU model, fitted to a measured sweep; the simulator runs on them.

* `sweep`: a measured sweep as arrays, and the constants that explain it best
* `gpu`: the calibration, and how well it predicts
"""
